"""Read what a fork's developer has committed, and refuse what patches in mail format could not carry unchanged."""

import re
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp import _git, _patches
from lightning_windows_ddp._errors import CommandError, ForkError

_SHOWN = 10
_NO_BLOB = "0" * 40


@dataclass(frozen=True)
class Commits:
    """The commits of a fork.

    Args:
        line: The release line that the fork belongs to.
        root: The commit that is the pristine release.
        commits: Hash and subject of each later commit, oldest first.
        added: The files that the fork has and the release has not.

    """

    line: str
    root: str
    commits: list[tuple[str, str]]
    added: list[str]


def read_commits(fork: Path, patches: Path | None = None) -> Commits:
    """Read the commits of a fork.

    Args:
        fork: A repository that `fork` made.
        patches: The folder `patches/` whose release lines count; the one of this package by default.

    Raises:
        ForkError: If it is not one, has changes that are not committed, or commits that cannot become patches.

    """
    root, line = _release(fork, patches)
    _require_clean(fork)
    difference = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=A", root, "HEAD")
    return Commits(line, root, _commits(fork, root), _git.names(_git.git(*difference, cwd=fork)))


def _release(fork: Path, patches: Path | None) -> tuple[str, str]:
    """Return the first commit of a fork and its release line."""
    no_fork = f"{fork} is not a fork of Lightning"
    remedy = "Name a folder that `lightning-windows-ddp fork` made."
    if not (fork / ".git").exists():
        raise ForkError(f"{no_fork}: it is not the top folder of a git repository. {remedy}")
    try:
        roots = _git.text(_git.git("rev-list", "--max-parents=0", "HEAD", cwd=fork)).split()
    except CommandError as error:
        raise ForkError(f"{no_fork}: git cannot read its commits ({error.output}). {remedy}") from None
    if len(roots) != 1:
        raise ForkError(f"{no_fork}: it has {len(roots)} first commits instead of one. {remedy}")
    subject = _git.text(_git.git("log", "-1", "--format=%s", roots[0], cwd=fork))
    name, _, version = subject.partition(" ")
    if name != "lightning" or not version:
        raise ForkError(
            f"{no_fork}: its first commit is {subject!r}, not a release such as 'lightning 2.6.1'. {remedy}"
        )
    return roots[0], _patches.release_line(version, patches)


def _require_clean(fork: Path) -> None:
    for state in ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD"):
        if (fork / _git.text(_git.git("rev-parse", "--git-path", state, cwd=fork))).exists():
            raise ForkError(
                f"{fork} is in the middle of a rebase, merge or cherry-pick. Finish it, or abort it, and export again."
            )
    entries = _git.names(_git.git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", cwd=fork))
    if entries:
        changed = ", ".join(entry[3:] for entry in entries[:_SHOWN])
        if len(entries) > _SHOWN:
            changed += f" and {len(entries) - _SHOWN} more"
        raise ForkError(
            f"{fork} has changes that are not committed, and only commits are exported: {changed}. Commit them (a new"
            " file needs `git add` too), or remove them, and export again."
        )


def _commits(fork: Path, root: str) -> list[tuple[str, str]]:
    """Return the fork's commits and their subjects, oldest first."""
    merges = _git.text(_git.git("rev-list", "--merges", f"{root}..HEAD", cwd=fork)).split()
    if merges:
        raise ForkError(
            f"{fork} has a merge commit ({merges[0][:12]}), which cannot become a patch. Make the commits a single row"
            f" with `git rebase {root[:12]}` and export again."
        )
    log = _git.text(
        _git.git("log", "--topo-order", "--reverse", "--format=%H %s", "--encoding=UTF-8", f"{root}..HEAD", cwd=fork)
    )
    commits = [(entry[:40], entry[41:]) for entry in log.split("\n") if entry]
    if not commits:
        raise ForkError(
            f"{fork} has no commits after the release, so exporting it would remove every patch. Commit the changes in"
            " it and export again."
        )
    for commit, subject in commits:
        if re.match(r"(fixup|squash|amend)! ", subject):
            raise ForkError(
                f"{fork} still has the commit {subject!r}. Fold it into the commit that it belongs to with `git rebase"
                f" --interactive --autosquash {root[:12]}` and export again."
            )
        _check_commit(fork, commit, subject)
    return commits


def _check_commit(fork: Path, commit: str, subject: str) -> None:
    """Check that a patch in mail format can carry a commit unchanged."""
    changes = _git.names(_git.git("diff-tree", "-r", "-z", "--raw", "--no-renames", f"{commit}^", commit, cwd=fork))
    if not changes:
        raise ForkError(
            f"The commit {subject!r} of {fork} changes nothing. Drop it with `git rebase` and export again."
        )
    for entry, name in zip(changes[::2], changes[1::2], strict=True):
        old_mode, mode, _, blob, _ = entry.lstrip(":").split(" ")
        reason = None
        if blob != _NO_BLOB:
            if not _patches.is_portable(name):
                reason = "Windows cannot have a file of that name"
            elif mode not in ("100644", old_mode):
                reason = "it is not a plain file (executable, symbolic link or submodule)"
            else:
                reason = _why_not_text(_git.git("cat-file", "blob", blob, cwd=fork))
        if reason:
            raise ForkError(
                f"The commit {subject!r} of {fork} cannot become a patch that applies everywhere because of {name}:"
                f" {reason}. Change the file in that commit and export again."
            )


def _why_not_text(content: bytes) -> str | None:
    if b"\0" in content:
        return "it is not text, it has zero bytes"
    if b"\r" in content:
        return "it has carriage returns (Windows line ends), which `git am` drops"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not text in UTF-8"
    return None
