"""What the ranks of the job train on; imported by ranks and workers."""

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from strikes import STEPS, reach


class Numbers(Dataset):
    """Numbers that a worker of a known rank reads."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None and index > 2 * STEPS:
            reach(f"worker{self.rank}", "middle")
        return torch.tensor([float(index)])

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        reach(f"worker{self.rank}", "before")


def make_loader(rank: int) -> DataLoader:
    """Return the loader of a rank, with a worker that lives as long as the rank."""
    return DataLoader(
        Numbers(rank), batch_size=4, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )
