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
import multiprocessing
import multiprocessing.spawn
import os
import socket
import threading
from typing import Iterator

import pytest
import torch.distributed


@pytest.fixture
def leave_nothing_behind() -> Iterator[None]:
    """Destroys the process group that a test has left, and fails a test that leaks anything else.

    What scripts leave behind is found by :func:`tests_fabric.helpers.scripts.run_python`.

    """
    environment = os.environ.copy()
    threads = set(threading.enumerate())
    get_preparation_data = multiprocessing.spawn.get_preparation_data
    yield

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    multiprocessing.spawn.get_preparation_data = get_preparation_data
    main_port = os.environ.get("MASTER_PORT")
    leaked_variables = {name for name in os.environ if os.environ[name] != environment.get(name)}
    os.environ.clear()
    os.environ.update(environment)

    # what the launchers set, and do not take back, in the process that they run in
    leaked_variables -= {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS", "WORLD_SIZE"}
    # what pytest and, when its compiler is imported, torch do
    leaked_variables -= {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
    assert not leaked_variables, f"The test leaks environment variables: {leaked_variables}"
    assert not multiprocessing.active_children(), "The test leaks processes."
    leaked_threads = set(threading.enumerate()) - threads
    assert not leaked_threads, f"The test leaks threads: {leaked_threads}"
    if main_port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(main_port)))
