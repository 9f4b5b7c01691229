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
"""What a test needs of the machine, in the manner of upstream's ``RunIf``."""

import ctypes
import multiprocessing
import sys

import pytest

from lightning.fabric.utilities.store import _takes_listener


def needs(
    start_method: str = "spawn",
    listener: bool = False,
    libuv: bool = False,
    port_owners: bool = False,
    windows: bool = False,
) -> pytest.MarkDecorator:
    """Skip a test where the machine lacks what it needs, and say what that is.

    A test that could run on Windows is not to be skipped there: there is no argument for 'not on Windows'.

    Args:
        start_method: A start method of :mod:`multiprocessing`. Windows has ``"spawn"`` only.
        listener: Whether torch's store has to take a socket that listens, which it does not in release 2.0.
        libuv: Whether torch needs libuv, which no build for Windows has. The launcher ``torchrun`` insists on it.
        port_owners: Whether the system has to tell which process listens on a port. Wine 8 does not.
        windows: Whether it is about Windows.

    """
    missing = []
    if start_method not in multiprocessing.get_all_start_methods():
        missing.append(f"the start method '{start_method}'")
    if listener and not _takes_listener():
        missing.append("a torch whose store takes a socket that listens")
    if libuv and sys.platform == "win32":
        missing.append("a torch with libuv")
    if port_owners and is_wine():
        missing.append("a system that tells which process listens on a port")
    if windows and sys.platform != "win32":
        missing.append("Windows")
    return pytest.mark.skipif(bool(missing), reason=f"Requires: [{' + '.join(missing)}]")


def is_wine() -> bool:
    """Whether this is Wine instead of Windows."""
    return sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
