"""git, kept apart from its user's settings. Knows nothing of Lightning or of patches/.

Every call sees the same git whatever the user has configured: no system or user file, no hooks, no signing, no
conversion of line ends, and none of the `GIT_*` variables that a hook or an alias leaves in the environment.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp._errors import CommandError, ProgramNotFoundError
from lightning_windows_ddp._run import run

_SETTINGS = {
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.longpaths": "true",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "log.showSignature": "false",
    # nothing may keep working in the folder after the command has ended
    "gc.auto": "0",
    "maintenance.auto": "false",
    # `git am`
    "am.keepcr": "false",
    "am.threeWay": "false",
    "mailinfo.scissors": "false",
    "apply.ignoreWhitespace": "no",
    "apply.whitespace": "warn",
}
# what a patch looks like, spelled out: most of these are today's defaults, and defaults have changed before
_PATCH_FORMAT = [
    "--no-numbered",
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "--full-index",
    "--no-renames",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-relative",
    "--submodule=short",
    "--no-attach",
    "--subject-prefix=PATCH",
]


@dataclass(frozen=True)
class Identity:
    """Who commits, and when.

    Args:
        name: The name of author and committer.
        email: Their address.
        date: The moment, in git's own format: seconds since 1970 and the time zone.

    """

    name: str
    email: str
    date: str

    def environment(self) -> dict[str, str]:
        """Return the variables that make git use this identity without any configuration."""
        return {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", self.name), ("EMAIL", self.email), ("DATE", self.date))
        }


@dataclass(frozen=True)
class Mail:
    """A commit in mail format.

    Args:
        content: The text.
        faithful: Whether `git am` makes the same commit of it again, with the same message.

    """

    content: bytes
    faithful: bool


def git(
    *arguments: str,
    cwd: Path,
    identity: Identity | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> bytes:
    """Run git and return its standard output.

    Args:
        arguments: The command and its arguments.
        cwd: Where to run it.
        identity: Who commits; needed by commands that make commits.
        env: Further environment variables.
        stdin: What git reads from its standard input.

    Raises:
        CommandError: If git fails.
        ProgramNotFoundError: If git is not installed.

    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    if "GIT_EXEC_PATH" in os.environ:  # portable installations find their own parts by it
        environment["GIT_EXEC_PATH"] = os.environ["GIT_EXEC_PATH"]
    environment |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DEFAULT_HASH": "sha1",
        "GIT_OPTIONAL_LOCKS": "0",  # `git status` shall not write to a repository that is only read
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    environment |= identity.environment() if identity else {}
    environment |= env or {}
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return run(["git", *settings, "--no-pager", *arguments], cwd=cwd, env=environment, stdin=stdin)


def require_git() -> None:
    """Check that git can be run.

    Raises:
        ProgramNotFoundError: If it is not installed.
        CommandError: If it is there but does not run.

    """
    try:
        git("--version", cwd=Path.cwd())
    except ProgramNotFoundError:
        raise ProgramNotFoundError(
            "git was not found: it is not installed or not on PATH. Install it (https://git-scm.com/downloads), open a"
            " new terminal and run again."
        ) from None


def init(folder: Path) -> None:
    """Make a folder a repository whose branch is `main`, with no hooks, and no conversion of line ends from now on."""
    git("init", "--quiet", "--template=", cwd=folder)
    # not `init -b`, which git has had since 2.28 only
    git("symbolic-ref", "HEAD", "refs/heads/main", cwd=folder)
    git("config", "core.autocrlf", "false", cwd=folder)
    git("config", "core.longpaths", "true", cwd=folder)


def commit_all(folder: Path, message: str, identity: Identity, executable: Sequence[str] = ()) -> None:
    """Commit every file of a folder, those that a `.gitignore` in it names included.

    Args:
        folder: The repository.
        message: The message of the commit.
        identity: Who commits.
        executable: The files to record as executable. The file system says so too, but not on Windows, and the
            commit shall be the same everywhere.

    """
    git("add", "--all", "--force", ".", cwd=folder)
    if executable:
        git("update-index", "--chmod=+x", "--", *executable, cwd=folder)
    git("commit", "--quiet", "--no-verify", "--message", message, cwd=folder, identity=identity)


def apply_mail(folder: Path, patch: Path, identity: Identity) -> None:
    """Commit a patch in mail format with `git am`.

    Raises:
        CommandError: If it does not apply.

    """
    # without --keep-non-patch a subject such as "[docs] ..." would lose its first word
    git("am", "--quiet", "--keep-non-patch", "--no-3way", str(patch), cwd=folder, identity=identity)


def mail_patches(repository: Path, base: str, commits: Sequence[str], identity: Identity, scratch: Path) -> list[Mail]:
    """Write commits as patches in mail format: the same commits always give the same bytes.

    Nothing is written to the repository, and its own settings and attributes have no influence: the commits are made
    once more in an empty repository that borrows its objects.

    Args:
        repository: Where the commits are.
        base: The parent of the first one.
        commits: The commits in order, each the parent of the next.
        identity: Who is to be named as author, and the date.
        scratch: An existing empty folder to work in.

    Returns:
        One mail for each commit.

    """
    init(scratch)
    objects = (repository / text(git("rev-parse", "--git-path", "objects", cwd=repository))).resolve().as_posix()
    borrowed = scratch / ".git" / "objects" / "info" / "alternates"
    borrowed.parent.mkdir(exist_ok=True)
    borrowed.write_text(objects + "\n", encoding="utf-8", newline="\n")
    parent, mails = base, []
    for commit in commits:
        message = git("log", "-1", "--format=%B", "--encoding=UTF-8", commit, cwd=repository)
        message = git("stripspace", cwd=scratch, stdin=message)  # as `git am` does
        again = ("commit-tree", f"{commit}^{{tree}}", "-p", parent)
        remade = text(git(*again, cwd=scratch, identity=identity, stdin=message))
        content = git("format-patch", "-1", "--stdout", *_PATCH_FORMAT, remade, cwd=scratch)
        mails.append(Mail(content, _gives(content, parent, remade, identity, scratch)))
        parent = remade
    return mails


def _gives(content: bytes, parent: str, commit: str, identity: Identity, scratch: Path) -> bool:
    """Return whether `git am` makes exactly this commit of a mail."""
    mail = scratch / ".git" / "mail"
    mail.write_bytes(content)
    git("checkout", "--quiet", "--force", "--detach", parent, cwd=scratch)
    try:
        apply_mail(scratch, mail, identity)
    except CommandError:
        git("am", "--abort", cwd=scratch)
        return False
    return text(git("rev-parse", "HEAD", cwd=scratch)) == commit


def text(output: bytes) -> str:
    """Return git's output as text, without the line end that closes it."""
    return output.decode("utf-8", "surrogateescape").rstrip("\n")


def names(output: bytes) -> list[str]:
    """Return the file names that git wrote under `-z`."""
    return [name for name in output.decode("utf-8", "surrogateescape").split("\0") if name]
