"""Show the failure of #17777 on pristine Lightning and its absence on patched Lightning, in one table.

``python dev.py demo`` runs this in an environment of its own. It installs first the pristine and then the patched fork
there, and with each runs ``multi_gpu_training.py`` without and with DataLoader workers. Progress goes to stderr, the
table to stdout. The exit status is 0 only if pristine Lightning with workers fails as the issue says and both runs on
patched Lightning complete with the weights of the pristine run without workers.

"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from tabulate import tabulate

SCRIPT = Path(__file__).resolve().with_name("multi_gpu_training.py")
START_METHOD = "spawn"  # what the script sets
NUM_WORKERS = (0, 2)

# Far more than a run takes: ten processes import torch, and the machine may be busy
LIMIT = 300.0
# What is left of it once the failure has shown. Most ranks that have lost their workers end by themselves, not all.
LIMIT_AFTER_FAILURE = 60.0

# As torch puts it, with the names and numbers that Linux and Windows have for a port that is taken or forbidden
FAILURE = re.compile(r"server socket has failed to listen|EADDRINUSE|\b(10048|10013)\b")

# Apart from this process, so that whatever a run leaves behind can be told from everything else
_OWN_GROUP: dict[str, Any]
if sys.platform == "win32":
    _OWN_GROUP = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
else:
    _OWN_GROUP = {"start_new_session": True}


@dataclass(frozen=True)
class Outcome:
    """How a script ended.

    Attributes:
        completed: Whether it exited with status 0 and wrote its report.
        error: The line of its output that says best why it did not complete.
        seconds: The time until it ended or was ended.
        report: What it reported, empty if nothing.

    """

    completed: bool
    error: str | None
    seconds: float
    report: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One row of the table: the reproduction on one Lightning, with one number of workers."""

    lightning: str
    num_workers: int
    outcome: Outcome

    @property
    def title(self) -> str:
        """What to call the run."""
        return f"{self.lightning}, {self.num_workers} workers"

    @property
    def weights(self) -> str | None:
        """The hash of the weights that it ended with."""
        return self.outcome.report.get("weights")

    def figures(self, reference: str | None) -> dict[str, Any]:
        """Return the run as a JSON object.

        Args:
            reference: The hash of the weights that this run's are compared with.

        """
        comparable = self.weights is not None and reference is not None
        return {
            "lightning": self.lightning,
            "num_workers": self.num_workers,
            "outcome": "completed" if self.outcome.completed else "failed",
            "error": self.outcome.error,
            "seconds": round(self.outcome.seconds, 1),
            "global_step": self.outcome.report.get("global_step"),
            "accuracy": self.outcome.report.get("accuracy"),
            "weights_equal": self.weights == reference if comparable else None,
        }


class ProcessTree:
    """A process and everything that it starts, to end it all.

    Ranks and workers outlive a launcher that fails, and then nothing says any more whose they were. So look at the tree
    now and then while it lives.

    Args:
        process: The process at the root, started in a group of its own.

    """

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process
        self._root = psutil.Process(process.pid)
        self._seen = {self._root}

    def look(self) -> None:
        """Take note of the processes that have been started since the last look."""
        with contextlib.suppress(psutil.Error):
            self._seen.update(self._root.children(recursive=True))

    def end(self) -> None:
        """End every process of the tree that is still there."""
        for process in list(self._seen):
            with contextlib.suppress(psutil.Error):
                self._seen.update(process.children(recursive=True))
        for process in self._seen:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run_script(
    command: Sequence[str], env: Mapping[str, str], report: Path, title: str, limit: float = LIMIT
) -> Outcome:
    """Run a script to its end, or to its failure, and end everything that it leaves behind.

    Args:
        command: The interpreter, the script and its arguments.
        env: The environment.
        report: The JSON file that the script writes if it completes. The script runs in the folder of this file.
        title: What to call the run in the progress shown.
        limit: The seconds after which a run that has not ended counts as failed.

    """
    started = time.monotonic()
    deadline = started + limit
    lines: list[str] = []
    say(f"{title} ...")
    process = subprocess.Popen(
        command,
        env=env,
        cwd=report.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        **_OWN_GROUP,
    )
    tree = ProcessTree(process)
    # A thread, because the pipe stays open for as long as there are ranks or workers, with or without their launcher
    reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        next_word = started + 10
        while process.poll() is None and time.monotonic() < deadline:
            tree.look()
            if time.monotonic() > next_word:
                say(f"{title} ... {time.monotonic() - started:.0f} s")
                next_word += 10
            if find_failure(lines):
                deadline = min(deadline, time.monotonic() + LIMIT_AFTER_FAILURE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        seconds = time.monotonic() - started
        status = process.poll()
    finally:
        tree.end()
    reader.join(timeout=10)

    completed = status == 0 and report.is_file()
    say(f"{title}: {'completed' if completed else 'failed'} after {seconds:.0f} s")
    if completed:
        return Outcome(True, None, seconds, json.loads(report.read_text(encoding="utf-8")))
    last_line = next((line for line in reversed(lines) if line), f"exit status {status}, no output")
    reason = f"still running after {seconds:.0f} s: {last_line}" if status is None else last_line
    return Outcome(False, find_failure(lines) or reason, seconds, {})


def _read_lines(stream: IO[str], lines: list[str]) -> None:
    lines.extend(line.strip() for line in stream)


def find_failure(lines: Sequence[str]) -> str | None:
    """Return the first line with the failure of the issue, if there is one."""
    return next((line for line in list(lines) if FAILURE.search(line)), None)


def reproduce(lightning: str, python: Sequence[str], env: Mapping[str, str], options: Sequence[str] = ()) -> list[Run]:
    """Run the reproduction with each number of workers.

    Args:
        lightning: What to call the Lightning that the interpreter imports.
        python: The command of the interpreter.
        env: The environment.
        options: More options for the script.

    """
    runs = []
    for num_workers in NUM_WORKERS:
        title = f"{lightning} Lightning, {num_workers} workers"
        with tempfile.TemporaryDirectory(prefix="demo-", ignore_cleanup_errors=True) as folder:
            report = Path(folder, "report.json")
            command = [*python, str(SCRIPT), "--num-workers", str(num_workers), "--report", str(report), *options]
            runs.append(Run(lightning, num_workers, run_script(command, env, report, title)))
    return runs


def find_versions(python: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Ask the interpreter what it is, where it runs and which torch and Lightning are installed for it."""
    code = (
        "import json, platform; from importlib.metadata import version;"
        "print(json.dumps({'python': platform.python_version(), 'torch': version('torch'),"
        " 'lightning': version('lightning'), 'platform': platform.platform()}))"
    )
    # Pipes for all streams: under Wine, Python does not start where one of them is a file
    process = subprocess.run([*python, "-c", code], env=env, input=b"", capture_output=True)
    if process.returncode != 0:
        sys.exit(f"{' '.join(python)} can't tell its versions:\n{process.stderr.decode(errors='replace')}")
    versions: dict[str, str] = json.loads(process.stdout)
    return versions


def collect(runs: Sequence[Run], versions: Mapping[str, str]) -> dict[str, Any]:
    """Put the figures of all runs and the versions together, as they are written with ``--json``."""
    return {"runs": [run.figures(runs[0].weights) for run in runs], **versions, "start_method": START_METHOD}


def format_table(figures: Mapping[str, Any]) -> str:
    """Return the figures of all runs as a table."""
    rows = [
        [
            f"{run['lightning']}, {run['num_workers']} workers",
            run["outcome"] if run["error"] is None else f"{run['outcome']}: {run['error']}",
            f"{run['seconds']:.1f}",
            run["global_step"],
            None if run["accuracy"] is None else f"{run['accuracy']:.1%}",
            None if run["weights_equal"] is None else ("yes" if run["weights_equal"] else "no"),
        ]
        for run in figures["runs"]
    ]
    return tabulate(
        rows,
        headers=["run", "outcome", "seconds", "global step", "accuracy", "weights equal"],
        missingval="-",
        maxcolwidths=[None, 48, None, None, None, None],
        colalign=["left", "left", "right", "right", "right", "left"],
        disable_numparse=True,
    )


def list_surprises(runs: Sequence[Run]) -> list[str]:
    """Say in what the runs differ from what the issue reports and the patches promise."""
    surprises = []
    for run in runs:
        fails = run.lightning == "pristine" and run.num_workers > 0
        error = run.outcome.error
        if fails and (error is None or not FAILURE.search(error)):
            surprises.append(f"{run.title}: does not fail as the issue reports")
        elif not fails and not run.outcome.completed:
            surprises.append(f"{run.title}: does not complete")
        elif not fails and run.weights != runs[0].weights:
            surprises.append(f"{run.title}: other weights than with {runs[0].title}")
    return surprises


def write_json(file: Path, figures: Mapping[str, Any]) -> None:
    """Write the figures, so that the file is there completely or not at all."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def install(fork: Path) -> None:
    """Install a fork of Lightning into the environment of this interpreter, in place of the one that is there."""
    say(f"Installing {fork} ...")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--editable", str(fork)]
    constraints = fork / ".git" / "info" / "build-constraints.txt"  # releases before 2.6 need an older setuptools
    if constraints.is_file():
        command += ["--build-constraint", str(constraints)]
    pip = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    if pip.returncode != 0:
        raise SystemExit(f"{fork} could not be installed. pip says:\n{pip.stdout}")


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(
        description="Show #17777 on pristine Lightning and its absence on patched.",
        epilog=f"Other options, such as --accelerator, go to {SCRIPT.name}.",
    )
    parser.add_argument("--pristine", type=Path, required=True, metavar="FORK", help="fork of the pristine release")
    parser.add_argument("--patched", type=Path, required=True, metavar="FORK", help="fork with the patches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    args, options = parser.parse_known_args()
    if args.json and (args.json.is_dir() or not args.json.absolute().parent.is_dir()):
        parser.error(f"{args.json} cannot be written: it is a folder, or its folder does not exist.")

    # UTF-8, for the output that is read here: on Windows, a pipe has another encoding
    env = {**os.environ, "PYTHONUTF8": "1"}
    python = [sys.executable]
    runs: list[Run] = []
    for lightning, fork in (("pristine", args.pristine), ("patched", args.patched)):
        install(fork)
        runs += reproduce(lightning, python, env, options)

    figures = collect(runs, find_versions(python, env))
    print(format_table(figures))
    if args.json:
        write_json(args.json, figures)
    surprises = list_surprises(runs)
    for surprise in surprises:
        say(surprise)
    return 1 if surprises else 0


if __name__ == "__main__":
    # As with Ctrl+C: no run may be left behind
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
