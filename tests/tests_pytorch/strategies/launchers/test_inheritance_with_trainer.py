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
from unittest import mock
from unittest.mock import Mock

import pytest

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from tests_fabric.helpers.scripts import DATA, assert_trained, expected_weight, run_scenario, run_script, scenarios
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

SPAWN = "import multiprocessing\n\nmultiprocessing.set_start_method('spawn', force=True)"

MODEL = """
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy

quiet = dict(
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    logger=False,
    num_sanity_val_steps=0,
)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = make_layer()
        self.seen = []

    def training_step(self, batch, batch_idx):
        indices, numbers = batch
        self.seen += indices.tolist()
        return self.layer(numbers).mean()

    def validation_step(self, batch, batch_idx):
        pass

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def on_train_end(self):
        record("rank", rank=self.global_rank, seen=self.seen, weight=self.layer.weight.item())
"""


@pytest.mark.parametrize("scenario", scenarios())
def test_trainer_trains_with_workers(scenario, tmp_path):
    """A script trains with DataLoader workers as the user wrote it, however it launches and is started."""
    body = f"""
    workers = dict(num_workers=2, persistent_workers={scenario.persistent})
    loaders = [make_loader(Numbers(), **workers) for _ in range({2 if scenario.validates else 1})]
    strategy = {scenario.launched_by!r}
    trainer = Trainer(
        accelerator="cpu", devices={scenario.devices}, strategy=strategy, max_epochs={scenario.epochs}, **quiet
    )
    trainer.fit(Model(), *loaders)
    record("after")
    """
    run = run_scenario(scenario, tmp_path, MODEL, body)
    assert_trained(run, scenario)
    assert run.output.count("GPU available") == 1  # no worker announces the run again


def test_same_as_without_workers(tmp_path):
    """The reproduction of #17777 computes with workers what it computes without, on both ranks."""
    weights = {}
    for num_workers in (0, 2):
        body = f"""
        torch.manual_seed(1)
        model = Model()
        torch.nn.init.normal_(model.layer.weight)
        strategy = DDPStrategy(process_group_backend="gloo")
        trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, **quiet)
        trainer.fit(model, make_loader(Numbers(), num_workers={num_workers}))
        """
        folder = tmp_path / str(num_workers)
        folder.mkdir()
        run = run_script(folder, SPAWN, DATA, MODEL, body)
        assert run.returncode == 0, run.output
        weights[num_workers] = [record["weight"] for record in run.of("rank")]
        assert run.output.count("launches without an `if __name__") == (1 if num_workers else 0)
    assert len(set(weights[0] + weights[2])) == 1
    assert len(weights[0]) == len(weights[2]) == 2


@pytest.mark.parametrize("strategy", ["DDPStrategy()", "'ddp_spawn'"])
def test_ddp_on_cpu_that_no_accelerator_names(strategy, tmp_path):
    """Strategies for CPU training that were given without an accelerator, as in #6208."""
    body = f"""
    trainer = Trainer(devices=2, strategy={strategy}, max_epochs=1, **quiet)
    trainer.fit(Model(), make_loader(Numbers(), num_workers=1))
    """
    # hides the GPUs of a machine that has some
    run = run_script(tmp_path, SPAWN, DATA, MODEL, body, env={"CUDA_VISIBLE_DEVICES": ""})
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=2)] * 2


def test_nothing_after_the_launch_runs_in_a_worker(tmp_path):
    """The import of the script ends silently in a worker, whatever handles exceptions around the launch."""
    definitions = """
    class Recorder(Callback):
        def on_exception(self, trainer, pl_module, exception):
            record("on_exception")

        def teardown(self, trainer, pl_module, stage):
            record("teardown")


    class Logger(CSVLogger):
        def finalize(self, status):
            record("finalize", status=status)
    """
    body = """
    quiet["logger"] = Logger(".")
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=Recorder(), **quiet)
    outcome = []
    try:
        outcome.append(trainer.fit(Model(), make_loader(Numbers(), num_workers=2)))
    except Exception as exception:
        record("except", error=repr(exception))
    finally:
        del collate  # which workers need
        outcome.pop()  # fails in a worker
    record("after")
    """
    run = run_script(tmp_path, SPAWN, DATA, MODEL, definitions, body)
    assert run.returncode == 0, run.output
    assert len(run.of("worker")) == 4
    assert len(run.of("after")) == len(run.of("teardown")) == 2
    assert [record["status"] for record in run.of("finalize")] == ["success"] * len(run.of("finalize"))
    assert not {record["pid"] for record in run.of("finalize")} & {record["pid"] for record in run.of("worker")}
    assert not run.of("except")
    assert not run.of("on_exception")
    assert "IndexError" not in run.output


def test_stages_one_after_the_other(tmp_path):
    """Workers of a later stage import the script up to the first launch, which is where they find their dataset."""
    body = """
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, **quiet)
    trainer.fit(Model(), make_loader(Numbers(), num_workers=1))
    trainer.test(Model(), make_loader(Numbers(), num_workers=1), verbose=False)
    record("after")
    """
    run = run_script(tmp_path, SPAWN, DATA, MODEL, body)
    assert run.returncode == 0, run.output
    assert len(run.of("worker")) == 2
    assert len(run.of("after")) == 1


def test_collate_function_between_two_stages(tmp_path):
    """What a script defines between ``fit`` and ``test`` is missing in the workers of ``test``; their error says so."""
    body = """
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, **quiet)
    trainer.fit(Model(), make_loader(Numbers(), num_workers=0))


    def late_collate(samples):
        return collate(samples)


    trainer.test(Model(), DataLoader(Numbers(), num_workers=1, collate_fn=late_collate), verbose=False)
    """
    run = run_script(tmp_path, SPAWN, DATA, MODEL, body)
    assert run.returncode != 0
    assert f"`late_collate` is not defined in {tmp_path / 'train.py'} at line" in run.output
    assert "Move the definition of `late_collate` above line" in run.output


def test_fit_in_running_worker(tmp_path):
    """A dataset can't launch processes with a Trainer, and no callback of that Trainer hears of it."""
    definitions = """
    class Recorder(Callback):
        def on_exception(self, trainer, pl_module, exception):
            record("on_exception")


    class Launching(Numbers):
        def __getitem__(self, index):
            trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", callbacks=Recorder(), **quiet)
            trainer.fit(Model(), make_loader(Numbers()))
    """
    body = """
    trainer = Trainer(accelerator="cpu", devices=1, **quiet)
    trainer.fit(Model(), make_loader(Launching(), num_workers=1))
    """
    run = run_script(tmp_path, SPAWN, DATA, MODEL, definitions, body)
    assert run.returncode != 0
    assert "RuntimeError: Lightning can't launch processes from within a DataLoader worker" in run.output
    assert not run.of("on_exception")


@mock.patch("lightning.pytorch.trainer.call._guard_launch", side_effect=RuntimeError("stop"))
def test_guard_is_outside_of_the_error_handling(guard):
    """What the guard raises reaches no callback, no logger and no teardown."""
    callback = Mock(spec_set=["on_exception"])
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    trainer.callbacks.append(callback)
    with mock.patch.object(trainer, "_teardown") as teardown, pytest.raises(RuntimeError, match="stop"):
        trainer.fit(BoringModel())
    teardown.assert_not_called()
    callback.on_exception.assert_not_called()
    guard.assert_called_once_with(multiple_processes=False)
