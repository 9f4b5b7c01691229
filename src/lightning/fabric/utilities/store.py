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
"""Torch's store, in the spellings of all its releases."""

import os
import sys
from typing import Any

import torch


def _takes_listener() -> bool:
    """Whether torch's store can be given a listening socket, which it can't in release 2.0."""
    return _has_argument("master_listen_fd")


def _make_store(*args: Any, **kwargs: Any) -> "torch.distributed.TCPStore":
    """Make a store, with libuv where the user or torch's own default for this system wants it.

    Args:
        *args: The arguments of :class:`torch.distributed.TCPStore`.
        **kwargs: More of them.

    """
    if _has_argument("use_libuv") and ("USE_LIBUV" in os.environ or sys.platform == "win32"):
        kwargs.setdefault("use_libuv", os.environ.get("USE_LIBUV") == "1")
    return torch.distributed.TCPStore(*args, **kwargs)


def _has_argument(name: str) -> bool:
    """Whether the store has an argument of this name, which only the text of its signature tells."""
    return name in str(torch.distributed.TCPStore.__init__.__doc__)
