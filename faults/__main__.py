"""Break jobs in every way and see what is left of them: ``python -m faults PRISTINE PATCHED``.

``python dev.py faults`` runs this. Each cell of the matrix is one job, one of whose processes is struck: which, when
and how. What is measured is how long any process of the job lives on, what it leaves, and what the user reads last.

"""

import argparse
import json
import sys
from pathlib import Path

from faults.matrix import Cell, cells
from faults.outcome import Outcome, break_job
from tabulate import tabulate

GOAL = 2.0  # seconds


def main() -> int:
    """Run the matrix; the exit status is 0 if every cell on the patched fork is as it must be."""
    parser = argparse.ArgumentParser(prog="python dev.py faults", description="Break jobs in every way.")
    parser.add_argument("pristine", type=Path, help="the fork without patches")
    parser.add_argument("patched", type=Path, help="the fork with the patches")
    parser.add_argument("--all", action="store_true", help="the full matrix instead of a selection (takes hours)")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cells whose name contains this")
    parser.add_argument("--no-pristine", action="store_true", help="leave out the pristine fork")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all that was measured")
    arguments = parser.parse_args()

    chosen = [cell for cell in cells(arguments.all) if arguments.only in str(cell)]
    forks = {"pristine": arguments.pristine.resolve(), "patched": arguments.patched.resolve()}
    if arguments.no_pristine:
        del forks["pristine"]
    outcomes: dict[Cell, dict[str, Outcome]] = {}
    for number, cell in enumerate(chosen, start=1):
        outcomes[cell] = {}
        for name, fork in forks.items():
            outcome = outcomes[cell][name] = break_job(cell, fork)
            print(f"[{number}/{len(chosen)}] {cell}, {name}: {outcome.summary}", file=sys.stderr, flush=True)
    if arguments.json is not None:
        content = [{**vars(cell), **{name: vars(o) for name, o in row.items()}} for cell, row in outcomes.items()]
        arguments.json.write_text(json.dumps(content, indent=1), encoding="utf-8")

    rows = [
        [*vars(cell).values(), *(text for name in forks for text in row[name].columns)]
        for cell, row in outcomes.items()
    ]
    headers = ["launched by", "fault", "process", "when"]
    for name in forks:
        headers += [f"{name}: gone after", "left", "status", "last line"]
    print(tabulate(rows, headers, tablefmt="github"))
    missed = [str(cell) for cell, row in outcomes.items() if not row["patched"].is_as_wanted(cell, GOAL)]
    for name in missed:
        print(f"not as it must be: {name}", file=sys.stderr)
    print(
        f"{len(chosen) - len(missed)} of {len(chosen)} cells are as they must be: all gone within {GOAL:.0f} s, nothing"
        " left, the reason named last.",
        file=sys.stderr,
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
