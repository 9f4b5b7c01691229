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
"""A job object of Windows: the kernel ends the processes in it when the one that has made it ends."""

import ctypes
import sys
from typing import Any, Optional

_EXTENDED_LIMIT_INFORMATION = 9
_KILL_ON_JOB_CLOSE = 0x2000
_SILENT_BREAKAWAY_OK = 0x1000
_ASSIGN_PROCESS = 0x0001


class _JobObject:
    """Ties processes to this one, which is the launcher. Only for Windows; elsewhere it does nothing.

    The processes that the ranks start are not in the job: DataLoader workers end with their rank by themselves, and
    what the user has started is not to be ended.

    Args:
        name: A name by which ranks can find it, unique on the machine.

    """

    def __init__(self, name: str) -> None:
        self._handle: Optional[Any] = None
        if sys.platform == "win32":
            kernel = _kernel()
            self._handle = kernel.CreateJobObjectW(None, name)
            self._limit(_KILL_ON_JOB_CLOSE | _SILENT_BREAKAWAY_OK)

    def add(self, process_handle: int) -> None:
        """Put a process that this one has started into the job; runs in the launcher."""
        if self._handle:
            _kernel().AssignProcessToJobObject(ctypes.c_void_p(self._handle), ctypes.c_void_p(process_handle))

    def release(self) -> None:
        """Let the processes live on; runs in the launcher, when it ends in order."""
        if self._handle:
            self._limit(0)
            _kernel().CloseHandle(ctypes.c_void_p(self._handle))
            self._handle = None

    def _limit(self, flags: int) -> None:
        information = _ExtendedLimitInformation(LimitFlags=flags)
        size = ctypes.sizeof(information)
        handle = ctypes.c_void_p(self._handle)
        _kernel().SetInformationJobObject(handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(information), size)


def _join_job_object(name: str) -> None:
    """Put this process into the job of its launcher; runs in the ranks of a multiprocessing launcher, on Windows."""
    if sys.platform == "win32":
        kernel = _kernel()
        job = kernel.OpenJobObjectW(_ASSIGN_PROCESS, False, name)
        if job:
            kernel.AssignProcessToJobObject(ctypes.c_void_p(job), ctypes.c_void_p(kernel.GetCurrentProcess()))
            kernel.CloseHandle(ctypes.c_void_p(job))


def _kernel() -> Any:
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    for function in (kernel.CreateJobObjectW, kernel.OpenJobObjectW, kernel.GetCurrentProcess):
        function.restype = ctypes.c_void_p
    return kernel


class _ExtendedLimitInformation(ctypes.Structure):
    """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION`` of Microsoft's documentation."""

    _fields_ = [
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]
