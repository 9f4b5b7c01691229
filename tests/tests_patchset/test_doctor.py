"""The doctor: each check is made to fail once, by what this machine has or by what a Windows machine would tell."""

import getpass
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from lightning_windows_ddp.doctor import _lightning, _memory, _network, _ports, _script, _torch, _trials, _variables
from lightning_windows_ddp.doctor._check import Check, is_fit
from lightning_windows_ddp.doctor._format import anonymize, as_text
from lightning_windows_ddp.doctor._probe import Probe
from lightning_windows_ddp.doctor._torch import Facts
from tests_fabric.helpers.namespaces import on_machine, skip_without_namespaces, write_hosts
from tests_fabric.helpers.needs import is_wine
from tests_patchset.installations import install, write_series

LIMIT = 300.0  # seconds; nothing here comes near it, but in Wine

FINE = Facts(
    python="3.11.9",
    implementation="CPython",
    bits=64,
    platform="win32",
    start_method="spawn",
    packages={"lightning": True},
    torch="2.15.0",
    distributed=True,
    nccl=False,
    libuv="no",
)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """Run probes with this interpreter, which has torch and a patched Lightning."""
    return Probe(Path(sys.executable), tmp_path, LIMIT)


@pytest.fixture
def in_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let each Python that a test starts run some code first."""

    def write(code: str) -> None:
        folder = tmp_path / "startup"
        folder.mkdir()
        folder.joinpath("sitecustomize.py").write_text(code, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    return write


def replace(facts: Facts, **changes: Any) -> Facts:
    return Facts(**{**vars(facts), **changes})


def test_whole(cli: Any, tmp_path: Path) -> None:
    """Where a job runs, the doctor says so on one screen, and tells nobody whose machine it is."""
    script = tmp_path / "train.py"
    script.write_text("trainer.fit(model)\n", encoding="utf-8")
    done = cli("doctor", script, "--json")
    assert done.status == 0, done.out
    content = json.loads(done.out)
    assert content["fit"] is True
    checks = [Check(**check) for check in content["checks"]]
    names = [check.name for check in checks]
    assert names[:6] == ["Python", "torch", "gloo", "store", "Lightning", "environment"]
    assert names[-5:] == ["two ranks", "worker", "memory", "job", "script"]
    assert not [check for check in checks if check.outcome in ("problem", "skipped")]
    assert "no main guard" in checks[-1].found
    private = [socket.gethostname(), str(tmp_path), str(Path.home()), sys.prefix]
    assert not [word for word in private if word in done.out]
    lines = as_text(checks).splitlines()
    assert lines[-1] == "A job would run here."
    assert len(lines) < 40
    assert max(map(len, lines)) <= 110


def test_script_that_is_not_there(cli: Any, tmp_path: Path) -> None:
    done = cli("doctor", tmp_path / "missing.py")
    assert done.status == 2
    assert "missing.py cannot be read" in done.err
    assert not done.out


def test_interpreter_that_is_not_there(cli: Any, tmp_path: Path) -> None:
    done = cli("doctor", "--python", tmp_path / "python")
    assert done.status == 2
    assert "no Python interpreter" in done.err


@pytest.mark.parametrize("arguments", [("--devices", "0"), ("--devices", "two"), ("--time-limit", "-1")])
def test_bad_arguments(cli: Any, arguments: tuple[str, str]) -> None:
    assert cli("doctor", *arguments).status == 2


def test_interpreter_that_does_not_start(probe: Probe, in_children: Callable[[str], None]) -> None:
    in_children("import os; os._exit(3)")
    facts = _torch.find_facts(probe)
    check = _torch.check_python(facts)
    assert (check.outcome, check.found) == ("problem", "the interpreter does not start (It ended with status 3.)")
    later = [_torch.check_torch(facts), _torch.check_gloo(facts), _torch.check_libuv(facts)]
    assert [each.outcome for each in later] == ["skipped"] * 3
    assert not is_fit(later)


@pytest.mark.parametrize("facts", [replace(FINE, bits=32), replace(FINE, implementation="PyPy")])
def test_python_without_torch_for_it(facts: Facts) -> None:
    assert _torch.check_python(FINE).outcome == "ok"
    assert _torch.check_python(facts).outcome == "problem"


def test_torch_that_is_missing(probe: Probe, in_children: Callable[[str], None]) -> None:
    in_children("import sys; sys.modules['torch'] = None")
    facts = _torch.find_facts(probe)
    assert _torch.check_python(facts).outcome == "ok"
    check = _torch.check_torch(facts)
    assert check.outcome == "problem"
    assert "can't be imported" in check.found


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "Install torch, or name"),
        ("OSError: [WinError 1455] ...", "paging file is too small"),
        ("OSError: [WinError 126] ... shm.dll", "Visual C++"),
        ("ImportError: something else", "Install torch anew"),
    ],
)
def test_remedies_for_torch(reason: str, remedy: str) -> None:
    """What Windows says, in its numbers."""
    assert remedy in _torch.check_torch(Facts(python="3.11.9", failure=reason)).remedy


def test_torch_without_distributed() -> None:
    facts = replace(FINE, distributed=False)
    assert _torch.check_torch(FINE).outcome == "ok"
    assert _torch.check_torch(facts).outcome == "problem"
    assert _torch.check_gloo(facts).outcome == "skipped"


@pytest.mark.skipif(sys.platform == "win32", reason="Requires: [a torch with a choice of transports]")
@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("GLOO_DEVICE_TRANSPORT", "BOGUS", "unsupported gloo device"),
        ("GLOO_SOCKET_IFNAME", "bogus0", "Unable to find address for"),
    ],
)
def test_gloo_without_device(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    facts = _torch.find_facts(probe)
    check = _torch.check_gloo(facts)
    assert check.outcome == "problem"
    assert reason in check.found
    assert variable in check.remedy
    assert _trials.reduce_over_two_ranks(probe, facts).outcome == "skipped"
    assert _trials.run_job(probe, facts).outcome == "skipped"


def test_torch_whose_gloo_has_no_transport() -> None:
    """As in the Windows wheels of 2.8 to 2.10."""
    check = _torch.check_gloo(replace(FINE, gloo="RuntimeError: makeDeviceForHostname(): unsupported gloo device"))
    assert check.outcome == "problem"
    assert "2.8, 2.9 and 2.10" in check.remedy


def test_libuv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a user who asks for what torch has not got is told so; this torch has it, those for Windows have not."""
    monkeypatch.delenv("USE_LIBUV", raising=False)
    assert _torch.check_libuv(FINE).outcome == "ok"
    monkeypatch.setenv("USE_LIBUV", "1")
    assert _torch.check_libuv(FINE).outcome == "problem"
    assert _torch.check_libuv(replace(FINE, libuv="yes")).outcome == "ok"


def test_store_that_cannot_be_made() -> None:
    check = _torch.check_libuv(replace(FINE, libuv="no store", store_failure="DistNetworkError: 10013"))
    assert check.outcome == "problem"
    assert "10013" in check.found


def test_lightning(site: Path, cli: Any) -> None:
    """Not installed, not patched, patched, changed, without patches for it."""
    python = Path(sys.executable)
    info = install(site)
    nothing = replace(FINE, packages={})
    check = _lightning.check(python, nothing)
    assert check.outcome in ("problem", "note")  # the latter where a fork is installed beside it
    assert "not patched" in check.found
    assert cli("apply", "lightning").status == 0
    assert "lightning 2.6.6: patched" in _lightning.check(python, FINE).found
    changed = site / "lightning/fabric/numbers.py"
    before = changed.read_bytes()
    changed.write_bytes(b"")
    assert "lightning 2.6.6: changed" in _lightning.check(python, nothing).found
    changed.write_bytes(before)
    assert cli("revert", "lightning").status == 0
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: lightning\nVersion: 1.9.0\n", encoding="utf-8")
    assert "lightning 1.9.0: not patched" in _lightning.check(python, nothing).found


def test_no_lightning(interpreter: Path) -> None:
    check = _lightning.check(interpreter, replace(FINE, packages={}))
    assert (check.outcome, check.found) == ("problem", "not installed in this environment")


def test_lightning_of_another_version(site: Path, checkout: Path, cli: Any) -> None:
    """A patched one that is to be patched anew is no Lightning of which this version knows that it works."""
    install(site)
    assert cli("apply", "lightning").status == 0
    write_series(checkout / "patches", value="newer")
    check = _lightning.check(Path(sys.executable), replace(FINE, packages={}))
    assert "patched by another version" in check.found
    assert "lightning-windows-ddp apply" in check.remedy


@pytest.mark.parametrize(
    ("variables", "outcome", "found"),
    [
        ({}, "ok", "no variable"),
        ({"LOCAL_RANK": "0"}, "problem", "LOCAL_RANK"),
        ({"MASTER_PORT": "port"}, "problem", "not the number of a port"),
        ({"MASTER_PORT": "70000"}, "problem", "not the number of a port"),
        ({"MASTER_PORT": "29500"}, "note", "MASTER_PORT"),
        ({"SLURM_NTASKS": "2"}, "note", "SLURM_NTASKS"),
        ({"PL_TORCH_DISTRIBUTED_BACKEND": "gloo"}, "note", "no effect"),
    ],
)
def test_variables(variables: dict[str, str], outcome: str, found: str) -> None:
    check = _variables.check(variables)
    assert check.outcome == outcome
    assert found in check.found


def test_devices() -> None:
    """This machine has no GPU, so what torch would tell of some is made up."""
    two = replace(FINE, cuda="12.8", gpu_names=["RTX 4090", "RTX 4090"])
    assert _torch.check_devices(two, None) == Check("devices", "ok", "2 x RTX 4090")
    assert _torch.check_devices(two, 4).outcome == "problem"
    assert _torch.check_devices(FINE, 4).outcome == "ok"
    assert _torch.check_devices(replace(FINE, cuda="12.8"), None).outcome == "note"


@pytest.mark.parametrize("hosts", [[], ["192.0.2.1"]])
def test_localhost_that_leads_elsewhere(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    """Patched, because the file `hosts` is not a test's to change."""
    assert _network.check_localhost().outcome == "ok"
    monkeypatch.setattr(_network, "_resolve", lambda name: hosts)
    check = _network.check_localhost()
    assert check.outcome == "note"
    assert "127.0.0.1 localhost" in check.remedy


def test_host_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patched, because the name of the machine is not a test's to change."""
    monkeypatch.setattr(_network.socket, "gethostname", lambda: "")
    assert "is blank" in _network.check_host_name().found
    monkeypatch.setattr(_network.socket, "gethostname", lambda: "no-such-host.invalid")
    assert "can't be resolved" in _network.check_host_name().found
    monkeypatch.setattr(_network, "_resolve", lambda name: ["192.0.2.1"])
    assert "this machine hasn't" in _network.check_host_name().found
    monkeypatch.setattr(_network, "_resolve", lambda name: ["127.0.0.1"])
    assert _network.check_host_name().outcome == "ok"


def in_namespace(tmp_path: Path, set_up: str, code: str) -> list[Check]:
    """Run checks on a machine of its own and return what they found."""
    skip_without_namespaces()
    program = f"import json; from lightning_windows_ddp.doctor import _network, _ports; print(json.dumps({code}))"
    command = on_machine("machine", write_hosts(tmp_path), set_up, [sys.executable, "-c", program])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [Check(**check) for check in json.loads(done.stdout)]


def test_loopback_that_is_down(tmp_path: Path) -> None:
    listed = "[vars(check) for check in _network.check_loopback()]"
    assert [check.outcome for check in in_namespace(tmp_path, "", listed)] == ["ok", "ok"]
    six, four = in_namespace(tmp_path, "ip link set lo down", listed)
    assert "can't be used, IPv4 is enough" in six.found
    assert four.outcome == "problem"
    assert "can't be used" in four.found


def test_ports_that_are_reserved(tmp_path: Path) -> None:
    write = "echo 50000 50099 > /proc/sys/net/ipv4/ip_local_port_range; mount -t proc proc /proc 2>/dev/null || true"
    (check,) = in_namespace(tmp_path, write, "[vars(_ports.check())]")
    assert check.outcome == "problem"
    assert "of 100 dynamic ports" in check.found


# What netsh prints in English and in German, with other numbers than any machine's
DYNAMIC = """
Protocol tcp Dynamic Port Range
---------------------------------
Start Port      : 49152
Number of Ports : 16384
"""
DYNAMIC_IN_GERMAN = DYNAMIC.replace("Start Port", "Startport").replace("Number of Ports", "Anzahl von Ports")
EXCLUDED = """
Protocol tcp Port Exclusion Ranges

Start Port    End Port
----------    --------
      5357        5357
     50000       59999     *

* - Administered port exclusions.
"""


@pytest.mark.parametrize("dynamic", [DYNAMIC, DYNAMIC_IN_GERMAN])
def test_reserved_ports_of_windows(dynamic: str) -> None:
    ports, excluded = _ports.read_dynamic(dynamic), _ports.read_excluded(EXCLUDED)
    assert ports == range(49152, 65536)
    assert excluded == [range(5357, 5358), range(50000, 60000)]
    check = _ports.judge(ports, excluded)
    assert (check.outcome, check.found) == ("note", "6384 of 16384 dynamic ports are not reserved")
    assert _ports.judge(ports, [range(49152, 65500)]).outcome == "problem"
    assert _ports.judge(ports, []).outcome == "ok"
    assert _ports.judge(_ports.read_dynamic("nothing"), []).outcome == "note"


# What a virus scanner or a policy of the company can do to a process that has just been started
STRIKE = """
import os, sys
if {condition}:
    {deed}
"""
# The interpreter has not set `sys.argv` yet when it starts a process of multiprocessing
IS_WORKER = "'--multiprocessing-fork' in sys.orig_argv"


def test_rank_that_is_ended(probe: Probe, in_children: Callable[[str], None]) -> None:
    in_children(STRIKE.format(condition="'1' in sys.orig_argv[-1:]", deed="sys.exit('not allowed')"))
    check = _trials.reduce_over_two_ranks(Probe(probe.python, probe.folder, 20.0), FINE)
    assert check.outcome == "problem"


@pytest.mark.skipif(is_wine(), reason="Requires: [a taskkill that ends the children, too]")
def test_rank_that_hangs(probe: Probe, in_children: Callable[[str], None], tmp_path: Path) -> None:
    """It is ended, and so is the rank that has started it."""
    note = tmp_path / "pid"
    deed = f"open({str(note)!r}, 'w').write(str(os.getpid())); __import__('threading').Event().wait()"
    in_children(STRIKE.format(condition="'1' in sys.orig_argv[-1:]", deed=deed))
    check = _trials.reduce_over_two_ranks(Probe(probe.python, probe.folder, 20.0), FINE)
    assert (check.outcome, check.found) == ("problem", "did not come to an end in time"), check.details
    hanging = int(note.read_text())
    psutil.wait_procs([psutil.Process(hanging)] if psutil.pid_exists(hanging) else [], timeout=LIMIT)
    assert not psutil.pid_exists(hanging)


def test_worker_that_is_ended(probe: Probe, in_children: Callable[[str], None]) -> None:
    in_children(STRIKE.format(condition=IS_WORKER, deed="os._exit(5)"))
    check, memory = _trials.start_worker(probe, FINE)
    assert check.outcome == "problem"
    assert memory is None
    assert "worker" in check.found
    assert "Traceback" in check.details
    assert _memory.check(memory, 2, 2).outcome == "skipped"


def test_job_that_fails(probe: Probe, in_children: Callable[[str], None]) -> None:
    in_children(STRIKE.format(condition="'LOCAL_RANK' in os.environ", deed="os._exit(7)"))
    check = _trials.run_job(probe, FINE)
    assert check.outcome == "problem"
    assert "exit status 7" in check.details


def test_job_without_patches(probe: Probe) -> None:
    assert _trials.run_job(probe, replace(FINE, packages={"lightning": False})).outcome == "skipped"


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has memory, so what is to be too little of it is a worker that needs more."""
    memory = _memory.read()
    assert memory is not None
    assert 0 < memory.free <= memory.total
    assert _memory.check(1, 2, 2).outcome == "ok"
    assert _memory.check(0, 2, 2).outcome == "note"  # where a process is not told what it has, such as macOS
    assert _memory.check(memory.free // 8, 2, 2).outcome == "note"
    check = _memory.check(memory.free // 4, 2, 2)
    assert check.outcome == "problem"
    assert "Use fewer workers" in check.remedy
    monkeypatch.setattr(_memory, "read", lambda: None)
    assert _memory.check(1, 2, 2).outcome == "note"


@pytest.mark.parametrize(
    ("source", "patched", "unpatched"),
    [
        (b'import os\n\nif __name__ == "__main__":\n    os.getpid()\n', "ok", "ok"),
        (b'import os\nif "__main__" == __name__ and os:\n    os.getpid()\n', "ok", "ok"),
        (b'"""A module."""\n\nclass Model:\n    pass\n', "ok", "ok"),
        (b"trainer.fit(model)\n", "note", "problem"),
        (b"def main(:\n", "problem", "problem"),
        (b"\0", "problem", "problem"),
    ],
)
def test_main_guard(source: bytes, patched: str, unpatched: str) -> None:
    assert _script.check(source, True).outcome == patched
    assert _script.check(source, False).outcome == unpatched


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"WinError 126: 'C:\Users\bob\torch\lib\shm.dll'", r"WinError 126: '...\shm.dll'"),
        (r'File "C:\Users\bob of x\my env\lib\x.py", line 3', r'File "...\x.py", line 3'),
        ("in /home/bob/site-packages/torch/x.py, line 3", "in .../x.py, line 3"),
        ("failed to connect to [pc-of-bob.example]:29500", "failed to connect to [...]:29500"),
        ("10048 at 127.0.0.1, 2/3 of it", "10048 at 127.0.0.1, 2/3 of it"),
    ],
)
def test_names_are_left_out(text: str, wanted: str) -> None:
    assert anonymize(text) == wanted


def test_own_names_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    assert anonymize(f"alice on {socket.gethostname()}, not malice") == "... on ..., not malice"


def test_verdicts() -> None:
    problem, skipped = Check("a", "problem", "broken", "Mend it."), Check("b", "skipped", "")
    assert as_text([problem, problem]).endswith("2 problems keep a job from running here.")
    assert as_text([problem]).endswith("1 problem keeps a job from running here.")
    assert as_text([skipped]).endswith("It could not be checked whether a job would run here.")
    assert "-> Mend it." in as_text([problem])
