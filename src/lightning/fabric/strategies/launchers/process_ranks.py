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
"""How a launcher that starts its ranks with :mod:`multiprocessing` ends with them."""

import multiprocessing.process
import os
from functools import wraps
from typing import Any, Callable, Set

from torch.multiprocessing.spawn import ProcessException

from lightning.fabric.strategies.launchers import lifetime
from lightning.fabric.strategies.launchers.job_object import _JobObject
from lightning.fabric.strategies.launchers.ranks import _Ranks

_others: Set[Any] = set()  # processes that were started before the ranks
_HANDLED = "_lightning_ranks_have_handled_it"  # an attribute of exceptions


def _ends_with_its_ranks(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Make the ``launch`` of a multiprocessing launcher end all ranks when one fails or the user interrupts it.

    Runs in the process that launches, which is not a rank.

    """

    @wraps(launch)
    def launch_and_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer_job = lifetime._job
        num_processes = getattr(self._strategy, "num_processes", 1)
        self._job = job = lifetime._new_job(lifetime._first_rank(num_processes))
        job.is_starting_ranks = True
        job_object = _JobObject(job.name)
        if self._start_method != "fork":
            lifetime._start_resource_tracker()
        _others.clear()
        _others.update(_processes())
        try:
            return launch(self, *args, **kwargs)
        except BaseException as exception:
            ranks = self.__dict__.get("_ranks") or _find_ranks(job)
            if isinstance(exception, KeyboardInterrupt):
                _end_in_order(ranks)
            if isinstance(exception, ProcessException) and "_ranks" not in self.__dict__:
                ranks.excuse_all_but((job.rank or 0) + exception.error_index)
            ranks.end()
            if ranks.pids:
                setattr(exception, _HANDLED, True)
            culprit = ranks.find_culprit()
            if isinstance(exception, ProcessException) and culprit is not None:
                exception.msg, exception.error_index = f"\n\n{ranks.report(culprit)}", culprit.rank - (job.rank or 0)
                exception.args = (exception.msg,)
            raise
        finally:
            _find_ranks(job).end()
            job_object.release()
            job.remove_notes()
            lifetime._job = outer_job
            del self._job
            self.__dict__.pop("_ranks", None)

    return launch_and_end


def _end_together(launcher: Any) -> None:
    """Wait until all ranks have ended, or one has failed and the others have been ended; runs in the launcher.

    Args:
        launcher: The launcher that has just started the ranks.

    """
    job = launcher.__dict__.get("_job")
    if job is not None:
        launcher._ranks = _find_ranks(job)
        launcher._ranks.wait()


def _was_handled_by_ranks(exception: BaseException) -> bool:
    """Whether the ranks have dealt with an exception: called the hooks, finalized the loggers, saved checkpoints."""
    return getattr(exception, _HANDLED, False)


def _end_in_order(ranks: _Ranks) -> None:
    try:
        ranks.wait_for_shutdown()
    except KeyboardInterrupt:  # the second one
        ranks.end()


def _processes() -> Set[Any]:
    """Return the processes that this one has started and that are referred to."""
    return set(multiprocessing.process._dangling)  # type: ignore[attr-defined]


def _find_ranks(job: lifetime._Job) -> _Ranks:
    """Return the ranks that this process has started for a job."""
    started = [process for process in _processes() - _others if process._parent_pid == os.getpid()]
    started = [process for process in started if process.pid is not None and not process.daemon]
    started.sort(key=lambda process: process._identity)
    return _Ranks(job, dict(enumerate(started, start=job.rank or 0)))
