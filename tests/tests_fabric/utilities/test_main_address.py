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
import socket
import subprocess
import sys
from unittest import mock

import pytest

from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities import main_address
from lightning.fabric.utilities.main_address import _check_localhost, _loopback_interface, _resolve
from lightning.fabric.utilities.main_port import _bind, _claim_main_port
from tests_fabric.helpers.needs import needs
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

IPV4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
IPV6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
FOREIGN = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))


@pytest.fixture(autouse=True)
def forget_localhost():
    yield
    _check_localhost.cache_clear()


def stand_for(*found):
    """What a name stands for is up to the system's administrator: this machine may lack ``::1 localhost``."""
    answer = {"return_value": list(found)} if found else {"side_effect": socket.gaierror("unknown")}
    return mock.patch("socket.getaddrinfo", **answer)


@pytest.mark.parametrize(
    ("platform", "address"), [("win32", "localhost"), ("linux", "127.0.0.1"), ("darwin", "127.0.0.1")]
)
def test_default_address(platform, address):
    with mock.patch("sys.platform", platform), mock.patch.dict(os.environ), stand_for(IPV4):
        os.environ.pop("MASTER_ADDR", None)
        assert LightningEnvironment().main_address == address


@pytest.mark.parametrize(
    ("found", "meaning"),
    [((), "can't be resolved"), ((FOREIGN,), "stands for 192.0.2.1"), ((IPV4, FOREIGN), "stands for 127.0.0.1, 192")],
)
def test_localhost_that_leads_elsewhere(found, meaning):
    """It is replaced, which is said once."""
    with mock.patch.dict(os.environ, {"MASTER_ADDR": "localhost"}), stand_for(*found):
        with pytest.warns(UserWarning, match=f"`localhost` {meaning}"):
            assert LightningEnvironment().main_address == "127.0.0.1"
        assert LightningEnvironment().main_address == "127.0.0.1"


def test_order_of_addresses():
    """Torch's client looks at IPv6 first, whatever the system prefers."""
    with stand_for(IPV4, IPV6, IPV4):
        assert _resolve("localhost") == ["::1", "127.0.0.1"]
    with stand_for():
        assert _resolve("nowhere") == []


@needs(listener=True)
@pytest.mark.parametrize(
    ("found", "bindable", "listens_on", "exported"),
    [
        ((IPV4,), True, "127.0.0.1", "localhost"),
        ((IPV4, IPV6), True, "::1", "localhost"),
        # Without IPv6 in the system, a client that is told `localhost` would look at `::1` on and on
        ((IPV4, IPV6), False, "127.0.0.1", "127.0.0.1"),
    ],
)
def test_claim_listens_where_clients_look(found, bindable, listens_on, exported):
    def bind(host, port):
        if ":" in host and not bindable:
            raise OSError(10049, "no such address")
        return _bind(host, port)

    environment = LightningEnvironment()
    patched_bind = mock.patch("lightning.fabric.utilities.main_port._bind", bind)
    with mock.patch.dict(os.environ, {"MASTER_ADDR": "localhost"}), stand_for(*found), patched_bind:
        claim = _claim_main_port(environment, num_nodes=1)
        assert os.environ["MASTER_ADDR"] == exported
    try:
        with socket.create_connection((listens_on, claim.port), timeout=10):
            pass
        assert claim.loopback_only
    finally:
        claim.release()


def test_loopback_interface(tmp_path):
    """Gloo accepts the name: it listens on an address of this interface."""
    interface = _loopback_interface()
    assert interface is not None
    script = (
        "import sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    subprocess.run(command, env={**os.environ, "GLOO_SOCKET_IFNAME": interface}, check=True, timeout=300)


def test_system_without_loopback_interface():
    with mock.patch.object(main_address.socket, "if_nameindex", return_value=[(1, "eth0")], create=True):
        assert _loopback_interface() is None or sys.platform == "win32"
