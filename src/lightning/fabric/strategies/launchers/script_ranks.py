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
"""How a launcher that runs the script again, and is rank 0 itself, ends with the ranks that it has started."""

import atexit
import multiprocessing.util
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import List, Optional, Type

import torch

from lightning.fabric.strategies.launchers import lifetime
from lightning.fabric.strategies.launchers.failures import _explain, _Failure
from lightning.fabric.strategies.launchers.interrupts import _end_at_second_interrupt
from lightning.fabric.strategies.launchers.job_object import _JobObject
from lightning.fabric.strategies.launchers.ranks import _POLL, _Ranks


class _ScriptRanks:
    """Ends the ranks with this process, which is their launcher and rank 0, and this process with them.

    Args:
        processes: The processes of the local ranks from 1 on.

    """

    def __init__(self, processes: List["subprocess.Popen[bytes]"]) -> None:
        job = lifetime._job
        assert job is not None
        first = job.rank or 0
        self._ranks = _Ranks(job, {first + index: process for index, process in enumerate(processes, start=1)})
        self._job_object = _JobObject(job.name)
        for process in processes:
            self._job_object.add(int(getattr(process, "_handle", 0)))
        self._has_ended = threading.Event()  # the main thread, so far as it is the user's
        self._thread: Optional[threading.Thread] = None
        self._excepthook = sys.excepthook
        sys.excepthook = self._end_with_exception
        atexit.register(self._end_with_script)
        _end_at_second_interrupt(self._ranks)

    def watch(self) -> bool:
        """Wait until all ranks have ended; runs in a thread of the launcher.

        If one has failed, this ends the others and this process. It need not be able to end by itself: its main thread
        can be in a collective.

        Returns:
            ``True``: there is nothing left to observe.

        """
        self._thread = threading.current_thread()
        has_settled = False
        while not has_settled and (self._ranks.alive or self._ranks.have_failed):
            if self._ranks.have_failed:
                has_settled = self._ranks.settle(self._has_ended)
            else:
                time.sleep(_POLL)
        if has_settled:
            culprit = self._ranks.find_culprit()
            if culprit is not None and culprit.pid != os.getpid():
                self._exit(culprit)
        return True

    def _end_with_exception(
        self, cls: Type[BaseException], exception: BaseException, trace: Optional[TracebackType]
    ) -> None:
        """End the ranks because of an exception in the script, and print it after that; serves as excepthook."""
        job = self._ranks.job
        _explain(exception, job.folder)
        job.note(exception)
        self._has_ended.set()
        self._wait_for_thread()
        self._ranks.end()
        self._excepthook(cls, exception, trace)
        if not isinstance(exception, KeyboardInterrupt):
            print(f"\nLightning has ended this job because rank {job.rank} failed, see above.", file=sys.stderr)

    def _end_with_script(self) -> None:
        """Wait for the ranks, which run the same script to its end; runs when the interpreter exits."""
        if not self._has_ended.is_set():
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                # As if this process had ended: ranks that still wait for it would do so for long
                with suppress(Exception):
                    torch.distributed.destroy_process_group()
            self._has_ended.set()
            try:
                self._wait_for_thread()
            except KeyboardInterrupt:
                self._ranks.end()
        self._job_object.release()

    def _wait_for_thread(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _exit(self, culprit: _Failure) -> None:
        """End this process with a report, and its DataLoader workers with it; runs in the thread."""
        report = self._ranks.report(culprit)
        self._ranks.job.remove_notes()
        with suppress(Exception):
            _unlink_semaphores()
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(Exception):
            _print_last(f"\n{report}")
        os._exit(1)


def _watch_ranks(processes: List["subprocess.Popen[bytes]"]) -> None:
    """End with the ranks, and they with this process; runs in the launcher when it has started them.

    Until release 2.1, there is no observer of processes that does this, or one that is no thread.

    Args:
        processes: The processes of the local ranks from 1 on.

    """
    if processes:
        ranks = _ScriptRanks(processes)
        threading.Thread(target=ranks.watch, name="lightning-ranks", daemon=True).start()


def _print_last(text: str) -> None:
    """Print to where errors go, and let the main thread, which still runs, print nothing below it."""
    # Not to `sys.stderr`: torch collects what is written to it while an exception is printed
    stream = sys.__stderr__
    assert stream is not None
    with open(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors="backslashreplace") as last:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for standard in (1, 2):
            os.dup2(nowhere, standard)
        print(text, file=last)


def _unlink_semaphores() -> None:
    """Remove what the resource tracker of :mod:`multiprocessing` would remove with a warning, below the report."""
    from multiprocessing.synchronize import SemLock  # local import: not all systems have semaphores

    for finalizer in list(multiprocessing.util._finalizer_registry.values()):  # type: ignore[attr-defined]
        if finalizer._callback is getattr(SemLock, "_cleanup", None):
            finalizer()
