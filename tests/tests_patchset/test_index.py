"""The package index, asked through the real pip."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_windows_ddp import _index
from lightning_windows_ddp._errors import BadInputError, CommandError, ProgramNotFoundError

Process = Callable[..., "subprocess.Popen[str]"]
Snapshot = Callable[[Path], dict[str, "bytes | None"]]


@pytest.mark.git
def test_fork_from_an_index_of_files(tmp_path: Path, process: Process) -> None:
    started = process("fork", "2.6.6", "fork", "--pristine")
    out, err = started.communicate(timeout=120)
    assert started.returncode == 0, err
    assert "[2/3] downloading lightning 2.6.6" in err
    assert str(tmp_path / "fork") in out
    assert (tmp_path / "fork/src/version.info").read_text() == "2.6.6\n"
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.git
@pytest.mark.parametrize("command", [("fork", "2.6.6", "fork", "--pristine"), ("fork", "2.6.98", "--pristine")])
def test_no_network(tmp_path: Path, process: Process, snapshot: Snapshot, command: tuple[str, ...]) -> None:
    before = snapshot(tmp_path)
    started = process(*command, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    out, err = started.communicate(timeout=120)
    assert started.returncode == 2
    assert "The package index cannot be reached" in err
    assert "does not exist" not in err
    assert "Traceback" not in err
    assert not out
    assert snapshot(tmp_path) == before


@pytest.mark.git
def test_version_that_the_index_lacks(tmp_path: Path, process: Process, snapshot: Snapshot) -> None:
    before = snapshot(tmp_path)
    started = process("fork", "2.6.98", "fork", "--pristine")
    _, err = started.communicate(timeout=120)
    assert started.returncode == 2
    assert "lightning 2.6.98 does not exist on the package index" in err
    assert "are 2.6.6: use one of them" in err
    assert snapshot(tmp_path) == before


@pytest.mark.git
def test_pip_settings_that_silence_it_do_not_matter(tmp_path: Path, process: Process) -> None:
    started = process("fork", "2.6.6", "fork", "--pristine", PIP_QUIET="3", PIP_REQUIRE_VIRTUALENV="1")
    _, err = started.communicate(timeout=120)
    assert started.returncode == 0, err


def test_versions_are_sorted_and_final_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is what pip prints; withdrawn releases and pre-releases are left out."""
    text = b"lightning (2.6.10)\nAvailable versions: 2.6.10, 2.6.9, 2.6.9rc1, 2.6.3, 2.6.2, 2.5.1.post0, 2.5.1\n"
    monkeypatch.setattr(_index, "run", lambda *arguments, **options: text)
    assert _index.released_versions() == ["2.5.1", "2.5.1.post0", "2.6.9", "2.6.10"]


def test_withdrawn_releases_are_never_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_index, "run", lambda *arguments, **options: pytest.fail("pip was called"))
    with pytest.raises(BadInputError, match="withdrawn"):
        _index.download_sdist("2.6.3", tmp_path)


def test_interpreter_without_pip(tmp_path: Path, interpreter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(ProgramNotFoundError, match=r"pip is missing from .*ensurepip"):
        _index.released_versions()


@pytest.mark.git
def test_a_failing_pip_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "git")  # fails with something else than an absent release
    with pytest.raises(CommandError, match="git -m pip index versions") as caught:
        _index.released_versions()
    assert "unknown option: -m" in str(caught.value)


@pytest.mark.git
def test_setuptools_to_build_with(tmp_path: Path, process: Process) -> None:
    """Beside the user's own constraints; the folder for temporary files has a space in its name."""
    mine, seen, temporary = tmp_path / "mine.txt", tmp_path / "seen.txt", tmp_path / "with space"
    mine.write_text("another-package<3\n")
    temporary.mkdir()
    look = f"from urllib.request import urlopen; out = open({str(seen)!r}, 'w')\n"
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        look += f"own, ours = os.environ[{name!r}].split()\nout.write(own + ' ' + urlopen(ours).read().decode())\n"
    constraints = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), mine.as_uri())
    started = process(
        "fork", "2.6.6", "with space/fork", "--pristine", BLOCK_BACKEND=f"{look}out.close()", **constraints
    )
    _, err = started.communicate(timeout=120)
    assert started.returncode == 0, err
    assert seen.read_text() == f"{mine.as_uri()} setuptools<81\n" * 2
    assert sorted(path.name for path in temporary.iterdir()) == ["fork"]


@pytest.mark.git
@pytest.mark.parametrize("version", ["2.0.0", "2.6.6"])
def test_real_release(tmp_path: Path, process: Process, version: str) -> None:
    """The one test that downloads: forks of releases old and new, from the package index that pip is set up for."""
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    started = process("fork", version, "fork", "--pristine", **{"PIP_INDEX_URL": "", "PIP_CONFIG_FILE": ""} | pip)
    _, err = started.communicate(timeout=300)
    assert started.returncode == 0, err
    assert (tmp_path / "fork/src/version.info").read_text().strip() == version
    assert (tmp_path / "fork/src/lightning/pytorch/trainer/call.py").is_file()
    assert not list((tmp_path / "temporary").iterdir())


def test_unpacks_only_what_lies_below_one_folder(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("file-at-the-top"))
    with pytest.raises(BadInputError, match="file-at-the-top"):
        _index.unpack_sdist(archive, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
