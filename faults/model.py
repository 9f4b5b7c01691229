"""The model of the jobs that a Trainer runs; imported by the launcher and the ranks."""

import os

import torch
from torch.utils.data import DataLoader

import lightning as L
from data import make_loader
from strikes import STEPS, reach, tell


class Model(L.LightningModule):
    """A layer, and the places where a rank can be struck."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def setup(self, stage: str) -> None:
        tell(f"port-{os.environ['MASTER_PORT']}")
        reach(f"rank{self.global_rank}", "before")

    def train_dataloader(self) -> DataLoader:
        return make_loader(self.global_rank)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        if index == STEPS:
            reach(f"rank{self.global_rank}", "middle")
        return self.layer(batch * 1e-6).mean()

    def on_train_end(self) -> None:
        reach(f"rank{self.global_rank}", "teardown")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-6)
