"""Tell what is installed of Lightning, and whether it is patched."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_windows_ddp import _journal, _patches
from lightning_windows_ddp._apply import hash_series
from lightning_windows_ddp._errors import BadInputError
from lightning_windows_ddp._installed import Distribution, choose, find_installed


@dataclass
class Status:
    """What is known of an installed distribution.

    Args:
        name: Its name.
        version: Its release.
        location: The folder that its packages are installed in.
        line: The release line whose patches fit, or None if there is none.
        state: `patched`, `patched by another version`, `not patched`, `interrupted`, `changed`, or `patched in its
            source tree`: an editable installation that has all files that the patches add.
        patched_by: The version of this package that has patched it, or None.
        changed: The patched files that somebody has changed since.
        obstacle: Why it cannot be patched in place, or None.

    """

    name: str
    version: str
    location: str
    line: str | None
    state: str
    patched_by: str | None = None
    changed: list[str] = field(default_factory=list)
    obstacle: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it has the patches."""
        return self.state in ("patched", "patched in its source tree")

    def describe(self) -> str:
        """Return a line for the user, and further ones for changed files."""
        line = f"line {self.line}" if self.line else "no patches for this release"
        by = f" by {self.patched_by}" if self.patched_by and self.ok else ""
        text = f"{self.name} {self.version} ({line}): {self.state}{by}, in {self.location}"
        if self.state == "interrupted":
            text += "\n  `apply` or `revert` puts that in order."
        if self.obstacle and not self.ok:
            text += f"\n  It cannot be patched in place: {self.obstacle}."
        return "\n".join([text, *(f"  changed: {path}" for path in self.changed)])


def status(python: Path) -> list[Status]:
    """Return what is known of each distribution of Lightning that an environment has installed.

    Args:
        python: The interpreter of the environment.

    Raises:
        ToolError: If that cannot be found out.

    """
    found = []
    for distribution in choose(find_installed(python), []):
        own = _status(distribution)
        found += [own, *(replace(own, name=other.name, version=other.version) for other in distribution.others)]
    return found


def _status(distribution: Distribution) -> Status:
    try:
        line = _patches.release_line(distribution.version)
        series = _patches.read_series(_patches.patches_folder(), line)
    except BadInputError:
        line, series = None, []
    found = Status(distribution.name, distribution.version, str(distribution.root), line, "not patched")
    found.obstacle = distribution.obstacle
    if distribution.source is not None:
        added = {name for patch in series for name in _patches.added_files(patch) if name.startswith("src/")}
        if added and all((distribution.source / name).is_file() for name in added):
            found.state = "patched in its source tree"
    journal = None if distribution.obstacle else _journal.read_journal(distribution)
    if journal is None:
        return found
    found.patched_by = journal.version
    found.changed = journal.changed()
    if found.changed:
        found.state = "changed"
    elif not journal.is_complete():
        found.state = "interrupted"
    elif journal.patches != hash_series(series):
        found.state = "patched by another version"
    else:
        found.state = "patched"
    return found
