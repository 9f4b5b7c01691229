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
import subprocess
import sys

import pytest

from tests_fabric.helpers.needs import needs


@needs(windows=True)
@pytest.mark.parametrize(("value", "expected"), [(None, "0"), ("1", "1")])
def test_use_libuv_is_the_users(value, expected):
    """Importing Lightning sets the variable only if the user has not."""
    environment = {name: text for name, text in os.environ.items() if name != "USE_LIBUV"}
    if value is not None:
        environment["USE_LIBUV"] = value
    script = "import os, lightning.fabric; print(os.environ['USE_LIBUV'])"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout.strip() == expected
