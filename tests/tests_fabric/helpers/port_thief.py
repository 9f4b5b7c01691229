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
"""A process that takes each port that it is told of, if it can get it.

It reads port numbers, one in a line, and answers each with ``won`` or ``lost``.

"""

import socket
import sys


def main():
    taken = []
    for line in sys.stdin:
        thief = socket.socket()
        taken.append(thief)
        option = "SO_EXCLUSIVEADDRUSE" if sys.platform == "win32" else "SO_REUSEADDR"
        thief.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
        try:
            thief.bind(("0.0.0.0", int(line)))
            thief.listen(1)
        except OSError:
            print("lost", flush=True)
        else:
            print("won", flush=True)


if __name__ == "__main__":
    main()
