"""The Wine prefix: what Windows programs take for the disk and the registry of their machine."""

from pathlib import Path

from testbed._run import Wine

_LIMIT = 180.0

# Wine asks it for the serial number of the disk whenever a program looks at a file. Nothing here needs that number, and
# without it, importing torch takes two thirds of the time.
_SLOW_SERVICE = r"HKLM\System\CurrentControlSet\Services\MountMgr"
_DISABLED = "4"


def make_prefix(folder: Path) -> Wine:
    """Make a prefix.

    Args:
        folder: The folder to make. It can be moved when nothing runs in it.

    """
    folder.mkdir()
    wine = Wine(folder)
    with wine.running():
        wine.run(["wineboot", "--init"], _LIMIT)
        wine.run(["reg", "add", _SLOW_SERVICE, "/v", "Start", "/t", "REG_DWORD", "/d", _DISABLED, "/f"], _LIMIT)
    return wine
