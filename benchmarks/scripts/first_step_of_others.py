"""Train the step of ``first_step.py`` without Lightning and print when: ``first_step_of_others.py LIBRARY RANKS``.

With ``torch`` and ``accelerate`` a launcher has started this for each rank; ``ray`` starts its ranks itself.

"""

import json
import os
import sys
import time
from pathlib import Path

import torch


def train(rank: int) -> None:
    """Train one step in a process group that is there, and print in rank 0 how long it took to get there."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(1, 1)):
        model(batch).mean().backward()
        optimizer.step()
    tell(rank)


def tell(rank: int) -> None:
    """Print in rank 0 how long it took to get here."""
    if rank == 0:
        print(json.dumps({"first step": time.perf_counter() - float(os.environ["BENCH_STARTED"])}), flush=True)


def train_with_torch() -> None:
    """Do as a script for torchrun does."""
    torch.distributed.init_process_group("gloo")
    train(torch.distributed.get_rank())
    torch.distributed.destroy_process_group()


def train_with_accelerate() -> None:
    """Do the same as a script for Accelerate does it."""
    from accelerate import Accelerator  # local import: it is a part of this launch only

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(torch.ones(64, 1)))
    for batch in loader:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        break
    tell(accelerator.process_index)
    accelerator.end_training()


def train_with_ray(ranks: int) -> None:
    """Do the same as a script for Ray Train does it."""
    import ray  # local imports: they are a part of this launch only
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2 * ranks, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    done = Path("done").resolve()

    def loop() -> None:
        from ray.train import get_context  # local import: this runs in a rank

        rank = get_context().get_world_rank()
        train(rank)
        if rank == 0:
            done.write_text(str(time.perf_counter()), encoding="utf-8")

    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=ranks)).fit()
    seconds = float(done.read_text(encoding="utf-8")) - float(os.environ["BENCH_STARTED"])
    print(json.dumps({"first step": seconds}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "torch":
        train_with_torch()
    elif sys.argv[1] == "accelerate":
        train_with_accelerate()
    else:
        train_with_ray(int(sys.argv[2]))
