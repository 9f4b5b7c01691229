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
import errno
import os
import socket
import sys
from unittest import mock

import pytest

from lightning.fabric.utilities.port_holder import _describe_refusal, _find_port_holder
from tests_fabric.helpers.needs import needs
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")


@needs(port_owners=True)
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_holder_is_found(family, host):
    """This process is found, with its program, as long as it listens and no longer."""
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip("This machine has no IPv6")
        port = listener.getsockname()[1]
        assert _find_port_holder(port) is None
        listener.listen()
        holder = _find_port_holder(port)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert "py" in holder.program
        assert str(holder) == f"process {os.getpid()} ({holder.program})"
        assert _describe_refusal(OSError(errno.EADDRINUSE, "in use"), port) == f"{holder} listens on it."
        # What Windows says where the other socket is an exclusive one
        assert _describe_refusal(OSError(10013, "forbidden"), port) == f"{holder} listens on it."


def test_holder_that_the_system_does_not_tell():
    with mock.patch("lightning.fabric.utilities.port_holder._find_port_holder", return_value=None):
        assert _describe_refusal(OSError(10048, "in use"), 29500) == "another process listens on it."


@pytest.mark.parametrize(
    ("platform", "port", "expected"),
    [
        ("win32", 29500, "netsh interface ipv4 show excludedportrange protocol=tcp"),
        ("linux", 80, "ports below 1024 need special rights"),
        ("linux", 29500, "it is reserved by the system."),
    ],
)
@pytest.mark.parametrize("number", [errno.EACCES, 10013])
def test_reserved_port(platform, port, expected, number):
    """Windows reserves ranges of ports, which only its error number tells."""
    find = mock.patch("lightning.fabric.utilities.port_holder._find_port_holder", return_value=None)
    with find, mock.patch("sys.platform", platform):
        assert expected in _describe_refusal(OSError(number, "forbidden"), port)


def test_other_refusals():
    assert (
        _describe_refusal(OSError(errno.EMFILE, "too many files"), 29500)
        == "the system says '[Errno 24] too many files'."
    )


def test_system_without_tables():
    """The search only adds to a message: it does not fail."""
    finder = {"win32": "_find_on_windows", "linux": "_find_on_linux"}.get(sys.platform, "_find_with_lsof")
    with mock.patch(f"lightning.fabric.utilities.port_holder.{finder}", side_effect=OSError):
        assert _find_port_holder(29500) is None
