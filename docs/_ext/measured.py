"""Directives that show what `python dev.py bench` has measured: `measured` is a table, `measured-plot` a figure."""

import io
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from docutils import nodes
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.catalogue import Ratio  # noqa: E402  (it lies in the root folder)
from benchmarks.report import format_growth, format_measured, growth_of  # noqa: E402

FIGURES = ROOT / "benchmarks" / "figures.json"
INK = "#010203"  # stands in for the colour of the page's text, which is known in the browser only
COLOURS = ["#8a8f98", "#3b82f6", "#14b8a6", "#f59e0b", "#a855f7", "#ef4444"]  # to be seen on white and on black
STAGES = ["interpreter", "torch", "Lightning", "script and unpickling", "batch"]


class Measured(SphinxDirective):
    """The tables of one benchmark, and on what machine it ran."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the tables."""
        self.env.note_dependency(str(FIGURES))
        found = _read(self.arguments[0])
        text = format_measured(found["values"], [Ratio(**ratio) for ratio in found["ratios"]])
        if self.arguments[0] == "growth":
            text += f"\n\n{format_growth(found['values'])}"
        machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items() if value is not None)
        return self.parse_text_to_nodes(f"{text}\n\nMeasured with {machine}.")


class MeasuredPlot(SphinxDirective):
    """A figure of one benchmark; the content is what it shows, in words."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the figure, as a part of the page: so it takes the page's colours."""
        self.env.note_dependency(str(FIGURES))
        name = self.arguments[0]
        settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 11}
        with matplotlib.rc_context({**settings, **dict.fromkeys(_INKED, INK)}):
            figure = Figure(figsize=(8, 3.6), layout="constrained")
            axes = figure.add_subplot()
            axes.spines[["top", "right"]].set_visible(False)
            PLOTS[name](axes, _read(name)["values"])
            axes.legend(frameon=False)
            svg = io.StringIO()
            figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        image = svg.getvalue()[svg.getvalue().index("<svg") :].replace(INK, "currentColor")
        image = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'style="max-width: 100%; height: auto"', image, count=1)
        words = " ".join(self.content)
        image = image.replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
        return [nodes.raw("", image, format="html"), nodes.caption("", words)]


_INKED = ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"]


def _read(name: str) -> dict[str, Any]:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    if name not in figures:
        command = f"python dev.py bench --only {name} --json {FIGURES.relative_to(ROOT)}"
        raise ExtensionError(f"There are no figures of {name!r}. Measure them: {command}")
    return figures[name]


def _medians(rounds: list[dict[str, float]], value: str) -> float:
    return statistics.median(found[value] for found in rounds)


def _plot_workers(axes: Axes, values: dict[str, Any]) -> None:
    sides = list(reversed(values))
    left = [0.0] * len(sides)
    for stage, colour in zip(STAGES, COLOURS, strict=False):
        widths = [_medians(values[side], stage) for side in sides]
        axes.barh(sides, widths, left=left, label=stage, color=colour)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds from the start of a worker to its first batch")


def _plot_first_step(axes: Axes, values: dict[str, Any]) -> None:
    launches: dict[str, dict[int, float]] = {}
    for side, rounds in values.items():
        launch, _, ranks = side.rpartition(", ")
        launches.setdefault(launch, {})[int(ranks.split()[0])] = _medians(rounds, "first step")
    for (launch, seconds), colour, shift in zip(launches.items(), COLOURS * 2, range(len(launches)), strict=False):
        positions = [number + (shift - len(launches) / 2) * 0.11 for number in range(len(seconds))]
        axes.bar(positions, seconds.values(), width=0.1, label=launch, color=colour)
    axes.set_xticks(range(len(seconds)), [f"{ranks} ranks" for ranks in seconds])
    axes.set_ylabel("seconds to the first step")


def _plot_waiting(axes: Axes, values: dict[str, Any]) -> None:
    rates = {int(side.split()[0]): _medians(rounds, "items per second") for side, rounds in values.items()}
    axes.plot(list(rates), rates.values(), "o-", label="measured", color=COLOURS[1])
    ideal = [max(workers, 1) * rates[0] for workers in rates]
    axes.plot(list(rates), ideal, "--", label="as many times the rate without workers", color=COLOURS[0])
    axes.set_xlabel("workers per rank, 2 ranks")
    axes.set_ylabel("items per second")


def _plot_growth(axes: Axes, values: dict[str, Any]) -> None:
    for fork, colour in (("pristine", COLOURS[0]), ("patched", COLOURS[1])):
        processes, seconds = growth_of(fork, values)
        slope, start = statistics.linear_regression(processes, seconds)
        axes.plot(processes, seconds, "o", label=fork, color=colour)
        ends = [min(processes), max(processes)]
        axes.plot(ends, [start + slope * end for end in ends], "-", color=colour)
    axes.set_xlabel("ranks and workers together")
    axes.set_ylabel("seconds to the first step")


PLOTS: dict[str, Callable[[Axes, dict[str, Any]], None]] = {
    "workers": _plot_workers,
    "first-step": _plot_first_step,
    "waiting": _plot_waiting,
    "growth": _plot_growth,
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives to Sphinx."""
    app.add_directive("measured", Measured)
    app.add_directive("measured-plot", MeasuredPlot)
    return {"parallel_read_safe": True}
