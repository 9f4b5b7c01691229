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
"""The main port of a job: chosen by the process that launches, and owned from then on until rank 0 uses it."""

import errno
import functools
import json
import os
import socket
import sys
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional

import torch

from lightning.fabric.utilities.main_address import _is_loopback, _resolve
from lightning.fabric.utilities.port_holder import _describe_refusal
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.fabric.utilities.store import _make_store, _takes_listener

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

# What a launcher tells the ranks that it starts by running the script again
_HANDED_OVER = "LIGHTNING_MAIN_PORT_CLAIM"
_BACKLOG = 2048  # as many as torch; the system has a limit of its own
# What to connect to where a socket listens on all interfaces
_LOOPBACK = {"::": "::1", "0.0.0.0": "127.0.0.1"}  # noqa: S104
# No such address on this machine, or no IPv6 (the second numbers are those of Windows)
_NOT_HERE = (errno.EADDRNOTAVAIL, 10049, errno.EAFNOSUPPORT, 10047)

_claim: Optional["_MainPortClaim"] = None  # of the job that this process has launched, or is a rank of
# Each `MASTER_PORT` that was chosen here, and the user's in whose place it is
_own_ports: Dict[str, Optional[str]] = {}


class _MainPortClaim:
    """The main port of a job whose launcher is Lightning's, from the moment when it is chosen.

    The launching process makes it and listens on the port from then on, so that no other process can take it before
    rank 0 serves torch's store there. Ranks that are early wait in the queue of the socket.

    Args:
        port: The port's number.
        loopback_only: Whether all ranks are on this machine and meet on its loopback interface.
        replaced: The number that the user chose and that could not be had.
        host: The address to listen on. Other ranks than 0 do not need it.
        listener: The listening socket. Only the launching process and rank 0 have it.

    """

    def __init__(
        self,
        port: int,
        loopback_only: bool = False,
        replaced: Optional[str] = None,
        host: str = "",
        listener: Optional[socket.socket] = None,
    ) -> None:
        self.port = port
        self.loopback_only = loopback_only
        self.replaced = replaced
        self._host = host
        self._listener = listener
        self._server: Optional[torch.distributed.TCPStore] = None
        self._has_started_rank_zero = False
        self.is_inherited = False

    def serve(self) -> None:
        """Serve the store from the listening socket; runs in rank 0.

        Torch finds this server when it makes the store for a process group, whoever asks for it: a strategy of
        Lightning's, another library or the user. If the port has been let go, this tries to get it back. If that fails,
        or if torch's store takes no socket, all is left to torch, which knows best how to fail.

        """
        if self._server is not None or not _takes_listener():
            self.release()
            return
        if self._listener is None:
            with suppress(OSError):
                self._listener = _bind(self._host, self.port)
        if self._listener is not None:
            try:
                self._server = self._make_server()
            except NotImplementedError:
                # Up to release 2.7, torch can't give the socket to libuv (pytorch/pytorch#150215)
                self._server = self._make_server(use_libuv=False)
            self.release()

    def _make_server(self, **kwargs: Any) -> "torch.distributed.TCPStore":
        assert self._listener is not None
        # The store owns the descriptor (on Windows: the handle) that it is given, but only if it can be made
        listener = self._listener.dup()
        host = _LOOPBACK.get(self._host, self._host)
        kwargs.update(wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.fileno())
        try:
            server = _make_store(host, self.port, None, True, **kwargs)
        except NotImplementedError:
            listener.close()
            raise
        listener.detach()
        return server

    @property
    def server(self) -> "Optional[torch.distributed.TCPStore]":
        """The store that this process serves and that no process group has been made with yet."""
        return self._server

    def let_go(self) -> None:
        """Leave the server to the process group that has been made with it, and which ends it; runs in rank 0."""
        self._server = None

    def release(self) -> None:
        """Stop listening in this process."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def __getstate__(self) -> Dict[str, Any]:
        """Hand the socket to rank 0, the first process that is started with this claim, and to nobody else."""
        state = self.__dict__.copy()
        state.update(_listener=None, _server=None)
        if get_spawning_popen() is not None:
            if not self._has_started_rank_zero:
                state["_listener"] = self._listener
            else:
                self.release()  # rank 0 has it
            self._has_started_rank_zero = True
        return state


class _Request(NamedTuple):
    variable: str
    value: str


class _Listener(NamedTuple):
    socket: socket.socket
    host: str


def _claim_main_port(
    cluster_environment: "ClusterEnvironment", num_nodes: int, start_method: str = "popen"
) -> Optional[_MainPortClaim]:
    """Choose the main port, listen on it, and export ``MASTER_ADDR`` and ``MASTER_PORT`` for the ranks.

    Runs in the process that launches, before it starts the first rank. Nothing happens where the meeting point is not
    Lightning's to choose: if another launcher has started this process, if the cluster environment is another one than
    the default, and on nodes other than the main one.

    With one node, the port is claimed on the interface of the main address alone, which is the loopback interface
    unless the user says otherwise. With more nodes it is claimed on all interfaces, as torch does.

    Args:
        cluster_environment: The environment whose port to claim.
        num_nodes: The number of nodes that take part.
        start_method: How the ranks are started.

    Returns:
        The claim, or ``None`` if the meeting point is not Lightning's to choose.

    Raises:
        ValueError: If ``MASTER_PORT`` or ``STANDALONE_PORT`` is not the number of a port.
        RuntimeError: If the port that the user chose can't be had and there are other nodes that expect it.

    """
    global _claim
    if cluster_environment.creates_processes_externally:
        return None
    if _claim is not None:  # of a job that has ended
        _claim.release()
        _claim.let_go()
        _claim = None
    os.environ.pop(_HANDED_OVER, None)  # of a job, one of whose ranks runs this script
    if not _chooses_meeting_point(cluster_environment) or cluster_environment.node_rank() != 0:
        return None

    address = cluster_environment.main_address
    hosts = _resolve(address) if num_nodes == 1 else []
    request = _find_request()
    listener = None if request is None else _listen_as_requested(request, hosts, num_nodes)
    replaced = request.value if request is not None and listener is None else None
    if listener is None:
        listener = _listen(hosts, 0)
    port = listener.socket.getsockname()[1]
    loopback_only = num_nodes == 1 and _is_loopback(listener.host)
    if listener.host in hosts[1:]:
        address = listener.host  # torch would look for rank 0 at the first of them, in vain

    if request is None or request.value != str(port):
        _own_ports[str(port)] = replaced
    cluster_environment._main_port = port
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
    _claim = _MainPortClaim(port, loopback_only, replaced, listener.host, listener.socket)
    if not _takes_listener():
        _claim.release()  # torch, or whoever makes the process group, has to bind the port itself
    elif start_method == "fork":
        _claim.is_inherited = True
        _release_after_fork()
    return _claim


@functools.lru_cache(maxsize=None)
def _release_after_fork() -> None:
    """Let the process that launches release a port that its first child, which is rank 0, has inherited."""

    def release_if_inherited() -> None:
        if _claim is not None and _claim.is_inherited:
            _claim.release()

    os.register_at_fork(after_in_parent=release_if_inherited)


def _releases_main_port(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Make the ``launch`` of a multiprocessing launcher release what it has claimed when it ends, in whatever way.

    Runs in the process that launches, which is not a rank.

    """

    @functools.wraps(launch)
    def launch_and_release(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return launch(self, *args, **kwargs)
        finally:
            claim = self.__dict__.pop("_main_port_claim", None)
            if claim is not None:
                claim.release()

    return launch_and_release


def _adopt_main_port(launcher: Any, process_idx: int) -> None:
    """Take over the claim that a multiprocessing launcher has brought along; runs in each of its ranks.

    Args:
        launcher: The launcher.
        process_idx: The local rank. Claims are made on the main node, so it is the global rank there.

    """
    global _claim
    _claim = launcher.__dict__.get("_main_port_claim")
    if _claim is not None and process_idx == 0:
        _claim.serve()
    elif _claim is not None:
        _claim.release()  # a forked rank has it, too


def _serve_main_port() -> None:
    """Serve the store in the process that launches, where that is rank 0: with a subprocess launcher."""
    if _claim is not None:
        _claim.serve()


def _let_main_port_go() -> None:
    """Leave the store's server to the process group that has been made by other means than a strategy's."""
    if _claim is not None:
        _claim.let_go()


def _hand_over_claim(environment: Dict[str, str]) -> None:
    """Put the claim into the environment variables of a rank that runs the script again; runs in the launcher.

    Args:
        environment: The variables that the rank is to be started with.

    """
    if _claim is not None and environment.get("MASTER_PORT") == str(_claim.port):
        environment[_HANDED_OVER] = json.dumps([_claim.port, _claim.loopback_only, _claim.replaced])


def _main_port_from_environment() -> Optional[int]:
    """Return the main port that the environment variables name, or ``None``; runs in the launcher and in all ranks.

    Raises:
        ValueError: If ``MASTER_PORT`` is not the number of a port.
        RuntimeError: If the launcher of this rank has exported another port than the one that is there now.

    """
    value = os.environ.get("MASTER_PORT")
    claim = _handed_over_claim()
    if claim is None:
        return None if value is None else _parse_port(_Request("MASTER_PORT", value))
    if value not in (None, str(claim.port), claim.replaced):
        raise RuntimeError(
            f"The environment variable `MASTER_PORT` is {value} in this process, but the process that launched it meets"
            f" the others at port {claim.port}. Most likely, the script sets the variable to a value that differs from"
            " one process to the next, such as a random number. Every process runs the script: remove that line, and"
            " Lightning chooses a free port, or set the variable before the script starts."
        )
    return claim.port


def _chooses_meeting_point(cluster_environment: "ClusterEnvironment") -> bool:
    """Whether the environment is Lightning's default one, and its address and port are not a subclass' own."""
    # local import to avoid a circular import
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment

    cls = type(cluster_environment)
    return (
        issubclass(cls, LightningEnvironment)
        and cls.main_port is LightningEnvironment.main_port
        and cls.main_address is LightningEnvironment.main_address
    )


def _find_request() -> Optional[_Request]:
    """Return the port that the user asks for, as opposed to one that was chosen here for an earlier job."""
    value = os.environ.get("MASTER_PORT")
    if value in _own_ports:
        value = _own_ports[value]
    if value is not None:
        return _Request("MASTER_PORT", value)
    value = os.environ.get("STANDALONE_PORT")
    return None if value is None else _Request("STANDALONE_PORT", value)


def _parse_port(request: _Request) -> int:
    if request.value.isdigit() and 0 < int(request.value) < 2**16:
        return int(request.value)
    raise ValueError(
        f"The environment variable `{request.variable}` is {request.value!r}, which is not the number of a port. Set it"
        " to a number from 1 to 65535, or unset it, and Lightning chooses a free port."
    )


def _listen_as_requested(request: _Request, hosts: List[str], num_nodes: int) -> Optional[_Listener]:
    port = _parse_port(request)
    try:
        return _listen(hosts, port)
    except OSError as ex:
        message = (
            f"The main port {port}, which the environment variable `{request.variable}` asks for, can't be had:"
            f" {_describe_refusal(ex, port)}"
        )
        if num_nodes > 1:
            raise RuntimeError(
                f"{message} The other nodes expect the main node at this port, so no process was started. Free the"
                f" port, or set `{request.variable}` to another one on every node."
            ) from ex
        rank_zero_warn(
            f"{message} This job uses another port. Set `{request.variable}` to a port that is free, or unset it and"
            " let Lightning choose."
        )
        return None


def _listen(hosts: List[str], port: int) -> _Listener:
    """Listen on a port of the first host that is this machine, or of all its interfaces if none is.

    Raises:
        OSError: If the port can't be had.

    """
    for host in hosts:
        try:
            return _Listener(_bind(host, port), host)
        except OSError as ex:
            if (getattr(ex, "winerror", None) or ex.errno) not in _NOT_HERE:
                raise
    try:
        return _Listener(_bind("::", port), "::")
    except OSError as ex:
        if (getattr(ex, "winerror", None) or ex.errno) not in _NOT_HERE:
            raise
    return _Listener(_bind("0.0.0.0", port), "0.0.0.0")  # noqa: S104


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            # There, another process could share the port otherwise
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            # A port whose last connections have just been closed is free
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _handed_over_claim() -> Optional[_MainPortClaim]:
    """Return the claim of the launcher that has started this rank by running the script again."""
    if _HANDED_OVER not in os.environ or "LOCAL_RANK" not in os.environ:
        return None
    return _MainPortClaim(*json.loads(os.environ[_HANDED_OVER]))


def _find_claim(cluster_environment: "ClusterEnvironment", port: int) -> Optional[_MainPortClaim]:
    if not _chooses_meeting_point(cluster_environment):
        return None
    claim = _claim or _handed_over_claim()
    return claim if claim is not None and claim.port == port else None
