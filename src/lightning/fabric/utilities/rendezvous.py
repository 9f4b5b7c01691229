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
"""Where the ranks meet: the store that rank 0 serves on the main port, and the process group that is made with it."""

import atexit
import os
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional

import torch

from lightning.fabric.utilities.main_address import _loopback_interface
from lightning.fabric.utilities.main_port import _chooses_meeting_point, _find_claim
from lightning.fabric.utilities.rendezvous_errors import _explain_failure, _Meeting
from lightning.fabric.utilities.store import _make_store

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_TIME_TO_DESTROY = 1.0  # seconds
_RANK_KEY = "lightning/rank_{}"  # in the store: the note of a rank that has come

_own_interface: Optional[str] = None


def _meets_at_main_port(init_dist_connection: Callable[..., None]) -> Callable[..., None]:
    """Make the function that initializes the process group let the ranks meet at the main port; runs in every rank.

    Rank 0 serves the store from the port that was claimed for the job. Where the meeting point is not Lightning's to
    choose, and where torch's store takes no listening socket, all is left to torch. An exception of torch's keeps its
    type and gets an explanation if the reason is known.

    """

    @wraps(init_dist_connection)
    def meet(
        cluster_environment: "ClusterEnvironment",
        torch_distributed_backend: str,
        global_rank: Optional[int] = None,
        world_size: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        if not torch.distributed.is_available() or torch.distributed.is_initialized():
            init_dist_connection(cluster_environment, torch_distributed_backend, global_rank, world_size, **kwargs)
            return
        rank = global_rank if global_rank is not None else cluster_environment.global_rank()
        size = world_size if world_size is not None else cluster_environment.world_size()
        with _at_meeting_point(cluster_environment, rank, size, kwargs.get("timeout")):
            init_dist_connection(cluster_environment, torch_distributed_backend, rank, size, **kwargs)
        _destroy_process_group_at_exit()

    return meet


@contextmanager
def _at_meeting_point(
    cluster_environment: "ClusterEnvironment", rank: int, world_size: int, timeout: Optional[timedelta]
) -> Iterator[None]:
    address, port = cluster_environment.main_address, cluster_environment.main_port
    claim = _find_claim(cluster_environment, port)
    store: Optional[torch.distributed.TCPStore] = None

    def find_missing() -> List[int]:
        return [] if store is None else _find_missing(store, world_size)

    try:
        with _explain_failure(_Meeting(rank, world_size, address, port, find_missing)):
            if claim is not None and claim.loopback_only:
                _keep_gloo_on_loopback()
            if claim is not None and rank == 0:
                claim.serve()
                store = claim.server
            elif claim is not None or _is_on_other_node(cluster_environment):
                store = _make_store(address, port, wait_for_workers=False, **({"timeout": timeout} if timeout else {}))
            if store is not None:
                store.set(_RANK_KEY.format(rank), "")
            yield
    finally:
        store = None  # the process group has its own, and the server is to end with it
        if claim is not None:
            claim.let_go()


@lru_cache(maxsize=None)
def _destroy_process_group_at_exit() -> None:
    """Let a process group of gloo's end before the interpreter does; runs in every rank.

    The threads of gloo drop the tensors of finished collectives in their own time. If they do when the interpreter has
    begun to end, up to Python 3.13 the process aborts: 'terminate called without an active exception'. Threads are
    ended otherwise on Windows. Source: https://github.com/pytorch/pytorch/issues/190489

    A group that something else holds, such as a model in :class:`~torch.nn.parallel.DistributedDataParallel`, stays.

    """
    if sys.platform == "win32" or not torch.distributed.is_available():
        return
    begins, ends = threading.Event(), threading.Event()

    def destroy() -> None:
        begins.wait()
        try:
            if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
                torch.distributed.destroy_process_group()
        finally:
            ends.set()

    def wait_until_destroyed() -> None:
        begins.set()
        ends.wait(_TIME_TO_DESTROY)  # a collective that not all ranks take part in may not end

    # Started now, because Python 3.12 and later start no thread at exit
    threading.Thread(target=destroy, name="destroy-process-group", daemon=True).start()
    atexit.register(wait_until_destroyed)


def _leave_process_group() -> None:
    """Undo what :func:`_meets_at_main_port` has done to the environment variables; runs in every rank."""
    global _own_interface
    if _own_interface is not None and os.environ.get(_GLOO_INTERFACE) == _own_interface:
        del os.environ[_GLOO_INTERFACE]
    _own_interface = None


def _is_on_other_node(cluster_environment: "ClusterEnvironment") -> bool:
    """Whether the main node is another one, where Lightning has launched too."""
    return _chooses_meeting_point(cluster_environment) and cluster_environment.node_rank() > 0


def _find_missing(store: "torch.distributed.TCPStore", world_size: int) -> List[int]:
    """Return the ranks that have left no note, as far as the store still answers."""
    with suppress(RuntimeError):
        return [rank for rank in range(world_size) if not store.check([_RANK_KEY.format(rank)])]
    return []


def _keep_gloo_on_loopback() -> None:
    """Make gloo, which listens on the address of the machine's name by itself, use the loopback interface."""
    global _own_interface
    if _GLOO_INTERFACE in os.environ:
        return
    interface = _loopback_interface()
    if interface is not None:
        os.environ[_GLOO_INTERFACE] = _own_interface = interface
