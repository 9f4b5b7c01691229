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
"""Ranks end with their launcher, and it with them: what each process of a job does for that."""

import atexit
import json
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext
from functools import lru_cache, wraps
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Type, Union

from lightning.fabric.strategies.launchers import failure_notes, parent_watch, rank_starter
from lightning.fabric.strategies.launchers.failures import _explain
from lightning.fabric.strategies.launchers.interrupts import _INTERRUPTS, _next_interrupt
from lightning.fabric.strategies.launchers.job_object import _join_job_object
from lightning.fabric.utilities.lone_shutdown import _shutdown_alone
from lightning.fabric.utilities.rendezvous import _destroy_process_group_at_exit

_HANDED_OVER = "LIGHTNING_RANK_OF"  # what a launcher tells a rank that it starts by running the script again

_job: Optional["_Job"] = None  # that this process has launched, or is a rank of


class _Job:
    """What the processes of a job know of it.

    Args:
        launcher: The launcher's process identifier.
        folder: The folder for notes about failures. It exists only if there are notes.
        rank: The global rank of this process, or ``None`` in a launcher that is not a rank.

    """

    def __init__(self, launcher: int, folder: str, rank: Optional[int] = None) -> None:
        self.launcher = launcher
        self.folder = folder
        self.rank = rank
        self.is_starting_ranks = False
        self.runs_function = False  # instead of a script, which can go on after an exception

    @property
    def name(self) -> str:
        """The name of its job object on Windows."""
        return os.path.basename(self.folder)

    def note(self, exception: BaseException) -> None:
        """Leave a note of the exception that this process ends with; runs in the ranks."""
        kind = "interrupt" if isinstance(exception, KeyboardInterrupt) else "exception"
        failure_notes.write_note(self.folder, kind, exception, self.rank)

    def remove_notes(self) -> None:
        """Remove the notes; runs in the launcher, when the job has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _new_job(rank: Optional[int]) -> _Job:
    """Make a job; runs in the launcher, before it starts the ranks."""
    global _job
    failure_notes.remove_forgotten(tempfile.gettempdir())
    folder = failure_notes.new_folder(tempfile.gettempdir())
    _job = _Job(os.getpid(), folder, rank)
    atexit.register(_job.remove_notes)
    return _job


def _be_part_of_job() -> None:
    """Do what every process of a job does: let its workers end with it, and explain what it fails of.

    Runs in every process that launches, ranks included, before anything else of the launch.

    """
    if _HANDED_OVER in os.environ:
        _adopt_handed_over_job()
    elif _job is None:
        _new_job(rank=None)
    _note_uncaught()
    _end_forked_workers()
    _notice_dead_workers()


@lru_cache(maxsize=None)
def _end_forked_workers() -> None:
    def end_with_parent(_: Any) -> None:
        parent_watch.end_with_parent_after_fork(_left_over_by(os.getppid()))

    multiprocessing.util.register_after_fork(parent_watch, end_with_parent)


@lru_cache(maxsize=None)
def _notice_dead_workers() -> None:
    """Let DataLoaders look after their workers twice a second on Windows, where no signal tells that one has ended.

    PyTorch does so every five seconds, which can't be set. Runs in every rank.

    """
    if sys.platform != "win32":
        return
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter  # local import: it is torch's own

    method = getattr(_MultiProcessingDataLoaderIter, "_try_get_data", None)
    if getattr(method, "__defaults__", None) == (5.0,):
        method.__defaults__ = (0.5,)


def _adopt_handed_over_job() -> None:
    """Tie this process to the launcher that has started it by running the script again."""
    global _job
    # Whatever this process starts is not a rank
    launcher, folder, rank = json.loads(os.environ.pop(_HANDED_OVER))
    _job = _Job(launcher, folder, rank)
    parent_watch.end_with(launcher, folder)
    _destroy_process_group_at_exit()


def _hand_over_job(environment: Dict[str, str], num_processes: int) -> None:
    """Put the job into the environment variables of a rank; runs in the launcher of scripts.

    Args:
        environment: The variables that the rank is to be started with.
        num_processes: The number of ranks on this node.

    """
    local_rank = int(environment["LOCAL_RANK"])
    if local_rank == 1:
        _new_job(_first_rank(num_processes))
        _destroy_process_group_at_exit()
    job = _job
    assert job is not None
    environment["PYTHONWARNINGS"] = _without_leak_warnings(environment)
    environment[_HANDED_OVER] = json.dumps([job.launcher, job.folder, (job.rank or 0) + local_rank])


def _without_leak_warnings(environment: Mapping[str, str]) -> str:
    """Return the filters of warnings with which the resource tracker of :mod:`multiprocessing` says nothing.

    It removes the semaphores of a process that was ended, and would say so below the reason why that was ended.

    """
    return ",".join(filter(None, [environment.get("PYTHONWARNINGS"), "ignore:resource_tracker"]))


def _start_resource_tracker() -> None:
    """Start the resource tracker, which ranks share with a launcher that spawns them; runs in that launcher."""
    if sys.platform != "win32":
        from multiprocessing import resource_tracker  # local import: Windows has none

        warnings = os.environ.get("PYTHONWARNINGS")
        os.environ["PYTHONWARNINGS"] = _without_leak_warnings(os.environ)
        try:
            resource_tracker.ensure_running()
        finally:
            del os.environ["PYTHONWARNINGS"]
            if warnings is not None:
                os.environ["PYTHONWARNINGS"] = warnings


def _first_rank(num_processes: int) -> int:
    """Return the global rank of the first of the ranks on this node."""
    node_rank = os.environ.get("NODE_RANK", "0")
    return int(node_rank) * num_processes if node_rank.isdigit() and node_rank != "0" else 0


def _tie_to_launcher(command: Union[str, Sequence[str]]) -> Union[str, Sequence[str]]:
    """Return a command that runs another one such that it ends with this process, where the system can do that.

    Runs in the launcher of scripts.

    """
    # Linux means the thread that starts a process when it says parent
    if sys.platform != "linux" or isinstance(command, str) or threading.current_thread() != threading.main_thread():
        return command
    return [sys.executable, "-I", "-S", rank_starter.__file__, str(os.getpid()), *command]


def _runs_rank(wrapping_function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function that a multiprocessing launcher runs in the ranks take part in the job; runs in the ranks."""

    @wraps(wrapping_function)
    def run_rank(self: Any, process_idx: int, *args: Any, **kwargs: Any) -> Any:
        global _job
        job = self.__dict__.get("_job")
        if job is None:
            return wrapping_function(self, process_idx, *args, **kwargs)
        _job = _Job(job.launcher, job.folder, (job.rank or 0) + process_idx)
        _job.runs_function = True
        _join_job_object(_job.name)
        if self._start_method == "fork":  # others watch since they were started
            parent_watch.end_with(_job.launcher, _job.folder)
        _interrupt_once()
        _end_forked_workers()
        _notice_dead_workers()
        _destroy_process_group_at_exit()
        try:
            return wrapping_function(self, process_idx, *args, **kwargs)
        except BaseException as exception:
            if not isinstance(exception, SystemExit):
                _explain(exception, _job.folder)
                _job.note(exception)
            atexit.register(failure_notes.end_quickly)
            raise

    return run_rank


@contextmanager
def _handling(exception: BaseException, alone: bool) -> Iterator[None]:
    """Deal with an exception that ends the run, while other processes give this one the time for it.

    Runs in ranks, and in a process that has launched none.

    Args:
        exception: The exception. What is known of its cause is added to its message.
        alone: Whether the others are not to be waited for meanwhile: they can be anywhere, or gone.

    """
    job = _job or _new_job(rank=None)
    is_interrupt = isinstance(exception, KeyboardInterrupt)
    _explain(exception, job.folder)
    if is_interrupt or job.runs_function:
        job.note(exception)
    failure_notes.mark_handling(job.folder, job.rank, True)
    try:
        next_interrupt = _next_interrupt(ends=job.launcher == os.getpid()) if is_interrupt else nullcontext()
        with _shutdown_alone(alone), next_interrupt:
            yield
    finally:
        failure_notes.mark_handling(job.folder, job.rank, False)


def _note_termination(*_: Any) -> None:
    """Leave a note that this process was told to end, and end quickly; runs in ranks, when they receive SIGTERM.

    Before release 2.6, it serves as a handler of that signal itself, beside the trainer's.

    """
    if _job is not None:
        failure_notes.write_note(_job.folder, "termination", rank=_job.rank)
        atexit.register(failure_notes.end_quickly)


@lru_cache(maxsize=None)
def _note_uncaught() -> None:
    """Leave a note of the exception that ends the script, and end quickly; runs in every process that launches."""
    excepthook = sys.excepthook

    def note_and_print(cls: Type[BaseException], exception: BaseException, trace: Optional[TracebackType]) -> None:
        if _job is not None:
            _explain(exception, _job.folder)
            _job.note(exception)
        excepthook(cls, exception, trace)
        atexit.register(failure_notes.end_quickly)

    sys.excepthook = note_and_print


def _interrupt_once() -> None:
    """Raise a :class:`KeyboardInterrupt` at the first Ctrl+C only; runs in the ranks of a multiprocessing launcher.

    The launcher may pass a Ctrl+C on that has reached the rank already. At a second one, it ends them.

    """

    def interrupt(signum: int, frame: Optional[FrameType]) -> None:
        for number in _INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
        signal.default_int_handler(signum, frame)

    if threading.current_thread() is threading.main_thread():
        for number in _INTERRUPTS:
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                signal.signal(number, interrupt)


def _ties_of(process: Any) -> Optional[Dict[str, Any]]:
    """Return what ties a process to this one that is about to be spawned; runs in the process that starts it.

    Args:
        process: The :class:`multiprocessing.Process`, or ``None`` if it is not known.

    """
    if _job is None:
        return None
    is_rank = _job.is_starting_ranks and getattr(process, "_target", None) is not None
    is_worker = parent_watch.is_dataloader_worker(process)
    return {
        "path": os.path.dirname(__file__),
        "parent": os.getpid() if is_rank or is_worker else None,
        "folder": _job.folder if is_rank or is_worker else None,
        "leftover": _left_over_by(os.getpid()),
    }


def _left_over_by(pid: int) -> Optional[str]:
    """Return the folder that a process leaves behind if it is ended by force; runs in it, or in a fork of it."""
    return _job.folder if _job is not None and _job.launcher == pid else None
