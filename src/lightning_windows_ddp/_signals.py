"""What happens when somebody asks this process to end: an exception that cleans up, later, or nothing."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from lightning_windows_ddp._errors import Stopped

# By default, all but Ctrl+C end a process without any clean-up; SIGBREAK is Ctrl+Break on Windows.
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise `Stopped` in this block when a signal other than Ctrl+C asks the process to end."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum)

    with _handled(stop, [each for each in _ENDING if each != signal.SIGINT]):
        yield


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Let nothing interrupt this block, not even a second Ctrl+C: for clean-ups."""
    with _handled(signal.SIG_IGN, _ENDING):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let signals that ask the process to end take effect at the end of this block."""
    arrived: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        arrived.append(signum)

    with _handled(note, _ENDING):
        yield
    for signum in arrived:
        signal.raise_signal(signum)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any] | signal.Handlers, signals: list[Any]) -> Iterator[None]:
    """Use another handler in this block, except for signals that the parent had us ignore (`nohup`)."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it runs them
        return
    previous = {each: signal.getsignal(each) for each in signals}
    previous = {each: old for each, old in previous.items() if old not in (signal.SIG_IGN, None)}
    for each in previous:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each, old in previous.items():
            signal.signal(each, old)
