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
"""Runs training scripts the way users start them: real files, real processes, nothing mocked."""

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Dict, List, Mapping, Optional, Sequence

import pytest

from tests_fabric.helpers.needs import needs

# Defines how a script tells the test what happens in its processes
RECORD = """
import json
import os


def record(event, **values):
    # a file for each process, so that no two of them write to the same one
    with open(os.path.join(os.environ["RECORDS"], f"{os.getpid()}.jsonl"), "a") as file:
        print(json.dumps(dict(values, event=event, pid=os.getpid())), file=file)
"""

# Defines how a rank waits for another one. Needs RECORD.
WAIT_FOR = """
from datetime import timedelta

import torch


def wait_for(event, rank=0):
    # until that rank has come to this point
    events = torch.distributed.FileStore(os.path.join(os.environ["RECORDS"], "..", "events"))
    if os.environ["LOCAL_RANK"] == str(rank):
        events.set(event, "")
    events.wait([event], timedelta(seconds=120))
"""

# Defines what a script works on. The weights that it learns are exact in floating-point arithmetic, in any order.
DATA = f"""{RECORD}
import multiprocessing
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index, torch.tensor([float(index)])


def collate(samples):
    return torch.tensor([index for index, _ in samples]), torch.stack([number for _, number in samples])


def init_worker(worker_id):
    record("worker")


def make_loader(dataset, **kwargs):
    return DataLoader(dataset, batch_size=2, collate_fn=collate, worker_init_fn=init_worker, **kwargs)


def make_layer():
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    return layer
"""


def expected_weight(devices: int, epochs: int = 1) -> float:
    """The weight that a layer ends with when ``layer(number).mean()`` is minimized with SGD at a learning rate of 1."""
    return -epochs * sum(range(16)) / (2 * devices)


# Up to ten processes import torch, which takes each of them ten seconds where two of them share a slow core
_LIMIT = 400


@dataclass
class Run:
    """How a script ended.

    Args:
        returncode: The exit status of the process that was started.
        output: What this process and all its descendants printed.
        records: What they passed to ``record``.

    """

    returncode: int
    output: str
    records: List[Dict[str, Any]]

    def of(self, event: str) -> List[Dict[str, Any]]:
        return [record for record in self.records if record["event"] == event]


def run_python(args: Sequence[str], cwd: Path, records: Path, **kwargs: Any) -> Run:
    """Run Python with these arguments; see :func:`run_command`."""
    return run_command([sys.executable, *args], cwd, records, **kwargs)


def run_command(
    command: Sequence[str],
    cwd: Path,
    records: Path,
    env: Optional[Mapping[str, str]] = None,
    stdin: str = "",
    limit: float = _LIMIT,
) -> Run:
    """Run a command and wait until it *and every process that it left* has ended.

    All of them hold the pipe that the output comes through, so that the pipe's end tells that none is left.

    Args:
        command: The program and its arguments.
        cwd: The working directory.
        records: The folder for what the processes record.
        env: Additional environment variables.
        stdin: What the process reads from its standard input.
        limit: The seconds after which a process that is left is a failure.

    Raises:
        AssertionError: If a process is left after the time limit. All of them are ended then.

    """
    records.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in _LAUNCH_VARIABLES}
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**inherited, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", "RECORDS": str(records), **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=sys.platform != "win32",
    )
    end_all = _Job(process).end if sys.platform == "win32" else partial(os.killpg, process.pid, signal.SIGKILL)
    try:
        output, _ = process.communicate(stdin, timeout=limit)
    except BaseException as exception:
        end_all()
        try:
            output, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            output = "(It can't be read, for a process is left that could not be ended.)"
        if not isinstance(exception, subprocess.TimeoutExpired):
            raise
        raise AssertionError(f"The script or a process that it started did not end. Output:\n{output}") from None
    lines = [line for file in sorted(records.iterdir()) for line in file.read_text().splitlines()]
    return Run(process.returncode, output, [json.loads(line) for line in lines])


_LAUNCH_VARIABLES = ("LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class _Job:
    """Keeps a process and all that it starts together, on Windows: there, a process does not know its ancestors.

    Args:
        process: The process. It has not started any other yet.

    """

    def __init__(self, process: subprocess.Popen) -> None:
        self._kernel32 = ctypes.WinDLL("kernel32")
        self._kernel32.CreateJobObjectW.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(self._kernel32.CreateJobObjectW(None, None))
        assert self._kernel32.AssignProcessToJobObject(self._handle, ctypes.c_void_p(int(process._handle)))

    def end(self) -> None:
        self._kernel32.TerminateJobObject(self._handle, 1)


def run_script(folder: Path, *parts: str, args: Sequence[str] = (), **kwargs: Any) -> Run:
    """Write ``train.py`` into the folder, made of parts of source code, and run it there; see :func:`run_command`."""
    script = folder / "train.py"
    script.write_text(make_script(*parts), encoding="utf-8")
    return run_python([*args, "train.py"], cwd=folder, records=folder / "records", **kwargs)


def make_script(*parts: str) -> str:
    return "\n\n".join(dedent(part).strip() for part in parts) + "\n"


def under_main_guard(body: str) -> str:
    return f"def main():\n{indent(dedent(body).strip(), '    ')}\n\n\nif __name__ == '__main__':\n    main()\n"


@dataclass(frozen=True)
class Scenario:
    """One way to write and to start a script.

    Args:
        strategy: ``"ddp"`` or ``"ddp_spawn"`` on two devices, or ``"one"`` for a single device without a launcher.
        start_method: How the DataLoader workers start.
        guarded: Whether it has a main guard.
        as_module: Whether it runs as ``python -m package.train`` instead of as ``python train.py``.
        odd_path: Whether its path has spaces and non-ASCII letters.
        elsewhere: Whether it is started from another working directory.
        persistent: Whether it trains for two epochs with ``persistent_workers=True``.
        validates: Whether it has a second loader.
        data_in_script: Whether it defines dataset, collate function and ``worker_init_fn`` itself.

    """

    strategy: str
    start_method: str
    guarded: bool
    as_module: bool
    odd_path: bool
    elsewhere: bool
    persistent: bool
    validates: bool
    data_in_script: bool

    def __str__(self) -> str:
        flags = [field.name for field in fields(self) if getattr(self, field.name) is True]
        return "-".join([self.strategy, self.start_method, *flags])

    @property
    def launched_by(self) -> str:
        """The value of the argument ``strategy``."""
        return "auto" if self.strategy == "one" else self.strategy

    @property
    def devices(self) -> int:
        return 1 if self.strategy == "one" else 2

    @property
    def epochs(self) -> int:
        return 2 if self.persistent else 1


_VALUES = {
    field.name: {"strategy": ["ddp", "ddp_spawn", "one"], "start_method": ["spawn", "forkserver"]}.get(
        field.name, [False, True]
    )
    for field in fields(Scenario)
}
_NO, _YES = False, True
# Every pair of values occurs in these; `test_every_pair_of_values_occurs` proves it.
_PAIRWISE = [
    Scenario("ddp", "spawn", _NO, _NO, _NO, _NO, _NO, _NO, _YES),
    Scenario("ddp", "forkserver", _YES, _YES, _YES, _YES, _YES, _YES, _NO),
    Scenario("one", "forkserver", _NO, _NO, _NO, _YES, _NO, _YES, _NO),
    Scenario("one", "spawn", _YES, _YES, _YES, _NO, _YES, _NO, _YES),
    Scenario("ddp_spawn", "spawn", _NO, _NO, _YES, _YES, _YES, _YES, _YES),
    Scenario("ddp_spawn", "forkserver", _YES, _YES, _NO, _NO, _NO, _YES, _NO),
    Scenario("ddp_spawn", "forkserver", _YES, _NO, _YES, _YES, _NO, _NO, _YES),
    Scenario("ddp", "spawn", _NO, _YES, _NO, _YES, _YES, _NO, _NO),
]


def scenarios() -> List[Any]:
    """The scenarios to run: all pairs of values, or all combinations with ``PL_RUN_LAUNCH_MATRIX=1``."""
    all_scenarios = [Scenario(*values) for values in itertools.product(*_VALUES.values())]
    chosen = all_scenarios if os.getenv("PL_RUN_LAUNCH_MATRIX") == "1" else _PAIRWISE
    return [
        pytest.param(chosen_one, id=str(chosen_one), marks=needs(start_method=chosen_one.start_method))
        for chosen_one in chosen
    ]


def missing_pairs() -> List[str]:
    """The pairs of values that no scenario of the default run has."""
    missing = []
    for (a, values_a), (b, values_b) in itertools.combinations(_VALUES.items(), 2):
        for pair in itertools.product(values_a, values_b):
            if not any((getattr(scenario, a), getattr(scenario, b)) == pair for scenario in _PAIRWISE):
                missing.append(f"{a}={pair[0]}, {b}={pair[1]}")
    return missing


def run_scenario(scenario: Scenario, tmp_path: Path, definitions: str, body: str) -> Run:
    """Write the script for a scenario and run it.

    Args:
        scenario: The way to write and to start it.
        tmp_path: An empty folder for everything.
        definitions: Source code that stands above the launch, at module level.
        body: Source code that launches. It stands under the main guard, if there is one.

    """
    package = tmp_path / ("übung mit wörkern" if scenario.odd_path else "plain") / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    if not scenario.data_in_script:
        (package / "data.py").write_text(DATA, encoding="utf-8")
    prefix = "package." if scenario.as_module else ""
    data = DATA if scenario.data_in_script else f"from {prefix}data import *\nfrom {prefix}data import os, torch"
    parts = [
        f"import multiprocessing\n\nmultiprocessing.set_start_method({scenario.start_method!r}, force=True)",
        data,
        'record("import")',
        definitions,
        under_main_guard(body) if scenario.guarded else body,
    ]
    (package / "train.py").write_text(make_script(*parts), encoding="utf-8")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cwd = elsewhere if scenario.elsewhere else package.parent
    script = os.path.relpath(package / "train.py", cwd)
    return run_python(
        ["-m", "package.train"] if scenario.as_module else [script],
        cwd=cwd,
        records=tmp_path / "records",
        env={"PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.getenv("PYTHONPATH")]))},
    )


def assert_trained(run: Run, scenario: Scenario) -> None:
    """Check that a scenario's script did its work once, and no part of it in a worker."""
    devices, epochs = scenario.devices, scenario.epochs
    assert run.returncode == 0, run.output

    ranks = run.of("rank")
    assert sorted(record["rank"] for record in ranks) == list(range(devices)), run.output
    assert [record["weight"] for record in ranks] == [expected_weight(devices, epochs)] * devices
    seen = sorted(index for record in ranks for index in record["seen"])
    assert seen == sorted(list(range(16)) * epochs)  # disjoint and complete

    workers = {record["pid"] for record in run.of("worker")}
    assert len(workers) == devices * 2 * (2 if scenario.validates else 1)
    # nothing after the launch runs anywhere but in the processes that returned from it
    after = [record["pid"] for record in run.of("after")]
    assert len(after) == (2 if scenario.strategy == "ddp" else 1)
    assert not workers & set(after)

    imports = [record["pid"] for record in run.of("import")]
    assert len(imports) == len(set(imports))  # nothing before the launch runs twice in a process
    if scenario.start_method == "spawn":
        ranks_that_import = {"ddp": 2, "ddp_spawn": 3, "one": 1}[scenario.strategy]  # or the main process
        assert len(imports) == ranks_that_import + len(workers)
