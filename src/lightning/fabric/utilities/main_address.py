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
"""The main address: what its names stand for, and how the system calls the interface that it belongs to."""

import functools
import ipaddress
import os
import socket
import sys
from typing import List, Optional

from lightning.fabric.utilities.rank_zero import rank_zero_warn


def _resolve(address: str) -> List[str]:
    """Return the IP addresses that a host name stands for, in the order in which torch's store tries them.

    Args:
        address: A host name or an IP address.

    Returns:
        The addresses without duplicates, those of IPv6 first. None, if the name cannot be resolved.

    """
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    hosts = list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in found))
    return sorted(hosts, key=lambda host: ":" not in host)


def _is_loopback(host: str) -> bool:
    """Whether an IP address belongs to the loopback interface."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


@functools.lru_cache(maxsize=None)
def _check_localhost(address: str) -> str:
    """Return the address, unless it is a ``localhost`` that does not lead to this machine: then ``127.0.0.1``."""
    if address != "localhost":
        return address
    hosts = _resolve(address)
    if hosts and all(map(_is_loopback, hosts)):
        return address
    meaning = f"stands for {', '.join(hosts)}" if hosts else "can't be resolved"
    rank_zero_warn(
        f"The host name `localhost` {meaning} on this machine, so the processes meet at 127.0.0.1 instead. To mend the"
        " name, look at the `hosts` file of the system."
    )
    return "127.0.0.1"


def _main_address_from_environment() -> str:
    """Return the main address that the environment variables name, or the default; runs in all processes.

    On Windows the default is ``localhost``: there, an IPv4 address makes each client of torch's store print that it has
    failed to connect over IPv6, before it connects.

    """
    default = "localhost" if sys.platform == "win32" else "127.0.0.1"
    return _check_localhost(os.environ.get("MASTER_ADDR") or default)


def _loopback_interface() -> Optional[str]:
    """Return the name of the loopback interface as gloo wants it in ``GLOO_SOCKET_IFNAME``, or ``None``."""
    if sys.platform == "win32":
        return _loopback_adapter()
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), None)


def _loopback_adapter() -> Optional[str]:
    """Return the friendly name of the loopback adapter, which differs between the languages of Windows.

    See ``GetAdaptersAddresses`` in the reference of the Windows API: the adapter is the one of the type 24.

    """
    if sys.platform != "win32":
        return None
    import ctypes  # local import: it has these only on Windows
    from ctypes import wintypes

    class Adapter(ctypes.Structure):
        pass

    Adapter._fields_ = [
        ("length", wintypes.ULONG),
        ("index", wintypes.DWORD),
        ("next", ctypes.POINTER(Adapter)),
        ("name", ctypes.c_char_p),
        ("lists", ctypes.c_void_p * 4),
        ("dns_suffix", ctypes.c_wchar_p),
        ("description", ctypes.c_wchar_p),
        ("friendly_name", ctypes.c_wchar_p),
        ("physical_address", ctypes.c_ubyte * 8),
        ("physical_address_length", wintypes.ULONG),
        ("flags", wintypes.ULONG),
        ("mtu", wintypes.ULONG),
        ("type", wintypes.DWORD),
    ]
    size = wintypes.ULONG(16 * 1024)
    for _ in range(3):  # the list can grow in between
        buffer = ctypes.create_string_buffer(size.value)
        status = ctypes.WinDLL("iphlpapi").GetAdaptersAddresses(socket.AF_UNSPEC, 0, None, buffer, ctypes.byref(size))
        if status != 111:  # ERROR_BUFFER_OVERFLOW: `size` is now what is needed
            break
    if status != 0:
        return None
    adapter = ctypes.cast(buffer, ctypes.POINTER(Adapter))
    while adapter:
        if adapter.contents.type == 24:  # IF_TYPE_SOFTWARE_LOOPBACK
            return str(adapter.contents.friendly_name)
        adapter = adapter.contents.next
    return None
