"""Train a small network on two devices to read handwritten digits.

This is the script of https://github.com/Lightning-AI/pytorch-lightning/issues/17777 in our words: all of it stands at
module level, without an ``if __name__ == "__main__"`` guard, and the data loaders have workers. Each worker imports the
script again and reaches ``trainer.fit``. Try ``--num-workers 0`` and ``--num-workers 2``.

"""

import argparse
import hashlib
import json
import multiprocessing
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy

# What Windows and macOS do anyway: workers start as fresh interpreters. Linux would fork them and hide the problem.
multiprocessing.set_start_method("spawn", force=True)

parser = argparse.ArgumentParser(description="Train on the handwritten digits that scikit-learn ships.")
parser.add_argument("--num-workers", type=int, default=2, help="workers of each data loader (default: 2)")
parser.add_argument("--devices", type=int, default=2, help="devices, and so ranks, to train on (default: 2)")
parser.add_argument("--share-device", action="store_true", help="let two ranks share the first device")
parser.add_argument("--accelerator", default="cpu", help="cpu, gpu or auto (default: cpu)")
parser.add_argument("--precision", default="32-true", help="the Trainer's precision (default: 32-true)")
parser.add_argument("--max-epochs", type=int, default=3, help="epochs to train (default: 3)")
parser.add_argument("--report", type=Path, help="write steps, accuracy and the weights' hash to this JSON file")
args = parser.parse_args()


class DigitClassifier(LightningModule):
    """Two layers are enough for pictures of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        correct = self.layers(images).argmax(dim=1) == labels
        self.log("accuracy", correct.float().mean(), batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.005)


seed_everything(17777)

images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))
train_digits, val_digits = random_split(digits, [1437, 360])

loader_options = {"batch_size": 32, "num_workers": args.num_workers, "persistent_workers": args.num_workers > 0}
train_loader = DataLoader(train_digits, shuffle=True, **loader_options)
val_loader = DataLoader(val_digits, **loader_options)

strategy = DDPStrategy(process_group_backend="gloo")
if args.share_device:
    device = torch.device("cuda", 0) if args.accelerator == "gpu" else torch.device("cpu")
    strategy = DDPStrategy(process_group_backend="gloo", parallel_devices=[device, device])

trainer = Trainer(
    accelerator=args.accelerator,
    devices=1 if args.share_device else args.devices,
    strategy=strategy,
    precision=args.precision,
    max_epochs=args.max_epochs,
    enable_checkpointing=False,
    enable_progress_bar=False,
    logger=False,
)
model = DigitClassifier()
trainer.fit(model, train_loader, val_loader)

if trainer.is_global_zero:
    accuracy = trainer.callback_metrics["accuracy"].item()
    print(f"{trainer.global_step} steps, {accuracy:.1%} of the validation digits read correctly")
    if args.report:
        weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
        report = {
            "global_step": trainer.global_step,
            "accuracy": accuracy,
            "weights": hashlib.sha256(weights).hexdigest(),
        }
        args.report.write_text(json.dumps(report), encoding="utf-8")
