"""The packages of the Windows interpreter: torch and what Lightning, its tests and the reproduction import."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from lightning_windows_ddp._run import run
from testbed._downloads import FOR_WINDOWS

# Tests of torch itself: some are written for newer versions of Python
_NOT_COMPILED = r"torch.testing._internal"


def install_wheels(python: Path, wheels: Iterable[Path]) -> None:
    """Install wheels for Windows with the Linux pip.

    Args:
        python: The folder of the interpreter.
        wheels: The wheels, with all that they need.

    """
    packages = python / "Lib" / "site-packages"
    env = {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_REQUIRE_VIRTUALENV": "0"}
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-index", *FOR_WINDOWS]
    run([*command, "--target", str(packages), *map(str, wheels)], env=env)
    for library in (packages / "torch" / "lib").glob("*.lib"):
        library.unlink()  # for linkers; 0.7 GB in older releases


def compile_python(folder: Path, *, for_good: bool) -> None:
    """Compile the Python files of a folder: bytecode is the same on Linux and Windows, and Linux is quicker at it.

    Args:
        folder: The folder.
        for_good: Whether the files never change. Then nothing compares their times any more when they are imported.

    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    mode = "unchecked-hash" if for_good else "timestamp"
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", mode, "-x", _NOT_COMPILED]
    run([*command, str(folder)], env=env)
