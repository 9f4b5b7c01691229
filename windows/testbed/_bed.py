"""Test beds: where they lie, when one has to be made, and the steps of making one."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp._errors import BadInputError
from lightning_windows_ddp._scratch import move_folder, remove_tree, scratch_folder
from testbed._debian import require_programs, wine_version
from testbed._downloads import PINS, Pin, download, read_pins
from testbed._interpreter import make_interpreter
from testbed._prefix import make_prefix
from testbed._run import Wine
from testbed._runtime import add_runtime
from testbed._wheels import compile_python, install_wheels

Report = Callable[[str], None]

GIB = 2**30
NEEDED = 3 * GIB  # for the downloads and a bed; torch alone takes 0.6 GiB of it
# The modules that decide what is in a bed
_CODE = ("_bed", "_downloads", "_interpreter", "_prefix", "_runtime", "_wheels")
_MADE_BY = "made-by.txt"
_LIMIT = 120.0


@dataclass(frozen=True)
class Bed:
    """A finished test bed.

    Attributes:
        folder: Where it lies.

    """

    folder: Path

    @property
    def wine(self) -> Wine:
        """The prefix to run it in."""
        return Wine(self.folder / "prefix")

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "python" / "python.exe"


def cache_folder() -> Path:
    """Return the folder that test beds and downloads are kept in, in the cache of the user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-windows-ddp"


def bed_name(torch: str) -> str:
    """Return the name of a bed: it changes with every pinned version and with the code that makes beds.

    Args:
        torch: The version of torch.

    """
    digest = hashlib.sha256()
    code = [Path(__file__).with_name(f"{name}.py") for name in _CODE]
    for file in [*code, *_pin_files(torch)]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"windows-{torch}-{digest.hexdigest()[:12]}"


@contextlib.contextmanager
def locked(cache: Path, report: Report) -> Iterator[None]:
    """Keep other runs out during this block: at its end, each ends all that runs in the bed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another run that uses {cache}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(torch: str, cache: Path, report: Report) -> Bed:
    """Return a test bed; make it if it is not there.

    It is made beside and moved into place when it is complete and has been tried, so a bed that is there is a good one.

    Args:
        torch: The version of torch.
        cache: The folder for beds and downloads. The caller has locked it.
        report: Is called with a line of progress.

    Raises:
        BadInputError: If the disk is too small.
        ToolError: If a step fails; the error shows the output of that step.

    """
    bed = Bed(cache / bed_name(torch))
    require_programs(report)
    made_by = bed.folder / _MADE_BY
    if bed.folder.is_dir():
        if made_by.is_file() and made_by.read_text(encoding="utf-8") == wine_version():
            return bed
        report(f"{bed.folder} was made with another Wine than {wine_version()}: making it anew")
    for old in cache.glob(f"windows-{torch}-*"):
        remove_tree(old)
    _require_disk(cache)

    wheels = download(pins_of(torch), cache / "downloads", report)
    with scratch_folder(cache, bed.folder.name) as scratch:
        python = scratch / "python"
        report("making the interpreter")
        make_interpreter(python, wheels)
        add_runtime(python, wheels)
        report("installing the packages")
        tools = {pin.name for file in ("interpreter.txt", "runtime.txt") for pin in read_pins(PINS / file)}
        install_wheels(python, [wheel for name, wheel in wheels.items() if name not in tools])
        report("compiling")
        compile_python(python / "Lib", for_good=True)
        report("making the Wine prefix")
        wine = make_prefix(scratch / "prefix")
        report("trying it")
        report(try_python(wine, python))
        (scratch / _MADE_BY).write_text(wine_version(), encoding="utf-8")
        move_folder(scratch, bed.folder)
    return bed


def try_python(wine: Wine, python: Path) -> str:
    """Run the interpreter once, and return what it is."""
    code = "import platform, torch, sklearn; print(platform.platform(), 'with torch', torch.__version__)"
    with wine.running():
        return wine.run([str(python / "python.exe"), "-c", code], _LIMIT)


def pins_of(torch: str) -> list[Pin]:
    """Return the wheels of a bed; where two files name a package, that of torch has the last word.

    Args:
        torch: The version of torch.

    """
    pins = {pin.name: pin for file in _pin_files(torch) for pin in read_pins(file)}
    return list(pins.values())


def _pin_files(torch: str) -> list[Path]:
    return [PINS / name for name in ("interpreter.txt", "runtime.txt", "packages.txt", f"torch-{torch}.txt")]


def _require_disk(cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    if free < NEEDED:
        raise BadInputError(
            f"{cache} has {free / GIB:.1f} GiB of free space, a test bed and its downloads need {NEEDED / GIB:.1f}."
            " Make room there, or set XDG_CACHE_HOME to a folder on another disk."
        )
