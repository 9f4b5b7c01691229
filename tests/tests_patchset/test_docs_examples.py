"""The commands on the pages: those in docs/examples are run, on tiny releases; all others must at least be commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_windows_ddp.__main__ import _parser
from tests_patchset.installations import install

Cli = Callable[..., Any]
Commit = Callable[..., None]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(EXAMPLES.glob("*.sh"))]
RANKS = "src/lightning/fabric/strategies/launchers/ranks.py"
LIMIT = 120.0  # seconds; all of them together take a few

needs_shell = pytest.mark.skipif(os.name == "nt" or shutil.which("sh") is None, reason="Requires: [sh]")


@pytest.fixture
def shell(tmp_path: Path, make_sdist: Callable[..., Path], checkout: Path) -> Callable[..., str]:
    """Run a script where `lightning-windows-ddp` is that of the checkout, and pip only tells what it was asked for."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, command in {
        "lightning-windows-ddp": f'exec {shlex.quote(sys.executable)} -m lightning_windows_ddp "$@"',
        "pip": 'echo pip "$@"',
    }.items():
        programs.joinpath(name).write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        programs.joinpath(name).chmod(0o755)
    archive = make_sdist()
    archive.parent.joinpath("index.html").write_text(f'<a href="{archive.name}">{archive.name}</a>', encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()

    def run(name: str, folder: Path = work, **variables: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")} | {
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")]),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": archive.parents[1].as_uri(),
        }
        command = ["sh", str(EXAMPLES / name)]
        options: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True, "timeout": LIMIT}
        done = subprocess.run(command, env=environment | variables, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def with_ranks(checkout: Path, index: dict[str, Path], tmp_path: Path, cli: Cli, commit: Commit) -> Path:
    """Make a checkout that has two patches, one of them as the examples name it."""
    fork = tmp_path / "origin"
    assert cli("fork", "2.6.6", fork, "--pristine").status == 0
    commit(fork, "Something else", {"src/lightning/fabric/else.py": "\n"})
    commit(fork, "End ranks with their launcher", {RANKS: "RANKS = 2\n"})
    assert cli("export", fork).status == 0
    return checkout


@needs_shell
def test_apply_and_revert(site: Path, shell: Callable[..., str]) -> None:
    install(site)
    install(site, "pytorch-lightning")  # the environment of the tests has a real one
    out = shell("apply.sh")
    assert re.search(r"not patched.*patched 4 files.*: patched by", out, re.DOTALL)
    assert "restored 4 files" in shell("revert.sh")


@needs_shell
@pytest.mark.git
def test_fork(with_ranks: Path, shell: Callable[..., str], tmp_path: Path) -> None:
    assert "pip install -e lightning-2.6.6" in shell("fork.sh")
    assert (tmp_path / "work/lightning-2.6.6" / RANKS).is_file()


@needs_shell
@pytest.mark.git
def test_checkout(
    with_ranks: Path, shell: Callable[..., str], cli: Cli, tmp_path: Path, git: Callable[..., str]
) -> None:
    clone = tmp_path / "clone"
    assert cli("fork", "2.6.6", clone, "--pristine").status == 0
    shell("checkout.sh", clone, PATCHES=str(with_ranks / "patches"))
    assert git(clone, "log", "--format=%s").splitlines() == [
        "End ranks with their launcher",
        "Something else",
        "lightning 2.6.6",
    ]


@needs_shell
@pytest.mark.git
def test_contribute(with_ranks: Path, shell: Callable[..., str]) -> None:
    """The change ends up in the patch that it belongs to, and in the file that this patch adds."""
    shell("contribute.sh")
    assert (with_ranks / RANKS).read_text(encoding="utf-8") == "RANKS = 2\n# a better comment\n"
    patch = (with_ranks / "patches/2.6/0002-end-ranks-with-their-launcher.patch").read_text(encoding="utf-8")
    assert "+# a better comment\n" in patch


def test_commands_are_commands() -> None:
    """Whatever a page tells to type is what the command line takes."""
    found = 0
    for page in PAGES:
        for command in re.findall(r"^ *lightning-windows-ddp (.*)$", page.read_text("utf-8"), re.MULTILINE):
            _parser().parse_args(shlex.split(command, comments=True))
            found += 1
    assert found >= 15


def test_examples_are_shown() -> None:
    """No example is left over."""
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    assert [example.name for example in EXAMPLES.iterdir() if f"examples/{example.name}" not in pages] == []
