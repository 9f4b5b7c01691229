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
"""Which backend of ``torch.distributed`` a build of torch has for a device, and what users read who ask for another."""

import functools
import os
from typing import Any

import torch

from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

_DEAD_VARIABLE = "PL_TORCH_DISTRIBUTED_BACKEND"


def _available_backend(backend: str) -> str:
    """Return the default backend of a device, or gloo in place of an NCCL that torch was built without.

    Runs in every rank. Torch names NCCL as the backend of CUDA devices on all systems, but no build for Windows has it.

    Args:
        backend: The name of the backend that torch has in its table for the device.

    """
    # local import to avoid a circular import
    from lightning.fabric.accelerators import cuda

    # Without a device, nothing will run there, and the answer can stay
    if backend != "nccl" or torch.distributed.is_nccl_available() or cuda.num_cuda_devices() == 0:
        return backend
    _say_gloo_is_used()
    return "gloo"


@functools.lru_cache(maxsize=None)
def _say_gloo_is_used() -> None:
    rank_zero_info("This build of torch has no NCCL, so the processes communicate by the gloo backend.")


def _check_process_group_backend(strategy: Any) -> None:
    """Check the backend that the user has chosen for a strategy; runs before any process is started.

    Args:
        strategy: The strategy. If it has no choice of backend, there is nothing to check.

    Raises:
        RuntimeError: If the user asks for NCCL and torch was built without it.

    """
    if not hasattr(strategy, "_process_group_backend"):
        return
    if os.environ.get(_DEAD_VARIABLE):
        _say_variable_is_dead(os.environ[_DEAD_VARIABLE])
    chosen = strategy._process_group_backend
    if (
        isinstance(chosen, str)
        and "nccl" in chosen
        and torch.distributed.is_available()
        and not torch.distributed.is_nccl_available()
    ):
        raise RuntimeError(
            f"The strategy was asked for `process_group_backend={chosen!r}`, but the installed torch doesn't have NCCL"
            ' built in. There is none for Windows and macOS. Use `process_group_backend="gloo"`, or leave the argument'
            " out: then Lightning chooses a backend that is there."
        )


@functools.lru_cache(maxsize=None)
def _say_variable_is_dead(value: str) -> None:
    rank_zero_warn(
        f"The environment variable `{_DEAD_VARIABLE}={value}` has had no effect since release 1.8. Choose the backend"
        f" with the strategy instead, as in `DDPStrategy(process_group_backend={value!r})`."
    )
