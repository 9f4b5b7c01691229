"""Fail if the tree tracks files that are not ours to keep.

Folders that mirror upstream's tree hold the files that the patches add, all of them and no others: what the patches
change in upstream's own files exists as hunks only. Host names of package indexes must not stand anywhere.

"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIRRORS = (
    "src/lightning/",
    "tests/tests_fabric/",
    "tests/tests_pytorch/",
    "docs/source-fabric/",
    "docs/source-pytorch/",
)

# An added file, as git writes it: a name with special characters would be in quotes, but ours have none
ADDED_FILE = re.compile(rb"^--- /dev/null\r?\n\+\+\+ b/(.+?)\r?$", re.MULTILINE)
# In pieces, so that this file does not match
INDEX_HOST = re.compile(rb"\b(py" rb"pi|python" rb"hosted|deb\.deb" rb"ian|registry\.np" rb"mjs)\.org\b", re.IGNORECASE)


def list_tracked() -> list[str]:
    """Return the files that git tracks and that are there, with forward slashes."""
    output = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    return [name for name in output.decode().split("\0") if name and (ROOT / name).is_file()]


def list_added(patches: Iterable[Path]) -> set[str]:
    """Return the files that the patches add to upstream's tree."""
    return {name.decode() for patch in patches for name in ADDED_FILE.findall(patch.read_bytes())}


def find_problems(tracked: list[str], added: set[str]) -> Iterator[str]:
    """Say what is wrong with the tree, file by file.

    Args:
        tracked: The files that git tracks.
        added: The files that the patches add.

    """
    for name in tracked:
        if name.startswith(MIRRORS) and name not in added:
            yield f"{name}: no patch adds it. If it is upstream's, change it with a patch; if it is ours, export it."
        if INDEX_HOST.search((ROOT / name).read_bytes()):
            yield f"{name}: holds the host name of a package index."
    for name in sorted(added):
        if not (ROOT / name).is_file():
            yield f"{name}: a patch adds it, but it is missing here. Export the patches again."


def main() -> int:
    """Print the problems and return the exit status."""
    problems = list(find_problems(list_tracked(), list_added(ROOT.glob("patches/*/*.patch"))))
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
