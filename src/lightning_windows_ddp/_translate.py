"""The names that Lightning's modules have in the distributions that hold a part of it.

`pytorch-lightning` and `lightning-fabric` are made of the same sources as `lightning`: upstream's build moves the
folders and renames the imports. `pytorch-lightning` has all that `lightning-fabric` has, under the same names. What is
done here gives the same bytes, for every file that the patches change but `__init__.py`, to which the build adds lines
(a test compares them with released wheels, and `verify` applies the patches to those of each release).
"""

import re

LIGHTNING, FABRIC, PYTORCH = "lightning", "lightning-fabric", "pytorch-lightning"
DISTRIBUTIONS = (LIGHTNING, FABRIC, PYTORCH)

_ROOT = "src/lightning/"
_FABRIC_FOLDERS = {f"{_ROOT}fabric/": "lightning_fabric/"}
_FOLDERS = {
    LIGHTNING: {_ROOT: "lightning/"},
    FABRIC: _FABRIC_FOLDERS,
    PYTORCH: {**_FABRIC_FOLDERS, f"{_ROOT}pytorch/": "pytorch_lightning/"},
}
_PACKAGES = {"lightning.fabric": "lightning_fabric", "lightning.pytorch": "pytorch_lightning"}
# Not in addresses such as github.com/lightning.pytorch, nor in longer names
_MODULE = re.compile(r"(?<![_/@])lightning\.(?:fabric|pytorch)(?![\w/])")


def translate_path(path: str, distribution: str) -> str | None:
    """Return where a file of Lightning's sources is installed.

    Args:
        path: The path in the sources, such as `src/lightning/fabric/fabric.py`.
        distribution: One of `DISTRIBUTIONS`.

    Returns:
        The path relative to the folder that packages are installed in, or None if the distribution does not have it.

    """
    for source, installed in _FOLDERS[distribution].items():
        if path.startswith(source):
            return installed + path.removeprefix(source)
    return None


def has_file(distribution: str, path: str) -> bool:
    """Return whether an installed file belongs to the distribution, by its path."""
    return path.startswith(tuple(_FOLDERS[distribution].values()))


def translate_text(text: str, distribution: str) -> str:
    """Return text of Lightning's sources as the distribution has it."""
    if distribution == LIGHTNING:
        return text
    return _MODULE.sub(lambda match: _PACKAGES[match[0]], text)
