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
from tests_fabric.helpers.scripts import DATA, expected_weight, run_script

pytestmark = [needs(start_method="forkserver"), pytest.mark.usefixtures("leave_nothing_behind")]


def test_ranks_from_a_fork_server_have_their_own_weights(tmp_path):
    """Each rank trains a copy of the module that it was launched with, also where a pickle brought it there."""
    body = """
    import multiprocessing

    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    multiprocessing.set_start_method("forkserver", force=True)


    def train(fabric, layer):
        layer, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=1.0))
        for _, numbers in fabric.setup_dataloaders(make_loader(Numbers(), num_workers=1)):
            optimizer.zero_grad()
            fabric.backward(layer(numbers).mean())
            optimizer.step()
        record("rank", rank=fabric.global_rank, weight=layer.weight.item())


    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(start_method="forkserver"))
    fabric.launch(train, make_layer())
    """
    run = run_script(tmp_path, DATA, body)
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=2)] * 2
