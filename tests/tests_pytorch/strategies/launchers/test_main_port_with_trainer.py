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

import pytest

from tests_fabric.helpers.needs import needs
from tests_fabric.helpers.scripts import RECORD, run_script, under_main_guard
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

DEFINITIONS = """
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel


class Model(BoringModel):
    def on_train_end(self):
        record("end", rank=self.global_rank, port=os.environ["MASTER_PORT"])


def fit(strategy):
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=1, limit_val_batches=0, **options)
    trainer.fit(Model())
    trainer.test(trainer.lightning_module, verbose=False)
"""


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        "ddp_spawn",
        pytest.param("ddp_fork", marks=needs(start_method="fork")),
    ],
)
def test_one_trainer_after_the_other(strategy, tmp_path):
    """Each Trainer fits and tests, and none takes the port of an earlier one for the user's choice."""
    body = f"for _ in range(2):\n    fit({strategy!r})\n"
    run = run_script(tmp_path, RECORD, DEFINITIONS, under_main_guard(body), args=["-W", "error::ResourceWarning"])
    assert run.returncode == 0, run.output
    assert sorted(record["rank"] for record in run.of("end")) == [0, 0, 1, 1]
    assert len({record["port"] for record in run.of("end")}) == (1 if strategy == "ddp" else 2)
    assert "can't be had" not in run.output
    assert "unclosed <socket" not in run.output
