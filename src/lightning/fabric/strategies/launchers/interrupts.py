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
"""Ctrl+C in a launcher: once ends the job in order, twice ends it at once."""

import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Iterator, Optional

if TYPE_CHECKING:
    from lightning.fabric.strategies.launchers.ranks import _Ranks

_INTERRUPTS = [signal.SIGINT]
if sys.platform == "win32":
    _INTERRUPTS.append(signal.SIGBREAK)
_EXIT_STATUS = 130  # of a process that Ctrl+C has ended, in all shells


class _Count:
    """Ctrl+Cs that have arrived, and those that the main thread has reacted to with a :class:`KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.arrived = 0
        self.handled = 0

    def interrupt(self, signum: int, frame: Optional[FrameType]) -> None:
        """Serve as the handler of the signals."""
        self.handled += 1
        signal.default_int_handler(signum, frame)


def _end_at_second_interrupt(ranks: "_Ranks") -> None:
    """End the job at the second Ctrl+C, even if this process is in a collective then; runs in a launcher of scripts.

    Python's own handlers run only when the main thread is in Python code again. A thread is told at once, by a byte
    that the interpreter writes to a socket. On Windows, Ctrl+Break is treated as Ctrl+C from here on.

    """
    untouched = (signal.default_int_handler, signal.SIG_DFL)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) not in untouched:
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if previous != -1:  # somebody else needs it, such as an event loop
        signal.set_wakeup_fd(previous)
        reader.close()
        writer.close()
        return
    count = _Count()
    for number in _INTERRUPTS:
        if signal.getsignal(number) in untouched:
            signal.signal(number, count.interrupt)

    def watch(writer: socket.socket) -> None:
        while True:
            count.arrived += sum(number in _INTERRUPTS for number in reader.recv(64))
            if count.arrived - count.handled > 1:
                ranks.end()
                ranks.job.remove_notes()
                os._exit(_EXIT_STATUS)

    # The thread keeps the socket that the interpreter writes to
    threading.Thread(target=watch, args=(writer,), name="lightning-interrupts", daemon=True).start()


@contextmanager
def _next_interrupt(ends: bool) -> Iterator[None]:
    """Let the next Ctrl+C end this process at once, or do nothing; runs in the ranks, while they shut down.

    Args:
        ends: Whether it ends the process, and the job with it: in the launcher.

    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    action = signal.SIG_DFL if ends else signal.SIG_IGN
    handlers = [signal.signal(number, action) for number in _INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in zip(_INTERRUPTS, handlers):
            signal.signal(number, handler)
