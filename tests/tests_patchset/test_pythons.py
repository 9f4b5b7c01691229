"""The modules in src/lightning on every Python that the patched releases run on, not only where torch is at hand."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests_fabric.helpers.needs import is_wine

FABRIC = Path(__file__).parents[2] / "src" / "lightning" / "fabric"
LAUNCHERS = FABRIC / "strategies" / "launchers"
VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]

STAND_IN = """
import sys
import types


def stand_in(name, **attributes):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(attributes)
    return module
"""

# There is no torch for most of these Pythons here: stands in for the two things that the modules import of others
SCRIPT = """
import importlib
import logging
import multiprocessing
import sys
import types


def rank_zero_only():
    pass


rank_zero_only.rank = 0
for name in ("torch", "torch.utils", "lightning", "lightning.fabric", "lightning.fabric.utilities"):
    stand_in(name)
stand_in("torch.utils.data", get_worker_info=lambda: None)
stand_in("torch.utils.data.dataloader", _MultiProcessingDataLoaderIter=None)
stand_in(
    "lightning.fabric.utilities.rank_zero",
    rank_zero_info=print,
    rank_zero_only=rank_zero_only,
    rank_zero_warn=print,
)
stand_in("torch.multiprocessing")
stand_in("torch.multiprocessing.spawn", ProcessException=Exception)
stand_in("lightning.fabric.strategies")
launchers = stand_in("lightning.fabric.strategies.launchers")
launchers.__path__ = [FOLDER]
sys.modules["lightning.fabric.utilities"].__path__ = [FOLDER + "/../../utilities"]
for name in ("inheritance", "process_ranks", "script_ranks"):
    importlib.import_module(launchers.__name__ + "." + name)

logging.basicConfig()
multiprocessing.set_start_method(METHOD, force=True)


def double(value):
    return 2 * value, __name__, logging.getLogger("lightning.fabric").level


launchers.inheritance._guard_launch()
logging.getLogger("lightning.fabric").setLevel(17)
with multiprocessing.Pool(1) as pool:
    print(pool.map(double, [1, 2]))


def late():
    pass


process = multiprocessing.Process(target=late)
process.start()
process.join()
print("exit status", process.exitcode)
"""


MEETING = """
import importlib.util
import os
import socket
import sys
import types


class TCPStore:
    def __init__(self):
        "master_listen_fd"


class LightningEnvironment:
    creates_processes_externally = False
    main_address = property(lambda self: "127.0.0.1")
    main_port = property(lambda self: self._main_port)

    def node_rank(self):
        return 0


distributed = types.SimpleNamespace(TCPStore=TCPStore)
for name in ("lightning", "lightning.fabric", "lightning.fabric.utilities", "lightning.fabric.plugins"):
    stand_in(name)
stand_in("torch", distributed=distributed)
stand_in("lightning.fabric.utilities.rank_zero", rank_zero_info=print, rank_zero_warn=print)
stand_in("lightning.fabric.plugins.environments")
stand_in("lightning.fabric.plugins.environments.lightning", LightningEnvironment=LightningEnvironment)
modules = "main_address port_holder store main_port rendezvous_errors rendezvous process_group_backend"
for name in modules.split():
    spec = importlib.util.spec_from_file_location("lightning.fabric.utilities." + name, FOLDER + "/" + name + ".py")
    module = sys.modules[spec.name] = globals()[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

claim = main_port._claim_main_port(LightningEnvironment(), num_nodes=1)
socket.create_connection(("127.0.0.1", claim.port), timeout=10).close()
print(port_holder._find_port_holder(claim.port).pid == os.getpid())
claim.release()
try:
    with rendezvous_errors._explain_failure(rendezvous_errors._Meeting(0, 2, "127.0.0.1", 1, list)):
        raise RuntimeError("unsupported gloo device")
except RuntimeError as error:
    print("2.8, 2.9 and 2.10" in str(error))
"""


def _find_python(version: str) -> str | None:
    """Return the path of an interpreter of this version: this one, one of pyenv or one on the PATH."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    found = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("version", VERSIONS)
def test_import_ends_at_the_launch(version: str, method: str, tmp_path: Path) -> None:
    python = _find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    if method == "forkserver" and os.name == "nt":
        pytest.skip("Windows has no fork server")
    script = tmp_path / "train.py"
    script.write_text(f"FOLDER = {LAUNCHERS.as_posix()!r}\nMETHOD = {method!r}\n{STAND_IN}\n{SCRIPT}", encoding="utf-8")
    result = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines() == ["[(2, '__mp_main__', 17), (4, '__mp_main__', 17)]", "exit status 1"], (
        result.stderr
    )
    assert f"`late` is not defined in {script}" in result.stderr
    assert result.stderr.count("launches without an `if __name__") == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_port_is_claimed(version: str, tmp_path: Path) -> None:
    python = _find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    script = tmp_path / "train.py"
    script.write_text(f"FOLDER = {(FABRIC / 'utilities').as_posix()!r}\n{STAND_IN}\n{MEETING}", encoding="utf-8")
    command = [python, "-W", "error", str(script)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert output.split() == [str(not is_wine()), "True"]  # Wine does not tell who listens on a port
