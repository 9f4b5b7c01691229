"""The patch set: where `patches/` is, its release lines and the series of each line."""

import re
from pathlib import Path

from lightning_windows_ddp._errors import BadInputError, PatchSetError
from lightning_windows_ddp._git import Identity

# Author, committer and date of everything that this project commits or exports. They never change: the same patches
# give the same commits, and the same commits the same patches.
IDENTITY = Identity(
    name="lightning-windows-ddp",
    email="lightning-windows-ddp@users.noreply.github.com",
    date="1767225600 +0000",  # 2026-01-01
)
MASTER = "master"  # the release line of upstream's newest state
# the folders of a checkout that hold the text that the patches add, and nothing else
DOCUMENTATION = "docs/source-pytorch"  # upstream's checkouts have this folder, the releases on the package index not
MIRRORED = ("src/lightning", "tests/tests_fabric", "tests/tests_pytorch")

_VERSION = re.compile(r"(\d+\.\d+)\.\d+(\.post\d+)?", re.ASCII)
# 2.6 for 2.6.x, or 2.2-2.4 for 2.2.x to 2.4.x
_LINE = re.compile(r"(\d+\.\d+)(?:-(\d+\.\d+))?", re.ASCII)
_NOT_ON_WINDOWS = re.compile(r'[<>:"|?*\\\x00-\x1f]')
_ADDED = re.compile(r"^diff --git a/(.+) b/\1\r?\nnew file mode", re.MULTILINE)
_CHANGED = re.compile(r"^diff --git a/(.+) b/\1\r?$", re.MULTILINE)


def checkout_folder() -> Path | None:
    """Return the checkout of the repository that this package lies in, or None if it is an installed wheel."""
    package = _package()
    if (package / "patches").is_dir() or package.parent.name != "src":
        return None
    return package.parents[1]


def patches_folder() -> Path:
    """Return the folder `patches/`: inside the package in a wheel, at the root of the repository in a checkout."""
    package = _package()
    shipped = package / "patches"
    return shipped if shipped.is_dir() else package.parents[1] / "patches"


def release_line(version: str, patches: Path | None = None) -> str:
    """Return the release line of a version: the folder of patches that covers it, else `2.6` for `2.6.1`.

    Args:
        version: The version.
        patches: The folder `patches/` whose lines count; the one of this package by default. A line counts as soon as
            it has a folder, with or without patches in it.

    Raises:
        BadInputError: If this is not the version of a final release.
        PatchSetError: If two lines cover it.

    """
    if version == MASTER:
        return MASTER
    match = _VERSION.fullmatch(version)
    if match is None:
        raise BadInputError(
            f"{version!r} is not the version of a release of Lightning: it must look like 2.6.1. Give such a version."
        )
    patches = patches or patches_folder()
    folders = sorted(path.name for path in patches.iterdir() if path.is_dir()) if patches.is_dir() else []
    covering = [name for name in folders if _covers(name, match.group(1))]
    if len(covering) > 1:
        raise PatchSetError(
            f"{patches} has more than one release line for lightning {version}: {', '.join(covering)}. Remove the"
            " folders that are wrong."
        )
    return covering[0] if covering else match.group(1)


def lines(patches: Path) -> list[str]:
    """Return the release lines that there are patches for, oldest first, without `master`."""
    found = [series.parent.name for series in patches.glob("*/series") if _LINE.fullmatch(series.parent.name)]
    return sorted(found, key=_numbers)


def read_series(patches: Path, line: str) -> list[Path]:
    """Return the patches of a release line in the order in which they apply.

    Args:
        patches: The folder `patches/`.
        line: The release line.

    Raises:
        BadInputError: If there are no patches for this line.
        PatchSetError: If the series names a file that is not there, or one outside its folder.

    """
    known = lines(patches)
    if line not in known and not (line == MASTER and (patches / MASTER / "series").is_file()):
        raise BadInputError(
            f"There are no patches for the release line {line}; there are for: {', '.join(known) or 'none'}."
            " Use a release of such a line."
        )
    series = patches / line / "series"
    found = []
    for name in series_names(series):
        path = series.parent / name
        if path.name != name or not path.is_file():
            raise PatchSetError(
                f"{series} names {name!r}, which is not a file beside it. The patch set is incomplete: restore the file"
                " or mend the series."
            )
        found.append(path)
    if not found:
        raise PatchSetError(f"{series} names no patch. Restore it from the repository's history.")
    return found


def series_names(series: Path) -> list[str]:
    """Return the file names in a series, in order; the file may be absent."""
    if not series.is_file():
        return []
    stripped = [line.strip() for line in series.read_text(encoding="utf-8").splitlines()]
    return [line for line in stripped if line and not line.startswith("#")]


def added_files(patch: Path) -> set[str]:
    """Return the names of the files that a patch adds, relative to the root of the tree and never outside of it."""
    names = _ADDED.findall(patch.read_text(encoding="utf-8", errors="surrogateescape"))
    return {name for name in names if is_portable(name)}


def has_only_pages(patch: Path) -> bool:
    """Return whether a patch changes and adds nothing but pages of the documentation."""
    names = _CHANGED.findall(patch.read_text(encoding="utf-8", errors="surrogateescape"))
    return bool(names) and all(name.startswith(f"{DOCUMENTATION}/") for name in names)


def is_for(patch: Path, tree: Path) -> bool:
    """Return whether a patch is for a tree: one that has only pages is not, if the tree has none."""
    return (tree / DOCUMENTATION).is_dir() or not has_only_pages(patch)


def is_portable(name: str) -> bool:
    """Return whether a name with forward slashes is one of a file inside a tree on every system."""
    parts = name.split("/")
    return not _NOT_ON_WINDOWS.search(name) and not any(part.endswith((".", " ")) or not part for part in parts)


def _covers(line: str, minor: str) -> bool:
    """Return whether a line, or the name of another folder, covers the releases `minor`.x."""
    match = _LINE.fullmatch(line)
    if match is None:
        return False
    first, last = match.group(1), match.group(2) or match.group(1)
    return _numbers(first) <= _numbers(minor) <= _numbers(last)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _package() -> Path:
    return Path(__file__).resolve().parent
