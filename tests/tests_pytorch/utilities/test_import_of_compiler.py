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
"""Whether and when ``torch._dynamo`` is imported; each test needs an interpreter in which nobody has done so yet."""

import subprocess
import sys

import pytest
import torch

from lightning.fabric.wrappers import _unwrap_compiled
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

_IMPORT = """
import sys
import torch

at_first = "torch._dynamo" in sys.modules  # where torch itself does it, there is nothing to save
import lightning.pytorch as pl
assert at_first or "torch._dynamo" not in sys.modules, "Importing Lightning imports torch._dynamo."
"""
_MODEL = """
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
_COMPILE = """
from lightning.fabric.wrappers import _unwrap_compiled, is_wrapped
from lightning.pytorch.utilities.compile import _maybe_unwrap_optimized, to_uncompiled

model = Model()
assert _maybe_unwrap_optimized(model) is model
assert _unwrap_compiled(model) == (model, None)
assert not is_wrapped(model)
assert at_first or "torch._dynamo" not in sys.modules, "Looking for compiled modules imports torch._dynamo."

compiled = torch.compile(model, backend="eager")
assert not isinstance(compiled, pl.LightningModule)
assert _unwrap_compiled(compiled) == (model, {"backend": "eager"})
assert _maybe_unwrap_optimized(compiled) is model
assert model._compiler_ctx is not None
assert to_uncompiled(model) is model
assert model._compiler_ctx is None
"""
_TRAIN = """
trainer = pl.Trainer(
    accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(torch.compile(Model(), backend="eager"), torch.ones(2, 3, 2))
assert trainer.global_step == 2
"""
_LOG = """
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

def count_graphs(log):
    graphs = []
    results = _ResultCollection(training=True)

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=count)
    def step(x):
        y = x * 2
        log(results, "training_step", "loss", y.sum(), on_step=True, on_epoch=True)
        return y + 1

    for _ in range(2):
        step(torch.ones(2))
    assert results["training_step.loss"].value == 8
    return len(graphs)

assert count_graphs(_ResultCollection.log) == count_graphs(torch.compiler.disable(_ResultCollection.log.__wrapped__))
"""


def _run(script, tmp_path):
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_import_leaves_the_compiler_alone(tmp_path):
    """A spawned worker imports all that its script imports, and never compiles anything."""
    _run(_IMPORT, tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Requires: [a platform that torch can compile on]")
@pytest.mark.parametrize(
    "then",
    [
        pytest.param(
            _COMPILE,
            id="unwrap",
            marks=pytest.mark.skipif(
                not isinstance(_unwrap_compiled(torch.nn.Identity()), tuple),
                reason="This release imports the compiler to look for compiled modules",
            ),
        ),
        pytest.param(_TRAIN, id="train"),
    ],
)
def test_compiled_modules_are_recognized(tmp_path, then):
    _run(_IMPORT + _MODEL + then, tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Requires: [a platform that torch can compile on]")
@pytest.mark.skipif(
    not hasattr(_ResultCollection.log, "__wrapped__"), reason="This release has the compiler look into the logging"
)
def test_logging_is_not_compiled(tmp_path):
    """The compiler leaves it alone, as if it were decorated with ``torch.compiler.disable``."""
    _run(_IMPORT + _LOG, tmp_path)
