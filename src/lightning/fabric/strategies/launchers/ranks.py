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
"""The ranks that a launcher has started: it ends them when one of them has failed, and says which and why."""

import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Dict, List, Optional, Set, Union

from lightning.fabric.strategies.launchers.exit_status import _describe_exit
from lightning.fabric.strategies.launchers.failure_notes import is_handling, read_notes
from lightning.fabric.strategies.launchers.failures import _Failure, _failures_of, _find_culprit

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from lightning.fabric.strategies.launchers.lifetime import _Job

_POLL = 0.1  # seconds between two looks at the ranks
_GRACE = 0.5  # seconds that the others have to find out by themselves, and to begin to deal with it
_PASS_ON = 0.3  # seconds after which ranks that a Ctrl+C has not reached get it from the launcher
_PATIENCE = 5.0  # seconds that ranks have to begin to shut down after a Ctrl+C


class _Ranks:
    """The ranks that a launcher has started as processes; used in the launcher.

    Args:
        job: What the processes of the job know of it.
        processes: The processes by their global ranks.

    """

    def __init__(self, job: "_Job", processes: Dict[int, Union["subprocess.Popen[bytes]", "BaseProcess"]]) -> None:
        self.job = job
        self._processes = processes
        self._ended_by_us: Set[int] = set()

    @property
    def alive(self) -> List[int]:
        """The ranks that have not ended."""
        return [rank for rank in self._processes if self._status(rank) is None]

    @property
    def pids(self) -> Dict[int, int]:
        """The global rank of each process identifier."""
        return {process.pid: rank for rank, process in self._processes.items() if process.pid is not None}

    @property
    def have_failed(self) -> bool:
        """Whether any rank has failed, the launcher included if it is one."""
        return any(self._status(rank) for rank in self._processes) or bool(self.failures)

    @property
    def failures(self) -> List[_Failure]:
        """The failures that were noted, and those that only an exit status tells of, in this order."""
        failures = _failures_of(read_notes(self.job.folder), self.pids)
        if self._is_ending(failures):
            return []
        noted = {failure.rank for failure in failures}
        for rank, process in self._processes.items():
            status = self._status(rank)
            if status and rank not in noted and rank not in self._ended_by_us:
                failures.append(_Failure(rank, process.pid or 0, "exit", _describe_exit(status)))
        return failures

    def _is_ending(self, failures: List[_Failure]) -> bool:
        """Whether the launcher was told to end, and how the ranks end says nothing."""
        return any(
            failure.pid == self.job.launcher and failure.kind in ("interrupt", "termination") for failure in failures
        )

    def find_culprit(self) -> Optional[_Failure]:
        """Return the failure that the others most likely follow from, or ``None`` if nobody failed."""
        return _find_culprit(self.failures)

    def settle(self, launcher_has_ended: Optional[threading.Event] = None) -> bool:
        """Let the ranks find out that one has failed and deal with it, then end them all.

        Args:
            launcher_has_ended: Tells that the launcher is a rank and has dealt with it.

        Returns:
            ``False`` if no rank has failed after all: whoever has told a rank to end has told the launcher, too.

        """
        deadline = time.monotonic() + _GRACE / 2
        # Until the process that has failed is gone, the others may not notice
        while self._has_failed_alive() and time.monotonic() < deadline:
            time.sleep(_POLL / 2)
        deadline = time.monotonic() + _GRACE
        while True:
            if not self.have_failed:
                return False
            has_ended = launcher_has_ended is None or launcher_has_ended.is_set()
            if has_ended and (not self.alive or self._launcher_is_the_cause()):
                break
            ranks = self.alive if has_ended else [*self.alive, self.job.rank]
            busy = any(is_handling(self.job.folder, rank) for rank in ranks)
            if time.monotonic() > deadline and not busy:
                break
            time.sleep(_POLL / 2)
        self.end()
        return True

    def _has_failed_alive(self) -> bool:
        alive, failures = self.alive, self.failures
        return bool(failures) and all(failure.rank in alive for failure in failures)

    def _launcher_is_the_cause(self) -> bool:
        notes = self.failures
        return bool(notes) and notes[0].pid == self.job.launcher and not notes[0].is_consequence

    def wait(self) -> None:
        """Wait until all ranks of a multiprocessing launcher have ended, and end them all if one has failed."""
        while self.alive and not self.have_failed:
            sentinels = [self._processes[rank].sentinel for rank in self.alive]  # type: ignore[union-attr]
            multiprocessing.connection.wait(sentinels, timeout=_POLL)
        if self.have_failed:
            self.settle()

    def end(self) -> None:
        """End all ranks at once and wait until they have ended."""
        for rank in self.alive:
            self._ended_by_us.add(rank)
            with suppress(OSError):
                self._processes[rank].kill()
        for process in self._processes.values():
            process.wait() if isinstance(process, subprocess.Popen) else process.join()

    def excuse_all_but(self, rank: int) -> None:
        """Do not take the exit status of other ranks for a failure of their own: PyTorch has ended them."""
        self._ended_by_us.update(other for other in self._processes if other != rank)

    def interrupt(self, ranks: List[int]) -> None:
        """Pass a Ctrl+C on."""
        for rank in ranks:
            with suppress(OSError):
                if sys.platform != "win32":  # there, it reaches all processes of the console
                    os.kill(self._processes[rank].pid or 0, signal.SIGINT)

    def wait_for_shutdown(self) -> None:
        """Wait until the ranks have ended in order, after a Ctrl+C; those that do not even begin to are ended."""
        start = time.monotonic()
        passed_on = False
        while self.alive:
            shutting_down = {note["pid"] for note in read_notes(self.job.folder)}
            others = [rank for rank in self.alive if self._processes[rank].pid not in shutting_down]
            if others and not passed_on and time.monotonic() > start + _PASS_ON:
                self.interrupt(others)
                passed_on = True
            if others and time.monotonic() > start + _PATIENCE:
                break
            time.sleep(_POLL / 2)
        self.end()

    def report(self, culprit: _Failure) -> str:
        """Return what the user is to read last."""
        others = [failure for failure in self.failures if failure.rank != culprit.rank and failure.message]
        consequences = [
            f"After that, rank {other.rank} failed of: {other.message.splitlines()[0]}\n" for other in others
        ]
        return "".join([*consequences, "\n" * bool(others), f"Lightning has ended this job because {culprit}"])

    def _status(self, rank: int) -> Optional[int]:
        process = self._processes[rank]
        return process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
