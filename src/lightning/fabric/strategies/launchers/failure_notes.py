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
"""Notes that the processes of a job leave about their failures, for those who report them.

A process that fails is not always one that the launcher waits for, and its exit status does not say much. So each
writes down what it fails of. The folder is made when the first process fails, and removed by the launcher. This file is
run before ``sys.path`` is restored in a spawned process: it needs nothing but the standard library.

"""

import gc
import json
import os
import pickle
import re
import shutil
import sys
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

_NOTE, _HANDLING = ".json", ".handling"
_FORGOTTEN = 24 * 60 * 60  # seconds after which a folder is of no use to a job that has failed


def new_folder(parent: str) -> str:
    """Return a name for the folder for the notes of a job that this process launches."""
    return os.path.join(parent, f"lightning-{os.getpid()}-{os.urandom(8).hex()}")


def remove_forgotten(parent: str) -> None:
    """Remove what jobs have left of which all processes were ended by force; runs in a launcher."""
    with suppress(OSError):  # a folder that can't be listed, or that another launcher has just removed
        for entry in os.scandir(parent):
            is_ours = re.fullmatch(r"lightning-\d+-[0-9a-f]{16}", entry.name) and entry.is_dir(follow_symlinks=False)
            if is_ours and entry.stat().st_mtime < time.time() - _FORGOTTEN:
                shutil.rmtree(entry.path, ignore_errors=True)


def write_note(folder: str, kind: str, exception: Optional[BaseException] = None, rank: Optional[int] = None) -> None:
    """Leave a note of a failure of this process, unless there is one; runs in every process of a job.

    Args:
        folder: The folder for the notes.
        kind: ``"exception"``, ``"interrupt"`` or ``"termination"``, by what the process ends.
        exception: The exception, if it was one.
        rank: The process' global rank, if it is a rank that knows it.

    """
    note = {"pid": os.getpid(), "kind": kind, "rank": rank, "time": time.time(), "text": "", "message": ""}
    if exception is not None:
        text = traceback.format_exception(type(exception), exception, exception.__traceback__)
        note.update(text="".join(text), message=str(exception))
    path = os.path.join(folder, f"{os.getpid()}{_NOTE}")
    with suppress(OSError):  # a failure is to be reported as it is, not as one of reporting
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not os.path.exists(path):
            with open(path + ".new", "w", encoding="utf-8", errors="backslashreplace") as file:
                json.dump(note, file)
            os.replace(path + ".new", path)


def read_notes(folder: str) -> List[Dict[str, Any]]:
    """Return the notes in the order in which they were written."""
    notes = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        # On Windows, a note can't be read while it is being put in place
        if name.endswith(_NOTE):
            with suppress(OSError), open(os.path.join(folder, name), encoding="utf-8") as file:
                notes.append(json.load(file))
    return sorted(notes, key=lambda note: note["time"])


def mark_handling(folder: str, rank: Optional[int], handling: bool) -> None:
    """Tell whether a rank is dealing with an exception, such as by saving a checkpoint, and needs time for it."""
    path = os.path.join(folder, f"{rank}{_HANDLING}")
    with suppress(OSError):
        if handling:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            open(path, "w").close()
        else:
            os.remove(path)


def is_handling(folder: str, rank: Optional[int]) -> bool:
    """Whether a rank is dealing with an exception."""
    return os.path.exists(os.path.join(folder, f"{rank}{_HANDLING}"))


def note_failed_start(folder: Optional[str]) -> None:
    """Arrange for a note if the start of this spawned process fails, and for silence if its parent is to blame.

    Args:
        folder: The folder for the notes, or ``None`` for a process whose failure is not one of the job.

    """
    excepthook = sys.excepthook

    def note_and_print(cls: Type[BaseException], exception: BaseException, trace: Optional[TracebackType]) -> None:
        if issubclass(cls, KeyboardInterrupt) or _is_cut_off(exception):
            return  # the process that has started this one tells the user
        if folder is not None:
            write_note(folder, "exception", exception)
        excepthook(cls, exception, trace)

    sys.excepthook = note_and_print


def end_quickly() -> None:
    """Let the interpreter exit without looking for garbage, of which there is none after this call.

    It does so several times when it exits, which takes more than a second where torch and Lightning are imported. All
    that time, the others wait for what this process holds. Files are closed as ever.

    """
    gc.collect()
    gc.freeze()


def _is_cut_off(exception: BaseException) -> bool:
    """Whether the process did not get all that its parent was to send, because that could not be pickled.

    On Windows, a process is started before its parent pickles what it is to do.

    """
    frames = traceback.extract_tb(exception.__traceback__)
    return (
        isinstance(exception, (EOFError, pickle.UnpicklingError))
        and bool(frames)
        and frames[-1].name == "_main"
        and os.path.basename(frames[-1].filename) == "spawn.py"
    )
