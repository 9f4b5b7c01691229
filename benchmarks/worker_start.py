"""Measure what the inheritance costs a DataLoader worker of a guarded script: time to its first batch, and memory.

``python dev.py bench`` runs it on a pristine and a patched fork. The two alternate, so that what else the machine does
hits both, and each ratio is the median of the ratios of the pairs. One run starts the script below once, which starts a
number of workers one after the other.

"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

# Guarded, so that a worker imports it to its end with and without the patches
SCRIPT = """
import json
import sys
import time

import psutil
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset


class Memory(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return time.process_time(), float(psutil.Process().memory_full_info().uss)


def main():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    for _ in range(int(sys.argv[1])):
        started = time.perf_counter()
        batches = iter(DataLoader(Memory(), num_workers=1, multiprocessing_context="spawn"))
        processor_seconds, memory = (value.item() for value in next(batches))
        print(json.dumps([time.perf_counter() - started, processor_seconds, memory / 2**20]), flush=True)
        del batches  # ends the worker before the next one starts


if __name__ == "__main__":
    main()
"""


def measure(fork: Path, script: Path, workers: int) -> list[list[float]]:
    """Start workers of the script, one after the other, on the Lightning of a fork.

    Args:
        fork: The fork's folder.
        script: The script's path.
        workers: How many workers to start.

    Returns:
        For each worker the seconds from its start to the arrival of its first batch, the seconds of processor time that
        it had used when it made this batch, and the MiB of memory that it had for itself.

    """
    environment = {**os.environ, "PYTHONPATH": str(fork / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(workers)]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def main() -> None:
    """Parse the command line, measure, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pristine", type=Path, help="the fork without patches")
    parser.add_argument("patched", type=Path, help="the fork with the patches")
    parser.add_argument("--pairs", type=int, default=5, help="how often to run the script on each (default: 5)")
    parser.add_argument("--workers", type=int, default=4, help="how many workers one run starts (default: 4)")
    arguments = parser.parse_args()

    pairs: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT, encoding="utf-8")
        for number in range(arguments.pairs):
            pair = {}
            for name in ("pristine", "patched")[:: -1 if number % 2 else 1]:
                print(f"pair {number + 1} of {arguments.pairs}: {name}", file=sys.stderr)
                workers = measure(getattr(arguments, name), script, arguments.workers)
                pair[name] = [statistics.median(values) for values in zip(*workers, strict=True)]
            pairs.append(pair)

    rows: list[list[Any]] = [
        [name, *map(statistics.median, zip(*(pair[name] for pair in pairs), strict=True))] for name in pairs[0]
    ]
    ratios = [
        [patched / pristine for pristine, patched in zip(pair["pristine"], pair["patched"], strict=True)]
        for pair in pairs
    ]
    rows.append(["patched / pristine", *map(statistics.median, zip(*ratios, strict=True))])
    print(tabulate(rows, ["Lightning", "seconds to first batch", "processor seconds", "memory (MiB)"], floatfmt=".3f"))
    machine = f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} processors"
    print(f"medians of {len(pairs)} pairs with {arguments.workers} workers on each side; {machine}")


if __name__ == "__main__":
    main()
