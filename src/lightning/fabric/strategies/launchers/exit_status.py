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
"""What the exit status of a process means, in words."""

import signal
import sys

_HINT_OUT_OF_MEMORY = " If nobody did that on purpose, the system was most likely out of memory (see `dmesg`)."
# From Microsoft's list of NTSTATUS values
_WINDOWS = {
    0xC0000005: "access violation: native code has used memory that is not its own",
    0xC0000017: "out of memory",
    0xC000001D: "illegal instruction: the machine's processor is too old for a library, or a library is broken",
    0xC0000094: "integer division by zero in native code",
    0xC00000FD: "stack overflow",
    0xC000012D: "out of memory: the paging file is too small",
    0xC0000135: "a DLL was not found",
    0xC0000139: "a function was not found in a DLL, which is of another version than expected",
    0xC000013A: "ended by Ctrl+C or Ctrl+Break, or the console was closed",
    0xC0000142: "a DLL could not be initialized, for which Windows often has run out of memory",
    0xC0000374: "the heap is corrupted: native code has written to memory that is not its own",
    0xC0000409: "native code has ended the process because of an internal error, or its stack was overwritten",
    0x40010004: "ended by the system, which is shutting down or logs the user off",
}


def _describe_exit(status: int) -> str:
    """Describe how a process has ended.

    Args:
        status: The exit status as :attr:`subprocess.Popen.returncode` has it: negative for a signal.

    """
    if sys.platform != "win32" and status < 0:
        return _describe_signal(-status)
    code = status % 2**32
    if code in _WINDOWS:
        return f"ended with status 0x{code:08X} ({_WINDOWS[code]})"
    if sys.platform == "win32" and abs(status) == signal.SIGTERM:  # negative where `multiprocessing` tells
        return "was ended by another process"
    if code >= 2**30:
        return f"ended with status 0x{code:08X}"
    return f"ended with exit status {status}"


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"was ended by signal {number}"
    text = f"was ended by signal {number} ({name}"
    description = signal.strsignal(number)
    text += f": {description.lower()})." if description else ")."
    return text + _HINT_OUT_OF_MEMORY if name == "SIGKILL" else text
