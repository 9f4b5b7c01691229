"""The page 'DDP on Windows' against the code that it describes."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from lightning.fabric.strategies.launchers import exit_status
from lightning.fabric.utilities import rendezvous_errors
from lightning_windows_ddp import _patches

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/source-pytorch/accelerators/ddp_on_windows.rst"
LIMIT = 300.0  # seconds; only in Wine a script comes near it

# What people have searched for, as CASES.md and Lightning's tracker have it
SEARCHED = (
    "10048",
    "10013",
    "10049",
    "1455",
    "EADDRINUSE",
    "The server socket has failed to listen on any local network address",
    "Only one usage of each socket address",
    "An attempt was made to access a socket in a way forbidden by its access permissions",
    "The requested address is not valid in its context",
    "The client socket has failed to connect to [kubernetes.docker.internal]",
    "An attempt has been made to start a new process before the current process has finished its bootstrapping phase",
    "exited unexpectedly",
    "Distributed package doesn't have NCCL built in",
    "makeDeviceForHostname(): unsupported gloo device",
    "makeUVDevice(): interface or hostname can't be empty",
    "use_libuv was requested but PyTorch was build without libuv support",
    "use_libuv was requested but PyTorch was built without libuv support",
    "EOFError: Ran out of input",
    "Can't pickle local object",
    "Can't get attribute",
)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def errors(page: str) -> str:
    """The part that explains error messages, without its markup."""
    return page.partition("Error messages\n")[2].replace("``", "")


def test_script_runs(page: str, tmp_path: Path) -> None:
    """The script to start from is one to start from: it trains as it stands there."""
    code = re.search(r"A script to start from\n.*?code-block:: python\n\n(.*?)\n\n(?=\S)", page, re.DOTALL)
    assert code is not None
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code[1]), encoding="utf-8")
    command = [sys.executable, script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "`Trainer.fit` stopped: `max_epochs=2` reached." in done.stdout + done.stderr


@pytest.mark.parametrize("text", SEARCHED)
def test_messages_are_explained(errors: str, text: str) -> None:
    assert text in errors


def test_explained_errors_are_on_the_page(errors: str) -> None:
    """What Lightning explains when ranks do not meet is explained there, too."""
    for pattern, _ in rendezvous_errors._EXPLANATIONS:
        assert re.search(pattern, errors, re.IGNORECASE), pattern


def test_statuses_on_the_page_are_known(errors: str) -> None:
    statuses = re.findall(r"0x[0-9A-F]{8}", errors)
    assert statuses
    assert {int(status, 16) for status in statuses} <= exit_status._WINDOWS.keys()


def test_each_message_has_an_anchor(page: str) -> None:
    headings = re.findall(r"\n\n(.*)\n\n(.+)\n=+\n", page.partition("Error messages\n")[2])
    assert len(headings) >= 15
    for before, heading in headings:
        assert re.fullmatch(r"\.\. _ddp_on_windows_\w+:", before), heading


def test_releases_are_those_that_work(page: str) -> None:
    """The test bed has torch for Windows, and sees whether gloo makes a device there."""
    rows = dict(re.findall(r"   \* - ([\d.]+)\n     - (works|fails)\n", page))
    assert len(rows) >= 11
    release = torch.__version__.partition("+")[0]
    if sys.platform != "win32" or release not in rows:
        pytest.skip("Requires: [a torch for Windows that the page names]")
    try:
        torch.distributed.ProcessGroupGloo.create_default_device()
        outcome = "works"
    except RuntimeError:
        outcome = "fails"
    assert outcome == rows[release]


def test_all_lines_add_the_page() -> None:
    """The patches of all lines hold the page, and links to it from two pages that all checkouts have."""
    patches = _patches.patches_folder()
    for line in [*_patches.lines(patches), _patches.MASTER]:
        last = _patches.read_series(patches, line)[-1]
        text = last.read_text(encoding="utf-8")
        assert _patches.added_files(last) == {PAGE.relative_to(ROOT).as_posix()}
        for name in ("accelerators/gpu.rst", "data/data.rst"):
            assert f"+++ b/docs/source-pytorch/{name}\n" in text
        lines = PAGE.read_text(encoding="utf-8").splitlines()
        assert "".join(f"+{each}\n" for each in lines) in text
