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
import re
import socket
from datetime import timedelta
from unittest import mock

import pytest
import torch

from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.distributed import _init_dist_connection
from lightning.fabric.utilities.main_port import _bind
from lightning.fabric.utilities.rendezvous_errors import _explain_failure, _Meeting
from tests_fabric.helpers.needs import needs
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")


def make_meeting(rank=0, missing=()):
    return _Meeting(rank, 4, "127.0.0.1", 29500, lambda: list(missing))


@pytest.mark.parametrize(
    ("text", "explanation"),
    [
        # Texts of torch 1.11 to 2.15, on Linux and Windows
        ("The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98,"
         " name: EADDRINUSE, message: address already in use", "can't listen on the main port 29500"),
        ("The server socket has failed to listen on any local network address. The server socket has failed to bind to"
         " [::]:29500 (errno: 98 - Address already in use).", "can't listen on the main port 29500"),
        ("The server socket has failed to bind to 0.0.0.0:29500 (system error: 10048 - Only one usage of each socket"
         " address (protocol/network address/port) is normally permitted.).", "can't listen on the main port 29500"),
        ("The server socket has failed to listen on any local network address. The server socket has failed to bind to"
         " DESKTOP:29500 (system error: 10013 - An attempt was made to access a socket in a way forbidden by its access"
         " permissions.).", "must not listen on the main port 29500"),
        ("The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).", "must not listen"),
        ("use_libuv was requested but PyTorch was build without libuv support", "USE_LIBUV=0"),
        ("use_libuv was requested but PyTorch was built without libuv support, run with USE_LIBUV=0 to disable it.",
         "USE_LIBUV=0"),
        ("makeDeviceForHostname(): unsupported gloo device", "2.8, 2.9 and 2.10 for Windows"),
        ("makeUVDevice(): interface or hostname can't be empty", "is blank"),
        ("[enforce fail at gloo/transport/uv/device.cc:153] rp != nullptr. Unable to find address for: 127.0.0.1",
         "GLOO_SOCKET_IFNAME"),
        ("Distributed package doesn't have NCCL built in", 'process_group_backend="gloo"'),
        ("Timed out after 61 seconds waiting for clients. 1/4 clients joined.", "ranks came to 127.0.0.1, port 29500"),
        ("The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29500).", "timedelta"),
        # The number of a port is not taken for that of an error
        ("The client socket has timed out after 60000ms while trying to connect to (localhost, 10048).", "timedelta"),
        ("connect() timed out. Original timeout was 1800000 ms.", "timedelta"),
        ("Socket Timeout", "timedelta"),
        ("wait timeout after 10000ms, keys: /default_pg/0//cpu//0/0", "timedelta"),
        ("The IPv4 network addresses of (nowhere, 29500) cannot be retrieved (gai error: -2 - Name or service not"
         " known).", "can't reach the main address"),
        ("The client socket has failed to connect to any network address of (10.0.0.1, 29500). The client socket has"
         " failed to connect to 10.0.0.1:29500 (errno: 113 - No route to host).", "can't reach the main address"),
    ],
)  # fmt: skip
def test_explanations(text, explanation):
    """Each error, in any case, keeps its type and its text, and says why it is raised and what to do."""
    # torch 2.0 does not have the type
    error_type = getattr(torch.distributed, "DistStoreError", RuntimeError)
    for original in (RuntimeError(text), error_type(text.upper())):
        with pytest.raises(type(original), match=re.escape(explanation)) as caught, _explain_failure(make_meeting()):
            raise original
        assert type(caught.value) is type(original)
        assert caught.value.__cause__ is original
        assert str(original) in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("something else"), ValueError(""), KeyboardInterrupt("timed out")])
def test_unknown_errors_pass_through(error):
    with pytest.raises(type(error)) as caught, _explain_failure(make_meeting()):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_error_that_cannot_be_made_from_a_message():
    class OddError(RuntimeError):
        def __init__(self, one, two):
            super().__init__(one)

    with pytest.raises(RuntimeError, match="USE_LIBUV=0"), _explain_failure(make_meeting()):
        raise OddError("use_libuv was requested", 2)


def test_missing_ranks_are_named():
    text = "Timed out after 61 seconds waiting for clients. 2/4 clients joined."
    expected = "Only 2 of 4 ranks came to 127.0.0.1, port 29500 in time. Missing: rank 1, 3"
    with pytest.raises(RuntimeError, match=expected), _explain_failure(make_meeting(missing=[1, 3])):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="Rank 2 waited"), _explain_failure(make_meeting(rank=2)):
        raise RuntimeError(text)


@pytest.mark.parametrize(("platform", "harmless"), [("win32", True), ("linux", False)])
def test_noise_is_explained_on_windows(platform, harmless):
    text = "The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29500)."
    with mock.patch("sys.platform", platform), pytest.raises(RuntimeError) as caught, _explain_failure(make_meeting()):
        raise RuntimeError(text)
    assert ("10049, from attempts to connect over IPv6, are harmless" in str(caught.value)) == harmless


def init_process_group(monkeypatch, port, world_size):
    """Make this process rank 0, where another launcher has started the ranks."""
    for name, value in (("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(port))):
        monkeypatch.setenv(name, value)
    _init_dist_connection(LightningEnvironment(), "gloo", 0, world_size, timeout=timedelta(seconds=2))


@needs(port_owners=True)
def test_holder_of_the_port_is_named(monkeypatch):
    """A rank of another launcher, where the port can't be chosen here, tells who has it."""
    with _bind("0.0.0.0", 0) as listener:  # noqa: S104
        with pytest.raises(RuntimeError, match=rf"Rank 0 can't listen on the main port \d+: process {os.getpid()}"):
            init_process_group(monkeypatch, listener.getsockname()[1], world_size=2)


def test_gloo_without_a_device(monkeypatch, free_port):
    """What the releases of torch without gloo for Windows raise, raised by torch itself."""
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "BOGUS")
    with pytest.raises(RuntimeError, match="install 2.7 or 2.11"):
        init_process_group(monkeypatch, free_port, world_size=1)


def test_rank_that_does_not_come(monkeypatch, free_port):
    """What torch's store raises when it waits in vain, raised by torch itself."""
    with pytest.raises(RuntimeError, match="Not all 2 ranks came to 127.0.0.1"):
        init_process_group(monkeypatch, free_port, world_size=2)


@pytest.fixture
def free_port():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    return port
