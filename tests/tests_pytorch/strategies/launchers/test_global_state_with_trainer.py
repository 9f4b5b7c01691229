# Copyright The Lightning AI team.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
import itertools
import multiprocessing

import pytest

from tests_fabric.helpers.scripts import RECORD, run_script, under_main_guard
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

# The model uses the random numbers of its rank, the data none: only the workers' seeds are recorded
SCRIPT = f"""{RECORD}
import random

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from lightning.pytorch import LightningModule, Trainer, seed_everything


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        if info is not None:
            numbers = torch.rand(1).item(), random.random(), numpy.random.rand()
            record("worker", worker=info.id, seed=torch.initial_seed(), numbers=numbers)
        return torch.arange(index, index + 8).float() / 20


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        weights = [parameter.tolist() for parameter in self.parameters()]
        record("rank", rank=self.global_rank, losses=self.losses, weights=weights)


def train(strategy, start_method):
    seed_everything(7, workers=True)
    context = None if start_method is None else torch.multiprocessing.get_context(start_method)
    workers = dict(num_workers=2, multiprocessing_context=context) if context else {{}}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(Numbers(), batch_size=2, shuffle=True, **workers))
"""


def test_training_and_seeds_are_the_same(tmp_path):
    """Losses, weights and the workers' seeds do not depend on how ranks and workers start, bit by bit.

    Each worker of each rank has a seed of its own.

    """
    methods = multiprocessing.get_all_start_methods()
    runs = {}
    for strategy, start_method in [("ddp", None), *(("ddp", method) for method in methods), ("ddp_spawn", "spawn")]:
        folder = tmp_path / f"{strategy}-{start_method}"
        folder.mkdir()
        run = run_script(folder, SCRIPT, under_main_guard(f"train({strategy!r}, {start_method!r})"))
        assert run.returncode == 0, run.output
        runs[folder.name] = run

    def ranks(run):
        return sorted((record["rank"], record["losses"], record["weights"]) for record in run.of("rank"))

    def workers(run):
        return sorted((record["worker"], record["seed"], record["numbers"]) for record in run.of("worker"))

    without_workers = runs.pop("ddp-None")
    assert [rank for rank, _, _ in ranks(without_workers)] == [0, 1]
    assert len(ranks(without_workers)[0][1]) == 4  # batches of two from the half of sixteen
    assert workers(without_workers) == []
    seeds = {seed for _, seed, _ in workers(runs["ddp-spawn"])}
    assert len(seeds) == 2 * 2  # ranks, workers
    for (name, run), (other_name, other) in itertools.combinations(runs.items(), 2):
        assert workers(run) == workers(other), f"{name} and {other_name}"
    for name, run in runs.items():
        assert ranks(run) == ranks(without_workers), name
