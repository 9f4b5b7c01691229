"""Write a fork's commits back into a checkout: the patches, and the files that they add."""

import contextlib
import os
import re
import secrets
import tempfile
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lightning_windows_ddp import _git, _patches
from lightning_windows_ddp._commits import read_commits
from lightning_windows_ddp._errors import BadInputError, CommandError, ForkError
from lightning_windows_ddp._scratch import scratch_folder

_SLUG_LENGTH = 60


@dataclass
class Exported:
    """What `export` did.

    Args:
        checkout: Where.
        written: The files that were written, relative to it.
        removed: The files that were removed, relative to it.

    """

    checkout: Path
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def export(
    fork: Path,
    checkout: Path | None = None,
    *,
    report: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write a fork's commits as `patches/<line>/NNNN-*.patch` with `series`, and the files that they add.

    The same commits always give the same bytes. Files that earlier exports wrote and that the fork no longer gives
    are removed. Everything is checked before the first file is written.

    Args:
        fork: A repository that `fork` made, with everything committed.
        checkout: Where to write; the repository that this package lies in by default.
        report: Called with a line of text before each step.

    Raises:
        ToolError: If the fork or the checkout is not fit for it; nothing has been written then.

    """
    _git.require_git()
    checkout = _writable_checkout(fork, checkout)
    report(f"[1/3] checking {fork}")
    commits = read_commits(fork, checkout / "patches")
    report(f"[2/3] making patches of the commits ({len(commits.commits)})")
    added = {name: _git.git("cat-file", "blob", f"HEAD:{name}", cwd=fork) for name in commits.added}
    with scratch_folder(Path(tempfile.gettempdir()), "lightning-windows-ddp") as scratch:
        hashes = [commit for commit, _ in commits.commits]
        mails = _git.mail_patches(fork, commits.root, hashes, _patches.IDENTITY, scratch)
    patches = {}
    for number, ((_, subject), mail) in enumerate(zip(commits.commits, mails, strict=True), start=1):
        if not mail.faithful:
            raise ForkError(
                f"The commit {subject!r} of {fork} would come back changed from `git am`. Most likely its message does"
                " not start with one line and an empty one, or has a line that starts with '---' or 'diff'. Reword it"
                " and export again."
            )
        patches[f"{number:04}-{_slug(subject)}.patch"] = mail.content
    if not _git.git("ls-tree", commits.root, "--", _patches.DOCUMENTATION, cwd=fork):
        # Such a fork can't have the patches that concern pages alone, so they stay as they are
        for page in filter(_patches.has_only_pages, _series(checkout, commits.line)):
            patches[f"{len(patches) + 1:04}-{page.name.partition('-')[2]}"] = page.read_bytes()
            kept = [name for name in _patches.added_files(page) if (checkout / name).is_file()]
            added |= {name: (checkout / name).read_bytes() for name in kept}
    report(f"[3/3] writing to {checkout}")
    return _write(checkout, commits.line, patches, added)


def _writable_checkout(fork: Path, checkout: Path | None) -> Path:
    if checkout is None:
        checkout = _patches.checkout_folder()
        if checkout is None:
            raise BadInputError(
                "This command is an installed wheel, which patches cannot be written to. Name a checkout of"
                " lightning-windows-ddp with --to."
            )
    if not checkout.is_dir():
        raise BadInputError(f"{checkout} is not a folder. Name a checkout of lightning-windows-ddp with --to.")
    if checkout.resolve() == fork.resolve() or fork.resolve() in checkout.resolve().parents:
        raise BadInputError(f"{checkout} lies in the fork itself. Name a checkout of lightning-windows-ddp with --to.")
    return checkout


def _series(checkout: Path, line: str) -> list[Path]:
    """Return the patches of a line that the checkout has, in order."""
    folder = checkout / "patches" / line
    paths = [folder / name for name in _patches.series_names(folder / "series")]
    return [path for path in paths if path.parent == folder and path.is_file()]


def _slug(subject: str) -> str:
    """Return a subject as part of a file name that every file system takes."""
    plain = unicodedata.normalize("NFKD", subject).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if len(words) > _SLUG_LENGTH:
        words = words[: _SLUG_LENGTH + 1].rpartition("-")[0] or words[:_SLUG_LENGTH]
    return words or "patch"


def _write(checkout: Path, line: str, patches: dict[str, bytes], added: dict[str, bytes]) -> Exported:
    folder = f"patches/{line}"
    series = "".join(f"{name}\n" for name in patches).encode()
    wanted = {f"{folder}/{name}": mail for name, mail in patches.items()} | {f"{folder}/series": series} | added
    before, shared = _earlier_exports(checkout, line)
    result = Exported(checkout)
    for name, content in wanted.items():
        path = checkout / name
        if path.is_file() and path.read_bytes() == content:
            continue
        blocked = any((checkout / above).exists() and not (checkout / above).is_dir() for above in Path(name).parents)
        ours = name in before | shared or name.startswith(
            (f"{folder}/", *(f"{mirror}/" for mirror in _patches.MIRRORED))
        )
        if blocked or (os.path.lexists(path) and (not ours or not path.is_file())):
            raise ForkError(
                f"The fork adds {name}, but {path}, or what is in its way, is no earlier export. Nothing of the"
                " checkout's own is overwritten: move the file in the fork, or the one in the checkout."
            )
        result.written.append(name)
    result.removed = sorted(name for name in before - shared - wanted.keys() if (checkout / name).is_file())
    for name in result.written:
        _replace(checkout / name, wanted[name])
    for name in result.removed:
        path = checkout / name
        path.unlink()
        with contextlib.suppress(OSError):  # the first folder that is not empty ends it
            for above in list(Path(name).parents)[:-1]:
                (checkout / above).rmdir()
    return result


def _earlier_exports(checkout: Path, line: str) -> tuple[set[str], set[str]]:
    """Return what earlier exports of this line may have written, and what other lines need as well.

    The first is safe to remove when the fork no longer gives it, without the second. The mirrored folders hold one
    text for all lines, so there the last export decides.
    """
    try:
        listed = _git.names(_git.git("ls-files", "-z", "--", f"patches/{line}", *_patches.MIRRORED, cwd=checkout))
    except CommandError:
        listed = []  # not a git repository
    prefixes = tuple(f"{mirror}/" for mirror in _patches.MIRRORED)
    patch = re.compile(r"patches/.*/(?!0000-)[^/]*\.patch")  # the cover letter of a series is nobody's commit
    found = {name for name in listed if name.startswith(prefixes) or patch.fullmatch(name)}
    patches = checkout / "patches"
    shared: set[str] = set()
    for other in (*_patches.lines(patches), _patches.MASTER):
        for name in _patches.series_names(patches / other / "series"):
            path = patches / other / name
            if path.name != name or not path.is_file():
                continue
            if other == line:
                found |= {f"patches/{line}/{name}"} | _patches.added_files(path)
            else:
                shared |= {each for each in _patches.added_files(path) if not each.startswith(prefixes)}
    return found, shared


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that it has either its old or its new content at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
