"""Make a fork: a git repository with the pristine release as its first commit and one commit per patch."""

import os
from collections.abc import Callable
from pathlib import Path

from lightning_windows_ddp import _git, _index, _patches, _upstream
from lightning_windows_ddp._errors import BadInputError, CommandError
from lightning_windows_ddp._scratch import move_folder, scratch_folder

# what installations, test runs and editors leave in a fork; it is nobody's change
_LEFTOVERS = """\
__pycache__/
*.py[co]
*.egg-info/
.*_cache/
.venv/
.idea/
.vscode/
.DS_Store
/build/
/dist/
lightning_logs/
"""

# In a fork: what pip is to build it with, if not with the newest
BUILD_CONSTRAINTS = ".git/info/build-constraints.txt"


def fork(
    version: str,
    destination: Path,
    *,
    pristine: bool = False,
    upstream: str = _upstream.URL,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Make a fork of a release of Lightning.

    All work is done in a temporary folder beside the destination that becomes the destination in one last step, so
    the destination is never half-made. The same release and patches always give the same commits.

    Args:
        version: The release, such as `2.6.1`, or `master`: the commit of upstream that `patches/master` is for.
        destination: The folder to make. It may exist if it is empty. Missing folders above it are made.
        pristine: Whether to leave the patches out.
        upstream: Where to get `master` from: a clone of upstream's repository, or its address.
        report: Called with a line of text before each step.

    Returns:
        The absolute path of the fork.

    Raises:
        ToolError: If it cannot be made; nothing has been written then.

    """
    line = _patches.release_line(version)
    if version in _index.WITHDRAWN:
        raise BadInputError(f"lightning {version} is refused: {_index.WITHDRAWN[version]}. Use another release.")
    series = [] if pristine else _patches.read_series(_patches.patches_folder(), line)
    destination = _free_destination(destination)
    _git.require_git()
    steps = 3 if pristine else 4

    if line != _patches.MASTER:
        report(f"[1/{steps}] asking the package index for lightning {version}")
        _require_release(version, line)
    with scratch_folder(destination.parent, f".{destination.name}") as scratch:
        report(f"[2/{steps}] downloading lightning {version}")
        archive = _upstream.download_sources(version, upstream, _patches.patches_folder(), scratch)
        tree = scratch / "tree"
        report(f"[3/{steps}] committing the pristine release")
        executable = _index.unpack_sdist(archive, tree)
        _commit_release(tree, version, executable)
        series = [patch for patch in series if _patches.is_for(patch, tree)]
        for number, patch in enumerate(series, start=1):
            report(f"[4/{steps}] applying {patch.name} ({number} of {len(series)})")
            _apply(tree, patch, version)
        _guard_generated(tree)
        _constrain_build(tree)
        move_folder(tree, destination)
    return destination


def _free_destination(destination: Path) -> Path:
    """Return the real path of a destination that nothing is lost by writing to."""
    real = Path(os.path.realpath(destination))
    if real.is_dir():
        if any(real.iterdir()):
            raise BadInputError(
                f"{destination} exists and is not empty, and nothing in it shall be overwritten. Name another folder or"
                " remove it first."
            )
        if real == Path(os.path.realpath(Path.cwd())):
            raise BadInputError(
                f"{destination} is the current folder, which cannot be replaced while it is in use. Name a folder that"
                " does not exist yet."
            )
    elif os.path.lexists(real):
        raise BadInputError(f"{destination} exists and is not a folder. Name another folder or remove it first.")
    for above in real.parents:
        if above.exists() and not above.is_dir():
            raise BadInputError(f"{destination} cannot be made, because {above} is not a folder. Name another folder.")
    return real


def _require_release(version: str, line: str) -> None:
    released = _index.released_versions()
    if version in released:
        return
    siblings = [other for other in released if _patches.release_line(other) == line]
    if siblings:
        raise BadInputError(
            f"lightning {version} does not exist on the package index. The releases of the line {line} are"
            f" {', '.join(siblings)}: use one of them."
        )
    raise BadInputError(
        f"lightning {version} does not exist on the package index, nor does any other release of the line {line}. The"
        f" newest releases are {', '.join(released[-5:])}: use one of them."
    )


def _commit_release(tree: Path, version: str, executable: list[str]) -> None:
    _git.init(tree)
    _git.commit_all(tree, f"lightning {version}", _patches.IDENTITY, executable)


def _apply(tree: Path, patch: Path, version: str) -> None:
    try:
        _git.apply_mail(tree, patch, _patches.IDENTITY)
    except CommandError as error:
        raise BadInputError(
            f"{patch.name} does not apply to lightning {version}, so there is no patched fork of this release yet."
            f" Use another release of the line. git says:\n{error.output}"
        ) from None


def _constrain_build(tree: Path) -> None:
    """Write what `pip install -e` needs in order to build the fork today.

    Releases before 2.6 are built with `pkg_resources`, which setuptools has no more since release 82.
    """
    assistant = tree / ".actions" / "assistant.py"
    if assistant.is_file() and "pkg_resources" in assistant.read_text(encoding="utf-8"):
        (tree / BUILD_CONSTRAINTS).write_text("setuptools<82\n", encoding="utf-8", newline="\n")


def _guard_generated(tree: Path) -> None:
    """Keep what `pip install -e` and test runs write from looking like the developer's changes.

    The release contains its `*.egg-info`, and an editable installation writes it anew; `git rebase --autosquash`
    would refuse to start in such a tree.
    """
    exclude = tree / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text(_LEFTOVERS, encoding="utf-8", newline="\n")
    tracked = _git.names(_git.git("ls-files", "-z", "--", ":(glob)**/*.egg-info/**", cwd=tree))
    if tracked:
        _git.git("update-index", "--skip-worktree", "--", *tracked, cwd=tree)
