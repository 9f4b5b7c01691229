"""This package as users install it: a wheel, in an environment with a Lightning of the package index, without git."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import lightning
from lightning_windows_ddp import _patches
from lightning_windows_ddp._translate import translate_path, translate_text
from tests_fabric.helpers.needs import is_wine

pytestmark = pytest.mark.skipif(is_wine(), reason="Requires: [the launcher that virtual environments have on Windows]")

ROOT = Path(__file__).parents[2]
FORK = Path(lightning.__file__).parents[2]
VERSION = lightning.__version__
Snapshot = Callable[[Path], dict[str, bytes | None]]


class Environment:
    """A virtual environment whose programs find no git."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        self.programs = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.programs / ("python.exe" if os.name == "nt" else "python")
        self.site = next(folder.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"))

    def pip(self, *arguments: object) -> None:
        """Run the pip of this interpreter on the environment."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--quiet", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def cli(self, *arguments: str) -> str:
        """Run the command line of the environment."""
        command = [str(self.programs / "lightning-windows-ddp"), *arguments]
        env = {name: value for name, value in os.environ.items() if name.upper() not in ("PATH", "PYTHONPATH")}
        env["PATH"] = str(self.programs)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, cwd=self.site)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Make an environment with this package, from a wheel that was built just now."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    made = Environment(tmp_path / "environment")
    made.pip("install", next(tmp_path.glob("*.whl")))
    return made


@pytest.mark.parametrize("names", [["lightning"], ["pytorch-lightning"], ["pytorch-lightning", "lightning-fabric"]])
def test_installed_lightning(names: list[str], environment: Environment, snapshot: Snapshot) -> None:
    """It becomes what a patched fork is, then what it was before, and nothing of it is left when it is uninstalled."""
    environment.pip("install", "--no-deps", "--no-compile", *(f"{name}=={VERSION}" for name in names))
    pristine = snapshot(environment.site)
    assert "patched" in environment.cli("apply")
    for name in names:
        touched = set()
        for patch in _patches.read_series(_patches.patches_folder(), _patches.release_line(VERSION)):
            text = patch.read_text(encoding="utf-8")
            touched |= {line[6:] for line in text.splitlines() if line.startswith("+++ b/src/")}
        installed = {path: translate_path(path, name) for path in touched}
        assert any(installed.values())
        for path, here in installed.items():
            if here is not None and not here.endswith("/__init__.py"):  # upstream's build has others
                wanted = translate_text((FORK / path).read_text(encoding="utf-8"), name)
                assert (environment.site / here).read_text(encoding="utf-8") == wanted
    assert environment.cli("status").count("patched by") == len(names)
    environment.cli("revert")
    assert snapshot(environment.site) == pristine
    environment.cli("apply")
    environment.pip("uninstall", "--yes", *names)
    left = {name.partition("/")[0] for name in snapshot(environment.site)}
    packages = ("lightning", "pytorch_lightning")
    assert not [name for name in left if name.startswith(packages) and "windows_ddp" not in name]
