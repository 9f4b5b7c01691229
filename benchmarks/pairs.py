"""What the benchmarks share that compare two forks in pairs: the command line, and the table."""

import argparse
import os
import platform
import statistics
from pathlib import Path

import torch
from tabulate import tabulate


def parse_arguments(description: str | None, pairs: int) -> argparse.Namespace:
    """Parse the command line of a benchmark.

    Args:
        description: What the benchmark measures.
        pairs: How many pairs it takes by default.

    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pristine", type=Path, help="the fork without patches")
    parser.add_argument("patched", type=Path, help="the fork with the patches")
    parser.add_argument("--pairs", type=int, default=pairs, help=f"how often to measure on each (default: {pairs})")
    return parser.parse_args()


def print_pairs(pairs: list[dict[str, list[float]]], columns: list[str]) -> None:
    """Print a table of the medians, and of the medians of the ratios of the pairs.

    Args:
        pairs: For each pair the values of both sides, by the side's name, the one to compare with first.
        columns: What the values are.

    """
    before, after = pairs[0]
    rows = [
        [name, *(statistics.median(pair[name][i] for pair in pairs) for i in range(len(columns)))] for name in pairs[0]
    ]
    ratios = [[pair[after][i] / pair[before][i] for pair in pairs] for i in range(len(columns))]
    rows.append([f"{after} / {before}", *map(statistics.median, ratios)])
    rows.append(["standard error", *(statistics.stdev(column) / len(column) ** 0.5 for column in ratios)])
    print(tabulate(rows, ["", *columns], floatfmt=".3f"))
    print(f"medians of {len(pairs)} pairs; {describe_machine()}")


def describe_machine() -> str:
    """Return what a figure depends on: the versions, the system and the number of processors."""
    python = f"Python {platform.python_version()}"
    return f"torch {torch.__version__}, {python}, {platform.platform()}, {os.cpu_count()} processors"
