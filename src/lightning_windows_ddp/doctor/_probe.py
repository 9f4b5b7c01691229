"""Run the scripts of `probes` with the interpreter that the user trains with."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_windows_ddp._errors import BadInputError, CommandError, ProgramNotFoundError, TimeLimitError
from lightning_windows_ddp._run import run

_PROBES = Path(__file__).parent / "probes"


@dataclass(frozen=True)
class Answer:
    """What came of a probe.

    Args:
        facts: What it has reported; later reports add to earlier ones.
        failure: Why it did not come to its end, with what it printed, or None.
        timed_out: Whether that was because of the time limit.

    """

    facts: dict[str, Any]
    failure: str | None = None
    timed_out: bool = False

    @property
    def reason(self) -> str:
        """The last line that it printed, which is the message of the exception that has ended it."""
        lines = [line.strip() for line in (self.failure or "").splitlines()]
        return next((line for line in reversed(lines) if line), "it printed nothing")


@dataclass(frozen=True)
class Probe:
    """How to run a probe.

    Args:
        python: The interpreter.
        folder: A scratch folder that the probe runs in, so that it imports nothing from the user's.
        time_limit: For how many seconds it may run.

    """

    python: Path
    folder: Path
    time_limit: float

    def run(self, name: str, *arguments: str) -> Answer:
        """Run a probe.

        Args:
            name: The name of its file in `probes`.
            *arguments: Its arguments.

        Raises:
            BadInputError: If there is no such interpreter.

        """
        # It reports to a file, because torch prints where it likes
        reports = self.folder / f"{name}.json"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
        environment |= {"PYTHONUTF8": "1", "LIGHTNING_WINDOWS_DDP_REPORTS": str(reports)}
        command = [str(self.python), str(_PROBES / name), *arguments]
        failure, timed_out = None, False
        try:
            run(command, cwd=self.folder, env=environment, time_limit=self.time_limit)
        except ProgramNotFoundError:
            raise BadInputError(f"There is no Python interpreter at {self.python}. Name one with --python.") from None
        except CommandError as error:
            failure = error.output or f"It ended with status {error.status}."
        except TimeLimitError as error:
            failure, timed_out = error.output, True
        except OSError as error:
            raise BadInputError(
                f"{self.python} cannot be run ({error.strerror}). Name an interpreter with --python."
            ) from None
        facts: dict[str, Any] = {}
        if reports.is_file():
            for line in reports.read_text(encoding="utf-8").splitlines():
                facts |= json.loads(line)
        return Answer(facts, failure, timed_out)
