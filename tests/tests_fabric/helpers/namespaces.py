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
"""Machines with a network of their own, made of Linux' namespaces."""

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

# Runs a command where the network, the host name and the `hosts` file are its own
_UNSHARE = ["unshare", "--net", "--mount", "--uts", *([] if sys.platform == "win32" or os.geteuid() == 0 else ["-r"])]
_SET_UP = """
set -e
ip link set lo up
mount --bind "$HOSTS" /etc/hosts
hostname "$NAME"
"""

# A rank records what listens in its network namespace, where there is nothing but the job
LISTENERS = """
def record_listeners():
    found = set()
    for table, width in (("/proc/net/tcp", 8), ("/proc/net/tcp6", 32)):
        with open(table) as file:
            for line in file.readlines()[1:]:
                columns = line.split()
                if columns[3] == "0A":
                    host, port = columns[1].split(":")
                    words = [bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, width, 8)]
                    found.add((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
    record("listeners", listeners=sorted(found))
"""


def skip_without_namespaces() -> None:
    """Skip the test unless this machine lets the user make network namespaces and pairs of network interfaces."""
    if sys.platform != "linux":
        pytest.skip("Only Linux has network namespaces")
    try:
        probe = "ip link set lo up && ip link add v0 type veth peer name v1"
        subprocess.run([*_UNSHARE, "sh", "-c", probe], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as ex:
        pytest.skip(f"This machine can't make network namespaces: {getattr(ex, 'stderr', ex)!r}")


def write_hosts(folder: Path, **addresses: str) -> Path:
    """Write a ``hosts`` file that maps names to addresses, beside ``localhost``."""
    path = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def on_machine(name: str, hosts: Path, set_up: str, command: List[str]) -> List[str]:
    """Return a command that runs another one on a machine of its own.

    Args:
        name: The machine's host name.
        hosts: Its ``hosts`` file.
        set_up: A shell script that sets its network up.
        command: The command to run on it.

    """
    script = f'HOSTS="{hosts}" NAME="{name}"\n{_SET_UP}\n{set_up}\nexec "$@"'
    return [*_UNSHARE, "sh", "-c", script, name, *command]
