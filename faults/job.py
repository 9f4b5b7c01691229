"""The job that ``python -m faults`` breaks: two ranks with a worker each, by one of three ways to launch them."""

import os
import sys

from strikes import STEPS, WHEN, reach, tell

if __name__ == "__main__" and os.environ.get("LOCAL_RANK") == "1":
    reach("rank1", "before")

import torch

from data import make_loader


def train_with_trainer(strategy: str) -> None:
    """Train with a Trainer, until the job is struck or, to reach the teardown, for some steps."""
    import lightning as L  # local import: not for Fabric
    from model import Model

    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=2 * STEPS if WHEN == "teardown" else -1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model())


def train_with_fabric() -> None:
    """Do the same with Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    rank = f"rank{fabric.global_rank}"
    tell(f"port-{os.environ['MASTER_PORT']}")
    reach(rank, "before")
    model = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 1e-6))
    for index, batch in enumerate(make_loader(fabric.global_rank)):
        if index == STEPS:
            reach(rank, "middle")
        if index == 2 * STEPS and WHEN == "teardown":
            break
        fabric.backward(model(batch * 1e-6).mean())
        optimizer.step()
    reach(rank, "teardown")


if __name__ == "__main__":
    if sys.argv[1] == "fabric":
        train_with_fabric()
    else:
        train_with_trainer(sys.argv[1])
