"""Measure what the inheritance by itself costs a DataLoader worker, more finely than two forks can be compared.

``python dev.py bench`` runs it. One process starts workers with and without the inheritance by turns, so that both meet
the same machine: the frequency of its processors changes more from one minute to the next than what is measured here.

"""

import multiprocessing.spawn
import time

from torch.utils.data import DataLoader, Dataset

PAIRS = 70


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
    # local imports: a worker that imports this script does not need these, and there is less noise without them
    from pairs import print_pairs

    from lightning.fabric import Fabric

    plain = multiprocessing.spawn.get_preparation_data
    Fabric(accelerator="cpu", devices=1).launch()
    handed_down = multiprocessing.spawn.get_preparation_data
    assert handed_down is not plain, "The installed Lightning is not patched."

    pairs: list[dict[str, list[float]]] = []
    for number in range(PAIRS):
        pair: dict[str, list[float]] = {"without": [], "with": []}
        for name, function in (("without", plain), ("with", handed_down))[:: -1 if number % 2 else 1]:
            multiprocessing.spawn.get_preparation_data = function
            pair[name] += start_worker()
        pairs.append(pair)
    print_pairs(pairs, ["seconds to first batch", "processor seconds"])


if __name__ == "__main__":
    main()
