"""The one function through which this package starts other programs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_windows_ddp import _signals
from lightning_windows_ddp._errors import CommandError, ProgramNotFoundError, TimeLimitError


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    time_limit: float | None = None,
) -> bytes:
    """Run a program to its end and return what it wrote to its standard output.

    The program and everything that it started are killed when this process is interrupted meanwhile, so the folder
    it works in can be removed.

    Args:
        command: The program, looked up on `PATH`, and its arguments.
        cwd: Where to run it.
        env: Its whole environment; this process's own by default.
        stdin: What it reads from its standard input.
        time_limit: After how many seconds to kill it; never by default.

    Raises:
        ProgramNotFoundError: If there is no such program.
        CommandError: If it ends with a status other than 0; the error shows what it printed.
        TimeLimitError: If it was killed because of the time limit.

    """
    program = shutil.which(command[0])
    if program is None:
        raise ProgramNotFoundError(
            f"The program `{command[0]}` was not found: it is not installed or not on PATH. Install it and run again."
        )
    process = None
    try:
        # an interrupt between its start and the assignment would leave it running
        with _signals.deferred():
            process = subprocess.Popen(
                [str(Path(program).absolute()), *command[1:]],  # a relative one would be looked up from `cwd`
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # a session of its own, so that pip's children can be ended along with pip
                start_new_session=True,
            )
        stdout, stderr = process.communicate(stdin, time_limit)
    except BaseException as error:
        if process is None:
            raise
        with _signals.ignored(), process:
            _kill_tree(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            stdout, stderr = process.communicate()
        raise TimeLimitError(command, error.timeout, _join(stdout, stderr)) from None
    if process.returncode != 0:
        raise CommandError(command, process.returncode, _join(stdout, stderr))
    return stdout


def _join(stdout: bytes, stderr: bytes) -> str:
    return "\n".join(part.decode("utf-8", "replace").strip() for part in (stdout, stderr))


def _kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program that `run` started, with its children."""
    if sys.platform == "win32":
        # a job object would do it as well; `taskkill` is there on every Windows and needs no code
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself in the meantime
            os.killpg(process.pid, signal.SIGKILL)
