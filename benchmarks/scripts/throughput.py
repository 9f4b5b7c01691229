"""Train on data that takes its time, and print how many items a second: ``throughput.py KIND RANKS WORKERS``.

KIND is ``waiting``: each item arrives 5 ms after it is asked for, as from a network drive. Or ``images``: each item is
a JPEG file to decode and scale, for a small convolutional net. ``loading`` is the latter without the training, and
``training`` without the loading: its bounds.

"""

import io
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch

import lightning.pytorch as L

KIND, RANKS, WORKERS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH = 20
WARM_UP, MEASURED = 3, 10  # batches of each worker
SIZE = 64  # pixels


class Waiting(torch.utils.data.Dataset):
    """Items that take 5 ms to arrive."""

    def __len__(self) -> int:
        """Return the number of items."""
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return an item, in its time."""
        time.sleep(0.005)
        return torch.ones(1)


class Images(torch.utils.data.Dataset):
    """The two photographs of scikit-learn, by turns."""

    def __init__(self) -> None:
        package = find_spec("sklearn")  # not imported: it lacks what it needs
        assert package is not None and package.origin is not None
        folder = Path(package.origin).parent / "datasets" / "images"
        self.files = [(folder / name).read_bytes() for name in ("china.jpg", "flower.jpg")]

    def __len__(self) -> int:
        """Return the number of items."""
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a decoded and scaled image, of shape (3, SIZE, SIZE)."""
        from PIL import Image  # local import: not for the other kinds

        image = Image.open(io.BytesIO(self.files[index % 2])).resize((SIZE, SIZE), Image.Resampling.BOX)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(SIZE, SIZE, 3).permute(2, 0, 1) / 255


class Same(torch.utils.data.IterableDataset):
    """One batch, again and again."""

    def __iter__(self) -> "Same":
        """Return itself."""
        return self

    def __init__(self) -> None:
        self.batch = torch.rand(BATCH, 3, SIZE, SIZE)

    def __next__(self) -> torch.Tensor:
        """Return the batch."""
        return self.batch


class Clock:
    """Counts batches and tells the items of a second when it has enough of them.

    Args:
        warm_up: How many batches not to count: the workers start, and then have batches ready.
        measured: How many to count.

    """

    def __init__(self, warm_up: int, measured: int) -> None:
        self.batches = -warm_up
        self.measured = measured
        self.began = 0.0

    def count(self) -> float | None:
        """Count a batch; return the items of a second in all ranks, if these were enough batches."""
        if self.batches == 0:
            self.began = time.perf_counter()
        self.batches += 1
        if self.batches > self.measured:
            return RANKS * BATCH * self.measured / (time.perf_counter() - self.began)
        return None


class Model(L.LightningModule):
    """A linear layer, or a convolutional net for images."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.net: torch.nn.Module = torch.nn.Linear(1, 1)
        if KIND != "waiting":
            self.net = torch.nn.Sequential(
                torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, padding=1)
            )
        self.clock = clock

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        return self.net(batch).square().mean()

    def on_train_batch_end(self, *_: object) -> None:
        """Count the batch."""
        rate = self.clock.count()
        if rate is not None and self.global_rank == 0:
            tell(rate)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def tell(rate: float) -> None:
    """Print the figure."""
    print(json.dumps({"items per second": rate}), flush=True)


def main() -> None:
    """Train, or only load."""
    warm_up, measured = (number * max(WORKERS, 1) for number in (WARM_UP, MEASURED))
    clock = Clock(warm_up, measured)
    if KIND == "training":
        loader = torch.utils.data.DataLoader(Same(), batch_size=None)
    else:
        loader = torch.utils.data.DataLoader(
            Waiting() if KIND == "waiting" else Images(),
            batch_size=BATCH,
            num_workers=WORKERS,
            multiprocessing_context="spawn" if WORKERS else None,
        )
    if KIND == "loading":
        for _ in loader:
            rate = clock.count()
            if rate is not None:
                tell(rate)
                return
    trainer = L.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_steps=warm_up + measured + 1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=KIND != "training",
    )
    trainer.fit(Model(clock), loader)


if __name__ == "__main__":
    main()
