"""Runs the scripts of a benchmark by turns, so that what else the machine does hits all sides alike."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TIME_LIMIT = 600.0  # seconds for one run of a script; those under Wine take the longest

Values = dict[str, float]


@dataclass(frozen=True)
class Side:
    """One of the things that a benchmark compares.

    Args:
        name: What the table calls it.
        script: The name of the file in ``scripts``.
        arguments: The arguments for the script.
        fork: The Lightning that it imports; None for those that import none.
        launcher: What comes between the interpreter and the script.

    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    fork: Path | None = None
    launcher: tuple[str, ...] = ()

    def run(self) -> Values:
        """Run the script and return the values that it prints as its last line, and the seconds until its end.

        Raises:
            SystemExit: If it failed.

        """
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        if self.fork is not None:
            source = str(self.fork / "src")
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")]))
            # Where the Windows test bed runs this: the folder that its interpreter needs to look through only once
            env["TESTBED_FORK"] = source
        command = [sys.executable, *self.launcher, str(SCRIPTS / self.script), *self.arguments]
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            env["BENCH_STARTED"] = repr(started)  # the clock of all processes of a machine is the same
            done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT)
            seconds = time.perf_counter() - started
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(lines) != 1:
            sys.exit(f"{self.name}: `{command}` ended with exit status {done.returncode}:\n{done.stdout}{done.stderr}")
        return {**json.loads(lines[0]), "end": seconds}


def alternate(sides: list[Side], rounds: int, name: str) -> dict[str, list[Values]]:
    """Run all sides once per round, every second round in reverse order, after a first run that is not counted.

    Args:
        sides: What to compare.
        rounds: How often.
        name: What to call this in the progress that is printed.

    Returns:
        For each side by its name what it printed in each round.

    """
    values: dict[str, list[Values]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        what = f"round {number} of {rounds}" if number else "first run, not counted"
        print(f"{name}: {what}", file=sys.stderr, flush=True)
        for side in sides[:: -1 if number % 2 else 1]:
            found = side.run()
            if number:
                values[side.name].append(found)
    return values
