"""Run the job of #17777, two ranks with two workers each for two epochs: ``whole_job.py guarded|unguarded``."""

import json
import os
import statistics
import sys
import time

import torch

import lightning.pytorch as L
from lightning.pytorch.strategies import DDPStrategy


class Model(L.LightningModule):
    """A small classifier that notes how long its epochs take."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.first_step = 0.0
        self.epochs: list[float] = []
        self.began = 0.0

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(images), labels)

    def on_train_epoch_start(self) -> None:
        """Note the time; the workers are started after it."""
        self.began = time.perf_counter()

    def on_train_batch_end(self, *_: object) -> None:
        """Note the time of the first step."""
        self.first_step = self.first_step or time.perf_counter()

    def on_train_epoch_end(self) -> None:
        """Note how long the epoch took."""
        self.epochs.append(time.perf_counter() - self.began)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train, and print the times in rank 0."""
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    items = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
    loader = torch.utils.data.DataLoader(items, batch_size=32, num_workers=2, multiprocessing_context="spawn")
    model = Model()
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        first_step = model.first_step - float(os.environ["BENCH_STARTED"])
        print(json.dumps({"first step": first_step, "epoch": statistics.mean(model.epochs)}), flush=True)


# Spawned workers get to the call of an unguarded script; an argument lets one file be both
if __name__ == "__main__" or sys.argv[1] == "unguarded":
    main()
