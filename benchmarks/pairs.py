"""Print what was measured in pairs: the medians of both sides, and the ratio with its standard error."""

import os
import platform
import statistics

import torch
from tabulate import tabulate


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
    machine = f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} processors"
    print(f"medians of {len(pairs)} pairs; torch {torch.__version__}, {machine}")
