"""An interrupted command leaves no folder and no process behind, whatever runs at that moment."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_windows_ddp._run import run

Process = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def pipes(tmp_path: Path) -> tuple[Path, Path]:
    """Make two named pipes: one that a blocked program reports through, one that it waits on for ever."""
    here, forever = tmp_path / "here", tmp_path / "forever"
    os.mkfifo(here)
    os.mkfifo(forever)
    return here, forever


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes and signals")
@pytest.mark.parametrize("stage", ["download", "git"])
@pytest.mark.parametrize(("signum", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_interrupt_leaves_nothing(
    tmp_path: Path, process: Process, pipes: tuple[Path, Path], stage: str, signum: str, status: int
) -> None:
    """What runs at that moment is a child of pip or git: it says so through a pipe, blocks, and must be ended."""
    here, forever = pipes
    variables = {}
    if stage == "download":
        code = f"pipe = open({str(here)!r}, 'w'); pipe.write('x'); pipe.flush(); open({str(forever)!r}).read()"
        variables["BLOCK_BACKEND"] = code
    else:
        fake = tmp_path / "bin" / "git"
        fake.parent.mkdir()
        block = f'exec 3>"{here}"; echo x >&3; cat "{forever}"'
        fake.write_text(f'#!/bin/sh\ncase " $* " in *" commit "*) {block};; esac\nexec "{shutil.which("git")}" "$@"\n')
        fake.chmod(0o755)
        variables["PATH"] = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    destination = tmp_path / "new" / "fork"
    reader = os.open(here, os.O_RDONLY | os.O_NONBLOCK)
    started = process("fork", "2.6.6", destination, "--pristine", **variables)
    try:
        assert _read(reader)
        assert [path.name for path in destination.parent.iterdir()] != []
        started.send_signal(getattr(signal, signum))
        out, err = started.communicate(timeout=60)
        while _read(reader):  # what it wrote, and then the end of the pipe, as nobody holds it open any longer
            pass
    finally:
        os.close(reader)
        started.kill()
        started.communicate()
    assert started.returncode == status, err
    assert not out
    assert "Traceback" not in err
    assert not destination.parent.exists()
    assert not list((tmp_path / "temporary").iterdir())


def test_interrupt_while_a_program_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is running already, but `run` does not know it yet: it must be ended all the same."""
    real, started = subprocess.Popen, []

    def popen(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(real(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr("subprocess.Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", "import threading; threading.Event().wait()"])
    try:
        assert started[0].returncode is not None
    finally:
        started[0].kill()


def _read(pipe: int) -> bytes:
    """Read from a pipe as soon as there is something in it, or nobody writes to it any longer."""
    ready, _, _ = select.select([pipe], [], [], 60)
    assert ready
    return os.read(pipe, 100)
