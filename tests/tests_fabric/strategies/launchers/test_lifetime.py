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
import itertools
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from lightning.fabric.strategies.launchers import failure_notes, parent_watch
from tests_fabric.helpers.needs import needs
from tests_fabric.helpers.scripts import DATA, WAIT_FOR, run_script, under_main_guard

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

# Processes that are not ended would run on until long after the time limit
DEFINITIONS = f"""{DATA}{WAIT_FOR}
import atexit
import signal
import subprocess
import threading

from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy

KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


class Endless(Numbers):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return super().__getitem__(0)


def launch(function, start_method="popen"):
    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(start_method=start_method))
    if start_method == "popen":
        fabric.launch()
        function(fabric)
    else:
        fabric.launch(function)


def use_workers(context):
    for _ in make_loader(Endless(), num_workers=2, multiprocessing_context=context):
        yield


def wait_for_end_of_script(fabric):
    # the launcher's script: there, nothing is left to do but to wait for the others
    if fabric.global_rank == 0:
        atexit.register(wait_for, "end")
    else:
        wait_for("end")


def wait_in_barrier(fabric):
    record("rank", rank=fabric.global_rank)
    fabric.barrier()
"""


def run_endless(tmp_path, definitions, body):
    return run_script(tmp_path, DEFINITIONS, definitions, under_main_guard(body), limit=200)


WAYS_TO_LAUNCH = [
    ("popen", "spawn"),
    ("spawn", "spawn"),
    pytest.param("popen", "fork", marks=needs(start_method="fork")),
]
if os.getenv("PL_RUN_LAUNCH_MATRIX") == "1":
    WAYS_TO_LAUNCH += [
        pytest.param("fork", "fork", marks=needs(start_method="fork")),
        pytest.param("forkserver", "forkserver", marks=needs(start_method="forkserver")),
    ]


@pytest.mark.parametrize(("start_method", "workers"), WAYS_TO_LAUNCH)
def test_all_end_with_the_launcher(start_method, workers, tmp_path):
    """A launcher that is killed leaves no rank and no worker, whatever these are doing."""
    definitions = f"""
    def train(fabric):
        for _ in use_workers({workers!r}):
            record("rank", rank=fabric.global_rank)
            fabric.barrier()
            if fabric.global_rank == 1:
                os.kill(int(os.environ["LAUNCHER"]), KILL)
    """
    body = f"""
    os.environ.setdefault("LAUNCHER", str(os.getpid()))
    launch(train, {start_method!r})
    """
    run = run_endless(tmp_path, definitions, body)
    assert run.returncode != 0
    assert {record["rank"] for record in run.of("rank")} == {0, 1}, run.output
    assert run.of("worker")


def test_notes_of_ended_jobs_are_removed(tmp_path):
    """What a job has left of which everything was killed, the next one removes; nothing else in that folder."""
    old, new = tmp_path / "lightning-1-0123456789abcdef", tmp_path / "lightning-2-0123456789abcdef"
    other, file = tmp_path / "lightning-3-of-the-user", tmp_path / "lightning-4-0123456789abcdef"
    for folder in (old, new, other):
        folder.mkdir()
        (folder / "1.json").touch()
    file.touch()
    for path in (old, other, file):
        os.utime(path, (0, 0))
    failure_notes.remove_forgotten(str(tmp_path))
    assert set(tmp_path.iterdir()) == {new, other, file}
    failure_notes.remove_forgotten(str(tmp_path / "missing"))


def test_process_removes_what_the_one_that_it_ends_with_leaves_behind(tmp_path):
    leftover = tmp_path / "notes"
    leftover.mkdir()
    script = f"""
    import importlib.util, subprocess, sys

    spec = importlib.util.spec_from_file_location("parent_watch", {parent_watch.__file__!r})
    watch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(watch)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch.end_with(other.pid, {str(leftover)!r})
    other.stdin.close()
    sys.stdin.read()
    """
    # its standard input stays open: only the watch can end it
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE) as process:
        assert process.wait(60) != 0
    assert not leftover.exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="There, nothing ends a rank that has not imported Lightning yet")
def test_rank_ends_with_the_launcher_before_it_has_imported_anything(tmp_path):
    """A rank does not have to cooperate."""
    script = """
    import os, signal, sys, threading

    if os.environ.get("LOCAL_RANK") == "1":
        os.kill(int(os.environ["LAUNCHER"]), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        threading.Event().wait()
    """
    body = """
    os.environ["LAUNCHER"] = str(os.getpid())
    launch(wait_in_barrier)
    """
    run = run_script(tmp_path, script, DEFINITIONS, under_main_guard(body), limit=200)
    assert run.returncode != 0
    assert [record["rank"] for record in run.of("rank")] in ([], [0])


DEATHS = {
    "exception": ("raise ValueError('the reason')", "ValueError: the reason"),
    "exit": ("os._exit(7)", "exit status 7"),
    "signal": ("os.kill(os.getpid(), KILL)", "ended by another process" if sys.platform == "win32" else "SIGKILL"),
    "out of memory": ("raise MemoryError", "MemoryError"),
}


DEATHS_BY_LAUNCHER = [("popen", "exception"), ("popen", "exit"), ("popen", "signal"), ("spawn", "exception")]
if os.getenv("PL_RUN_LAUNCH_MATRIX") == "1":
    DEATHS_BY_LAUNCHER = list(itertools.product(["popen", "spawn"], DEATHS))


@pytest.mark.parametrize(("start_method", "death"), DEATHS_BY_LAUNCHER)
def test_job_ends_with_a_rank(start_method, death, tmp_path):
    """A rank that dies ends the job, and the reason is what the user reads last."""
    statement, reason = DEATHS[death]
    definitions = f"""
    def die(fabric):
        record("rank", rank=fabric.global_rank)
        if fabric.global_rank == 1:
            {statement}
        threading.Event().wait()
    """
    run = run_endless(tmp_path, definitions, f"launch(die, {start_method!r})")
    assert run.returncode == 1, run.output
    pid = next(record["pid"] for record in run.of("rank") if record["rank"] == 1)
    before, _, last = run.output.rpartition("Lightning has ended this job because ")
    assert last.startswith(f"rank 1 (process {pid}) "), run.output
    assert reason in last
    assert ("Traceback" in last) == ("raise" in statement)


def test_launcher_ends_the_ranks_when_it_fails(tmp_path):
    """The launcher's own exception stands last, and what other ranks fail of in consequence is not shown."""
    definitions = """
    def fail(fabric):
        if fabric.global_rank == 0:
            raise ValueError("the reason")
        fabric.barrier()
    """
    run = run_endless(tmp_path, definitions, "launch(fail)")
    assert run.returncode == 1
    lines = run.output.strip().splitlines()
    assert "Lightning has ended this job because rank 0 failed, see above." in lines[-1]
    assert any("ValueError: the reason" in line for line in lines[-4:])
    assert "closed by peer" not in run.output


def test_failure_of_a_single_rank_is_left_to_python(tmp_path):
    """A launcher that has started nobody has ended nobody."""
    body = """
    Fabric(accelerator="cpu", devices=1, strategy="ddp").launch()
    raise ValueError("the reason")
    """
    run = run_endless(tmp_path, "", body)
    assert run.returncode == 1
    assert run.output.rstrip().endswith("ValueError: the reason")


def test_launcher_waits_for_ranks_that_need_longer(tmp_path):
    """A script that ends in the launcher is not cut off in the other ranks."""
    definitions = """
    def end_late(fabric):
        wait_for_end_of_script(fabric)
        record("end", rank=fabric.global_rank)
    """
    run = run_endless(tmp_path, definitions, "launch(end_late)")
    assert run.returncode == 0, run.output
    assert {record["rank"] for record in run.of("end")} == {0, 1}


def test_rank_that_fails_last_fails_the_job(tmp_path):
    """The exit status tells of a rank that fails when the launcher's script has ended already."""
    definitions = """
    def fail_late(fabric):
        wait_for_end_of_script(fabric)
        if fabric.global_rank == 1:
            raise ValueError("too late")
    """
    run = run_endless(tmp_path, definitions, "launch(fail_late)")
    assert run.returncode == 1, run.output
    assert run.output.rstrip().endswith("ValueError: too late")


def test_what_the_user_has_started_is_not_ended(tmp_path):
    """A process that the script of a rank has started lives on, whoever of the job dies."""
    definitions = """
    def start_another(fabric):
        if fabric.global_rank == 1:
            nothing = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            other = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(600)"], **nothing)
            record("other", other=other.pid)
            os._exit(7)
        threading.Event().wait()
    """
    run = run_endless(tmp_path, definitions, "launch(start_another)")
    other = psutil.Process(run.of("other")[0]["other"])
    assert other.is_running()
    other.kill()
    other.wait(60)


WAIT = """
import sys
from lightning.fabric.strategies.launchers import parent_watch

parent_watch.end_with(int(sys.argv[1]))
print("watching", flush=True)
sys.stdin.read()
"""


def test_process_ends_at_once_if_the_other_has_ended_before(tmp_path):
    """It does not matter when a launcher dies."""
    other = subprocess.Popen([sys.executable, "-c", ""])
    other.wait(60)
    process = subprocess.Popen([sys.executable, "-c", WAIT, str(other.pid)], stdin=subprocess.PIPE)
    try:
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (signal.SIGTERM if sys.platform == "win32" else -signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Requires: [a system with descriptors of processes]")
def test_other_process_with_the_same_identifier_is_not_waited_for(monkeypatch):
    """A launcher that has ended just before it is looked at can have lent its number to another process already.

    No test can bring about that a number is used again, so the number is one of a process that lives.

    """
    answers = iter([os.getpid(), os.getppid()])
    monkeypatch.setattr(parent_watch.os, "getppid", lambda: next(answers, 1))
    parent_watch._wait(os.getpid())  # returns, although that process lives


@needs(windows=True)
def test_later_process_with_the_same_identifier_is_not_waited_for_on_windows():
    """On Windows, the times when they have started tell two processes apart."""
    later = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        parent_watch._wait_on_windows(later.pid)  # returns: what has started later can't be a parent
    finally:
        later.communicate(b"\n", timeout=60)
