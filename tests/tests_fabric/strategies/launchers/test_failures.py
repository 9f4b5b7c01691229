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
import os
import sys
from multiprocessing import spawn

import pytest

from lightning.fabric.strategies.launchers.exit_status import _describe_exit
from lightning.fabric.strategies.launchers.failure_notes import _is_cut_off, read_notes, write_note
from lightning.fabric.strategies.launchers.failures import _explain, _Failure, _find_culprit
from tests_fabric.helpers.needs import needs
from tests_fabric.helpers.scripts import DATA, run_script, under_main_guard

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

DEFINITIONS = f"""{DATA}
import signal

from lightning.fabric import Fabric


def use_workers(dataset, **kwargs):
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    options = dict(dict(num_workers=1, multiprocessing_context="spawn", collate_fn=collate), **kwargs)
    list(DataLoader(dataset, **options))
"""


def run_workers(tmp_path, definitions, body):
    return run_script(tmp_path, DEFINITIONS, definitions, under_main_guard(body), limit=150)


def run_failing_start(tmp_path, statement):
    definitions = f"""
    class Broken(Numbers):
        def __getstate__(self):
            return {{"not": "empty"}}

        def __setstate__(self, state):
            {statement}
    """
    return run_workers(tmp_path, definitions, "use_workers(Broken())")


def last_lines(run, number=1):
    return "\n".join(run.output.rstrip().splitlines()[-number:])


def test_error_at_the_start_of_a_worker_comes_last(tmp_path):
    """What a worker fails of before it has begun to work is not hidden by PyTorch's message that it is gone."""
    run = run_failing_start(tmp_path, "import no_such_module")
    assert run.returncode == 1
    assert "exited unexpectedly" in run.output
    assert last_lines(run) == "ModuleNotFoundError: No module named 'no_such_module'"


def test_small_paging_file_comes_last_with_a_remedy(tmp_path):
    """The error that Windows raises in a worker that imports torch; its number is what this machine can't have."""
    run = run_failing_start(
        tmp_path, 'raise OSError("[WinError 1455] The paging file is too small. Error loading cublas64_12.dll")'
    )
    assert run.returncode == 1
    assert "OSError: [WinError 1455] The paging file is too small" in last_lines(run, 4)
    assert "enlarge the paging file" in last_lines(run)


@pytest.mark.parametrize("start_method", ["popen", "spawn"])
def test_ranks_look_after_their_workers(tmp_path, start_method):
    """Where a signal tells that a worker has ended, PyTorch's own look at it every five seconds stays as it is."""
    definitions = """
    from lightning.fabric.strategies import DDPStrategy
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter


    def tell(fabric):
        (seconds,) = _MultiProcessingDataLoaderIter._try_get_data.__defaults__
        record("rank", rank=fabric.global_rank, seconds=seconds)
    """
    body = f"""
    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(start_method={start_method!r}))
    if {start_method!r} == "spawn":
        fabric.launch(tell)
    else:
        fabric.launch()
        tell(fabric)
    """
    run = run_workers(tmp_path, definitions, body)
    assert run.returncode == 0, run.output
    seconds = 0.5 if sys.platform == "win32" else 5.0
    assert sorted((each["rank"], each["seconds"]) for each in run.of("rank")) == [(0, seconds), (1, seconds)]


def test_killed_worker_comes_last(tmp_path):
    """Where no process is left to tell, its exit status does."""
    definitions = """
    class Deadly(Numbers):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    """
    run = run_workers(tmp_path, definitions, "use_workers(Deadly())")
    assert run.returncode == 1
    expected = "was ended by another process" if sys.platform == "win32" else "was ended by signal 9 (SIGKILL: killed)"
    assert f"The worker {expected}" in last_lines(run)


def test_error_in_the_dataset_comes_last(tmp_path):
    """PyTorch passes it on; nothing is added."""
    definitions = """
    class Broken(Numbers):
        def __getitem__(self, index):
            raise ValueError("the reason")
    """
    run = run_workers(tmp_path, definitions, "use_workers(Broken())")
    assert run.returncode == 1
    assert last_lines(run) == "ValueError: the reason"


def test_error_of_pickling_comes_last(tmp_path):
    """On Windows, the process is started already, and must not say that it ran out of input."""
    run = run_workers(tmp_path, "", "use_workers(Numbers(), collate_fn=lambda samples: samples)")
    assert run.returncode == 1
    assert "pickle local object" in run.output
    assert "what it needs can't be pickled" in last_lines(run)
    assert "EOFError" not in run.output
    assert "__main__" not in last_lines(run, 3)  # a missing guard is not the cause


def test_process_that_is_cut_off_knows_it():
    """Windows alone starts a process before it pickles; here, the standard library is given nothing to read."""
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(EOFError) as failure:
        spawn._main(reader, None)
    assert _is_cut_off(failure.value)
    with pytest.raises(EOFError) as failure:
        raise EOFError
    assert not _is_cut_off(failure.value)


GONE = "[pair.cc:553] Connection closed by peer [127.0.0.1]:38088"


@pytest.mark.parametrize(
    ("failures", "culprit"),
    [
        ([(0, "exception", "oh"), (1, "exception", "no")], 0),  # the first
        ([(0, "exception", GONE), (1, "exception", "no")], 1),  # what follows from another one
        ([(0, "exception", GONE), (1, "exit", "")], 1),
        ([(0, "exception", "oh"), (1, "exit", "")], 1),  # who has left no note was not able to
        ([(0, "exception", GONE), (1, "exception", GONE)], 0),
        ([(1, "termination", ""), (0, "exception", GONE)], 1),
        ([], None),
    ],
)
def test_find_culprit(failures, culprit):
    found = _find_culprit([_Failure(rank, 100 + rank, kind, "", message) for rank, kind, message in failures])
    assert (found and found.rank) == culprit


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (7, "ended with exit status 7"),
        (
            0xC0000005,
            "ended with status 0xC0000005 (access violation: native code has used memory that is not its own)",
        ),
        (0xC000012D, "the paging file is too small"),
        (0xC0000FFF, "ended with status 0xC0000FFF"),
        pytest.param(-9, "(SIGKILL: killed). If nobody did that on purpose", marks=needs(start_method="fork")),
        pytest.param(-11, "was ended by signal 11 (SIGSEGV: segmentation fault).", marks=needs(start_method="fork")),
        pytest.param(-60, "was ended by signal 60", marks=needs(start_method="fork")),
        pytest.param(0xC0000005 - 2**32, "ended with status 0xC0000005 (access", marks=needs(windows=True)),
        pytest.param(15, "was ended by another process", marks=needs(windows=True)),
        pytest.param(-15, "was ended by another process", marks=needs(windows=True)),
    ],
)
def test_describe_exit(status, text):
    assert text in _describe_exit(status)


def test_notes(tmp_path):
    """The first note of a process counts, the folder is made for it, and nobody else can read it."""
    folder = tmp_path / "notes"
    assert read_notes(str(folder)) == []
    write_note(str(folder), "exception", ValueError("the reason"), rank=1)
    write_note(str(folder), "exception", RuntimeError("another"), rank=1)
    (note,) = read_notes(str(folder))
    assert (note["pid"], note["rank"], note["kind"], note["message"]) == (os.getpid(), 1, "exception", "the reason")
    assert note["text"] == "ValueError: the reason\n"
    assert sys.platform == "win32" or folder.stat().st_mode & 0o777 == 0o700


def test_explanation_is_added_once(tmp_path):
    """An exception passes several places that explain it."""
    error = RuntimeError("[WinError 1455] The paging file is too small")
    for _ in range(2):
        _explain(error, str(tmp_path))
    assert str(error).count("enlarge the paging file") == 1
    other = RuntimeError("process 1455 failed")
    _explain(other, str(tmp_path))
    assert str(other) == "process 1455 failed"
