"""Changes of installed files that are made as a whole or not at all, whatever ends this process meanwhile.

A folder `windows-ddp` beside the RECORD of the distribution, the journal, says which files are changed, to what, and
keeps the originals. It is there before the first file is replaced and until the last one is restored. So a look at the
files tells what has happened: all are as the journal wants them (patched), some or all are still the originals
(interrupted: the originals are put back), or some are neither (somebody has changed them: nothing is touched).
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import BinaryIO

from lightning_windows_ddp._errors import BadInputError
from lightning_windows_ddp._hunks import Change
from lightning_windows_ddp._installed import Distribution
from lightning_windows_ddp._scratch import move_folder, remove_tree

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FOLDER = "windows-ddp"
MANIFEST = "manifest.json"
_BESIDE = ".windows-ddp"  # the ending of a file that is to replace another one
_ATTEMPTS, _PAUSE = 10, 0.1


@dataclass(frozen=True)
class Entry:
    """A file in a journal.

    Args:
        path: Its path, relative to where packages are installed.
        before: The SHA-256 of the original, or None if the file was added.
        after: That of the patched file.

    """

    path: str
    before: str | None
    after: str


@dataclass(frozen=True)
class Journal:
    """What was changed in a distribution.

    Args:
        distribution: The distribution.
        version: The version of this package that did it.
        patches: The hash of the patches.
        folders: The folders that did not exist before, innermost first.
        entries: The files.

    """

    distribution: Distribution
    version: str
    patches: str
    folders: list[str]
    entries: list[Entry]

    @property
    def folder(self) -> Path:
        """Where the journal is."""
        return self.distribution.info / FOLDER

    def original(self, path: str) -> bytes | None:
        """Return the content that a file had before; that of a file that was not changed is read where it is."""
        for entry in self.entries:
            if entry.path == path:
                return None if entry.before is None else self.read_copy(path)
        return read(self.distribution, path)

    def read_copy(self, path: str) -> bytes:
        """Return the copy of an original that the journal keeps."""
        return (self.folder / copy_name(path)).read_bytes()

    def changed(self) -> list[str]:
        """Return the files that are neither the original nor the patched one."""
        return [entry.path for entry in self.entries if self._hash(entry) not in (entry.before, entry.after)]

    def is_complete(self) -> bool:
        """Return whether all files are patched, and none is about to be replaced."""
        paths = [self.distribution.root / entry.path for entry in self.entries]
        return not any(_beside(path).exists() for path in paths) and all(
            self._hash(entry) == entry.after for entry in self.entries
        )

    def _hash(self, entry: Entry) -> str | None:
        content = read(self.distribution, entry.path)
        return None if content is None else _hash(content)


def read(distribution: Distribution, path: str) -> bytes | None:
    """Return the content of an installed file, or None if there is none."""
    try:
        return (distribution.root / path).read_bytes()
    except FileNotFoundError:
        return None


def read_journal(distribution: Distribution) -> Journal | None:
    """Return the journal of a distribution, or None if it is not patched.

    Raises:
        BadInputError: If the journal is damaged.

    """
    manifest = distribution.info / FOLDER / MANIFEST
    if not manifest.parent.is_dir():
        return None
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        entries = [Entry(**entry) for entry in content["files"]]
        journal = Journal(distribution, content["version"], content["patches"], content["folders"], entries)
        complete = all(entry.before is None or (journal.folder / copy_name(entry.path)).is_file() for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        complete = False
    if not complete:
        raise BadInputError(
            f"{manifest.parent}, which keeps the original files of {distribution.title}, is damaged. Install"
            f" {distribution.title} again (`pip install --force-reinstall --no-deps"
            f" {distribution.name}=={distribution.version}`) and run again."
        )
    return journal


def begin(distribution: Distribution, changes: Mapping[str, Change], version: str, patches: str) -> Journal:
    """Write the journal of changes that are to be made, and none of the changes.

    Args:
        distribution: The distribution.
        changes: The changes by path.
        version: The version of this package.
        patches: The hash of the patches.

    """
    entries = [
        Entry(path, None if change.before is None else _hash(change.before), _hash(change.after))
        for path, change in changes.items()
    ]
    parents = {parent for path in changes for parent in _parents(path)}
    missing = [parent for parent in parents if not (distribution.root / parent).is_dir()]
    folders = sorted(missing, key=len, reverse=True)
    journal = Journal(distribution, version, patches, folders, entries)
    unfinished = distribution.info / f"{FOLDER}.new"
    remove_tree(unfinished)
    unfinished.mkdir()
    for entry in entries:
        before = changes[entry.path].before
        if before is not None:
            _write(unfinished / copy_name(entry.path), before)
    files = [vars(entry) for entry in entries]
    manifest = {"version": version, "patches": patches, "folders": folders, "files": files}
    _write(unfinished / MANIFEST, json.dumps(manifest, indent=1).encode())
    move_folder(unfinished, journal.folder)
    return journal


def copy_name(path: str) -> str:
    """Return the name that the copy of an original has in a journal."""
    return path.replace("/", "+")


def carry_out(journal: Journal, changes: Mapping[str, Change]) -> None:
    """Make the changes of a journal; all new files are written before the first one takes the place of an old one."""
    root = journal.distribution.root
    for path, change in changes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        _write(_beside(root / path), change.after)
        model = root / path if change.before is not None else journal.distribution.info / "RECORD"
        shutil.copymode(model, _beside(root / path))
    for path in changes:
        _take_place(root / path)


def roll_back(journal: Journal) -> None:
    """Put the originals back, remove what was added, and then the journal; once more, if that was interrupted."""
    root = journal.distribution.root
    for entry in journal.entries:
        target = root / entry.path
        _beside(target).unlink(missing_ok=True)
        if entry.before is None:
            _forget_compiled(target)
            target.unlink(missing_ok=True)
        elif journal._hash(entry) != entry.before:
            _write(_beside(target), journal.read_copy(entry.path))
            shutil.copymode(target if target.exists() else journal.distribution.info / "RECORD", _beside(target))
            _take_place(target)
    for folder in journal.folders:
        shutil.rmtree(root / folder / "__pycache__", ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody has put something there, or it was never made
            (root / folder).rmdir()
    move_folder(journal.folder, journal.folder.with_name(f"{FOLDER}.old"))
    remove_leftovers(journal.distribution)


def remove_leftovers(distribution: Distribution) -> None:
    """Remove journals that were not finished, or no longer count."""
    for name in (f"{FOLDER}.new", f"{FOLDER}.old"):
        remove_tree(distribution.info / name)


@contextlib.contextmanager
def locked(distributions: list[Distribution]) -> Iterator[None]:
    """Keep another process of this package from changing the same distributions meanwhile."""
    with contextlib.ExitStack() as stack:
        for distribution in distributions:
            name = hashlib.sha256(os.path.normcase(distribution.info).encode()).hexdigest()[:16]
            file = stack.enter_context((Path(gettempdir()) / f"lightning-windows-ddp-{name}.lock").open("ab"))
            if not _lock(file):
                raise BadInputError(
                    f"Another lightning-windows-ddp is changing {distribution.title} in {distribution.root}. Wait until"
                    " it has ended, and run again."
                )
        yield


def _lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed, or say that somebody else has locked it."""
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + _BESIDE)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _take_place(target: Path) -> None:
    """Let the file beside another one replace it."""
    _forget_compiled(target)
    for attempt in range(_ATTEMPTS):
        try:
            _beside(target).replace(target)
            return
        except PermissionError:
            # On Windows, while a virus scanner or an import reads one of them
            if os.name != "nt" or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)


def _forget_compiled(path: Path) -> None:
    """Remove what was compiled from a file: it would count for one of the same size and second, too."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
