"""Runs one job, strikes one of its processes, and looks at what is left."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from faults.matrix import FROM_OUTSIDE, Cell

JOB = Path(__file__).with_name("job.py")
SHARED_MEMORY = Path("/dev/shm")
START_LIMIT = 180.0  # seconds until the process to strike is where it is to be struck
LEFT_LIMIT = 20.0  # seconds to wait for the job's end after that; what is left then counts as left behind
READ_LIMIT = 10.0  # seconds to read on when all processes that are known have ended
COLLECTIVE = 1.0  # seconds after which the other ranks wait in the collective
# What names the reason: the fault itself, or the way that the process has ended
REASONS = {
    "kill": ("SIGKILL", "Killed", "ended by another process"),
    "collective": ("SIGKILL", "ended by another process"),
    "terminate": ("SIGTERM", "Terminated"),
    "exception": ("the injected fault",),
    "exit": ("status 7", "exit code 7"),
    "memory": ("MemoryError",),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        seconds: How long any of its processes lived on after the fault; ``None`` if one had to be ended.
        left: What was left behind.
        status: The exit status of the launcher, ``None`` if it had to be ended.
        output: What the job printed, by all its processes.

    """

    seconds: float | None
    left: list[str]
    status: int | None
    output: str

    @property
    def last_line(self) -> str:
        """What the user reads last."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def columns(self) -> list[str]:
        """The cells of the table."""
        seconds = f"> {LEFT_LIMIT:.0f} s" if self.seconds is None else f"{self.seconds:.1f} s"
        return [seconds, ", ".join(self.left) or "-", str(self.status), self.last_line[:60]]

    @property
    def summary(self) -> str:
        """The same in one line."""
        return " | ".join(self.columns)

    def is_as_wanted(self, cell: Cell, goal: float) -> bool:
        """Whether the job ended in time, left nothing, failed, and said why, if there was somebody left to say it."""
        if self.seconds is None or self.seconds > goal or self.left:
            return False
        if cell.process == "launcher":
            return self.status != 0 or cell.fault == "terminate"  # it may end in order then
        tail = "\n".join(self.output.splitlines()[-15:])
        return self.status != 0 and any(reason in tail for reason in REASONS[cell.fault])


def break_job(cell: Cell, fork: Path) -> Outcome:
    """Run the job of a cell with a fork of Lightning."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        notes = folder / "notes"
        notes.mkdir()
        shared = _shared_memory()
        job = _start(cell, fork, notes)
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(job.stdout or []), daemon=True)
        reader.start()
        seen: dict[int, psutil.Process] = {}
        try:
            struck_at = _strike(cell, job, notes, seen)
            seconds = None if struck_at is None else _wait_for_end(job, seen, struck_at)
            status = job.poll()
            left = ["a job that could not be struck"] if struck_at is None else []
            left += [_describe(process) for process in _alive(seen)]
        finally:
            for process in _alive(seen):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            job.kill()
            job.wait()
        left += [f"port {port}" for port in _ports(notes) if _is_listened_to(port)]
        left += sorted(_shared_memory() - shared)
        reader.join(READ_LIMIT)
        return Outcome(seconds, left, status, "".join(lines))


def _start(cell: Cell, fork: Path, notes: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(fork / "src"), os.environ.get("PYTHONPATH")]))
    env = dict(os.environ, PYTHONPATH=path, PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1")
    env.update(FAULT_FOLDER=str(notes), FAULT_KIND=cell.fault, FAULT_WHO=cell.process, FAULT_WHEN=cell.when)
    return subprocess.Popen(
        [sys.executable, str(JOB), cell.launcher],
        cwd=notes.parent,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # under Wine, Python does not start with a file
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=sys.platform != "win32",
    )


def _strike(cell: Cell, job: subprocess.Popen[str], notes: Path, seen: dict[int, psutil.Process]) -> float | None:
    """Wait until the process is where it is to be struck, strike it, and return the time.

    Returns:
        ``None`` if the job has ended, or taken too long, before it could be struck.

    """
    deadline = time.time() + START_LIMIT
    event = "ready" if cell.fault in FROM_OUTSIDE else "struck"
    while time.time() < deadline:
        _look(job.pid, seen)
        ready = _read(notes, event)
        if ready and event == "struck":
            return float(ready[0]["time"])
        if ready:
            target = psutil.Process(job.pid if cell.process == "launcher" else int(ready[0]["pid"]))
            if cell.fault == "collective":
                time.sleep(COLLECTIVE)
                _look(job.pid, seen)
            struck_at = time.time()
            target.terminate() if cell.fault == "terminate" else target.kill()
            return struck_at
        if job.poll() is not None:
            break
        time.sleep(0.02)
    return None


def _read(notes: Path, event: str) -> list[dict[str, float]]:
    found = []
    for note in notes.glob(f"{event}-*.json"):
        with contextlib.suppress(PermissionError):  # on Windows, while it is being put in place
            found.append(json.loads(note.read_text(encoding="utf-8")))
    return found


def _wait_for_end(job: subprocess.Popen[str], seen: dict[int, psutil.Process], struck_at: float) -> float | None:
    """Return how long the job lived on."""
    while time.time() < struck_at + LEFT_LIMIT:
        if job.poll() is not None and not _alive(seen):
            return time.time() - struck_at
        time.sleep(0.02)
    return None


def _look(pid: int, seen: dict[int, psutil.Process]) -> None:
    """Remember the processes of the job, while it is whole and they can be found."""
    try:
        process = psutil.Process(pid)
        for found in [process, *process.children(recursive=True)]:
            seen.setdefault(found.pid, found)
    except psutil.NoSuchProcess:
        pass


def _alive(seen: dict[int, psutil.Process]) -> list[psutil.Process]:
    alive = []
    for process in seen.values():
        try:
            if process.is_running() and (sys.platform == "win32" or process.status() != psutil.STATUS_ZOMBIE):
                alive.append(process)
        except psutil.NoSuchProcess:
            pass
    return alive


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({' '.join(process.cmdline()[-2:])[:40]})"
    except psutil.Error:
        return f"process {process.pid}"


def _ports(notes: Path) -> set[int]:
    return {int(note.name.split("-")[1]) for note in notes.glob("port-*.json")}


def _is_listened_to(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _shared_memory() -> set[str]:
    return {str(file) for file in SHARED_MEMORY.iterdir()} if sys.platform == "linux" else set()
