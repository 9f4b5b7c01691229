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
"""Why a job has failed: which of its processes failed first, and what of."""

import multiprocessing.process
import re
import traceback
from typing import Any, Dict, List, NamedTuple, Optional

from lightning.fabric.strategies.launchers.exit_status import _describe_exit
from lightning.fabric.strategies.launchers.failure_notes import read_notes

# What a rank fails of because another one has gone: words of gloo, NCCL, torch's store, and the systems
_CONSEQUENCE = re.compile(
    r"closed by peer|closed by remote|reset by peer|connection (was likely )?closed|connection reset|broken pipe"
    r"|socket closed|remote process exited|ncclRemoteError|ncclSystemError|Heartbeat monitor|aborted by the software"
    r"|forcibly closed|(recv|send)(Value|Bytes|Vector)|(error|code): -?1005[34]\b",
    re.IGNORECASE,
)
_PAGING_FILE = re.compile(r"(WinError|os error|error|code):? 1455\b", re.IGNORECASE)
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class _Failure(NamedTuple):
    """How a rank has failed.

    Args:
        rank: Its global rank.
        pid: Its process identifier.
        kind: What the rank's note says, or ``"exit"`` if it has left none.
        text: The traceback, if it has raised an exception, or what its exit status means.
        message: The message of that exception.

    """

    rank: int
    pid: int
    kind: str
    text: str
    message: str = ""

    def __str__(self) -> str:
        who = f"rank {self.rank} (process {self.pid})"
        if self.kind == "exception":
            return f"{who} failed. Its error:\n\n{self.text.rstrip()}"
        if self.kind == "interrupt":
            return f"{who} was interrupted."
        if self.kind == "termination":
            return f"{who} was told to end (SIGTERM)."
        return f"{who} {self.text}"

    @property
    def is_consequence(self) -> bool:
        """Whether the rank has most likely failed because another one had."""
        return self.kind == "exception" and _CONSEQUENCE.search(self.message) is not None


def _find_culprit(failures: List[_Failure]) -> Optional[_Failure]:
    """Return the failure that the others most likely follow from.

    Args:
        failures: The failures, in the order in which they were noted.

    """
    without_note = [failure for failure in failures if failure.kind == "exit"]
    causes = [failure for failure in failures if not failure.is_consequence]
    # A process that can't leave a note did not fail because of the others' failures
    return next(iter([*without_note, *causes, *failures]), None)


def _explain(exception: BaseException, folder: str) -> None:
    """Add to an exception what is known of its cause, so that it stands last; runs in the rank that has raised it.

    Args:
        exception: The exception. Its message is changed in place, and only once.
        folder: The folder for the notes of the job's processes.

    """
    message = str(exception)
    for explanation in (_explain_dead_worker(message, folder), _explain_pickling(exception), _explain_memory(message)):
        if explanation is not None and explanation not in message:
            message = f"{message}\n\n{explanation}"
    if message != str(exception) and not isinstance(exception, OSError):
        exception.args = (message,)


def _explain_dead_worker(message: str, folder: str) -> Optional[str]:
    match = _DEAD_WORKER.search(message)
    if match is None:
        return None
    notes = {note["pid"]: note for note in read_notes(folder)}
    explanations: Dict[str, None] = {}  # a set that keeps the order: workers fail alike
    for pid in map(int, match[1].split(",")):
        status = _find_exit_status(pid)
        if pid in notes:
            text = notes[pid]["text"].rstrip()
            advice = _explain_memory(text)
            explanations[
                f"The worker failed when it was started. Its error:\n\n{text}" + (f"\n\n{advice}" if advice else "")
            ] = None
        elif status:
            explanations[f"The worker {_describe_exit(status)}"] = None
    return "\n\n".join(explanations) or None


def _find_exit_status(pid: int) -> Optional[int]:
    for process in list(multiprocessing.process._dangling):  # type: ignore[attr-defined]
        if process.pid == pid:
            status: Optional[int] = process.exitcode
            return status
    return None


def _explain_pickling(exception: BaseException) -> Optional[str]:
    frames = traceback.extract_tb(exception.__traceback__)
    if not any(frame.name == "dump" and frame.filename.endswith("reduction.py") for frame in frames):
        return None
    return (
        "A process was to be spawned, and what it needs can't be pickled. That is all that is reachable from the"
        " dataset, the sampler, the `collate_fn` and the `worker_init_fn` of a DataLoader with workers, and from the"
        " model and the trainer of a spawn-based strategy. Replace lambdas and functions inside of functions by"
        " functions at the top level of a module, and open files and connections in the process that uses them."
    )


def _explain_memory(message: str) -> Optional[str]:
    if _PAGING_FILE.search(message) is None:
        return None
    return (
        "Windows could not commit enough memory. Each process that imports torch needs some, with CUDA several GB. Use"
        " fewer workers (`num_workers`), or enlarge the paging file (Settings, System, About, Advanced system settings,"
        " Performance, Advanced, Virtual memory)."
    )


def _failures_of(notes: List[Dict[str, Any]], ranks: Dict[int, int]) -> List[_Failure]:
    """Turn notes into failures of ranks; those of other processes are left out.

    Args:
        notes: The notes.
        ranks: The global rank of each process identifier.

    """
    failures = []
    for note in notes:
        rank = note["rank"] if note["rank"] is not None else ranks.get(note["pid"])
        if rank is not None:
            failures.append(_Failure(rank, note["pid"], note["kind"], note["text"], note["message"]))
    return failures
