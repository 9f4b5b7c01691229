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
"""Starts a rank on Linux such that the kernel ends it with its launcher: ``rank_starter.py PID PROGRAM [ARG ...]``.

The launcher runs this file in place of the rank, with an interpreter that loads nothing. It makes the request, which
holds for what it then turns itself into: the rank is protected before it has run a single line, while it still imports
torch. (An argument ``preexec_fn`` of :class:`subprocess.Popen` would run Python between fork and exec, in the copy of a
process with threads.)

"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # prctl(2)

if __name__ == "__main__":
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(sys.argv[1]):  # otherwise, the launcher has ended before the request
        os.execv(sys.argv[2], sys.argv[2:])
