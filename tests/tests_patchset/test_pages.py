"""Patches of pages: upstream's checkouts have the documentation, and the releases on the package index have not."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests_patchset.conftest import release_files

Cli = Callable[..., Any]
Git = Callable[..., str]
Commit = Callable[..., None]

pytestmark = pytest.mark.git
INDEX, PAGE = "docs/source-pytorch/index.rst", "docs/source-pytorch/page.rst"
PATCH = "0003-add-a-page.patch"


@pytest.fixture
def upstream(tmp_path: Path, git: Git, commit: Commit) -> Path:
    """Make a repository like upstream's, with documentation."""
    folder = tmp_path / "upstream"
    git(tmp_path, "init", "--quiet", folder)
    files = {name: text.decode() for name, text in release_files("2.7.0").items() if name.startswith("src/lightning/")}
    commit(folder, "one", {**files, INDEX: "Pages\n"})
    return folder


@pytest.fixture
def with_page(patched: Path, upstream: Path, tmp_path: Path, git: Git, cli: Cli, commit: Commit) -> Path:
    """Make a checkout with a third patch, a page and a link to it, that was made in a fork of upstream's."""
    patches = patched / "patches"
    shutil.copytree(patches / "2.6", patches / "master")
    (patches / "master/BASE").write_text(git(upstream, "rev-parse", "HEAD"), encoding="utf-8")
    fork = tmp_path / "master"
    assert cli("fork", "master", fork, "--upstream", upstream).status == 0
    commit(fork, "Add a page", {INDEX: "Pages\n\npage\n", PAGE: "A page\n"})
    assert cli("export", fork).status == 0
    assert (patched / PAGE).read_bytes() == b"A page\n"
    shutil.copy(patches / "master" / PATCH, patches / "2.6")
    shutil.copy(patches / "master/series", patches / "2.6")
    return patched


def test_fork(with_page: Path, tmp_path: Path, git: Git, cli: Cli) -> None:
    """The fork of a release is made without the page, and gives the same patches again, with the page."""
    fork = tmp_path / "fork"
    assert cli("fork", "2.6.6", fork).status == 0
    assert len(git(fork, "log", "--format=%s").splitlines()) == 3
    assert not (fork / "docs/source-pytorch/page.rst").exists()
    git(with_page, "init", "--quiet")
    git(with_page, "add", "--all")
    assert "Nothing changed" in cli("export", fork).out


def test_one_more_patch(with_page: Path, tmp_path: Path, cli: Cli, commit: Commit) -> None:
    """The pages stay last."""
    fork = tmp_path / "fork"
    assert cli("fork", "2.6.6", fork).status == 0
    commit(fork, "One more", {"src/lightning/fabric/more.py": ""})
    before = (with_page / "patches/2.6" / PATCH).read_bytes()
    assert cli("export", fork).status == 0
    series = (with_page / "patches/2.6/series").read_text().split()
    assert series[2:] == ["0003-one-more.patch", "0004-add-a-page.patch"]
    assert (with_page / "patches/2.6/0004-add-a-page.patch").read_bytes() == before
    assert not (with_page / "patches/2.6" / PATCH).exists()
    assert (with_page / PAGE).is_file()


def test_verify(with_page: Path, upstream: Path, index: dict[str, Path], interpreter: Path, cli: Cli) -> None:
    """Where there is no documentation, the text of the page is compared all the same."""
    run = cli("verify", "--python", interpreter)
    assert run.status == 0, run
    assert [cell.strip() for cell in run.out.splitlines()[2].split("|")][2:6] == ["ok", "ok", "no docs", "ok"]
    run = cli("verify", "master", "--upstream", upstream, "--python", interpreter)
    assert run.status == 0, run
    assert "no docs" not in run.out
    (with_page / PAGE).write_text("Another page\n")
    run = cli("verify", "--python", interpreter)
    assert run.status == 1
    assert f"{PAGE}: not the same bytes in the checkout as a patch adds" in run.out
