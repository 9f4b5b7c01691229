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
"""Why ranks did not meet, and what to do about it: explanations of the errors that torch raises in that case."""

import re
import sys
from contextlib import contextmanager
from typing import Callable, Iterator, List, NamedTuple, Optional

from lightning.fabric.utilities.port_holder import _describe_forbidden, _find_port_holder


class _Meeting(NamedTuple):
    """Where and how many ranks are to meet.

    Args:
        rank: The global rank of this process.
        world_size: How many ranks there are.
        address: The main address.
        port: The main port.
        find_missing: Returns the ranks that have not come, as far as this process knows.

    """

    rank: int
    world_size: int
    address: str
    port: int
    find_missing: Callable[[], List[int]]


@contextmanager
def _explain_failure(meeting: _Meeting) -> Iterator[None]:
    """Add the reason and the remedy to an error that is raised while the ranks meet; runs in every rank.

    An error of which nothing is known passes through untouched. Of others the type stays as well.

    Args:
        meeting: Where and how many ranks are to meet.

    Raises:
        Exception: An exception of the type of the original one, which is its cause.

    """
    try:
        yield
    except Exception as ex:
        explanation = _find_explanation(str(ex), meeting)
        if explanation is None:
            raise
        raise _with_message(ex, f"{explanation}\n\nThe original error: {ex}") from ex


def _find_explanation(text: str, meeting: _Meeting) -> Optional[str]:
    """Return the explanation of an error with this text, or ``None``."""
    for pattern, explain in _EXPLANATIONS:
        if re.search(pattern, text, re.IGNORECASE):
            return explain(meeting)
    return None


def _with_message(error: Exception, message: str) -> Exception:
    """Return an exception with another message, and of the same type if that can be made from a message."""
    for cls in type(error).__mro__:
        if not issubclass(cls, Exception):
            break
        try:
            copy = cls(message)
        except Exception:
            continue
        if str(copy) == message:
            return copy
    return RuntimeError(message)


def _explain_in_use(meeting: _Meeting) -> str:
    holder = _find_port_holder(meeting.port) or "another process"
    return (
        f"Rank {meeting.rank} can't listen on the main port {meeting.port}: {holder} listens on it. That can be a"
        " process of an earlier run that has not ended: end it. Or another program uses the port: set the environment"
        " variable `MASTER_PORT` to one that is free, or unset it where Lightning starts the processes, so that it"
        " chooses one itself."
    )


def _explain_forbidden(meeting: _Meeting) -> str:
    if _find_port_holder(meeting.port) is not None:
        return _explain_in_use(meeting)  # so Windows forbids a port that another process has for itself
    return (
        f"Rank {meeting.rank} must not listen on the main port {meeting.port}: {_describe_forbidden(meeting.port)} Set"
        " the environment variable `MASTER_PORT` to another port, or unset it where Lightning starts the processes."
    )


def _explain_no_libuv(meeting: _Meeting) -> str:
    return (
        "This build of torch has no libuv, as all builds for Windows until today, but the environment variable"
        " `USE_LIBUV` or torch's default asks for it. Set `USE_LIBUV=0` before the script starts. The launcher"
        " `torchrun` asks for libuv itself: on Windows, let Lightning start the processes."
    )


def _explain_no_gloo_device(meeting: _Meeting) -> str:
    return (
        "This build of torch can't make a device for the gloo backend. The releases 2.8, 2.9 and 2.10 for Windows have"
        " none, although `torch.distributed.is_gloo_available()` says otherwise: install 2.7 or 2.11 or a newer one. If"
        " the environment variable `GLOO_DEVICE_TRANSPORT` is set, unset it."
    )


def _explain_blank_host_name(meeting: _Meeting) -> str:
    return (
        "The name of this machine is blank, and the gloo backend looks up its own address by that name. Give the"
        " machine a name (on Windows: Settings, System, About, 'Rename this PC'), or name the network interface to use"
        " in the environment variable `GLOO_SOCKET_IFNAME`."
    )


def _explain_unknown_interface(meeting: _Meeting) -> str:
    return (
        "The gloo backend finds no address to listen on. If the environment variable `GLOO_SOCKET_IFNAME` is set, it"
        " has to be the name of a network interface that has an address (not the address itself). Otherwise, the name"
        " of this machine must lead to one of its addresses: look at the `hosts` file of the system."
    )


def _explain_no_nccl(meeting: _Meeting) -> str:
    return (
        "This build of torch has no NCCL, as all builds for Windows and macOS. Use the gloo backend instead:"
        ' `DDPStrategy(process_group_backend="gloo")`, or leave the argument out.'
    )


def _explain_timeout(meeting: _Meeting) -> str:
    place = f"{meeting.address}, port {meeting.port}"
    missing = meeting.find_missing()
    if missing:
        came = meeting.world_size - len(missing)
        names = ", ".join(map(str, missing))
        what = f"Only {came} of {meeting.world_size} ranks came to {place} in time. Missing: rank {names}."
    elif meeting.rank == 0:
        what = f"Not all {meeting.world_size} ranks came to {place} in time."
    else:
        what = f"Rank {meeting.rank} waited at {place} in vain: rank 0 or another rank did not come in time."
    return (
        f"{what} A rank that does not come has most often failed: its own error stands further up, or in its own output"
        " or log. If it only needs longer, give the strategy more time, as in"
        " `DDPStrategy(timeout=timedelta(hours=1))`." + _about_noise()
    )


def _explain_unreachable(meeting: _Meeting) -> str:
    return (
        f"Rank {meeting.rank} can't reach the main address {meeting.address}, port {meeting.port}. On one machine, a"
        " firewall or VPN can be in the way, or a name that is mapped to another address: unset the environment"
        " variable `MASTER_ADDR`. With several, check that `MASTER_ADDR` is the address of the main node and that its"
        " firewall lets the port through." + _about_noise()
    )


def _about_noise() -> str:
    if sys.platform != "win32":
        return ""
    return " Lines above with the number 10049, from attempts to connect over IPv6, are harmless."


class _Explanation(NamedTuple):
    pattern: str  # in any case, in the spellings of all releases of torch
    explain: Callable[[_Meeting], str]


_EXPLANATIONS = (
    _Explanation(r"use_?libuv was requested|without libuv", _explain_no_libuv),
    _Explanation(r"hostname can't be empty", _explain_blank_host_name),
    _Explanation(r"unsupported gloo device", _explain_no_gloo_device),
    _Explanation(r"unable to find address for", _explain_unknown_interface),
    _Explanation(r"(doesn't have|does not have|no) NCCL (built|support)|built without NCCL", _explain_no_nccl),
    _Explanation(
        r"EADDRINUSE|address (is )?already in use|only one usage of each socket address|(error|code): -?10048\b",
        _explain_in_use,
    ),
    _Explanation(
        r"(socket|listen|bind).*(EACCES|permission denied|forbidden by its access permissions|(error|code): -?10013\b)",
        _explain_forbidden,
    ),
    _Explanation(
        r"timed out (after .*(waiting for clients|while trying to connect)|connecting)|- timed out|socket timeout"
        r"|wait timeout|connect(ion|\(\))? time(d |-)?out|ETIMEDOUT|(error|code): -?10060\b",
        _explain_timeout,
    ),
    _Explanation(
        r"network address(es)? of .*|EHOSTUNREACH|ENETUNREACH|ECONNREFUSED|connection refused|EADDRNOTAVAIL"
        r"|(error|code): -?100(49|51|61|65)\b",
        _explain_unreachable,
    ),
)
