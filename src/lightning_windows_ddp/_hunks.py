"""Patches, applied in memory to installed files. Neither writes a file nor needs git."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unidiff.patch import Hunk, PatchedFile, PatchSet

from lightning_windows_ddp._translate import translate_path, translate_text


@dataclass(frozen=True)
class Change:
    """What becomes of a file.

    Args:
        before: Its content, or None if it is added.
        after: Its content then.

    """

    before: bytes | None
    after: bytes


@dataclass
class Applied:
    """What a series of patches makes of the files of a distribution.

    Args:
        changes: The changed and the added files by their paths, relative to where packages are installed.
        problems: Why the series does not fit, a file and a reason each.

    """

    changes: dict[str, Change]
    problems: list[str]


def apply_series(series: Sequence[Path], distribution: str, read: Callable[[str], bytes | None]) -> Applied:
    """Apply patches one after the other, as strictly as `git apply`: at another line, but only where all lines agree.

    Args:
        series: The patches. What they change outside of the distribution, such as tests, is left out.
        distribution: Its name. The patches are translated to it.
        read: Returns the content of a file, or None if there is no such file.

    """
    contents: dict[str, str | None] = {}
    problems: dict[str, None] = {}
    for patch in series:
        for file in PatchSet(patch.read_bytes().decode("utf-8")):
            path = translate_path(file.path, distribution)
            if path is None:
                continue
            if path not in contents:
                content = read(path)
                contents[path] = None if content is None else content.decode("utf-8", "surrogateescape")
            try:
                contents[path] = _apply(file, contents[path], distribution)
            except _DoesNotFit as error:
                problems.setdefault(f"{path}: {error}")
    changes = {}
    for path, after in contents.items():
        if after is not None:
            changes[path] = Change(read(path), after.encode("utf-8", "surrogateescape"))
    return Applied(changes, list(problems))


class _DoesNotFit(Exception):
    """A patch does not fit a file."""


def _apply(file: PatchedFile, content: str | None, distribution: str) -> str:
    if file.is_removed_file or file.is_rename:
        raise NotImplementedError(f"{file.path}: patches of this project change and add files, and nothing else")
    if file.is_added_file:
        if content is not None:
            raise _DoesNotFit("exists already")
        return "".join(_sides(file[0], distribution)[1])
    if content is None:
        raise _DoesNotFit("is missing")
    lines = re.findall(r"[^\n]*\n|[^\n]+", content)  # `splitlines` would split at other characters, too
    result: list[str] = []
    done = offset = 0  # lines of the file that are in the result, and how much later than expected the last hunk was
    for hunk in file:
        old, new = _sides(hunk, distribution)
        start = _find(old, lines, hunk.source_start - 1 + offset, done)
        offset = start - (hunk.source_start - 1)
        result += lines[done:start] + new
        done = start + len(old)
    return "".join(result + lines[done:])


def _sides(hunk: Hunk, distribution: str) -> tuple[list[str], list[str]]:
    """Return the lines that a hunk looks for, and those that it puts there."""
    old: list[str] = []
    new: list[str] = []
    previous: list[list[str]] = []
    for line in hunk:
        if line.line_type == "\\":  # "No newline at end of file" concerns the line before
            for side in previous:
                side[-1] = side[-1].rstrip("\n")
            continue
        previous = [side for side, has in ((old, not line.is_added), (new, not line.is_removed)) if has]
        for side in previous:
            side.append(translate_text(line.value, distribution))
    return old, new


def _find(old: list[str], lines: list[str], expected: int, first: int) -> int:
    """Return where a hunk applies: at the place nearest to the expected one, at `first` or later."""
    places = range(first, len(lines) - len(old) + 1)
    for start in sorted(places, key=lambda place: abs(place - expected)):
        if lines[start : start + len(old)] == old:
            return start
    raise _DoesNotFit("differs from the release where it is to be changed")
