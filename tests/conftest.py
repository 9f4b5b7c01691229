"""What all tests need to run anywhere."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Let signals be heard: in the background of a shell, or under nohup, the tests and all they start ignore some."""
    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signum = getattr(signal, name, None)  # Windows has no SIGHUP
        if signum is not None and signal.getsignal(signum) is signal.SIG_IGN:
            before[signum] = signal.signal(signum, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
