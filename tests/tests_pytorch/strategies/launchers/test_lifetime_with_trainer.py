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
import os
import sys

import pytest

from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call
from tests_fabric.helpers.needs import needs
from tests_fabric.helpers.scripts import RECORD, WAIT_FOR, run_script, under_main_guard
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

STEPS = 5
DEFINITIONS = f"""
import os
import signal
import sys
import threading

import torch

from lightning.fabric.strategies.launchers import ranks
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

STEPS = {STEPS}
if sys.platform != "win32":
    ranks._GRACE = 100  # nothing is to depend on how fast this machine is


class Logger(CSVLogger):
    def finalize(self, status):
        super().finalize(status)
        record("finalize", status=status, rank=int(os.environ.get("LOCAL_RANK", "-1")))


class SaveOnException(OnExceptionCheckpoint):
    def on_exception(self, trainer, *args):
        super().on_exception(trainer, *args)
        record("on_exception", rank=trainer.global_rank, step=trainer.global_step, exception=type(args[-1]).__name__)


class Model(BoringModel):
    def on_train_batch_start(self, batch, index):
        if index == STEPS and self.current_epoch == 0:
            record("rank", rank=self.global_rank)
            self.strike()

    def strike(self):
        pass


def fit(model, strategy, callback=SaveOnException):
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        limit_val_batches=0,
        max_epochs=-1,
        callbacks=callback("."),
        logger=Logger("."),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    record("after")
"""


def run_fit(tmp_path, strategy, strike, callback="SaveOnException", definitions=""):
    definitions = f"""
class Struck(Model):
    def strike(self):
        {strike}

{definitions}
"""
    body = f"""
    os.environ.setdefault("LAUNCHER", str(os.getpid()))
    fit(Struck(), {strategy!r}, {callback})
    """
    return run_script(tmp_path, RECORD, DEFINITIONS, definitions, under_main_guard(body), limit=150)


# Seen in Wine: there, gloo does not tell a rank in a collective that another one is gone
NOTICES_OTHERS = sys.platform != "win32"


# Since release 2.4: until then, Ctrl+C ends the fit, and the script goes on
INTERRUPT_ENDS_SCRIPT = hasattr(call, "_get_sigkill_signal")
# Since release 2.5.3: until then, a rank that is told to end (SIGTERM) leaves after its batch
RANKS_END_TOGETHER = hasattr(_TrainingEpochLoop, "_broadcast_sigterm_tensor")


def assert_shut_down_in_order(run, tmp_path, ends_script=True):
    assert run.returncode == int(ends_script), run.output
    assert bool(run.of("after")) != ends_script
    saved = [record for record in run.of("on_exception") if record["rank"] == 0]
    assert [record["step"] >= STEPS for record in saved] == [True], run.output
    assert (tmp_path / "on_exception.ckpt").is_file()
    assert [record["status"] for record in run.of("finalize") if record["rank"] == 0] == ["failed"]
    assert {record["rank"] for record in run.of("on_exception")} <= {0, 1}  # nobody else has run callbacks


INTERRUPTS = {
    "terminal": "signal.raise_signal(signal.SIGINT)",  # reaches all processes
    "launcher": "self.global_rank == 1 and os.kill(int(os.environ['LAUNCHER']), signal.SIGINT)",
    "rank 0": "self.global_rank == 0 and signal.raise_signal(signal.SIGINT)",
    "break": "signal.raise_signal(signal.SIGBREAK)",
}


INTERRUPTED = [
    ("ddp", "terminal"),
    pytest.param("ddp", "break", marks=needs(windows=True)),
    pytest.param("ddp_spawn", "launcher", marks=needs(start_method="fork")),
]
if os.getenv("PL_RUN_LAUNCH_MATRIX") == "1":
    INTERRUPTED += [("ddp_spawn", "rank 0"), pytest.param("ddp", "launcher", marks=needs(start_method="fork"))]


@pytest.mark.parametrize(("strategy", "interrupt"), INTERRUPTED)
def test_interrupt_ends_everything_in_order(strategy, interrupt, tmp_path):
    """Ctrl+C saves a checkpoint once and finalizes the loggers, wherever the ranks are, and ends all processes."""
    run = run_fit(tmp_path, strategy, INTERRUPTS[interrupt])
    assert_shut_down_in_order(run, tmp_path, INTERRUPT_ENDS_SCRIPT)
    if interrupt != "rank 0":
        assert "Lightning has ended this job" not in run.output


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_exception_saves_a_checkpoint_in_rank_zero(strategy, tmp_path):
    """When another rank fails, rank 0 has the time to save what it has, and waits for nobody."""
    run = run_fit(tmp_path, strategy, "if self.global_rank == 1: raise ValueError('the reason')")
    if NOTICES_OTHERS:
        assert_shut_down_in_order(run, tmp_path)
    assert run.returncode == 1, run.output
    assert run.output.rstrip().endswith("ValueError: the reason")


def test_second_interrupt_ends_everything_at_once(tmp_path):
    """Somebody who is impatient need not wait for an orderly end."""
    definitions = """
class Slow(SaveOnException):
    def on_exception(self, trainer, *args):
        if trainer.global_rank == 0:
            record("slow")
            signal.raise_signal(signal.SIGINT)
        threading.Event().wait()
"""
    run = run_fit(tmp_path, "ddp", INTERRUPTS["terminal"], "Slow", definitions)
    assert run.of("slow"), run.output
    assert run.returncode != 0


def test_second_interrupt_ends_a_launcher_in_a_collective(tmp_path):
    """A launcher that waits in a collective can't react to the first Ctrl+C."""
    definitions = """
def interrupt(ended=threading.Event()):
    # one may come before the collective; two that come in it are enough
    while not ended.wait(0.1):
        signal.raise_signal(signal.SIGINT)


def wait_in_collective(rank):
    if rank == 1:
        threading.Event().wait()
    thread = threading.Thread(target=interrupt)
    while True:
        try:
            if not thread.is_alive():
                thread.start()
            torch.distributed.barrier()
        except KeyboardInterrupt:
            pass
"""
    run = run_fit(tmp_path, "ddp", "wait_in_collective(self.global_rank)", definitions=definitions)
    assert run.returncode == 130, run.output
    assert not run.of("on_exception")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a process could react to")
def test_termination_of_one_rank_ends_the_job(tmp_path):
    """A rank that is told to end, and alone would wait for the others, ends them as well."""
    strike = "if self.global_rank == 1: os.kill(os.getpid(), signal.SIGTERM)"
    run = run_fit(tmp_path, "ddp", strike, definitions="ranks._GRACE = 1")
    assert run.returncode == 1, run.output
    assert "was told to end (SIGTERM)" in run.output.rstrip().splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a process could react to")
@pytest.mark.parametrize(
    "told",
    [
        "launcher",
        "all",
        pytest.param("rank 0", marks=pytest.mark.skipif(not RANKS_END_TOGETHER, reason="Ranks end each by itself")),
    ],
)
def test_termination_ends_all_ranks_in_order(told, tmp_path):
    """Ranks that are told to end do so after the same batch, wherever that reaches them, and nobody has failed."""
    definitions = f"""{WAIT_FOR}
def terminate(model):
    wait_for("rank 1 in the batch", rank=1)  # which goes on, and waits for rank 0 in a collective
    if model.global_rank == 0:
        launcher = model.trainer.strategy.launcher
        if {told == "all"}:
            launcher.procs[0].terminate()
        if {told == "rank 0"}:
            launcher.kill = lambda signum: None  # the other learns of it in time all the same
        os.kill(os.getpid(), signal.SIGTERM)
"""
    run = run_fit(tmp_path, "ddp", "terminate(self)", definitions=definitions)
    assert run.returncode == 0, run.output
    assert "Lightning has ended this job" not in run.output
    assert not run.of("after")
    assert {record["rank"] for record in run.of("on_exception")} == {0, 1}
    assert {record["exception"] for record in run.of("on_exception")} == {"SIGTERMException"}
    assert len({record["step"] for record in run.of("on_exception")}) == 1
    assert (tmp_path / "on_exception.ckpt").is_file()


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_script_goes_on_after_an_exception(strategy, tmp_path):
    """An exception that the script handles is no failure of the job."""
    definitions = """
    class Failing(Model):
        def strike(self):
            raise ValueError("not the end")


    def fit_and_fail(strategy):
        try:
            fit(Failing(), strategy)
        except Exception as exception:
            record("caught", message=str(exception))
        record("went on")
    """
    body = f"fit_and_fail({strategy!r})"
    run = run_script(tmp_path, RECORD, DEFINITIONS, definitions, under_main_guard(body), limit=150)
    assert run.returncode == 0, run.output
    assert len(run.of("went on")) == (2 if strategy == "ddp" else 1)
    assert all("not the end" in record["message"] for record in run.of("caught"))
