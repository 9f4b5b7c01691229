"""A job of two ranks with a worker each, without a main guard.

The arguments are the accelerator and the package of Lightning to use.
"""

import importlib
import sys
from typing import List

import torch
from _reports import report
from torch.utils.data import DataLoader, TensorDataset

package = "lightning.pytorch" if sys.argv[2] == "lightning" else sys.argv[2]
pl = importlib.import_module(package)
strategies = importlib.import_module(f"{package}.strategies")


class Line(pl.LightningModule):
    """A line that is fitted to others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: List[torch.Tensor], batch_index: int) -> torch.Tensor:
        """Return the loss."""
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = pl.Trainer(
    accelerator=sys.argv[1],
    devices=2,
    strategy=strategies.DDPStrategy(process_group_backend="gloo"),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Line(), DataLoader(TensorDataset(torch.ones(8, 2)), num_workers=1, multiprocessing_context="spawn"))
if trainer.global_step != 4:
    sys.exit(f"The job made {trainer.global_step} steps, not 4.")
if trainer.is_global_zero:
    report(done=True)
