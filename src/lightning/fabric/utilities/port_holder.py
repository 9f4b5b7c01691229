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
"""Why a port can't be had: which process listens on it, where the system tells, or who has reserved it."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

# By their numbers, because texts of the system are in the user's language. Windows' own numbers are not in `errno`
# under Wine and not on other systems.
_IN_USE = (errno.EADDRINUSE, 10048)
_FORBIDDEN = (errno.EACCES, 10013)
_EXCLUDED_RANGES = "netsh interface ipv4 show excludedportrange protocol=tcp"


class _PortHolder(NamedTuple):
    """A process that listens on a port.

    Args:
        pid: The process' identifier, or ``None`` where the system does not tell.
        program: The program's name, or ``None`` where the system does not tell.

    """

    pid: Optional[int]
    program: Optional[str]

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        return f"process {self.pid}" + (f" ({self.program})" if self.program else "")


def _find_port_holder(port: int) -> Optional[_PortHolder]:
    """Return the process that listens on a TCP port of this machine.

    Args:
        port: The port's number.

    Returns:
        The process, or ``None`` if there is none or if the system does not tell, which is the case for processes of
        other users.

    """
    try:
        if sys.platform == "win32":
            return _find_on_windows(port)
        if sys.platform == "linux":
            return _find_on_linux(port)
        return _find_with_lsof(port)
    except (OSError, ValueError, IndexError, AttributeError, subprocess.SubprocessError):
        return None  # this only adds to a message about another problem


def _describe_refusal(error: OSError, port: int) -> str:
    """Say why the system does not let a process listen on a port.

    Args:
        error: The error that the attempt raised.
        port: The port's number.

    Returns:
        One or two sentences.

    """
    number = getattr(error, "winerror", None) or error.errno
    holder = _find_port_holder(port)
    if number in _IN_USE or (number in _FORBIDDEN and holder is not None):
        return f"{holder or 'another process'} listens on it."
    if number in _FORBIDDEN:
        return _describe_forbidden(port)
    return f"the system says '{error}'."


def _describe_forbidden(port: int) -> str:
    if sys.platform == "win32":
        return (
            "it is reserved by the system, although nothing uses it. Hyper-V, WSL and Docker reserve ranges of ports;"
            f" `{_EXCLUDED_RANGES}` lists them."
        )
    if port < 1024:
        return "it is reserved by the system: ports below 1024 need special rights."
    return "it is reserved by the system."


def _find_on_linux(port: int) -> Optional[_PortHolder]:
    """Look the port up in ``/proc/net/tcp`` and its socket in the open files of all processes (``man 5 proc``)."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):  # no IPv6
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:  # listens
                    sockets.add(f"socket:[{columns[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process of another user, or one that has just ended
            if any(os.readlink(file) in sockets for file in (process / "fd").iterdir()):
                return _PortHolder(int(process.name), (process / "comm").read_text().strip())
    return None


def _find_with_lsof(port: int) -> Optional[_PortHolder]:
    command = ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=5).stdout
    fields: Dict[str, str] = {line[0]: line[1:] for line in reversed(output.splitlines())}
    return _PortHolder(int(fields["p"]), fields.get("c")) if "p" in fields else None


def _find_on_windows(port: int) -> Optional[_PortHolder]:
    """Look the port up in the tables of ``GetExtendedTcpTable`` (see the reference of the Windows API)."""
    if sys.platform != "win32":
        return None
    import ctypes  # local import: it has these only on Windows
    import socket
    from ctypes import wintypes

    get_table = ctypes.WinDLL("iphlpapi").GetExtendedTcpTable
    # Of a row: how many numbers of 32 bits it has, and which of them are the local port and the process
    for family, columns, local_port, pid in ((socket.AF_INET, 6, 2, 5), (socket.AF_INET6, 14, 5, 13)):
        size = wintypes.DWORD(0)
        get_table(None, ctypes.byref(size), False, family, 3, 0)  # TCP_TABLE_OWNER_PID_LISTENER
        table = (wintypes.DWORD * (size.value // 4 + 16 * columns))()  # the table can grow in between
        size.value = ctypes.sizeof(table)
        if get_table(table, ctypes.byref(size), False, family, 3, 0) != 0:
            continue
        numbers: List[int] = list(table)
        for start in range(1, 1 + numbers[0] * columns, columns):
            if socket.ntohs(numbers[start + local_port] & 0xFFFF) == port:
                owner = numbers[start + pid] or None  # Wine 8 says 0
                return _PortHolder(owner, owner and _program_on_windows(owner))
    return None


def _program_on_windows(pid: int) -> Optional[str]:
    if sys.platform != "win32":
        return None
    import ctypes  # local import: it has these only on Windows
    from ctypes import wintypes

    kernel = ctypes.WinDLL("kernel32")
    kernel.OpenProcess.restype = wintypes.HANDLE
    process = wintypes.HANDLE(kernel.OpenProcess(0x1000, False, pid))  # PROCESS_QUERY_LIMITED_INFORMATION
    if not process.value:
        return None
    try:
        path = ctypes.create_unicode_buffer(32768)
        length = wintypes.DWORD(len(path))
        found = kernel.QueryFullProcessImageNameW(process, 0, path, ctypes.byref(length))
        return os.path.basename(path.value) if found else None
    finally:
        kernel.CloseHandle(process)
