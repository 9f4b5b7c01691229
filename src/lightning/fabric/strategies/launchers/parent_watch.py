# Copyright The Lightning AI team.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""How a process ends when the one that has started it has ended, for whatever reason.

Systems do not arrange for that themselves, apart from Linux, and there only for the thread that has started a process.
This file is run before ``sys.path`` is restored in a spawned process: it needs nothing but the standard library.

"""

import ctypes
import multiprocessing
import os
import select
import shutil
import signal
import sys
import threading
import time
from typing import Any, Optional

_POLL = 0.2  # seconds, where the system can't tell when a process ends
_SYNCHRONIZE, _QUERY_LIMITED_INFORMATION = 0x100000, 0x1000
_INFINITE = 0xFFFFFFFF


def end_with(pid: int, leftover: Optional[str] = None) -> None:
    """End this process, at once and without any clean-up, as soon as another one has ended.

    Runs in ranks, with the process identifier of their launcher, and in DataLoader workers, with that of their rank.

    Args:
        pid: The identifier of the other process.
        leftover: A folder that the other process would have removed, had it not been ended by force.

    """
    threading.Thread(target=_watch, args=(pid, leftover), name="lightning-parent-watch", daemon=True).start()


def end_with_parent_after_fork(leftover: Optional[str]) -> None:
    """Do the same in a DataLoader worker that has been forked; runs in every process that a rank forks."""
    if is_dataloader_worker(multiprocessing.current_process()):
        end_with(os.getppid(), leftover)


def is_dataloader_worker(process: Any) -> bool:
    """Whether a :class:`multiprocessing.Process` is a DataLoader worker."""
    target = getattr(process, "_target", None)
    module = str(getattr(target, "__module__", None))
    return module.startswith("torch.utils.data.") and getattr(target, "__name__", None) == "_worker_loop"


def _watch(pid: int, leftover: Optional[str]) -> None:
    if sys.platform == "win32":
        _wait_on_windows(pid)
    else:
        _wait(pid)
    if leftover is not None:
        shutil.rmtree(leftover, ignore_errors=True)
    # What is in the middle of a collective or of the user's code would not react to anything less
    os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


def _wait(pid: int) -> None:
    """Wait until a process has ended that is the parent of this one or that of its fork server."""
    is_parent = os.getppid() == pid
    descriptor = _open(pid)
    if descriptor is None or (is_parent and os.getppid() != pid):
        # The latter: it ended before it was opened, and what was opened can be another process with the same number
        while os.getppid() == pid if is_parent else _exists(pid):
            time.sleep(_POLL)
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()


def _open(pid: int) -> Optional[int]:
    """Return a descriptor that becomes readable when the process ends, or ``None`` if there can be none."""
    try:
        return os.pidfd_open(pid)  # from Linux 5.3 and Python 3.9 on
    except (AttributeError, OSError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _wait_on_windows(pid: int) -> None:
    """Wait until a process has ended that has started this one, or one in between."""
    from ctypes import wintypes  # local import: it can't be imported everywhere

    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.OpenProcess.restype = kernel.GetCurrentProcess.restype = wintypes.HANDLE
    process = wintypes.HANDLE(kernel.OpenProcess(_SYNCHRONIZE | _QUERY_LIMITED_INFORMATION, False, pid))

    def started_at(handle: wintypes.HANDLE) -> int:
        times = [wintypes.FILETIME() for _ in range(4)]
        kernel.GetProcessTimes(handle, *map(ctypes.byref, times))
        return int(times[0].dwHighDateTime << 32 | times[0].dwLowDateTime)

    # A process that has started later than this one has got the number of one that has ended
    if process.value and started_at(process) <= started_at(wintypes.HANDLE(kernel.GetCurrentProcess())):
        kernel.WaitForSingleObject(process, _INFINITE)
