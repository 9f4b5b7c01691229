"""What a test bed needs from the system: Wine and a cross compiler, from Debian's packages."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lightning_windows_ddp._errors import ProgramNotFoundError
from lightning_windows_ddp._run import run

# Not `wine` from PATH: Debian's is a script that asks for a 32-bit Wine, which nothing here needs
WINE = Path("/usr/lib/wine/wine64")
_PROGRAMS = ("wineserver", "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-objdump")
_PACKAGES = ("wine", "wine64", "gcc-mingw-w64-x86-64-win32")


def require_programs(report: Callable[[str], None]) -> None:
    """Install the packages that are missing.

    Args:
        report: Is called with a line of progress.

    Raises:
        ProgramNotFoundError: If something is missing, and this user may not install it or there is no apt.
        CommandError: If apt fails.

    """
    if WINE.is_file() and all(shutil.which(program) for program in _PROGRAMS):
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *_PACKAGES]
    if shutil.which("apt-get") is None:
        raise ProgramNotFoundError(
            "Wine or the MinGW compiler is missing, and there is no apt-get to install Debian's packages with. Install"
            f" 64-bit Wine as {WINE} and {_PROGRAMS[1]}, or run this on Debian."
        )
    if os.geteuid() != 0:
        raise ProgramNotFoundError(
            f"Wine or the MinGW compiler is missing, and only root can install them. Run `sudo {' '.join(install)}`."
        )
    report("installing Debian's packages: " + ", ".join(_PACKAGES))
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "--quiet"], env=env)
    run(install, env=env)


def wine_version() -> str:
    """Return what Wine calls itself, such as ``wine-8.0 (Debian 8.0~repack-4)``."""
    return run([str(WINE), "--version"]).decode().strip()
