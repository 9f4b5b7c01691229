"""Measure how fast ranks and workers start, and what they cost: ``python -m benchmarks PRISTINE PATCHED``.

``python dev.py bench`` runs this. Nothing here is a test: nothing fails because something is slow.

"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.catalogue import catalogue
from benchmarks.hand_over import print_hand_over
from benchmarks.measure import alternate
from benchmarks.report import describe_machine, format_growth, format_measured

NAMES = ("workers", "first-step", "job", "waiting", "images", "growth", "hand-over")


def main() -> None:
    """Parse the command line, measure, print and write what came out."""
    parser = argparse.ArgumentParser(
        prog="python dev.py bench", description="Measure how fast ranks and workers start."
    )
    parser.add_argument("pristine", type=Path, help="the fork without patches")
    parser.add_argument("patched", type=Path, help="the fork with the patches")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="measure these alone")
    parser.add_argument("--rounds", type=int, help="how often each side runs (default: 3 to 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write, or add, what was measured")
    arguments = parser.parse_args()
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: at least 1 is needed")
    content = {}
    if arguments.json is not None and arguments.json.is_file():
        content = json.loads(arguments.json.read_text(encoding="utf-8"))

    machine = describe_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for benchmark in catalogue(arguments.pristine.resolve(), arguments.patched.resolve()):
        if benchmark.name in arguments.only:
            rounds = arguments.rounds or benchmark.rounds
            values = alternate(benchmark.sides, rounds, benchmark.name)
            print(f"\n{benchmark.title}\n\n{format_measured(values, benchmark.ratios)}", flush=True)
            if benchmark.name == "growth":
                print(f"\n{format_growth(values)}", flush=True)
            ratios = [asdict(ratio) for ratio in benchmark.ratios]
            content[benchmark.name] = {"machine": machine, "ratios": ratios, "values": values}
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if "hand-over" in arguments.only:
        print_hand_over(arguments.patched.resolve())


if __name__ == "__main__":
    main()
