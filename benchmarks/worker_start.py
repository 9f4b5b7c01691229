"""Measure what the inheritance costs a DataLoader worker of a guarded script: time to its first batch, and memory.

``python dev.py bench`` runs it on a pristine and a patched fork. The script below runs once on each, and both start a
worker whenever they are told to, by turns, so that what else the machine does hits both. Each ratio is the median of
the ratios of the pairs. One worker's start differs from the next one's by some percent, which is more than what is
measured here: hence so many pairs.

"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import parse_arguments, print_pairs

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
    for _ in sys.stdin:
        started = time.perf_counter()
        batches = iter(DataLoader(Memory(), num_workers=1, multiprocessing_context="spawn"))
        processor_seconds, memory = (value.item() for value in next(batches))
        print(json.dumps([time.perf_counter() - started, processor_seconds, memory / 2**20]), flush=True)
        del batches  # ends the worker before the next one starts


if __name__ == "__main__":
    main()
"""


class Job:
    """The script, running on the Lightning of a fork.

    Args:
        fork: The fork's folder.
        script: The script's path.

    """

    def __init__(self, fork: Path, script: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(fork / "src"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start_worker(self) -> list[float]:
        """Start a worker.

        Returns:
            The seconds from its start to the arrival of its first batch, the seconds of processor time that it had used
            when it made this batch, and the MiB of memory that it had for itself.

        """
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"The script ended with exit status {self._process.wait()}; its error stands above.")
        return json.loads(line)

    def end(self) -> None:
        """End the script."""
        self._process.communicate()


def main() -> None:
    """Parse the command line, measure, print the medians."""
    arguments = parse_arguments(__doc__, pairs=50)

    pairs: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT, encoding="utf-8")
        jobs = {name: Job(getattr(arguments, name), script) for name in ("pristine", "patched")}
        try:
            for job in jobs.values():
                job.start_worker()  # not counted: files are read for the first time
            for number in range(arguments.pairs):
                order = list(jobs)[:: -1 if number % 2 else 1]
                pairs.append({name: jobs[name].start_worker() for name in order})
        finally:
            for job in jobs.values():
                job.end()

    print_pairs(pairs, ["seconds to first batch", "processor seconds", "memory (MiB)"])


if __name__ == "__main__":
    main()
