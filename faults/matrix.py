"""The cells of the fault matrix."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

LAUNCHERS = ("ddp", "ddp_spawn", "fabric")
FROM_OUTSIDE = ("kill", "terminate", "collective")  # strike while the others work, or while they wait in a collective
FROM_INSIDE = ("exception", "exit", "memory")
PROCESSES = ("launcher", "rank0", "rank1", "worker0", "worker1")
TIMES = ("before", "middle", "teardown")


@dataclass(frozen=True)
class Cell:
    """One job and what happens to it.

    Attributes:
        launcher: How the ranks are launched.
        fault: What happens.
        process: To which process.
        when: At which time.

    """

    launcher: str
    fault: str
    process: str
    when: str

    def __str__(self) -> str:
        return f"{self.launcher}-{self.fault}-{self.process}-{self.when}"

    @property
    def is_possible(self) -> bool:
        """Whether there is such a process then, and the system can do that to it."""
        if self.launcher != "ddp_spawn" and self.process == "rank0":
            return False  # it is the launcher
        if self.process == "launcher" and self.fault not in ("kill", "terminate"):
            return False  # as a rank, it is in the row of rank 1; otherwise, nothing of the user's runs in it
        if self.process.startswith("worker") and (self.when == "teardown" or self.fault == "collective"):
            return False  # what waits in a collective are ranks, and nothing is asked of workers at the end
        if self.fault == "memory" and sys.platform != "linux":
            return False
        return not (self.fault == "terminate" and sys.platform == "win32")  # the same as kill


# One of each kind
_SELECTION = (
    Cell("ddp", "kill", "launcher", "before"),
    Cell("ddp", "kill", "launcher", "middle"),
    Cell("ddp", "kill", "rank1", "middle"),
    Cell("ddp", "collective", "rank1", "middle"),
    Cell("ddp", "exception", "rank1", "before"),
    Cell("ddp", "exit", "rank1", "teardown"),
    Cell("ddp", "memory", "rank1", "middle"),
    Cell("ddp", "terminate", "rank1", "middle"),
    Cell("ddp", "kill", "worker1", "middle"),
    Cell("ddp", "exception", "worker0", "before"),
    Cell("ddp_spawn", "kill", "launcher", "middle"),
    Cell("ddp_spawn", "kill", "rank0", "middle"),
    Cell("ddp_spawn", "exception", "rank1", "middle"),
    Cell("ddp_spawn", "exception", "worker1", "before"),
    Cell("fabric", "kill", "launcher", "middle"),
    Cell("fabric", "exception", "rank1", "middle"),
    Cell("fabric", "exit", "rank1", "before"),
    Cell("fabric", "kill", "worker0", "middle"),
)


def cells(complete: bool) -> Iterator[Cell]:
    """Return the cells to run.

    Args:
        complete: All that are possible, instead of a selection.

    """
    product = itertools.starmap(Cell, itertools.product(LAUNCHERS, (*FROM_OUTSIDE, *FROM_INSIDE), PROCESSES, TIMES))
    return (cell for cell in (product if complete else _SELECTION) if cell.is_possible)
