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
from unittest import mock

import pytest
import torch

from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from lightning.fabric.utilities import process_group_backend
from lightning.fabric.utilities.distributed import _get_default_process_group_backend_for_device
from lightning.fabric.utilities.process_group_backend import _check_process_group_backend
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")


@pytest.fixture(autouse=True)
def say_again():
    yield
    process_group_backend._say_gloo_is_used.cache_clear()
    process_group_backend._say_variable_is_dead.cache_clear()


def with_nccl(available):
    """Whether torch was built with NCCL, which no build for this machine may be."""
    return mock.patch("torch.distributed.is_nccl_available", return_value=available)


@pytest.mark.parametrize(
    ("devices", "available", "expected", "times"), [(2, True, "nccl", 0), (2, False, "gloo", 1), (0, False, "nccl", 0)]
)
def test_default_backend(devices, available, expected, times):
    """Without NCCL, CUDA devices get gloo, which is said once."""
    cuda = mock.patch("lightning.fabric.accelerators.cuda.num_cuda_devices", return_value=devices)
    with cuda, with_nccl(available), mock.patch.object(process_group_backend, "rank_zero_info") as info:
        for _ in range(2):
            assert _get_default_process_group_backend_for_device(torch.device("cuda", 0)) == expected
        assert _get_default_process_group_backend_for_device(torch.device("cpu")) == "gloo"
    assert info.call_count == times


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize("strategy_class", [DDPStrategy, FSDPStrategy])
def test_backend_that_is_not_there(strategy_class, backend):
    strategy = strategy_class(process_group_backend=backend)
    with with_nccl(False), pytest.raises(RuntimeError, match='Use `process_group_backend="gloo"`'):
        _check_process_group_backend(strategy)
    with with_nccl(True):
        _check_process_group_backend(strategy)


@pytest.mark.parametrize("strategy", [DDPStrategy(), DDPStrategy(process_group_backend="gloo"), SingleDeviceStrategy()])
def test_backend_that_is_there(strategy):
    with with_nccl(False):
        _check_process_group_backend(strategy)


@pytest.mark.parametrize("package", ["fabric", "pytorch"])
def test_error_comes_before_any_process(package):
    """The error is raised where the user's script makes the object, not in a rank."""
    module = pytest.importorskip(f"lightning.{package}")
    strategies = pytest.importorskip(f"lightning.{package}.strategies")
    make = getattr(module, {"fabric": "Fabric", "pytorch": "Trainer"}[package])
    with with_nccl(False), pytest.raises(RuntimeError, match="doesn't have NCCL built in"):
        make(accelerator="cpu", devices=2, strategy=strategies.DDPStrategy(process_group_backend="nccl"))


def test_variable_without_effect():
    """It is named once, with what to write instead, and not where no process group is made."""
    with mock.patch.dict(os.environ, {"PL_TORCH_DISTRIBUTED_BACKEND": "gloo"}):
        with mock.patch.object(process_group_backend, "rank_zero_warn") as warn:
            Fabric(accelerator="cpu", devices=1)
            assert warn.call_count == 0
            for _ in range(2):
                Fabric(accelerator="cpu", devices=2, strategy="ddp")
        (message,) = warn.call_args.args
        assert warn.call_count == 1
        assert "DDPStrategy(process_group_backend='gloo')" in message
