"""The wheels that a test bed is made of: pinned in ``windows/pins``, downloaded once, checked by their hashes."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp._errors import BadInputError, ToolError
from lightning_windows_ddp._run import run
from lightning_windows_ddp._scratch import scratch_folder

PINS = Path(__file__).resolve().parents[1] / "pins"
PYTHON = "3.11"  # 3.12 needs functions that Debian's Wine lacks as soon as gloo starts

_PIN = re.compile(r"(?P<requirement>[\w.-]+==[\w.+-]+) +--hash=sha256:(?P<sha256>[0-9a-f]{64})")
# Markers would be evaluated for Linux, hence no dependencies: the pins name every package
FOR_WINDOWS = [
    *("--no-deps", "--only-binary=:all:", "--platform", "win_amd64", "--python-version", PYTHON),
    *("--implementation", "cp", "--abi", f"cp{PYTHON.replace('.', '')}", "--abi", "abi3", "--abi", "none"),
]


class HashMismatchError(ToolError):
    """The index serves another file than the one that was pinned."""


@dataclass(frozen=True)
class Pin:
    """One wheel, as a line of a file of pins names it.

    Attributes:
        requirement: Name and version, such as ``torch==2.15.0``.
        sha256: The hash of the wheel.

    """

    requirement: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of the package."""
        return self.requirement.partition("==")[0]


def torch_versions() -> list[str]:
    """Return the versions of torch that there are pins for, the newest first."""
    versions = [file.stem.removeprefix("torch-") for file in PINS.glob("torch-*.txt")]
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)


def read_pins(file: Path) -> list[Pin]:
    """Read a file of pins: a requirement file with one wheel and its hash a line.

    Raises:
        BadInputError: If a line is anything else.

    """
    pins = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _PIN.fullmatch(text)
        if match is None:
            raise BadInputError(f"{file.name}: `{text}` is not of the form NAME==VERSION --hash=sha256:HASH. Mend it.")
        pins.append(Pin(**match.groupdict()))
    return pins


def download(pins: Sequence[Pin], cache: Path, report: Callable[[str], None]) -> dict[str, Path]:
    """Download the wheels that are not in the cache yet.

    A wheel in the cache lies in a folder named after its hash. It is moved there when it is complete and has the right
    hash, so what is in the cache needs no second look.

    Args:
        pins: The wheels.
        cache: The folder of the downloads.
        report: Is called with a line of progress.

    Returns:
        The wheel of each package, by its name.

    Raises:
        HashMismatchError: If a downloaded wheel has another hash than its pin. Nothing of it is kept.
        CommandError: If pip fails.

    """
    missing = [pin for pin in pins if _find(pin, cache) is None]
    if missing:
        report(f"downloading {len(missing)} wheels")
        with scratch_folder(cache, "pip") as scratch:
            _pip_download(missing, scratch)
            hashes = {hash_file(wheel): wheel for wheel in scratch.glob("*.whl")}
            wrong = [pin.requirement for pin in missing if pin.sha256 not in hashes]
            if wrong:
                raise HashMismatchError(
                    f"The index has another file than the pinned one for {', '.join(wrong)}. Nothing of it was kept;"
                    f" find out why before you change the hash in {PINS}."
                )
            for pin in missing:
                folder = scratch / pin.sha256
                folder.mkdir()
                hashes[pin.sha256].rename(folder / hashes[pin.sha256].name)
                shutil.rmtree(cache / pin.sha256, ignore_errors=True)
                folder.rename(cache / pin.sha256)
    return {pin.name: wheel for pin in pins if (wheel := _find(pin, cache)) is not None}


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _find(pin: Pin, cache: Path) -> Path | None:
    return next((cache / pin.sha256).glob("*.whl"), None)


def _pip_download(pins: Sequence[Pin], target: Path) -> None:
    # A constraint of this machine's owner is meant for what is installed on Linux
    env = {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_REQUIRE_VIRTUALENV": "0"}
    command = [sys.executable, "-m", "pip", "download", "--quiet", *FOR_WINDOWS, "--dest", str(target)]
    run([*command, *(pin.requirement for pin in pins)], env=env)
