"""Train one step with Lightning and print when: ``first_step.py RANKS WORKERS STRATEGY``, for a guarded script.

The times are seconds since ``BENCH_STARTED``, when the command was started.

"""

import time

FIRST_LINE = time.perf_counter()  # the clock of all processes of a machine is the same

import json
import os
import sys
from itertools import pairwise

import torch

TORCH = time.perf_counter()
import lightning.pytorch as L  # the import is what is measured

LIGHTNING = time.perf_counter()
RANKS, WORKERS, STRATEGY = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Model(L.LightningModule):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.met = 0.0

    def setup(self, stage: str) -> None:
        """Note when the ranks have met."""
        self.met = time.perf_counter()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        return self.layer(batch).mean()

    def on_train_batch_end(self, *_: object) -> None:
        """Print the times, after the optimizer's step."""
        if self.global_rank == 0:
            stamps = [float(os.environ["BENCH_STARTED"]), FIRST_LINE, TORCH, LIGHTNING, self.met, time.perf_counter()]
            names = ["interpreter", "torch", "Lightning", "ranks meet", "step"]
            stages = dict(zip(names, (after - before for before, after in pairwise(stamps)), strict=True))
            print(json.dumps({"first step": stamps[-1] - stamps[0], **stages}), flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train."""
    trainer = L.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=STRATEGY,
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(
        torch.ones(64, 1), num_workers=WORKERS, multiprocessing_context="spawn" if WORKERS else None
    )
    trainer.fit(Model(), loader)


if __name__ == "__main__":
    main()
