"""The ports that the system hands out, less those that it has reserved."""

import re
import sys
from pathlib import Path

from lightning_windows_ddp._errors import CommandError, ProgramNotFoundError, TimeLimitError
from lightning_windows_ddp._run import run
from lightning_windows_ddp.doctor._check import Check

_NAME = "ports"
_FEW = 256  # below that, choosing one at random can fail
_NETSH = ("netsh", "interface", "ipv4", "show")
_PROC = Path("/proc/sys/net/ipv4")
_UNKNOWN = Check(_NAME, "note", "the system does not tell which it hands out and which it has reserved")


def check() -> Check:
    """Check that enough ports are left of those that the system hands out."""
    if sys.platform == "win32":
        try:
            dynamic = run([*_NETSH, "dynamicport", "tcp"], time_limit=30).decode("oem", "replace")
            excluded = run([*_NETSH, "excludedportrange", "protocol=tcp"], time_limit=30).decode("oem", "replace")
        except (ProgramNotFoundError, CommandError, TimeLimitError):
            return _UNKNOWN
        return judge(read_dynamic(dynamic), read_excluded(excluded))
    try:
        first, last = map(int, (_PROC / "ip_local_port_range").read_text().split())
        reserved = (_PROC / "ip_local_reserved_ports").read_text().strip()
    except (OSError, ValueError):
        return _UNKNOWN
    ranges = [part.partition("-") for part in reserved.split(",") if part]
    return judge(range(first, last + 1), [range(int(low), int(high or low) + 1) for low, _, high in ranges])


def judge(dynamic: range | None, excluded: list[range]) -> Check:
    """Compare the ports that the system hands out with those that it has reserved.

    Args:
        dynamic: The former; None if they are not known.
        excluded: The latter.

    """
    if dynamic is None:
        return _UNKNOWN
    reserved = {port for each in excluded for port in each}
    free = sum(port not in reserved for port in dynamic)
    found = f"{free} of {len(dynamic)} dynamic ports are not reserved"
    remedy = "Lower the lower end of /proc/sys/net/ipv4/ip_local_port_range."
    if sys.platform == "win32":
        remedy = (
            "Hyper-V, WSL and Docker reserve ranges. As administrator: `net stop winnat`, then `netsh interface ipv4"
            " set dynamicport tcp start=49152 num=16384`, then `net start winnat`."
        )
    if free < _FEW:
        return Check(_NAME, "problem", found, remedy)
    if free < len(dynamic) // 2:
        return Check(_NAME, "note", found, remedy)
    return Check(_NAME, "ok", found)


def read_dynamic(output: str) -> range | None:
    """Return the range that `netsh interface ipv4 show dynamicport tcp` prints in any language: first port, number."""
    numbers = [int(number) for number in re.findall(r":\s*(\d+)\s*$", output, re.MULTILINE)]
    return range(numbers[0], numbers[0] + numbers[1]) if len(numbers) == 2 else None


def read_excluded(output: str) -> list[range]:
    """Return the ranges of `netsh interface ipv4 show excludedportrange`: lines with the first and the last port."""
    found = re.findall(r"^\s*(\d+)\s+(\d+)\s*\*?\s*$", output, re.MULTILINE)
    return [range(int(first), int(last) + 1) for first, last in found]
