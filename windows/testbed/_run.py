"""Runs Windows programs in one Wine prefix, and ends whatever they leave there."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from lightning_windows_ddp import _signals
from lightning_windows_ddp._errors import CommandError
from testbed._debian import WINE

# Far more than `wineserver` needs to end what runs in a prefix
_TIME_TO_END = 30.0
# How long to read on when a program has ended: what it left running holds its pipe open, and Wine's services do, too
_TIME_TO_READ = 2.0

# The libraries that `_runtime` puts beside the interpreter; without this, Wine prefers its own
_NATIVE = (
    "ucrtbase,vcruntime140,vcruntime140_1,vcruntime140_threads,msvcp140,msvcp140_1,msvcp140_2,msvcp140_atomic_wait,"
    "msvcp140_codecvt_ids,concrt140,vcomp140"
)
# What Windows programs are not to know of the environment: the screen, and what the Python of this process was told
_NOT_INHERITED = ("DISPLAY", "WAYLAND_DISPLAY", "VIRTUAL_ENV", "PYTHON", "WINE", "NOX_")


def windows_path(path: Path) -> str:
    """Return the name that a file of Linux has under Wine."""
    return "Z:" + str(path.absolute()).replace("/", "\\")


class Wine:
    """A Wine prefix to run programs in.

    Args:
        prefix: The folder of the prefix.

    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment for programs in this prefix.

        Args:
            **variables: Additional variables.

        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        return {
            **inherited,
            "WINEPREFIX": str(self._prefix),
            "WINEARCH": "win64",
            "WINELOADER": str(WINE),
            "WINEDEBUG": "-all",
            # No Mono, no browser, no entries in the desktop's menus
            "WINEDLLOVERRIDES": f"mscoree,mshtml=;winemenubuilder.exe=d;{_NATIVE}=n,b",
            "LC_ALL": "C.UTF-8",
            # Intel's OpenMP would call GetNumaNodeProcessorMaskEx, which Wine 8 lacks (OMP: Error #179)
            "KMP_AFFINITY": "disabled",
            **variables,
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the prefix, and end everything in it after the block, however the block ends."""
        try:
            # Apart from any program: the server lives on, and would hold a pipe that the program writes to
            self._wineserver("-p20")
            yield
        finally:
            with _signals.ignored():
                self.end()

    def end(self) -> None:
        """End everything in this prefix, and nothing else."""
        if self._prefix.is_dir():
            self._wineserver("-k")
            self._wineserver("-w")

    def _wineserver(self, option: str) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["wineserver", option],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIME_TO_END,
                check=False,  # -k fails if nothing runs
            )

    def run(
        self,
        command: Sequence[str],
        limit: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        show: Callable[[str], None] | None = None,
    ) -> str:
        """Run a program to its end, and return what it wrote to its standard output and error.

        Call this inside of :meth:`running`, which ends what the program leaves. Both streams are a pipe: under Wine,
        Python does not start if one of them is a file.

        Args:
            command: The program and its arguments.
            limit: The seconds after which it is ended.
            env: Its environment; that of :meth:`environment` by default.
            cwd: Where to run it.
            show: Is called with each line of its output as it comes.

        Raises:
            CommandError: If it fails or does not end in time; the error shows its output.

        """
        lines: list[str] = []
        process = subprocess.Popen(
            [str(WINE), *command],
            env=self.environment() if env is None else env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        reader = threading.Thread(target=_read_lines, args=(process.stdout, lines, show), daemon=True)
        reader.start()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            lines.append(f"It was still running after {limit:.0f} s and was ended.")
            raise CommandError(command, 1, "\n".join(lines)) from None
        finally:
            if process.poll() is None:
                with _signals.ignored():
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        reader.join(_TIME_TO_READ)
        output = "\n".join(lines)
        if process.returncode != 0:
            raise CommandError(command, process.returncode, output)
        return output


def _read_lines(stream: IO[str], lines: list[str], show: Callable[[str], None] | None) -> None:
    for line in stream:
        lines.append(line.rstrip())
        if show is not None:
            show(lines[-1])
