"""An installation that is being patched or restored when the process is killed is put in order by the next command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests_patchset.installations import install

Snapshot = Callable[[Path], dict[str, bytes | None]]
KILLED = 137
# Runs the command line, and ends the process as a kill does before the nth change of the installation
SCRIPT = """
import os, sys
from pathlib import Path
from lightning_windows_ddp.__main__ import main

site, last, *arguments = sys.argv[1:]
count = 0


def strike(event, values):
    global count
    writes = event == "open" and isinstance(values[0], str) and isinstance(values[2], int) and values[2] & 3
    if not writes and event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        return
    if os.path.abspath(values[0]).startswith(site):
        count += 1
        if count == int(last):
            os._exit(137)


sys.addaudithook(strike)
sys.exit(main(arguments))
"""
LIMIT = 100  # more changes than a command makes


@pytest.fixture
def killed(tmp_path: Path, site: Path, checkout: Path) -> Callable[..., bool]:
    """Run a command that is killed before its nth change, and return whether it was."""
    script = tmp_path / "killed.py"
    script.write_text(SCRIPT, encoding="utf-8")
    paths = os.pathsep.join([str(checkout / "src"), os.environ["PYTHONPATH"]])

    def run(command: str, nth: int) -> bool:
        done = subprocess.run(
            [sys.executable, script, str(site), str(nth), command, "lightning"],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (0, KILLED), done.stderr
        return done.returncode == KILLED

    return run


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_killed_at_any_moment(
    command: str, site: Path, killed: Callable[..., bool], cli: Any, snapshot: Snapshot
) -> None:
    info = install(site)
    pristine = snapshot(site)
    assert cli("apply", "lightning").status == 0
    patched = snapshot(site)
    assert {name for name in patched if "windows-ddp" in name} > {f"{info.name}/windows-ddp"}
    seen = set()
    for nth in range(1, LIMIT):
        for then in ("revert", "apply"):
            assert cli("revert" if command == "apply" else "apply", "lightning").status == 0
            was_killed = killed(command, nth)
            seen.add(cli("status").out.partition("): ")[2].partition(",")[0].partition(" by ")[0])
            assert cli(then, "lightning").status == 0
            assert snapshot(site) == (pristine if then == "revert" else patched)
        if not was_killed:
            break
    assert nth > 10
    assert nth < LIMIT - 1
    assert seen == {"not patched", "interrupted", "patched"}
