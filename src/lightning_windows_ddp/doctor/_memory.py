"""What memory the system can still promise, against what the processes of a job will ask for."""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp.doctor._check import Check

_NAME = "memory"
_GIB = 1024**3


@dataclass(frozen=True)
class Memory:
    """Memory that processes can still be promised.

    Args:
        free: Of main memory and paging file together, in bytes.
        total: The most that can be promised (on Windows, the commit limit), in bytes.
        paging: The part of it that is paging file or swap, in bytes.

    """

    free: int
    total: int
    paging: int


def check(worker: int | None, devices: int, workers: int) -> Check:
    """Check that there is memory for a job.

    Args:
        worker: What a worker was seen to need, in bytes, 0 if that is not known, or None if none came up.
        devices: How many ranks the job has.
        workers: How many workers each rank has.

    """
    memory = read()
    if memory is None or not worker:
        return Check(_NAME, "skipped" if worker is None else "note", "" if worker is None else "can't be measured here")
    # A rank needs more than a worker, by what its model needs: that is the user's to add
    processes = devices * (1 + workers)
    need = processes * worker
    found = (
        f"{memory.free / _GIB:.1f} of {memory.total / _GIB:.1f} GiB free ({memory.paging / _GIB:.1f} of them paging"
        f" file); {devices} ranks with {workers} workers each need {need / _GIB:.1f} before they load anything"
    )
    remedy = "Use fewer workers."
    if sys.platform == "win32":
        remedy += " Or enlarge the paging file (System, Advanced, Performance, Virtual memory)."
    if need > memory.free:
        return Check(_NAME, "problem", found, remedy)
    if need > memory.free // 2:
        return Check(_NAME, "note", found, remedy)
    return Check(_NAME, "ok", found)


def read() -> Memory | None:
    """Return what the system can still promise, or None where it does not tell."""
    if sys.platform == "win32":
        return _read_on_windows()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    swap = kilobytes["SwapTotal"]
    free, total = kilobytes["MemAvailable"] + kilobytes["SwapFree"], kilobytes["MemTotal"] + swap
    return Memory(1024 * free, 1024 * total, 1024 * swap)


def _read_on_windows() -> Memory | None:
    class Status(ctypes.Structure):  # MEMORYSTATUSEX in the reference of the Windows API
        _fields_ = [
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            ("total_main", ctypes.c_uint64),
            ("free_main", ctypes.c_uint64),
            ("commit_limit", ctypes.c_uint64),
            ("free_commit", ctypes.c_uint64),
            ("total_virtual", ctypes.c_uint64),
            ("free_virtual", ctypes.c_uint64),
            ("free_extended", ctypes.c_uint64),
        ]

    if sys.platform != "win32":
        return None
    status = Status(length=ctypes.sizeof(Status))
    if not ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return Memory(status.free_commit, status.commit_limit, max(0, status.commit_limit - status.total_main))
