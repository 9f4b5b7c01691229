"""The distributions of Lightning that an environment has installed."""

import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lightning_windows_ddp._errors import BadInputError, CommandError, ProgramNotFoundError
from lightning_windows_ddp._run import run
from lightning_windows_ddp._translate import DISTRIBUTIONS, FABRIC, PYTORCH

# Runs in the other interpreter, which may be as old as Python 3.8 and has nothing installed of this package
_PROBE = """
import importlib.metadata, json, sys

sys.path[:] = filter(None, sys.path)  # not the current folder
found = []
for name in sys.argv[1:]:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    found.append({
        "name": name,
        "version": distribution.version,
        "root": str(distribution.locate_file("")),
        "info": str(getattr(distribution, "_path", "")),
        "direct_url": distribution.read_text("direct_url.json"),
    })
print()
print(json.dumps({"frozen": bool(getattr(sys, "frozen", False)), "found": found}))
"""


@dataclass(frozen=True)
class Distribution:
    """An installed distribution.

    Args:
        name: One of `DISTRIBUTIONS`.
        version: Its release.
        root: The folder that its packages are installed in.
        info: Its folder `*.dist-info`.
        obstacle: Why it cannot be patched in place and what to do instead, or None.
        source: The source tree that it is installed from, if it is editable.
        others: Distributions that own some of its files, too.

    """

    name: str
    version: str
    root: Path
    info: Path
    obstacle: str | None
    source: Path | None = None
    others: tuple["Distribution", ...] = ()

    @property
    def title(self) -> str:
        """Its name and release, and those of the others."""
        return " and ".join(f"{each.name} {each.version}" for each in (self, *self.others))


def find_installed(python: Path) -> list[Distribution]:
    """Return the distributions of Lightning that an interpreter would import.

    Args:
        python: The interpreter.

    Raises:
        BadInputError: If it cannot be run or has no Lightning.

    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
    environment |= {"PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), "-c", _PROBE, *DISTRIBUTIONS]
    try:
        output = run(command, cwd=Path(tempfile.gettempdir()), env=environment)
        answer = json.loads(output.decode("utf-8", "replace").splitlines()[-1])
    except ProgramNotFoundError:
        raise BadInputError(f"There is no Python interpreter at {python}. Name one with --python.") from None
    except OSError as error:
        raise BadInputError(f"{python} cannot be run ({error.strerror}). Name an interpreter with --python.") from None
    except (CommandError, ValueError, IndexError) as error:
        reason = error.output.splitlines()[-1:] if isinstance(error, CommandError) else []
        why = f" ({reason[0]})" if reason else ""
        raise BadInputError(
            f"{python} does not tell what it has installed{why}. Name an interpreter of Python 3.8 or newer with"
            " --python."
        ) from None
    if not answer["found"]:
        raise BadInputError(
            f"{python} has none of {', '.join(DISTRIBUTIONS)} installed, so there is nothing to patch. Install one, or"
            " name the interpreter of the environment that has it with --python."
        )
    return [_distribution(entry, answer["frozen"]) for entry in answer["found"]]


def _distribution(entry: dict[str, str], frozen: bool) -> Distribution:
    root, info = Path(entry["root"]).resolve(), Path(entry["info"]).resolve()
    obstacle, source = None, _source_tree(entry["direct_url"])
    if frozen or not root.is_dir() or not info.is_dir():
        obstacle = (
            "it is part of an archive or a frozen program, whose files cannot be replaced. Patch the environment that"
            " this was made from, and make it again"
        )
    elif source is not None or info.suffix != ".dist-info":
        obstacle = (
            "it is installed from a source tree (editable). Apply the patches there with git, or make a patched fork"
            " with `lightning-windows-ddp fork` and install that"
        )
    elif not (info / "RECORD").is_file():
        obstacle = (
            "it has no RECORD of its files, so another tool than pip manages it. Install it with pip, in an environment"
            " of its own if need be"
        )
    return Distribution(entry["name"], entry["version"], root, info, obstacle, source)


def _source_tree(direct_url: str | None) -> Path | None:
    """Return the source tree of an editable installation (https://packaging.python.org, 'direct_url.json')."""
    origin = json.loads(direct_url) if direct_url else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))


def choose(found: list[Distribution], names: list[str]) -> list[Distribution]:
    """Return the distributions that belong to what the user has named.

    `pytorch-lightning` and `lightning-fabric` own the same files, and are one where both are installed.

    Args:
        found: What is installed.
        names: What was named; everything, if empty.

    Raises:
        BadInputError: If something that was named is not installed.

    """
    missing = [name for name in names if name not in {distribution.name for distribution in found}]
    if missing:
        raise BadInputError(
            f"{', '.join(missing)} is not installed there; this is: {', '.join(each.title for each in found)}. Name one"
            " of these, or none for all."
        )
    named = set(names or [distribution.name for distribution in found])
    return [each for each in _join(found) if named & {each.name, *(other.name for other in each.others)}]


def _join(found: list[Distribution]) -> list[Distribution]:
    by_name = {each.name: each for each in found if each.obstacle is None}
    pytorch, fabric = by_name.get(PYTORCH), by_name.get(FABRIC)
    if pytorch is None or fabric is None or pytorch.root != fabric.root:
        return found
    return [replace(pytorch, others=(fabric,)) if each is pytorch else each for each in found if each is not fabric]
