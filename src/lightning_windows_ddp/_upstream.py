"""Upstream's git, for the patches of its newest state, `patches/master`."""

import re
from pathlib import Path

from lightning_windows_ddp import _git, _index
from lightning_windows_ddp._errors import BadInputError, CommandError, PatchSetError
from lightning_windows_ddp._patches import MASTER
from lightning_windows_ddp._scratch import scratch_folder

URL = "https://github.com/Lightning-AI/pytorch-lightning"

_COMMIT = re.compile(r"[0-9a-f]{40}")
# Pictures and videos: patches do not concern them
_PATHS = [".", ":(exclude,glob)docs/**/_static/**"]


def read_base(patches: Path) -> str:
    """Return the commit of upstream that the patches in `patches/master` are made for.

    Raises:
        PatchSetError: If the file `BASE` is missing or names no commit.

    """
    file = patches / MASTER / "BASE"
    try:
        commit = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        commit = ""
    if not _COMMIT.fullmatch(commit):
        raise PatchSetError(
            f"{file} must hold the full hash of the commit of upstream that the patches are made for, and nothing else."
            " Restore it from the repository's history."
        )
    return commit


def download_sources(version: str, upstream: str, patches: Path, folder: Path) -> Path:
    """Get the sources of a release from the package index, or those of `master` from upstream's git.

    Args:
        version: The release, or `master`.
        upstream: The folder of a clone, or what git can fetch from.
        patches: The folder `patches/`.
        folder: An existing empty folder.

    Returns:
        The archive.

    Raises:
        ToolError: If they cannot be had.

    """
    if version == MASTER:
        return archive_commit(upstream, read_base(patches), folder)
    return _index.download_sdist(version, folder)


def archive_commit(upstream: str, commit: str, folder: Path) -> Path:
    """Write the files of a commit as an archive that looks like a source release.

    Args:
        upstream: The folder of a clone, or what git can fetch from.
        commit: The full hash of the commit.
        folder: An existing folder for the archive.

    Raises:
        BadInputError: If the commit cannot be had from there.

    """
    archive = folder / f"lightning-{MASTER}.tar.gz"
    with scratch_folder(folder, "upstream") as scratch:
        try:
            if Path(upstream).is_dir():
                repository = Path(upstream).absolute()
            else:
                repository = scratch
                _git.init(scratch)
                _git.git("fetch", "--quiet", "--depth=1", "--no-tags", upstream, commit, cwd=scratch)
            prefix = f"--prefix=lightning-{MASTER}/"
            archive.write_bytes(_git.git("archive", "--format=tar.gz", prefix, commit, *_PATHS, cwd=repository))
        except CommandError as error:
            reason = error.output.splitlines()[-1] if error.output else f"status {error.status}"
            raise BadInputError(
                f"The commit {commit} of Lightning cannot be had from {upstream} ({reason})."
                " Name a clone that has it, or an address of one, with --upstream."
            ) from None
    return archive
