# Copyright The Lightning AI team.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.main_port import _claim_main_port, _serve_main_port
from tests_fabric.helpers import namespaces, port_thief
from tests_fabric.helpers.needs import is_wine, needs
from tests_fabric.helpers.scripts import (
    RECORD,
    WAIT_FOR,
    make_script,
    run_command,
    run_python,
    run_script,
    under_main_guard,
)

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

DEFINITIONS = f"""{WAIT_FOR}
import ipaddress
import sys
from datetime import timedelta

import torch

from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy


def meet(fabric):
    total = fabric.all_reduce(torch.tensor(float(fabric.global_rank + 1)), reduce_op="sum").item()
    names = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
    record("rank", rank=fabric.global_rank, total=total, **{{name: os.environ.get(name) for name in names}})


def launch(start_method="popen", devices=2, timeout=60, function=meet, **kwargs):
    strategy = DDPStrategy(start_method=start_method, timeout=timedelta(seconds=timeout))
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=strategy, **kwargs)
    if start_method == "popen":
        fabric.launch()
        function(fabric)
    else:
        fabric.launch(function)
"""

START_METHODS = [
    "popen",
    "spawn",
    pytest.param("fork", marks=needs(start_method="fork")),
    pytest.param("forkserver", marks=needs(start_method="forkserver")),
]


def run_launch(tmp_path, body, definitions="", args=(), **env):
    return run_script(tmp_path, RECORD, DEFINITIONS, definitions, under_main_guard(body), args=args, env=env)


def assert_met(run, world_size=2, times=1):
    assert run.returncode == 0, run.output
    ranks = run.of("rank")
    assert sorted(record["rank"] for record in ranks) == sorted(list(range(world_size)) * times), run.output
    assert {record["total"] for record in ranks} == {world_size * (world_size + 1) / 2}
    return ranks


@pytest.fixture
def taken_port():
    """A port of this machine on which the test process listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


OFFER_PORTS = f"""
import subprocess

import lightning.fabric.plugins.environments.lightning as environment

thief = subprocess.Popen(
    [sys.executable, {port_thief.__file__!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)


def offer(port):
    print(port, file=thief.stdin, flush=True)
    record("theft", outcome=thief.stdout.readline().strip())


def find_free_network_port(original=environment.find_free_network_port):
    port = original()
    offer(port)
    return port


def set_variable(self, name, value, original=type(os.environ).__setitem__):
    original(self, name, value)
    if name == "MASTER_PORT":
        offer(value)


if "LOCAL_RANK" not in os.environ and __name__ == "__main__":
    environment.find_free_network_port = find_free_network_port
    type(os.environ).__setitem__ = set_variable
"""

MEET_AND_LOOK = f"""
{namespaces.LISTENERS}


def meet_and_look(fabric):
    meet(fabric)
    fabric.barrier()
    if fabric.global_rank == 0:
        record_listeners()
    fabric.barrier()
"""

LEAVE_PORT_UNCLAIMED = """
import lightning.fabric.strategies.launchers.multiprocessing as multiprocessing_launcher
import lightning.fabric.strategies.launchers.subprocess_script as subprocess_launcher

multiprocessing_launcher._claim_main_port = subprocess_launcher._claim_main_port = lambda *_: None
"""


@needs(listener=True)
@pytest.mark.parametrize("start_method", START_METHODS)
def test_port_is_owned_from_choice_to_use(start_method, tmp_path):
    """A process that learns of the port the moment when it is chosen can't take it before rank 0 uses it."""
    run = run_launch(tmp_path, f"launch({start_method!r})\nthief.kill()", OFFER_PORTS)
    assert_met(run)
    assert {record["outcome"] for record in run.of("theft")} == {"lost"}


def test_port_without_claim_is_stolen(tmp_path):
    """The same thief breaks the run where the port is not claimed."""
    run = run_launch(tmp_path, "launch(timeout=5)\nthief.kill()", OFFER_PORTS + LEAVE_PORT_UNCLAIMED)
    assert run.returncode != 0
    assert "won" in {record["outcome"] for record in run.of("theft")}


def test_many_jobs_at_once(tmp_path):
    """Jobs that start at the same time on one machine do not get into each other's way."""
    jobs, times = (20, 10) if os.getenv("PL_RUN_LAUNCH_MATRIX") == "1" else (3, 1)
    for time in range(times):
        folders = [tmp_path / f"{time}-{job}" for job in range(jobs)]
        for folder in folders:
            folder.mkdir()
        with ThreadPoolExecutor(jobs) as executor:
            runs = list(executor.map(lambda folder: run_launch(folder, "launch(timeout=600)"), folders))
        ports = {assert_met(run)[-1]["MASTER_PORT"] for run in runs}
        assert len(ports) == jobs


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_one_node_listens_on_loopback_only(start_method, tmp_path):
    """Neither the store nor gloo can be reached from the network, also where the host name leads there."""
    namespaces.skip_without_namespaces()
    body = f"launch({start_method!r}, function=meet_and_look)"
    (tmp_path / "train.py").write_text(make_script(RECORD, DEFINITIONS, MEET_AND_LOOK, under_main_guard(body)))
    hosts = namespaces.write_hosts(tmp_path, machine="10.99.0.1")
    command = namespaces.on_machine("machine", hosts, "ip addr add 10.99.0.1/32 dev lo", [sys.executable, "train.py"])
    run = run_command(command, tmp_path, tmp_path / "records")
    assert_met(run)
    (listeners,) = run.of("listeners")
    assert len(listeners["listeners"]) >= 3  # the store, and gloo in each rank
    assert {host for host, _ in listeners["listeners"]} == {"127.0.0.1"}


def test_two_nodes(tmp_path):
    """With several nodes the store listens on all interfaces, and ranks of all nodes meet."""
    namespaces.skip_without_namespaces()
    body = "launch(num_nodes=2, function=meet_and_look)"
    (tmp_path / "train.py").write_text(make_script(RECORD, DEFINITIONS, MEET_AND_LOOK, under_main_guard(body)))
    hosts = namespaces.write_hosts(tmp_path, first="10.99.0.1", second="10.99.0.2")
    # The second machine's network is made by the first one, which waits until the second one has told its process
    script = f"""
    ip link add v1 type veth peer name v2
    ip addr add 10.99.0.1/24 dev v1
    ip link set v1 up
    mkfifo {tmp_path}/pid {tmp_path}/ready
    NODE_RANK=1 "$@" &
    """
    second = namespaces.on_machine(
        "second",
        hosts,
        f"echo $$ > {tmp_path}/pid\nread _ < {tmp_path}/ready\nip addr add 10.99.0.2/24 dev v2\nip link set v2 up",
        [sys.executable, "train.py"],
    )
    first = namespaces.on_machine(
        "first",
        hosts,
        script + f'read pid < {tmp_path}/pid\nip link set v2 netns "$pid"\necho > {tmp_path}/ready\n'
        f'"{sys.executable}" train.py\nwait "$!"\nexit "$?"',
        second,
    )
    run = run_command(first, tmp_path, tmp_path / "records", env={"MASTER_ADDR": "10.99.0.1", "MASTER_PORT": "29431"})
    assert_met(run, world_size=4)
    (listeners,) = run.of("listeners")
    assert ["::", 29431] in listeners["listeners"] or ["0.0.0.0", 29431] in listeners["listeners"]  # noqa: S104
    assert all(record["GLOO_SOCKET_IFNAME"] is None for record in run.of("rank"))


@needs(libuv=True)
def test_outer_launcher_is_left_alone(tmp_path):
    """Where torchrun has started the ranks, the meeting point is torchrun's."""
    (tmp_path / "train.py").write_text(make_script(RECORD, DEFINITIONS, under_main_guard("launch()")))
    args = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    run = run_python(args, tmp_path, tmp_path / "records")
    assert all(record["GLOO_SOCKET_IFNAME"] is None for record in assert_met(run))


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_taken_port_on_one_node(start_method, taken_port, tmp_path):
    """The job runs on another port, and the user reads who has the one that was asked for."""
    # A script that sets the variable does so in every rank
    definitions = f"os.environ['MASTER_PORT'] = '{taken_port}'"
    run = run_launch(tmp_path, f"launch({start_method!r})", definitions)
    ranks = assert_met(run)
    assert len({record["MASTER_PORT"] for record in ranks}) == 1
    assert ranks[0]["MASTER_PORT"] != str(taken_port)
    assert run.output.count(f"The main port {taken_port}") == 1
    assert f"process {os.getpid()}" in run.output or (is_wine() and "another process listens on it" in run.output)


def test_taken_port_on_several_nodes(taken_port, tmp_path):
    run = run_launch(tmp_path, "launch(num_nodes=2)", MASTER_PORT=str(taken_port))
    assert run.returncode != 0
    assert f"The main port {taken_port}, which the environment variable `MASTER_PORT` asks for" in run.output
    assert "no process was started" in run.output
    assert not run.of("rank")


def test_variable_that_is_no_port(tmp_path):
    run = run_launch(tmp_path, "launch()", MASTER_PORT="many")
    assert run.returncode != 0
    last_line = run.output.strip().splitlines()[-1]
    assert last_line.startswith("ValueError: The environment variable `MASTER_PORT` is 'many'")
    for variable in ("MASTER_PORT", "STANDALONE_PORT"):
        for value in ("0", "65536", "-1", "29500.0", ""):
            with mock.patch.dict(os.environ, {variable: value}), pytest.raises(ValueError, match=f"`{variable}` is"):
                _claim_main_port(LightningEnvironment(), num_nodes=1)


def test_every_rank_sets_another_port(tmp_path):
    """A rank whose ``MASTER_PORT`` is not its launcher's says so and stops."""
    definitions = "import random\nos.environ['MASTER_PORT'] = str(random.SystemRandom().randint(20000, 30000))"
    run = run_launch(tmp_path, "launch()", definitions)
    assert run.returncode != 0
    assert "RuntimeError: The environment variable `MASTER_PORT` is 2" in run.output
    assert not run.of("rank")


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_rank_that_does_not_come(start_method, tmp_path):
    """Rank 0 says which one it is, instead of waiting for half an hour or saying 'socket timeout'."""
    definitions = """
class AbsentStrategy(DDPStrategy):
    def _setup_distributed(self):
        if self.local_rank == 2:
            sys.exit()
        wait_for("rank 1", rank=1)  # then only rank 2 can be late
        super()._setup_distributed()


DDPStrategy = AbsentStrategy
"""
    run = run_launch(tmp_path, f"launch({start_method!r}, devices=3, timeout=20)", definitions)
    assert run.returncode != 0
    assert "Only 2 of 3 ranks came to" in run.output
    assert "Missing: rank 2." in run.output


@pytest.mark.parametrize("start_method", START_METHODS[:3])
def test_one_job_after_the_other(start_method, tmp_path):
    """Each job in a loop gets on, with a port that is not taken for the user's in the next one."""
    run = run_launch(tmp_path, f"for _ in range(3): launch({start_method!r})", args=["-W", "error::ResourceWarning"])
    ranks = assert_met(run, times=3)
    assert "can't be had" not in run.output
    assert "unclosed <socket" not in run.output
    if start_method != "popen":
        assert len({record["MASTER_PORT"] for record in ranks}) == 3


@pytest.mark.parametrize("start_method", START_METHODS[:3])
def test_process_group_is_made_again(start_method, tmp_path):
    """A process group that is destroyed leaves the port free for the next one, by Lightning or by torch itself."""
    definitions = """
def meet_again(fabric):
    meet(fabric)
    torch.distributed.destroy_process_group()
    wait_for("first")  # no rank may look for rank 0 before its old store is gone, with or without Lightning
    torch.distributed.init_process_group("gloo", rank=fabric.global_rank, world_size=2)
    meet(fabric)
    torch.distributed.destroy_process_group()
    wait_for("second")
    fabric.strategy.setup_environment()
    meet(fabric)
"""
    body = f"launch({start_method!r}, function=meet_again)"
    run = run_launch(tmp_path, body, definitions, args=["-W", "error::ResourceWarning"])
    assert_met(run, times=3)
    assert "unclosed <socket" not in run.output


OTHER_STRATEGY = """
class OtherStrategy(DDPStrategy):
    def _setup_distributed(self):
        self._set_world_ranks()
        torch.distributed.init_process_group("gloo", rank=self.global_rank, world_size=self.world_size)


DDPStrategy = OtherStrategy
"""


@pytest.mark.parametrize("start_method", START_METHODS[:3])
def test_other_libraries_make_the_process_group(start_method, tmp_path):
    """Strategies that make it without Lightning's help find rank 0's store at the port that was claimed."""
    assert_met(run_launch(tmp_path, f"launch({start_method!r})", OTHER_STRATEGY))


@pytest.mark.parametrize("start_method", START_METHODS[:2])
@pytest.mark.parametrize("definitions", ["", OTHER_STRATEGY], ids=["lightning", "other"])
def test_rank_exits_right_after_a_collective(definitions, start_method, tmp_path):
    """The threads of gloo have dropped all tensors when the interpreter ends, which they would abort otherwise."""
    definitions += """
def reduce_many(fabric):
    meet(fabric)
    torch.distributed.all_reduce_coalesced([torch.ones(1) for _ in range(20000)])
"""
    run = run_launch(tmp_path, f"launch({start_method!r}, function=reduce_many)", definitions)
    assert_met(run)


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_port_is_free_after_a_failure(start_method, tmp_path):
    """Neither an exception in the ranks nor one that is caught keeps the port."""
    body = f"""
    import socket

    try:
        launch({start_method!r}, function=fail)
    except Exception as ex:
        record("failure", message=str(ex))
    if {start_method!r} != "popen":
        with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
            record("free")
    """
    definitions = "def fail(fabric):\n    meet(fabric)\n    raise ValueError('on purpose')\n"
    run = run_launch(tmp_path, body, definitions, args=["-W", "error::ResourceWarning"])
    assert "on purpose" in run.of("failure")[0]["message"]
    assert "unclosed <socket" not in run.output
    assert len(run.of("free")) == (start_method != "popen")


def test_port_is_free_after_ctrl_c():
    """An interrupt while the main process waits for its ranks does not keep the port."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn")
    with mock.patch("torch.multiprocessing.start_processes", side_effect=KeyboardInterrupt) as start_processes:
        with pytest.raises(KeyboardInterrupt):
            fabric.launch(lambda fabric: None)
        assert start_processes.call_count == 1
    with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
        pass


def test_other_environment_after_a_job():
    """A cluster environment that chooses another meeting point gets nothing of an earlier job in the same process."""
    claim = _claim_main_port(LightningEnvironment(), num_nodes=1)
    assert claim is not None
    environment = mock.Mock(creates_processes_externally=False)
    assert _claim_main_port(environment, num_nodes=1) is None
    with socket.create_server(("127.0.0.1", claim.port)):
        _serve_main_port()


@pytest.mark.parametrize("use_libuv", ["0", pytest.param("1", marks=needs(libuv=True))])
def test_both_backends_of_the_store(use_libuv, tmp_path):
    assert_met(run_launch(tmp_path, "launch()", USE_LIBUV=use_libuv))


def test_libuv_that_takes_no_listener(tmp_path):
    """Releases of torch up to 2.7 can't give the socket to libuv."""
    definitions = """
from lightning.fabric.utilities import main_port


def make_store(*args, original=main_port._make_store, **kwargs):
    if "master_listen_fd" in kwargs and kwargs.get("use_libuv", True):
        record("refused")
        raise NotImplementedError
    return original(*args, **kwargs)


main_port._make_store = make_store
"""
    run = run_launch(tmp_path, "launch()", definitions, args=["-W", "error::ResourceWarning"])
    assert_met(run)
    assert len(run.of("refused")) == 1
    assert "unclosed <socket" not in run.output


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_store_that_takes_no_listener(start_method, tmp_path):
    """Release 2.0 of torch has to bind the port itself."""
    definitions = """
from lightning.fabric.utilities import main_port

main_port._takes_listener = lambda: False
"""
    assert_met(run_launch(tmp_path, f"launch({start_method!r})", definitions))


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_address_that_the_user_chooses(start_method, tmp_path):
    ranks = assert_met(run_launch(tmp_path, f"launch({start_method!r})", MASTER_ADDR="localhost"))
    assert {record["MASTER_ADDR"] for record in ranks} == {"localhost"}
