"""Says what was measured, and on what machine."""

import os
import platform
import statistics
from importlib.metadata import PackageNotFoundError, version

from benchmarks.catalogue import Ratio
from benchmarks.measure import Values
from tabulate import tabulate


def format_measured(values: dict[str, list[Values]], ratios: list[Ratio]) -> str:
    """Return the tables of a benchmark, in Markdown: the medians, and the medians of the ratios of the rounds.

    Args:
        values: For each side what it printed in each round.
        ratios: The comparisons. Those of which a side has not run here, or could not tell the value, are left out.

    """
    columns = list(dict.fromkeys(name for rounds in values.values() for found in rounds for name in found))
    rows = [
        [side, *(statistics.median(found[name] for found in rounds) if name in rounds[0] else None for name in columns)]
        for side, rounds in values.items()
    ]
    parts = [tabulate(rows, ["", *columns], floatfmt=".3f", tablefmt="github")]
    ratios = [ratio for ratio in ratios if _is_measured(ratio, values)]
    if ratios:
        rows = [
            [f"{ratio.after} / {' or '.join(ratio.before)}", ratio.value, *_median(ratio, values), ratio.reach]
            for ratio in ratios
        ]
        headers = ["", "of", "ratio", "standard error", "reach"]
        parts.append(tabulate(rows, headers, floatfmt=".3f", tablefmt="github"))
    parts.append(f"Medians of {len(next(iter(values.values())))} rounds.")
    return "\n\n".join(parts)


def format_growth(values: dict[str, list[Values]]) -> str:
    """Return how many seconds each further process takes, by a line through the medians.

    Args:
        values: For each side, which is named ``FORK, RANKS x WORKERS``, what it printed in each round.

    """
    lines = []
    for fork in ("pristine", "patched"):
        processes, seconds = growth_of(fork, values)
        slope, start = statistics.linear_regression(processes, seconds)
        correlation = statistics.correlation(processes, seconds)
        lines.append(f"- {fork}: {start:.2f} s, and {slope:.3f} s for each process; correlation {correlation:.3f}")
    return "\n".join(lines)


def growth_of(fork: str, values: dict[str, list[Values]]) -> tuple[list[int], list[float]]:
    """Return the numbers of processes, and the median seconds to the first step with each.

    Args:
        fork: ``"pristine"`` or ``"patched"``.
        values: For each side, which is named ``FORK, RANKS x WORKERS``, what it printed in each round.

    """
    processes, seconds = [], []
    for side, rounds in values.items():
        name, _, size = side.partition(", ")
        if name == fork:
            ranks, workers = map(int, size.split(" x "))
            processes.append(ranks * (1 + workers))
            seconds.append(statistics.median(found["first step"] for found in rounds))
    return processes, seconds


def describe_machine() -> dict[str, str | int | None]:
    """Return what a figure depends on: the versions, the system and the processors."""
    packages: dict[str, str | None] = {}
    for name in ("torch", "lightning", "accelerate", "ray"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "python": platform.python_version(),
        **packages,
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "processors": os.cpu_count(),
    }


def _is_measured(ratio: Ratio, values: dict[str, list[Values]]) -> bool:
    """Return whether both of its sides have run here and could tell the value."""
    return all(name in values and ratio.value in values[name][0] for name in (ratio.after, *ratio.before))


def _median(ratio: Ratio, values: dict[str, list[Values]]) -> tuple[float, float | None]:
    """Return the median of the rounds' ratios, and its standard error if there are enough rounds for one."""
    ratios = [
        found[ratio.value] / min(values[name][number][ratio.value] for name in ratio.before)
        for number, found in enumerate(values[ratio.after])
    ]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None
    return statistics.median(ratios), error
