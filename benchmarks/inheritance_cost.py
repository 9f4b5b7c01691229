"""Measure what the inheritance by itself costs a DataLoader worker, more finely than two forks can be compared.

``python dev.py bench`` runs it. One process starts workers with and without the inheritance by turns, so that both meet
the same machine: the frequency of its processors changes more from one minute to the next than what is measured here.

"""

import multiprocessing.spawn
import os
import platform
import statistics
import time

import torch
from tabulate import tabulate
from torch.utils.data import DataLoader, Dataset

PAIRS = 20


class ProcessorSeconds(Dataset[float]):
    """One sample: the processor time that the worker has used when it makes it."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 1

    def __getitem__(self, index: int) -> float:
        """Return the seconds since the process started."""
        return time.process_time()


def start_worker() -> tuple[float, float]:
    """Start a worker and return the seconds to its first batch and the seconds of processor time that it used."""
    started = time.perf_counter()
    batches = iter(DataLoader(ProcessorSeconds(), num_workers=1, multiprocessing_context="spawn"))
    processor_seconds = next(batches).item()
    return time.perf_counter() - started, processor_seconds


def main() -> None:
    """Start the workers and print the medians."""
    # local import: a worker that imports this script needs no Lightning, so that there is less noise
    from lightning.fabric import Fabric

    plain = multiprocessing.spawn.get_preparation_data
    Fabric(accelerator="cpu", devices=1).launch()
    handed_down = multiprocessing.spawn.get_preparation_data
    assert handed_down is not plain, "The installed Lightning is not patched."

    pairs = []
    for number in range(PAIRS):
        pair = {}
        for function in (plain, handed_down)[:: -1 if number % 2 else 1]:
            multiprocessing.spawn.get_preparation_data = function
            pair[function] = start_worker()
        pairs.append((pair[plain], pair[handed_down]))
    rows = [["without", *map(statistics.median, zip(*(pair[0] for pair in pairs), strict=True))]]
    rows.append(["with", *map(statistics.median, zip(*(pair[1] for pair in pairs), strict=True))])
    ratios = [[after / before for before, after in zip(*pair, strict=True)] for pair in pairs]
    rows.append(["with / without", *map(statistics.median, zip(*ratios, strict=True))])
    print(tabulate(rows, ["inheritance", "seconds to first batch", "processor seconds"], floatfmt=".3f"))
    machine = f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} processors"
    print(f"medians of {PAIRS} pairs; torch {torch.__version__}, {machine}")


if __name__ == "__main__":
    main()
