"""`export`: the same bytes each time, patches that git takes, and nothing touched that is not its own."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_windows_ddp import _patches

Cli = Callable[..., Any]
Git = Callable[..., str]
Commit = Callable[..., None]
Snapshot = Callable[[Path], dict[str, "bytes | None"]]

FIRST, SECOND = "0001-guard-the-launch.patch", "0002-tests-test-the-guard-does-it-hold.patch"
HOSTILE = """
[core]
    autocrlf = true
    quotePath = true
    abbrev = 5
[diff]
    noprefix = true
    mnemonicPrefix = true
    algorithm = patience
    context = 9
    interHunkContext = 9
    renames = copies
    external = false
    indentHeuristic = false
    relative = true
[format]
    signature = a signature
    subjectPrefix = HOSTILE
    numbered = true
    attach = boundary
    headers = "X-Hostile: yes"
    from = Hostile <hostile@example.com>
    useAutoBase = true
    notes = true
    pretty = oneline
    thread = deep
[i18n]
    logOutputEncoding = ISO-8859-1
[log]
    showSignature = true
[color]
    ui = always
"""


def test_writes_patches_series_and_added_files(patched: Path) -> None:
    assert sorted(path.name for path in (patched / "patches/2.6").iterdir()) == [FIRST, SECOND, "series"]
    assert (patched / "patches/2.6/series").read_bytes() == f"{FIRST}\n{SECOND}\n".encode()
    assert (patched / "src/lightning/fabric/guard.py").read_bytes() == "GUARD = 'ö'\n".encode()
    assert (patched / "tests/tests_fabric/test_guard.py").is_file()
    assert (patched / "docs/source-pytorch/windows.rst").read_bytes() == b"Windows\n"
    assert not (patched / "src/lightning/pytorch").exists()  # a file of upstream's that is only changed


def test_writes_to_a_line_of_several_minor_releases(
    tmp_path: Path,
    checkout: Path,
    developed: Callable[..., Path],
    index: dict[str, Path],
    make_sdist: Callable[..., Path],
    cli: Cli,
) -> None:
    """Once it has a folder; the one of the checkout that is written to counts."""
    index["2.4.0"] = make_sdist("2.4.0")
    fork, other = developed("origin", "2.4.0"), tmp_path / "other"
    (other / "patches/2.2-2.4").mkdir(parents=True)
    assert cli("export", fork, "--to", other).status == 0
    assert sorted(path.name for path in (other / "patches/2.2-2.4").iterdir()) == [FIRST, SECOND, "series"]
    assert [path.name for path in (other / "patches").iterdir()] == ["2.2-2.4"]
    assert cli("export", fork).status == 0
    assert [path.name for path in (checkout / "patches").iterdir()] == ["2.4"]


def test_bytes_of_a_patch(patched: Path) -> None:
    """Nothing in it depends on who made it, when, or with which git."""
    content = (patched / "patches/2.6" / FIRST).read_bytes().decode()
    head, _, body = content.partition("diff --git ")
    assert head == (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: lightning-windows-ddp <lightning-windows-ddp@users.noreply.github.com>\n"
        "Date: Thu, 1 Jan 2026 00:00:00 +0000\n"
        "Subject: [PATCH] =?UTF-8?q?Guard=20the=20l=C3=A4unch?=\n"
        "MIME-Version: 1.0\n"
        "Content-Type: text/plain; charset=UTF-8\n"
        "Content-Transfer-Encoding: 8bit\n"
        "\n"
        "It is needed because of #17777.\n"
        "\n"
        "A paragraph with ümlauts.\n"
        "\n"
    )
    assert body == (
        "a/src/lightning/fabric/guard.py b/src/lightning/fabric/guard.py\n"
        "new file mode 100644\n"
        "index 0000000000000000000000000000000000000000..e7276e5a87843840f87d5430c868c94417555e46\n"
        "--- /dev/null\n"
        "+++ b/src/lightning/fabric/guard.py\n"
        "@@ -0,0 +1 @@\n"
        "+GUARD = 'ä'\n"
        "diff --git a/src/lightning/pytorch/numbers.py b/src/lightning/pytorch/numbers.py\n"
        "index d19928e7278b733e63bf5d8c7ec01f95be4966ae..aed71d8c29a50e691cc8322acbfec02d65fbf907 100644\n"
        "--- a/src/lightning/pytorch/numbers.py\n"
        "+++ b/src/lightning/pytorch/numbers.py\n"
        "@@ -18,7 +18,7 @@ line_16 = 16\n"
        " line_17 = 17\n"
        " line_18 = 18\n"
        " line_19 = 19\n"
        "-line_20 = 20\n"
        "+line_20 = 'hook'\n"
        " line_21 = 21\n"
        " line_22 = 22\n"
        " line_23 = 23\n"
    )


def test_exporting_again_changes_nothing(tmp_path: Path, patched: Path, cli: Cli, snapshot: Snapshot) -> None:
    """Not even the times of the files, so that no build tool thinks that they are new; and nothing in the fork."""
    os.utime(tmp_path / "origin/crlf.txt", (1, 1))  # makes git look at the file again
    before, fork = snapshot(patched), snapshot(tmp_path / "origin")
    times = {path: path.stat().st_mtime_ns for path in patched.rglob("*")}
    result = cli("export", tmp_path / "origin")
    assert result.status == 0
    assert "Nothing changed" in result.out
    assert snapshot(patched) == before
    assert {path: path.stat().st_mtime_ns for path in patched.rglob("*")} == times
    assert snapshot(tmp_path / "origin") == fork


@pytest.mark.parametrize("where", ["user", "fork"])
def test_settings_of_git_have_no_influence(
    tmp_path: Path,
    patched: Path,
    cli: Cli,
    snapshot: Snapshot,
    user_settings: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    before = snapshot(patched)
    fork = tmp_path / "origin"
    if where == "user":
        user_settings(HOSTILE)
        monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=0")
        monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "no-index"))
    else:
        with (fork / ".git/config").open("a") as config:
            config.write(HOSTILE)
        (fork / ".git/info/attributes").write_text("*.py -diff\n")
    result = cli("export", fork)
    assert result.status == 0, result.err
    assert "Nothing changed" in result.out
    assert snapshot(patched) == before


def test_author_and_time_of_the_commits_have_no_influence(
    tmp_path: Path, patched: Path, cli: Cli, git: Git, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(patched)
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-02-02T02:02:02")
    tip = git(tmp_path / "origin", "rev-parse", "HEAD")
    git(tmp_path / "origin", "rebase", "--quiet", "--force-rebase", "--reset-author-date", "HEAD~2")
    assert git(tmp_path / "origin", "rev-parse", "HEAD") != tip
    assert "Nothing changed" in cli("export", tmp_path / "origin").out
    assert snapshot(patched) == before


def test_fork_and_export_give_the_same_bytes_again(tmp_path: Path, patched: Path, cli: Cli, snapshot: Snapshot) -> None:
    before = snapshot(patched)
    assert cli("fork", "2.6.6", tmp_path / "again").status == 0
    assert "Nothing changed" in cli("export", tmp_path / "again").out
    assert snapshot(patched) == before


@pytest.mark.parametrize("command", [("am", "--quiet"), ("apply", "--index", "--whitespace=error")])
def test_git_takes_the_patches(
    tmp_path: Path,
    patched: Path,
    cli: Cli,
    git: Git,
    user_settings: Callable[[str], None],
    command: tuple[str, ...],
) -> None:
    """As README tells users to do, in a clone of their own, with settings of their own."""
    user_settings("[user]\nname = A User\nemail = user@example.com\n")
    assert cli("fork", "2.6.6", tmp_path / "clone", "--pristine").status == 0
    for name in (patched / "patches/2.6/series").read_text().split():
        git(tmp_path / "clone", *command, patched / "patches/2.6" / name)
    assert git(tmp_path / "clone", "write-tree") == git(tmp_path / "origin", "rev-parse", "HEAD^{tree}")


def test_removes_what_the_fork_no_longer_gives(
    tmp_path: Path, patched: Path, cli: Cli, git: Git, snapshot: Snapshot
) -> None:
    """Earlier exports and what git tracks in the mirrored folders go; what lies there unknown to git stays."""
    stale = {"src/lightning/fabric/stale.py", "tests/tests_pytorch/deep/er/stale.py", "patches/2.6/0009-stale.patch"}
    own = {"src/lightning_windows_ddp/own.py", "docs/own.rst", "tests/tests_patchset/own.py", "patches/2.6/notes.md"}
    for name in stale | own:
        (patched / name).parent.mkdir(parents=True, exist_ok=True)
        (patched / name).write_text("text\n")
    git(patched, "init", "--quiet")
    git(patched, "add", "--all")
    unknown = {"src/lightning/fabric/untracked.py", "patches/2.6/0008-untracked.patch"}
    for name in unknown:
        (patched / name).write_text("text\n")
    git(tmp_path / "origin", "reset", "--quiet", "--hard", "HEAD~1")  # the second commit added the test and the page
    result = cli("export", tmp_path / "origin")
    assert result.status == 0
    gone = stale | {f"patches/2.6/{SECOND}", "tests/tests_fabric/test_guard.py", "docs/source-pytorch/windows.rst"}
    assert {line.split()[1] for line in result.out.splitlines() if line.startswith("removed")} == gone
    written = {line.split()[1] for line in result.out.splitlines() if line.startswith("wrote")}
    assert written == {"patches/2.6/series", "src/lightning/fabric/guard.py"}
    left = {name for name in snapshot(patched) if not name.startswith(".git/")}
    assert own | unknown <= left
    assert not gone & left
    assert "tests/tests_pytorch" not in left  # no empty folders


def test_another_line_keeps_its_pages(
    tmp_path: Path,
    patched: Path,
    developed: Callable[..., Path],
    index: dict[str, Path],
    make_sdist: Callable[..., Path],
    cli: Cli,
    git: Git,
) -> None:
    index["2.5.0"] = make_sdist("2.5.0")
    fork = developed("older", "2.5.0")
    assert cli("export", fork).status == 0
    git(fork, "reset", "--quiet", "--hard", "HEAD~1")
    assert cli("export", fork).status == 0
    assert (patched / "docs/source-pytorch/windows.rst").is_file()
    assert len((patched / "patches/2.6/series").read_text().split()) == 2
    assert len((patched / "patches/2.5/series").read_text().split()) == 1


def test_a_page_of_two_lines_can_be_changed(
    tmp_path: Path,
    patched: Path,
    developed: Callable[..., Path],
    index: dict[str, Path],
    make_sdist: Callable[..., Path],
    cli: Cli,
    commit: Commit,
) -> None:
    index["2.5.0"] = make_sdist("2.5.0")
    older = developed("older", "2.5.0")
    for fork, text in ((older, "Mended\n"), (tmp_path / "origin", "Mended again\n")):
        commit(fork, "Mend the page", {"docs/source-pytorch/windows.rst": text})
        assert cli("export", fork).status == 0
        assert (patched / "docs/source-pytorch/windows.rst").read_text() == text


def test_to_names_the_checkout(tmp_path: Path, patched: Path, cli: Cli, snapshot: Snapshot) -> None:
    other = tmp_path / "other"
    other.mkdir()
    before = snapshot(patched)
    assert cli("export", tmp_path / "origin", "--to", other).status == 0
    assert snapshot(other / "patches") == snapshot(patched / "patches")
    assert snapshot(patched) == before


def test_an_installed_wheel_has_no_checkout(
    tmp_path: Path, developed: Callable[..., Path], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site-packages/lightning_windows_ddp/patches").mkdir(parents=True)
    monkeypatch.setattr(_patches, "_package", lambda: tmp_path / "site-packages/lightning_windows_ddp")
    result = cli("export", developed())
    assert result.status == 2
    assert "installed wheel" in result.err
    assert "--to" in result.err


def _uncommitted(fork: Path, git: Git, commit: Commit) -> None:
    (fork / "src/lightning/fabric/guard.py").write_text("changed\n")


def _untracked(fork: Path, git: Git, commit: Commit) -> None:
    (fork / "src/lightning/fabric/new module.py").write_text("new\n")


def _fixup(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "fixup! Guard the läunch", {"src/lightning/fabric/guard.py": "fixed\n"})


def _merge(fork: Path, git: Git, commit: Commit) -> None:
    git(fork, "switch", "--quiet", "--create", "side", "HEAD~1")
    commit(fork, "Aside", {"side.py": "\n"})
    git(fork, "switch", "--quiet", "main")
    git(fork, "merge", "--quiet", "--no-edit", "side")


def _nothing(fork: Path, git: Git, commit: Commit) -> None:
    git(fork, "reset", "--quiet", "--hard", "HEAD~2")


def _empty(fork: Path, git: Git, commit: Commit) -> None:
    git(fork, "commit", "--quiet", "--allow-empty", "-m", "Empty")


def _binary(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "Binary", {"src/lightning/data.bin": "a\0b"})


def _latin(fork: Path, git: Git, commit: Commit) -> None:
    (fork / "src/lightning/latin.py").write_bytes("ä\n".encode("latin-1"))
    commit(fork, "Latin", {})


def _crlf(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "CRLF", {"src/lightning/crlf.py": "a\r\n"})


def _executable(fork: Path, git: Git, commit: Commit) -> None:
    (fork / "src/lightning/tool.py").write_text("\n")
    git(fork, "add", "--chmod=+x", "src/lightning/tool.py")
    git(fork, "commit", "--quiet", "-m", "Tool")
    git(fork, "reset", "--quiet", "--hard")


def _name(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "Name", {"src/lightning/what?.py": "\n"})


def _message(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "Message\n\n---\nis cut off here", {"src/lightning/fabric/guard.py": "x\n"})


def _rebase(fork: Path, git: Git, commit: Commit) -> None:
    git(fork, "-c", "sequence.editor=sed -i.bak -e 's/^pick/edit/'", "rebase", "--quiet", "--interactive", "HEAD~1")


def _no_fork(fork: Path, git: Git, commit: Commit) -> None:
    shutil.rmtree(fork / ".git")


def _other_repository(fork: Path, git: Git, commit: Commit) -> None:
    git(fork, "checkout", "--quiet", "--orphan", "other")
    git(fork, "commit", "--quiet", "-m", "Something else")


def _own_file(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "Overwrite", {"noxfile.py": "theirs\n"})


def _in_the_way(fork: Path, git: Git, commit: Commit) -> None:
    commit(fork, "In the way", {"noxfile.py/sub.py": "theirs\n"})


BAD_FORKS = [
    (_uncommitted, ["not committed", "guard.py"]),
    (_untracked, ["not committed", "new module.py", "git add"]),
    (_fixup, ["'fixup! Guard the läunch'", "--autosquash"]),
    (_merge, ["merge commit"]),
    (_nothing, ["no commits after the release"]),
    (_empty, ["'Empty'", "changes nothing"]),
    (_binary, ["data.bin", "not text"]),
    (_latin, ["latin.py", "not text in UTF-8"]),
    (_crlf, ["crlf.py", "carriage returns"]),
    (_executable, ["tool.py", "executable"]),
    (_message, ["'Message'", "come back changed", "Reword"]),
    (_rebase, ["in the middle of a rebase"]),
    (_no_fork, ["not a fork of Lightning"]),
    (_other_repository, ["not a fork of Lightning", "'Something else'"]),
    (_own_file, ["noxfile.py", "overwritten"]),
    (_in_the_way, ["noxfile.py", "overwritten"]),
]
if os.name != "nt":
    BAD_FORKS.append((_name, ["what?.py", "Windows cannot"]))


@pytest.mark.parametrize(("spoil", "words"), BAD_FORKS, ids=[spoil.__name__ for spoil, _ in BAD_FORKS])
def test_refuses(
    tmp_path: Path,
    checkout: Path,
    developed: Callable[..., Path],
    cli: Cli,
    git: Git,
    commit: Commit,
    snapshot: Snapshot,
    spoil: Callable[[Path, Git, Commit], None],
    words: list[str],
) -> None:
    """One clear sentence, and nothing is written: not to the checkout, and not to the fork either."""
    (checkout / "noxfile.py").write_text("ours\n")
    fork = developed()
    spoil(fork, git, commit)
    before = snapshot(tmp_path)
    result = cli("export", fork)
    assert result.status == 2
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert snapshot(tmp_path) == before


def test_refuses_folders_that_do_not_exist(tmp_path: Path, patched: Path, cli: Cli, snapshot: Snapshot) -> None:
    before = snapshot(tmp_path)
    for arguments, word in (
        ((tmp_path / "gone",), "is not a fork of Lightning"),
        ((tmp_path / "origin", "--to", tmp_path / "gone"), "is not a folder"),
        ((tmp_path / "origin", "--to", tmp_path / "origin"), "lies in the fork itself"),
        ((tmp_path / "origin" / "src",), "not the top folder of a git repository"),
    ):
        result = cli("export", *arguments)
        assert result.status == 2
        assert word in result.err
    assert snapshot(tmp_path) == before


def test_never_removes_outside_of_the_checkout(tmp_path: Path, patched: Path, cli: Cli) -> None:
    """An old patch may name any path."""
    (tmp_path / "precious").write_text("mine\n")
    old = patched / "patches/2.6/0009-evil.patch"
    old.write_text("diff --git a/../precious b/../precious\nnew file mode 100644\n")
    with (patched / "patches/2.6/series").open("a") as series:
        series.write("0009-evil.patch\n../../precious\n../../../precious\n")
    assert cli("export", tmp_path / "origin").status == 0
    assert not old.exists()
    assert (tmp_path / "precious").is_file()


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, patched: Path, cli: Cli, commit: Commit, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up, or another program keeps the file open: the old content is still there, and no other file."""
    before = snapshot(patched)
    commit(tmp_path / "origin", "More", {"src/lightning/fabric/guard.py": "MORE = 1\n"})

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    result = cli("export", tmp_path / "origin")
    assert result.status == 2
    assert "No space left on device" in result.err
    assert "Traceback" not in result.err
    assert snapshot(patched) == before


def test_names_of_patches(tmp_path: Path, checkout: Path, index: dict[str, Path], cli: Cli, commit: Commit) -> None:
    fork = tmp_path / "fork"
    assert cli("fork", "2.6.6", fork, "--pristine").status == 0
    commit(fork, "A " + "very " * 20 + "long subject", {"a.py": "1\n"})
    commit(fork, "日本", {"a.py": "2\n"})
    commit(fork, "CON: c:\\windows/../x", {"a.py": "3\n"})
    assert cli("export", fork).status == 0
    names = (checkout / "patches/2.6/series").read_text().split()
    assert names[1:] == ["0002-patch.patch", "0003-con-c-windows-x.patch"]
    assert re.fullmatch(r"0001-a(-very)+.patch", names[0])
    assert len(names[0]) <= len("0001-.patch") + 60
    assert cli("fork", "2.6.6", tmp_path / "again").status == 0
    assert "Nothing changed" in cli("export", tmp_path / "again").out
    log = ["git", "log", "--format=%s"]
    subjects = subprocess.run(log, cwd=tmp_path / "again", capture_output=True, check=True, timeout=60).stdout.decode()
    assert "A " + "very " * 20 + "long subject" in subjects
    assert "日本" in subjects
