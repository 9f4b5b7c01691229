"""Where the ranks of one machine meet: its names, and sockets on its loopback interface."""

import ipaddress
import socket
import sys
from collections.abc import Iterator

from lightning_windows_ddp.doctor._check import Check

_TIME_LIMIT = 5.0  # seconds; a loopback connection takes less than a thousandth of one
_HOSTS = r"C:\Windows\System32\drivers\etc\hosts" if sys.platform == "win32" else "/etc/hosts"


def check_localhost() -> Check:
    """Check that `localhost` leads to this machine."""
    hosts = _resolve("localhost")
    remedy = f"Add the line `127.0.0.1 localhost` to {_HOSTS}."
    if not hosts:
        return Check("localhost", "note", "can't be resolved, so the ranks meet at 127.0.0.1", remedy)
    if not all(ipaddress.ip_address(host).is_loopback for host in hosts):
        return Check("localhost", "note", "leads elsewhere, so the ranks meet at 127.0.0.1", remedy)
    return Check("localhost", "ok", f"is {' and '.join(hosts)}")


def check_host_name() -> Check:
    """Check that the machine's own name leads to one of its addresses, as several machines need it."""
    name = socket.gethostname()
    if not name:
        remedy = "Give the machine a name (on Windows: Settings, System, About, 'Rename this PC')."
        return Check("host name", "note", "is blank; one machine can do without, several can't", remedy)
    hosts = _resolve(name)
    if not hosts:
        remedy = f"Add a line with the machine's address and name to {_HOSTS}."
        return Check("host name", "note", "can't be resolved; one machine can do without, several can't", remedy)
    strangers = [host for host in hosts if not _is_own(host)]
    if strangers:
        remedy = f"A VPN or Docker may have entered it: look at {_HOSTS} and at the VPN's DNS."
        found = "leads to an address that this machine hasn't; one machine can do without, several can't"
        return Check("host name", "note", found, remedy)
    return Check("host name", "ok", "leads to this machine")


def check_loopback() -> Iterator[Check]:
    """Check that a loopback socket can be bound, exclusively, and connected to, over IPv6 and IPv4."""
    failure = _why_no_connection(socket.AF_INET6, "::1") if socket.has_ipv6 else "this Python has no IPv6"
    if failure is None:
        yield Check("loopback IPv6", "ok", "can be listened on and connected to")
    else:
        yield Check("loopback IPv6", "ok", f"can't be used, IPv4 is enough ({failure})")
    failure = _why_no_connection(socket.AF_INET, "127.0.0.1")
    if failure is None:
        yield Check("loopback IPv4", "ok", "can be listened on and connected to")
    else:
        remedy = "Look at firewall, virus scanner and VPN: programs must be allowed to talk to themselves."
        yield Check("loopback IPv4", "problem", f"can't be used: {failure}", remedy)


def _why_no_connection(family: socket.AddressFamily, host: str) -> str | None:
    """Send a byte over a connection to ourselves, and return what kept it from arriving."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            if sys.platform == "win32":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            listener.settimeout(_TIME_LIMIT)
            listener.bind((host, 0))
            listener.listen()
            with socket.create_connection(listener.getsockname()[:2], _TIME_LIMIT) as client:
                server, _ = listener.accept()
                with server:
                    server.settimeout(_TIME_LIMIT)
                    client.sendall(b"x")
                    return None if server.recv(1) == b"x" else "another byte arrived than was sent"
    except OSError as error:
        return str(error)


def _resolve(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


def _is_own(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        # A link-local address needs the interface that we have cut off
        return ipaddress.ip_address(host).is_link_local
    return True
