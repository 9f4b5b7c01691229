"""A folder for unfinished work that never outlives the command, however the command ends."""

import contextlib
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lightning_windows_ddp import _signals

_ATTEMPTS = 10
_PAUSE = 0.1


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a folder, hand it out, and remove it with its content at the end.

    It is removed as well when an error, Ctrl+C or a signal that asks the process to end (SIGTERM, SIGHUP, Ctrl+Break)
    ends the block. Folders that are missing above it are made, and removed again if the block leaves them empty.

    Args:
        parent: Where to make it.
        name: What its name starts with; the rest is random.

    Raises:
        Stopped: If such a signal arrives, after the folder has been removed.

    """
    # the name is known before the folder exists: no moment at which an interrupt could leave it unnoticed
    folder = parent / f"{name}-{secrets.token_hex(4)}.tmp"
    missing = [above for above in (parent, *parent.parents) if not above.exists()]

    def clean_up() -> None:
        with _signals.ignored():
            remove_tree(folder)
            for above in missing:
                with contextlib.suppress(OSError):  # not empty: the block has made something there
                    above.rmdir()

    with _signals.raised():
        try:
            try:
                folder.mkdir(parents=True)
                yield folder
            finally:
                clean_up()
        except BaseException:
            clean_up()  # once more: a signal may have ended the first one before it began
            raise


def remove_tree(folder: Path) -> None:
    """Remove a folder with its content, read-only files included.

    Args:
        folder: The folder; it may be absent.

    Raises:
        OSError: If something in it cannot be removed.

    """

    def make_writable(function: Callable[..., Any], path: str, _: object) -> None:
        # git's objects are read-only, which keeps Windows from removing them
        Path(path).chmod(stat.S_IRWXU)
        function(path)

    for attempt in range(_ATTEMPTS):
        if not os.path.lexists(folder):
            return
        try:
            if sys.version_info >= (3, 12):
                shutil.rmtree(folder, onexc=make_writable)
            else:
                shutil.rmtree(folder, onerror=make_writable)
        except OSError:
            # on Windows a virus scanner, elsewhere a dying child of a killed program, may still be at work in there
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)


def move_folder(source: Path, target: Path) -> None:
    """Rename a folder in one step.

    Args:
        source: The folder.
        target: Its new name, on the same disk: absent or an empty folder.

    Raises:
        OSError: If the target has been taken meanwhile or the system refuses.

    """
    for attempt in range(_ATTEMPTS):
        try:
            if os.name == "nt" and target.is_dir():
                target.rmdir()  # Windows, unlike POSIX, does not rename onto an empty folder
            source.rename(target)
            return
        except PermissionError:
            # a virus scanner that reads the new files keeps Windows from renaming the folder
            if os.name != "nt" or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)
