"""`verify`: what it proves, and that it fails when it should."""

import importlib.util
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_windows_ddp import _hunks, _index, _patches, verify
from lightning_windows_ddp._verify import format_results

Cli = Callable[..., Any]
Git = Callable[..., str]
Commit = Callable[..., None]
Sdist = Callable[..., Path]
Snapshot = Callable[[Path], dict[str, "bytes | None"]]

NUMBERS = "src/lightning/pytorch/numbers.py"
FIRST, SECOND = "0001-guard-the-launch.patch", "0002-tests-test-the-guard-does-it-hold.patch"


def _numbers(first: int = 0, last: int = 40) -> bytes:
    return "".join(f"line_{number} = {number}\n" for number in range(first, last)).encode()


def _cells(out: str) -> dict[str, list[str]]:
    """Return the cells of the table by release, but for those about installed distributions."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    return {row[0]: row[1:-3] for row in rows if not row[0].startswith("-")}


def test_table(patched: Path, index: dict[str, Path], make_sdist: Sdist, cli: Cli, interpreter: Path) -> None:
    """Whole text: a release where the hunk applies at another line is fine, too."""
    index["2.6.7"] = make_sdist("2.6.7", {NUMBERS: b"# new\n" * 9 + _numbers()})
    index["2.5.0"] = make_sdist("2.5.0")  # another line
    result = cli("verify", "--python", interpreter)
    assert result.status == 0, result
    assert result.out == (
        "| lightning   | 0001   | 0002   | same text   | in place   | pytorch-lightning   | lightning-fabric   |\n"
        "|-------------|--------|--------|-------------|------------|---------------------|--------------------|\n"
        "| 2.6.6       | ok     | ok     | ok          | ok         | ok                  | ok                 |\n"
        "| 2.6.7       | ok     | ok     | ok          | ok         | ok                  | ok                 |\n"
        "\n"
        f"{FIRST}\n"
        f"{SECOND}\n"
    )
    assert "[2/2] lightning 2.6.7: 0002-tests-test-the-guard-does-it-hold.patch (2 of 2)" in result.err


def test_lines_in_order(
    tmp_path: Path,
    patched: Path,
    index: dict[str, Path],
    make_sdist: Sdist,
    developed: Callable[..., Path],
    cli: Cli,
    interpreter: Path,
) -> None:
    """All lines by default, oldest first, each with its releases; a folder that is no line is not looked at."""
    for version in ("2.1.0", "2.2.0.post0", "2.3.1", "2.4.9", "2.10.0"):
        index[version] = make_sdist(version)
    for name in ("2.2-2.4", "master"):
        (patched / "patches" / name).mkdir()
        (patched / "patches" / name / "series").touch()
    for version in ("2.10.0", "2.3.1"):
        assert cli("export", developed(version, version)).status == 0
    result = cli("verify", "--python", interpreter)
    assert result.status == 0, result
    assert [release for release in _cells(result.out) if release != "lightning"] == [
        *("2.2.0.post0", "2.3.1", "2.4.9"),
        "2.6.6",
        "2.10.0",
    ]
    result = cli("verify", "2.2-2.4", "--python", interpreter)
    assert list(_cells(result.out)) == ["lightning", "2.2.0.post0", "2.3.1", "2.4.9"]
    result = cli("verify", "2.3", "--python", interpreter)
    assert result.status == 2
    assert "there are for: 2.2-2.4, 2.6, 2.10." in result.err


def test_writes_nothing(tmp_path: Path, patched: Path, cli: Cli, interpreter: Path, snapshot: Snapshot) -> None:
    before = snapshot(tmp_path)
    assert cli("verify", "2.6", "--python", interpreter).status == 0
    assert snapshot(tmp_path) == before


def test_works_inside_another_repository(
    tmp_path: Path, patched: Path, cli: Cli, git: Git, interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, `git apply` silently skips files outside of the current folder."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert cli("verify", "--python", interpreter).status == 0
    assert not list((tmp_path / "temporary").iterdir())


def test_hunk_that_does_not_apply(
    patched: Path, index: dict[str, Path], make_sdist: Sdist, cli: Cli, interpreter: Path
) -> None:
    """One changed line of context is enough: no fuzz."""
    index["2.6.7"] = make_sdist("2.6.7", {NUMBERS: _numbers().replace(b"line_18 = 18", b"line_18 = 0")})
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert _cells(result.out)["2.6.6"] == ["ok", "ok", "ok"]
    assert _cells(result.out)["2.6.7"] == ["no apply", "not tried", "not tried"]
    assert f"lightning 2.6.7, {FIRST}:\n  error: patch failed: {NUMBERS}:18" in result.out


def test_prefix_that_does_not_import(
    tmp_path: Path, patched: Path, cli: Cli, commit: Commit, interpreter: Path
) -> None:
    """The last patch mends what the one before broke: the whole series imports, but not each prefix."""
    commit(tmp_path / "origin", "Break", {"src/lightning/pytorch/__init__.py": "raise RuntimeError('broken')\n"})
    commit(tmp_path / "origin", "Mend", {"src/lightning/pytorch/__init__.py": "mended = True\n"})
    assert cli("export", tmp_path / "origin").status == 0
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert _cells(result.out)["2.6.6"] == ["ok", "ok", "no import", "ok", "ok"]
    assert "0003-break.patch:\n" in result.out
    assert "RuntimeError: broken" in result.out
    assert "without the patches either" not in result.out


def test_release_that_does_not_import_by_itself(
    patched: Path, index: dict[str, Path], make_sdist: Sdist, cli: Cli, interpreter: Path
) -> None:
    index["2.6.7"] = make_sdist("2.6.7", {"src/lightning/__init__.py": b"import a_dependency\n"})
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert _cells(result.out)["2.6.7"] == ["no import", "no import", "ok"]
    assert "No module named 'a_dependency'" in result.out
    assert "without the patches either" in result.out


def test_another_lightning_is_not_mistaken_for_the_patched_one(
    tmp_path: Path, patched: Path, index: dict[str, Path], make_sdist: Sdist, cli: Cli, interpreter: Path
) -> None:
    stranger = tmp_path / "stranger"
    for name in ("fabric", "pytorch"):
        (stranger / name).mkdir(parents=True)
        (stranger / name / "__init__.py").touch()
    make_sdist("2.6.6", {"src/lightning/__init__.py": f"__path__[:] = [{str(stranger)!r}]\n".encode()})
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert _cells(result.out)["2.6.6"][0] == "no import"
    assert f"{stranger}" in result.out


def test_whitespace_error(tmp_path: Path, patched: Path, cli: Cli, commit: Commit, interpreter: Path) -> None:
    """It is reported, and the later patches are tried all the same."""
    commit(tmp_path / "origin", "Trail", {"src/lightning/fabric/guard.py": "GUARD = 1 \n"})
    commit(tmp_path / "origin", "Go on", {"src/lightning/fabric/other.py": "OTHER = 1\n"})
    assert cli("export", tmp_path / "origin").status == 0
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert _cells(result.out)["2.6.6"] == ["ok", "ok", "whitespace", "ok", "ok"]
    assert "trailing whitespace" in result.out


@pytest.mark.parametrize("repository", [False, True], ids=["archive", "repository"])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("src/lightning/fabric/guard.py", b"GUARD = 'changed'\n", "not the same bytes"),
        ("src/lightning/fabric/guard.py", "GUARD = 'ö'\r\n".encode(), "not the same bytes"),
        ("src/lightning/fabric/guard.py", None, "not in the checkout"),
        ("docs/source-pytorch/windows.rst", b"changed\n", "not the same bytes"),
        ("tests/tests_pytorch/test_extra.py", b"extra\n", "no patch adds it"),
    ],
    ids=["changed", "line ends", "missing", "page", "extra"],
)
def test_text_of_the_checkout_differs(
    patched: Path,
    cli: Cli,
    git: Git,
    interpreter: Path,
    repository: bool,
    name: str,
    content: bytes | None,
    words: str,
) -> None:
    if repository:
        git(patched, "init", "--quiet")
        git(patched, "add", "--all")
    (patched / "src/lightning/fabric/__pycache__").mkdir()
    (patched / "src/lightning/fabric/__pycache__/guard.cpython-311.pyc").touch()
    (patched / ".gitignore").write_text("__pycache__/\n")
    path = patched / name
    if content is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert _cells(result.out)["2.6.6"] == ["ok", "ok", "differs"]
    detail = result.out.partition("same text:\n")[2]
    assert detail.strip().splitlines()[0].strip().startswith(f"{name}: ")
    assert words in detail
    assert len(detail.strip().splitlines()) == 1


def test_installed_wheel_has_nothing_to_compare_with(
    tmp_path: Path, patched: Path, cli: Cli, interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages/lightning_windows_ddp"
    package.mkdir(parents=True)
    (patched / "patches").rename(package / "patches")
    monkeypatch.setattr(_patches, "_package", lambda: package)
    result = cli("verify", "--python", interpreter)
    assert result.status == 0
    assert _cells(result.out)["2.6.6"] == ["ok", "ok", "no checkout"]


def test_interpreter_without_torch(patched: Path, index: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("")
    for python, words in (
        (tmp_path / "gone" / "python", "There is no Python interpreter"),
        (Path("git"), "cannot import torch"),
    ):
        result = cli("verify", "--python", python)
        assert result.status == 2
        assert words in result.err
        assert "--python" in result.err
        assert not result.out


@pytest.mark.skipif(sys.platform == "win32", reason="makes a program of a shell script")
def test_relative_interpreter(
    tmp_path: Path, patched: Path, cli: Cli, interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert cli("verify", "--python", "./python").status == 0


@pytest.mark.parametrize("line", ["2.5", "2", "nonsense", "../2.6"])
def test_unknown_line(patched: Path, cli: Cli, interpreter: Path, line: str) -> None:
    result = cli("verify", line, "--python", interpreter)
    assert result.status == 2
    assert "there are for: 2.6" in result.err


def test_line_without_a_release(patched: Path, index: dict[str, Path], cli: Cli, interpreter: Path) -> None:
    index.clear()
    result = cli("verify", "--python", interpreter)
    assert result.status == 2
    assert "no such release of the line 2.6" in result.err


def test_no_patches_at_all(checkout: Path, index: dict[str, Path], cli: Cli, interpreter: Path) -> None:
    assert cli("verify", "--python", interpreter).status == 2


@pytest.mark.skipif(not (_patches.patches_folder() / "2.6" / "series").is_file(), reason="no patches for 2.6 yet")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_newest_real_release() -> None:
    """The patches of this very checkout on the newest release; `verify` itself does this for every release."""
    newest = _index.released_versions()[-1]
    line = _patches.release_line(newest)
    results = verify([line], Path(sys.executable), releases=[newest])
    assert [result.version for result in results] == [newest]
    assert all(result.ok for result in results), format_results(results)


def test_distributions_with_other_names(
    patched: Path, index: dict[str, Path], cli: Cli, interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that `apply` could not patch is a failure, and one that was never released is none."""
    genuine = _index.download_wheel

    def download(name: str, version: str, folder: Path) -> Path | None:
        if name == "lightning-fabric":
            return None
        wheel = genuine(name, version, folder)
        assert wheel is not None
        with zipfile.ZipFile(wheel, "w") as files:
            files.writestr("pytorch_lightning/numbers.py", "line_20 = 21\n")
        return wheel

    monkeypatch.setattr(_index, "download_wheel", download)
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    cells = re.split(r" *\| *", next(line for line in result.out.splitlines() if line.startswith("| 2.6.6")))
    assert cells[1:-1] == ["2.6.6", "ok", "ok", "ok", "ok", "no apply", "no release"]
    assert "pytorch_lightning/numbers.py: differs from the release where it is to be changed" in result.out


def test_apply_that_differs_from_git(
    patched: Path, index: dict[str, Path], cli: Cli, interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = _hunks._find
    monkeypatch.setattr(_hunks, "_find", lambda *arguments: genuine(*arguments) + 1)
    result = cli("verify", "--python", interpreter)
    assert result.status == 1
    assert "lightning/pytorch/numbers.py: not as git has it" in result.out
