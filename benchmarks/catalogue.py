"""What is measured: the sides of each benchmark, and which of them are compared in what."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Side

RANKS = (1, 2, 4)
WORKERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Ratio:
    """Two sides to compare.

    Args:
        after: The name of the side that is compared.
        before: The name of the side to compare with; of several, the smallest value of each round counts.
        value: What to compare of what they print.
        reach: What the ratio is to reach, for the reader of the table; nothing fails of it.

    """

    after: str
    before: tuple[str, ...]
    value: str
    reach: str = ""


@dataclass(frozen=True)
class Benchmark:
    """Sides that run by turns.

    Args:
        name: What the command line calls it.
        title: What it measures.
        sides: What is compared.
        ratios: The comparisons.
        rounds: How often each side runs by default.

    """

    name: str
    title: str
    sides: list[Side]
    ratios: list[Ratio] = field(default_factory=list)
    rounds: int = 10


def catalogue(pristine: Path, patched: Path) -> list[Benchmark]:
    """Return the benchmarks.

    Args:
        pristine: The fork without patches.
        patched: The fork with the patches.

    """
    forks = {"pristine": pristine, "patched": patched}
    made: list[Callable[[dict[str, Path]], Benchmark]] = [_workers, _first_step, _whole_job, _waiting, _growth]
    if find_spec("PIL") is not None:
        made.append(_images)
    return [make(forks) for make in made]


def _workers(forks: dict[str, Path]) -> Benchmark:
    sides = [Side(name, "worker.py", ("top",), fork) for name, fork in forks.items()]
    sides += [Side(f"{name}, Lightning under the guard", "worker.py", ("guard",), fork) for name, fork in forks.items()]
    sides.append(Side("torch alone", "worker.py", ("never",)))
    ratios = [
        Ratio("patched", ("pristine",), "first batch", "<= 0.65, moonshot 0.5"),
        Ratio("patched, Lightning under the guard", ("pristine, Lightning under the guard",), "first batch", "<= 1.0"),
        Ratio("patched", ("pristine",), "memory (MiB)", "<= 0.85"),
        Ratio("patched", ("torch alone",), "first batch"),
    ]
    return Benchmark("workers", "Start of a worker (seconds, medians of 4 in each run)", sides, ratios)


def _first_step(forks: dict[str, Path]) -> Benchmark:
    sides, ratios = [], []
    for ranks in RANKS:
        for name, fork in forks.items():
            for strategy in ("ddp", "ddp_spawn"):
                arguments = (str(ranks), "0", strategy)
                sides.append(Side(f"{name}, {strategy}, {ranks} ranks", "first_step.py", arguments, fork))
        # On CPUs `accelerate launch` starts one process only: torchrun starts those of Accelerate, too
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone")
        for name, module, launcher in (
            ("torchrun", "torch", torchrun),
            ("Accelerate", "accelerate", torchrun),
            ("Ray Train", "ray", ()),
        ):
            if sys.platform != "win32" and find_spec(module) is not None:
                script = "first_step_of_others.py"
                sides.append(Side(f"{name}, {ranks} ranks", script, (module, str(ranks)), launcher=launcher))
        reference = (f"torchrun, {ranks} ranks",)
        for strategy in ("ddp", "ddp_spawn"):
            after, before = (f"{name}, {strategy}, {ranks} ranks" for name in ("patched", "pristine"))
            ratios += [
                Ratio(after, (before,), "first step", "<= 0.75"),
                Ratio(after, reference, "first step", "moonshot 1.0"),
                Ratio(before, reference, "first step"),
            ]
        ratios += [Ratio(f"{name}, {ranks} ranks", reference, "first step") for name in ("Accelerate", "Ray Train")]
    return Benchmark("first-step", "From the command to the first optimizer step (seconds)", sides, ratios, rounds=7)


def _whole_job(forks: dict[str, Path]) -> Benchmark:
    sides = [Side(name, "whole_job.py", ("guarded",), fork) for name, fork in forks.items()]
    sides.append(Side("patched, unguarded", "whole_job.py", ("unguarded",), forks["patched"]))
    ratios = [
        Ratio("patched", ("pristine",), "end", "<= 0.70"),
        Ratio("patched", ("pristine",), "first step"),
        Ratio("patched, unguarded", ("patched",), "epoch", "<= 1.03"),
    ]
    return Benchmark("job", "The job of #17777: 2 ranks, 2 workers each, 2 epochs (seconds)", sides, ratios)


def _waiting(forks: dict[str, Path]) -> Benchmark:
    names = {workers: f"{workers} workers per rank" for workers in (0, *WORKERS)}
    sides = [
        Side(name, "throughput.py", ("waiting", "2", str(workers)), forks["patched"]) for workers, name in names.items()
    ]
    ratios = [Ratio(names[workers], (names[0],), "items per second", f">= {0.9 * workers:.1f}") for workers in WORKERS]
    return Benchmark("waiting", "Data that takes 5 ms an item to arrive, 2 ranks, patched", sides, ratios, rounds=5)


def _images(forks: dict[str, Path]) -> Benchmark:
    kinds = {"loading alone": ("loading", "1"), "training alone": ("training", "0"), "both": ("images", "1")}
    sides = [
        Side(name, "throughput.py", (kind, "1", workers), forks["patched"]) for name, (kind, workers) in kinds.items()
    ]
    ratios = [Ratio("both", ("loading alone", "training alone"), "items per second", ">= 0.95")]
    return Benchmark("images", "JPEG files to decode, 1 rank, 1 worker, patched", sides, ratios, rounds=5)


def _growth(forks: dict[str, Path]) -> Benchmark:
    sides = [
        Side(f"{name}, {ranks} x {workers}", "first_step.py", (str(ranks), str(workers), "ddp"), fork)
        for ranks in RANKS
        for workers in (0, 2, 4, 8)
        for name, fork in forks.items()
    ]
    return Benchmark("growth", "To the first step with ranks x workers (seconds)", sides, rounds=3)
