"""Start workers one after the other, and print when each had done what: ``worker.py top|guard|never``.

The argument says where the script imports Lightning: at its top, under its guard, or never, which is the floor.

"""

import time

FIRST_LINE = time.perf_counter()  # the clock of all processes of a machine is the same

import json
import statistics
import sys

import torch
from torch.utils.data import DataLoader, Dataset

TORCH = time.perf_counter()
if sys.argv[1] == "top":
    import lightning as L
LIGHTNING = time.perf_counter()

WORKERS = 5  # the first one is not counted: files are read for the first time


class Stamps(Dataset):
    """Its item is what the worker that loads it has noted."""

    def __len__(self) -> int:
        """Return the number of items."""
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the times, and the bytes that the worker has for itself."""
        loaded = time.perf_counter()
        import psutil  # local import: it is not a part of a worker's start

        memory = float(psutil.Process().memory_full_info().uss)
        return torch.tensor([FIRST_LINE, TORCH, LIGHTNING, loaded, memory], dtype=torch.float64)


def start_worker() -> dict[str, float]:
    """Start a worker and return the seconds of each stage, and the MiB that it has."""
    started = time.perf_counter()
    batches = iter(DataLoader(Stamps(), num_workers=1, multiprocessing_context="spawn"))
    first_line, with_torch, with_lightning, loaded, memory = next(batches)[0].tolist()
    arrived = time.perf_counter()
    del batches  # ends the worker before the next one starts
    return {
        "first batch": arrived - started,
        "interpreter": first_line - started,
        "torch": with_torch - first_line,
        "Lightning": with_lightning - with_torch,
        "script and unpickling": loaded - with_lightning,
        "batch": arrived - loaded,
        **({"memory (MiB)": memory / 2**20} if memory else {}),  # Wine does not tell it
    }


if __name__ == "__main__":
    if sys.argv[1] != "never":
        import lightning as L

        L.Fabric(accelerator="cpu", devices=1).launch()
    workers = [start_worker() for _ in range(WORKERS)][1:]
    print(json.dumps({name: statistics.median(worker[name] for worker in workers) for name in workers[0]}))
