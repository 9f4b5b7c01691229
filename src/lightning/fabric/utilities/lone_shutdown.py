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
"""The shutdown of a rank after an exception, when the other ranks can be anywhere, or gone."""

from contextlib import contextmanager
from typing import Iterator

import torch


@contextmanager
def _shutdown_alone(alone: bool) -> Iterator[None]:
    """Let collectives of Lightning's strategies concern this rank only; runs in ranks, to deal with an exception.

    A rank that saves a checkpoint then would wait for the others at its end, in vain. All collectives of Lightning, and
    those of torchmetrics, ask torch first whether there is a process group: by functions that differ between releases.

    Args:
        alone: Whether to do so.

    """
    if not alone or not torch.distributed.is_available():
        yield
        return
    is_initialized = torch.distributed.is_initialized
    torch.distributed.is_initialized = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_initialized = is_initialized
