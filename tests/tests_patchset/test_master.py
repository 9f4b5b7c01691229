"""The patches for upstream's newest state, which come from and go to a git repository instead of a release."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_windows_ddp import _patches
from tests_patchset.conftest import NUMBERS, release_files

Cli = Callable[..., Any]
Git = Callable[..., str]

pytestmark = pytest.mark.git
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def upstream(tmp_path: Path, git: Git) -> Path:
    """Make a repository like upstream's, with a commit after the one that the patches are for."""
    folder = tmp_path / "upstream"
    files = {name: content for name, content in release_files("2.7.0").items() if name.startswith("src/lightning/")}
    for name, content in {**files, "docs/source/_static/picture.gif": b"GIF"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    git(tmp_path, "init", "--quiet", folder)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "one")
    (folder / "src/lightning/pytorch/numbers.py").write_text("line_20 = 'later'\n", encoding="utf-8")
    git(folder, "commit", "--quiet", "--all", "-m", "two")
    return folder


@pytest.fixture
def master(upstream: Path, patched: Path, git: Git) -> Path:
    """Make a checkout whose patches are for the first of these commits."""
    folder = patched / "patches" / "master"
    shutil.copytree(patched / "patches" / "2.6", folder)
    folder.joinpath("BASE").write_text(git(upstream, "rev-parse", "HEAD^") + "\n", encoding="utf-8")
    return patched


@pytest.mark.parametrize("address", ["folder", "url"])
def test_fork_and_export(address: str, master: Path, upstream: Path, tmp_path: Path, git: Git, cli: Cli) -> None:
    """The fork is the commit that `BASE` names; exporting it changes nothing and leaves the cover letter alone."""
    git(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    fork = tmp_path / "fork"
    run = cli("fork", "master", fork, "--upstream", upstream if address == "folder" else upstream.as_uri())
    assert run.status == 0, run.err
    assert git(fork, "log", "--format=%s").splitlines()[-1] == "lightning master"
    assert not (fork / "docs/source/_static").exists()
    hooked = NUMBERS.replace("line_20 = 20\n", "line_20 = 'hook'\n")
    assert (fork / "src/lightning/pytorch/numbers.py").read_text(encoding="utf-8") == hooked

    letter = master / "patches/master/0000-cover-letter.patch"
    letter.write_text("Subject: [PATCH 0/2] Why\n", encoding="utf-8")
    git(master, "init", "--quiet")
    git(master, "add", "--all")
    assert "Nothing changed" in cli("export", fork, "--to", master).out
    assert letter.is_file()


def test_verify(master: Path, upstream: Path, index: dict[str, Path], interpreter: Path, cli: Cli) -> None:
    """It is verified when it is named, and the releases when they are."""
    run = cli("verify", "master", "--upstream", upstream, "--python", interpreter)
    assert run.status == 0, run
    assert re.search(r"^\| master +\| ok +\| ok +\| ok +\| ok +\|$", run.out, re.MULTILINE)
    assert "| master" not in cli("verify", "--python", interpreter).out


@pytest.mark.parametrize("base", ["", "main", "0" * 39])
def test_no_base(base: str, master: Path, upstream: Path, tmp_path: Path, cli: Cli) -> None:
    (master / "patches/master/BASE").write_text(base, encoding="utf-8")
    run = cli("fork", "master", tmp_path / "fork", "--upstream", upstream)
    assert run.status == 2
    assert "must hold the full hash of the commit" in run.err
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("there", [True, False])
def test_commit_that_upstream_does_not_have(
    there: bool, master: Path, upstream: Path, tmp_path: Path, cli: Cli
) -> None:
    (master / "patches/master/BASE").write_text("0" * 40, encoding="utf-8")
    run = cli("fork", "master", tmp_path / "fork", "--upstream", upstream if there else (tmp_path / "no").as_uri())
    assert run.status == 2
    assert "cannot be had from" in run.err
    assert "--upstream" in run.err
    assert not (tmp_path / "fork").exists()


def test_cover_letter_counts_the_patches() -> None:
    """The real one, of this repository."""
    letter = (REPOSITORY / "patches/master/0000-cover-letter.patch").read_text(encoding="utf-8")
    count = len(_patches.read_series(REPOSITORY / "patches", "master"))
    assert f"Subject: [PATCH 0/{count}] " in letter
    assert re.findall(r"^(\d+)\. ", letter, re.MULTILINE) == [str(number) for number in range(1, count + 1)]
