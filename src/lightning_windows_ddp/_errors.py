"""The errors that the command line reports in one sentence.

Each message says what happened, why, and what to do next. `__main__` prints it and ends with status 2; a traceback
means a bug in this package.
"""

from collections.abc import Sequence


class ToolError(Exception):
    """Base of every error that is reported to the user without a traceback."""


class BadInputError(ToolError):
    """What the user asked for cannot be done: a wrong version, folder, line or interpreter."""


class ProgramNotFoundError(ToolError):
    """A program that this package runs is not installed."""


class IndexUnreachableError(ToolError):
    """pip found no release of Lightning at all: no network, or an index without Lightning."""


class PatchSetError(ToolError):
    """The folder `patches/` contradicts itself."""


class ForkError(ToolError):
    """A fork is not in a state that can be exported."""


class InstallationError(ToolError):
    """An installed Lightning cannot be patched, or given back as it was."""


class CommandError(ToolError):
    """A command failed.

    Args:
        command: The command as it was run.
        status: Its exit status.
        output: What it wrote to its standard output and error, together.

    """

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        self.command = tuple(command)
        self.status = status
        self.output = output.strip()
        shown = "\n".join(f"  {line}" for line in self.output.splitlines()) or "  (it printed nothing)"
        super().__init__(f"`{' '.join(self.command)}` failed with status {status}:\n{shown}")


class TimeLimitError(ToolError):
    """A command took longer than it may.

    Args:
        command: The command as it was run.
        seconds: The limit.
        output: What it wrote to its standard output and error until then, together.

    """

    def __init__(self, command: Sequence[str], seconds: float, output: str) -> None:
        self.output = output.strip()
        super().__init__(f"`{' '.join(command)}` was ended after {seconds:.0f} seconds. Give it more time.")


class Stopped(BaseException):
    """A signal asks the process to end. Like `KeyboardInterrupt`, no `except Exception` may swallow it.

    Args:
        signum: The number of the signal.

    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"stopped by signal {signum}")
