"""`fork`: what it makes, what it refuses, and that it leaves nothing behind."""

import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Git = Callable[..., str]
Snapshot = Callable[[Path], dict[str, "bytes | None"]]


def _refused(result: Any, *words: str) -> None:
    assert result.status == 2, result
    assert not result.out
    assert "Traceback" not in result.err
    message = result.err[result.err.index("lightning-windows-ddp: ") :]
    for word in words:
        assert word in message


def test_first_commit_is_the_release_byte_for_byte(
    tmp_path: Path, index: dict[str, Path], cli: Cli, git: Git, user_settings: Callable[[str], None]
) -> None:
    """Line ends, ignored files and the executable bit survive, even where the user has git convert line ends."""
    user_settings("[core]\nautocrlf = true\nsafecrlf = true\n[commit]\ngpgSign = true\n[init]\ndefaultBranch = x\n")
    assert cli("fork", "2.6.6", tmp_path / "fork", "--pristine").status == 0
    fork = tmp_path / "fork"
    assert git(fork, "log", "--format=%s|%an|%ae|%ai") == (
        "lightning 2.6.6|lightning-windows-ddp|lightning-windows-ddp@users.noreply.github.com|2026-01-01 00:00:00 +0000"
    )
    assert git(fork, "branch", "--show-current") == "main"
    with tarfile.open(index["2.6.6"]) as tar:
        names = {member.name.partition("/")[2]: member for member in tar.getmembers()}
        assert set(git(fork, "ls-files").splitlines()) == set(names)
        for name, member in names.items():
            file = tar.extractfile(member)
            assert file is not None
            blob = subprocess.run(
                ["git", "cat-file", "blob", f"HEAD:{name}"], cwd=fork, capture_output=True, check=True, timeout=60
            )
            assert (fork / name).read_bytes() == blob.stdout == file.read(), name
    assert git(fork, "ls-files", "--stage", "backend.py").startswith("100755")
    assert git(fork, "status", "--porcelain") == ""


@pytest.mark.parametrize("uses", ["pkg_resources", "packaging"])
def test_command_that_installs_it(uses: str, tmp_path: Path, index: dict[str, Path], make_sdist: Any, cli: Cli) -> None:
    """Releases whose build uses what setuptools has no more are to be built with an older one."""
    index["2.5.6"] = make_sdist("2.5.6", {".actions/assistant.py": f"import {uses}\n".encode()})
    fork = tmp_path / "fork"
    command = cli("fork", "2.5.6", fork, "--pristine").out.splitlines()[-1]
    assert "pip install -e" in command
    constraints = fork / ".git" / "info" / "build-constraints.txt"
    assert constraints.is_file() == ("--build-constraint" in command) == (uses == "pkg_resources")
    if uses == "pkg_resources":
        assert str(constraints) in command
        assert constraints.read_text(encoding="utf-8") == "setuptools<82\n"


def test_one_commit_for_each_patch_and_the_same_ids_each_time(
    tmp_path: Path, patched: Path, cli: Cli, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = cli("fork", "2.6.6", tmp_path / "one")
    assert result.status == 0
    subjects = ["[tests] Test the guard: does it hold?", "Guard the läunch", "lightning 2.6.6"]
    assert git(tmp_path / "one", "log", "--format=%s").splitlines() == subjects
    assert "[4/4] applying 0002-tests-test-the-guard-does-it-hold.patch (2 of 2)" in result.err
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Yet Another")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-02-02T02:02:02")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "one" / ".git"))  # as in a git hook
    assert cli("fork", "2.6.6", tmp_path / "two").status == 0
    monkeypatch.delenv("GIT_DIR")
    assert git(tmp_path / "one", "rev-parse", "HEAD") == git(tmp_path / "two", "rev-parse", "HEAD")


def test_what_an_installation_writes_is_no_change(tmp_path: Path, patched: Path, cli: Cli, git: Git) -> None:
    """`pip install -e` rewrites the release's egg-info; `rebase --autosquash` must still start."""
    fork = tmp_path / "fork"
    assert cli("fork", "2.6.6", fork).status == 0
    (fork / "src/lightning.egg-info/PKG-INFO").write_text("generated anew\n")
    (fork / "src/lightning/__pycache__").mkdir()
    (fork / "src/lightning/__pycache__/x.pyc").touch()
    assert git(fork, "status", "--porcelain") == ""
    (fork / "src/lightning/fabric/guard.py").write_text("GUARD = 'z'\n")
    git(fork, "commit", "--quiet", "--all", "--fixup", "HEAD")
    git(fork, "-c", "sequence.editor=true", "rebase", "--quiet", "--interactive", "--autosquash", "HEAD~2")
    assert git(fork, "show", "HEAD:src/lightning/fabric/guard.py") == "GUARD = 'z'"
    assert (fork / "src/lightning.egg-info/PKG-INFO").read_text() == "generated anew\n"


def test_prints_a_line_that_a_shell_takes(tmp_path: Path, index: dict[str, Path], cli: Cli) -> None:
    fork = tmp_path / "new folder" / "a förk's"
    result = cli("fork", "2.6.6", fork, "--pristine")
    assert result.status == 0
    line = result.out.splitlines()[-1].strip()
    if os.name == "nt":
        assert line == f'pip install -e "{fork}"'
    else:
        assert shlex.split(line) == ["pip", "install", "-e", str(fork)]
    assert sorted(path.name for path in fork.parent.iterdir()) == [fork.name]


def test_destination_defaults_to_the_current_folder(
    tmp_path: Path, index: dict[str, Path], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli("fork", "2.6.6", "--pristine").status == 0
    assert [path.name for path in Path.cwd().iterdir()] == ["lightning-2.6.6"]


def test_takes_an_empty_folder(tmp_path: Path, index: dict[str, Path], cli: Cli) -> None:
    (tmp_path / "empty").mkdir()
    assert cli("fork", "2.6.6", tmp_path / "empty", "--pristine").status == 0
    assert (tmp_path / "empty" / ".git").is_dir()


@pytest.mark.parametrize("version", ["2.2.0", "2.3.1", "2.4.0.post1"])
def test_line_of_several_minor_releases(
    tmp_path: Path, patched: Path, index: dict[str, Path], make_sdist: Callable[..., Path], cli: Cli, version: str
) -> None:
    (patched / "patches/2.6").rename(patched / "patches/2.2-2.4")
    index[version] = make_sdist(version)
    assert cli("fork", version, tmp_path / "fork").status == 0
    assert (tmp_path / "fork/src/lightning/fabric/guard.py").is_file()


@pytest.mark.parametrize("version", ["2.1.9", "2.5.0", "2.20.0", "3.3.0"])
def test_release_beside_such_a_line(
    tmp_path: Path, patched: Path, index: dict[str, Path], make_sdist: Callable[..., Path], cli: Cli, version: str
) -> None:
    (patched / "patches/2.6").rename(patched / "patches/2.2-2.4")
    index[version] = make_sdist(version)
    _refused(cli("fork", version, tmp_path / "fork"), "no patches for the release line", "there are for: 2.2-2.4")
    assert not (tmp_path / "fork").exists()


def test_names_the_releases_of_such_a_line(tmp_path: Path, patched: Path, index: dict[str, Path], cli: Cli) -> None:
    (patched / "patches/2.6").rename(patched / "patches/2.2-2.4")
    index.clear()
    index.update(dict.fromkeys(["2.1.4", "2.2.0.post0", "2.4.0", "2.5.0"], tmp_path))
    _refused(cli("fork", "2.3.9", tmp_path / "fork"), "releases of the line 2.2-2.4 are 2.2.0.post0, 2.4.0: use one")


def test_two_lines_for_one_release(tmp_path: Path, patched: Path, cli: Cli) -> None:
    (patched / "patches/2.5-2.7").mkdir()
    _refused(cli("fork", "2.6.6", tmp_path / "fork"), "more than one release line for lightning 2.6.6: 2.5-2.7, 2.6")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.6", ["must look like 2.6.1"]),
        ("v2.6.6", ["must look like 2.6.1"]),
        ("2.6.6rc1", ["must look like 2.6.1"]),
        ("../2.6.6", ["must look like 2.6.1"]),
        ("2.6.2", ["withdrawn", "supply-chain"]),
        ("2.6.3", ["withdrawn", "supply-chain"]),
        ("2.5.0", ["no patches for the release line 2.5", "there are for: 2.6"]),
        ("2.6.99", ["does not exist", "releases of the line 2.6 are 2.6.6"]),
    ],
)
def test_refuses_versions(
    tmp_path: Path, patched: Path, cli: Cli, snapshot: Snapshot, version: str, words: list[str]
) -> None:
    before = snapshot(tmp_path)
    _refused(cli("fork", version, tmp_path / "new" / "fork"), *words)
    assert snapshot(tmp_path) == before


def test_pristine_needs_no_patches_but_a_release(tmp_path: Path, index: dict[str, Path], cli: Cli) -> None:
    _refused(cli("fork", "9.9.9", tmp_path / "fork", "--pristine"), "any other release of the line 9.9", "2.6.6")
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("kind", ["not empty", "file", "below a file", "current"])
def test_refuses_destinations(
    tmp_path: Path,
    index: dict[str, Path],
    cli: Cli,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    taken = tmp_path / "taken"
    destination, word = taken, "is not empty"
    if kind == "not empty":
        taken.mkdir()
        (taken / "mine").write_text("mine")
    elif kind == "current":
        taken.mkdir()
        monkeypatch.chdir(taken)
        destination, word = Path(), "is the current folder"
    else:
        taken.write_text("mine")
        word = "is not a folder"
        destination = taken / "sub" / "fork" if kind == "below a file" else taken
    before = snapshot(tmp_path)
    _refused(cli("fork", "2.6.6", destination, "--pristine"), word)
    assert snapshot(tmp_path) == before


def test_without_git(
    tmp_path: Path, index: dict[str, Path], cli: Cli, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    _refused(cli("fork", "2.6.6", tmp_path / "fork", "--pristine"), "git was not found", "Install it")
    assert snapshot(tmp_path) == before


def test_patch_that_does_not_apply(
    tmp_path: Path, patched: Path, index: dict[str, Path], make_sdist: Callable[..., Path], cli: Cli, snapshot: Snapshot
) -> None:
    index["2.6.7"] = make_sdist("2.6.7", {"src/lightning/pytorch/numbers.py": b"all_new = 1\n"})
    before = snapshot(tmp_path)
    _refused(cli("fork", "2.6.7", tmp_path / "new" / "fork"), "0001-guard-the-launch.patch does not apply", "2.6.7")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["../outside", "lightning-2.6.6/../../outside", "/outside", "lightning-2.6.6/.git/x"])
def test_archive_that_would_write_elsewhere(
    tmp_path: Path,
    index: dict[str, Path],
    make_sdist: Callable[..., Path],
    cli: Cli,
    snapshot: Snapshot,
    name: str,
) -> None:
    make_sdist("2.6.6", None, tarfile.TarInfo(name))
    before = snapshot(tmp_path)
    _refused(cli("fork", "2.6.6", tmp_path / "fork", "--pristine"), "is refused", name)
    assert snapshot(tmp_path) == before


def test_archive_with_a_link(
    tmp_path: Path, index: dict[str, Path], make_sdist: Callable[..., Path], cli: Cli, snapshot: Snapshot
) -> None:
    link = tarfile.TarInfo("lightning-2.6.6/src/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    make_sdist("2.6.6", None, link)
    before = snapshot(tmp_path)
    _refused(cli("fork", "2.6.6", tmp_path / "fork", "--pristine"), "not a plain file")
    assert snapshot(tmp_path) == before


def test_damaged_archive(tmp_path: Path, index: dict[str, Path], cli: Cli, snapshot: Snapshot) -> None:
    index["2.6.6"].write_bytes(index["2.6.6"].read_bytes()[:300])
    before = snapshot(tmp_path)
    _refused(cli("fork", "2.6.6", tmp_path / "fork", "--pristine"), "is damaged")
    assert snapshot(tmp_path) == before


def test_series_that_names_a_missing_file(tmp_path: Path, patched: Path, cli: Cli) -> None:
    with (patched / "patches/2.6/series").open("a") as series:
        series.write("0003-gone.patch\n")
    _refused(cli("fork", "2.6.6", tmp_path / "fork"), "0003-gone.patch", "incomplete")


@pytest.mark.skipif(os.name == "nt", reason="the message is another one")
def test_destination_that_the_system_refuses(
    tmp_path: Path, index: dict[str, Path], cli: Cli, snapshot: Snapshot
) -> None:
    before = snapshot(tmp_path)
    _refused(cli("fork", "2.6.6", tmp_path / "new" / ("long" * 62), "--pristine"), "File name too long")
    assert snapshot(tmp_path) == before


def test_usage_error_has_status_2(cli: Cli) -> None:
    assert cli("fork").status == 2
    assert cli("unknown").status == 2


def test_module_and_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_windows_ddp", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("fork", "export", "verify"))
