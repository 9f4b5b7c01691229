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
import multiprocessing
import os
import pickle
import re
import runpy
import subprocess
import sys
import zipapp
from pathlib import Path
from unittest import mock

import pytest

from lightning.fabric.strategies.launchers import main_script
from lightning.fabric.strategies.launchers.inheritance import (
    _enable_inheritance,
    _guard_launch,
    _is_dataloader_worker,
    _PreparationData,
)
from tests_fabric.helpers.needs import needs
from tests_fabric.helpers.scripts import (
    DATA,
    assert_trained,
    expected_weight,
    make_script,
    missing_pairs,
    run_python,
    run_scenario,
    run_script,
    scenarios,
    under_main_guard,
)

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

SPAWN = "import multiprocessing\n\nmultiprocessing.set_start_method('spawn', force=True)"
IMPORT = "from lightning.fabric import Fabric"

TRAIN = """
def train(fabric, loaders, epochs=1):
    layer = make_layer()
    layer, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=1.0))
    loaders = [fabric.setup_dataloaders(loader) for loader in loaders]
    seen = []
    for _ in range(epochs):
        for indices, numbers in loaders[0]:
            seen += indices.tolist()
            optimizer.zero_grad()
            fabric.backward(layer(numbers).mean())
            optimizer.step()
        for loader in loaders[1:]:
            assert sum(len(indices) for indices, _ in loader) == 16 // fabric.world_size
    record("rank", rank=fabric.global_rank, seen=seen, weight=layer.weight.item())
"""

ONE_DEVICE = """
fabric = Fabric(accelerator="cpu", devices=1)
fabric.launch()
train(fabric, [make_loader(Numbers(), num_workers=2)])
record("after")
"""


def test_every_pair_of_values_occurs():
    assert not missing_pairs()


def test_process_that_is_left_behind(tmp_path):
    """No script passes that leaves a process, and the process does not survive the test."""
    wait_forever = "import threading; print('left', flush=True); threading.Event().wait()"
    script = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {wait_forever!r}])"
    with pytest.raises(AssertionError, match="did not end. Output:\nleft"):
        run_python(["-c", script], tmp_path, tmp_path / "records", limit=10)


@pytest.mark.parametrize("scenario", scenarios())
def test_fabric_trains_with_workers(scenario, tmp_path):
    """A script trains with DataLoader workers as the user wrote it, however it launches and is started."""
    launch = "fabric.launch(train, loaders, epochs)" if scenario.strategy == "ddp_spawn" else "fabric.launch()"
    body = f"""
    fabric = Fabric(accelerator="cpu", devices={scenario.devices}, strategy={scenario.launched_by!r})
    workers = dict(num_workers=2, persistent_workers={scenario.persistent})
    loaders = [make_loader(Numbers(), **workers) for _ in range({2 if scenario.validates else 1})]
    epochs = {scenario.epochs}
    {launch}
    {"" if scenario.strategy == "ddp_spawn" else "train(fabric, loaders, epochs)"}
    record("after")
    """
    run = run_scenario(scenario, tmp_path, f"{IMPORT}\n{TRAIN}", body)
    assert_trained(run, scenario)


def test_definition_after_the_launch(tmp_path):
    """What a script defines after it has launched is missing in its workers, and their error says so."""
    late = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()  # here

    class LateNumbers(Numbers):
        pass

    train(fabric, [make_loader(LateNumbers(), num_workers=1)])
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, late)
    assert run.returncode != 0
    lines = (tmp_path / "train.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "# here" in text)
    assert f"`LateNumbers` is not defined in {tmp_path / 'train.py'} at line {line}" in run.output
    assert f"Move the definition of `LateNumbers` above line {line}" in run.output
    assert '`if __name__ == "__main__":` guard' in run.output


def test_definition_missing_under_main_guard(tmp_path):
    """The error of a worker that has imported a guarded script to its end is Python's own."""
    body = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    global Inner

    class Inner(Numbers):
        pass

    Inner.__qualname__ = "Inner"
    train(fabric, [make_loader(Inner(), num_workers=1)])
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, under_main_guard(body))
    assert run.returncode != 0
    assert "AttributeError: Can't get attribute 'Inner'" in run.output


def test_pool_and_manager_after_the_launch(tmp_path):
    """Every kind of process that an unguarded script starts after the launch imports it up to the launch."""
    body = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with multiprocessing.Manager() as manager:
        shared = manager.list([1, 2])
        with ProcessPoolExecutor(1) as executor:
            assert executor.submit(double, 21).result() == 42
        with multiprocessing.Pool(1) as pool:
            assert pool.map(double, shared) == [2, 4]
    record("after")
    """
    definitions = "from concurrent.futures import ProcessPoolExecutor\n\ndef double(value):\n    return 2 * value"
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, definitions, body)
    assert run.returncode == 0, run.output
    assert len(run.of("after")) == 1


def test_children_of_children(tmp_path):
    """A process that a child of an unguarded script starts is handed the same script again."""
    body = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    process = multiprocessing.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    record("after")
    """
    definitions = """
    def grandchild():
        record("grandchild")

    def child():
        process = multiprocessing.Process(target=grandchild)
        process.start()
        process.join()
        assert process.exitcode == 0
    """
    run = run_script(tmp_path, SPAWN, DATA, 'record("import")', IMPORT, definitions, body)
    assert run.returncode == 0, run.output
    assert len(run.of("grandchild")) == len(run.of("after")) == 1
    assert len(run.of("import")) == 3


@pytest.mark.parametrize("devices", [1, 2])
def test_child_without_inheritance(devices, tmp_path):
    """A process that an unguarded script has started before it launches must not launch, and says why."""
    body = f"""
    if "CHILD" not in os.environ:
        os.environ["CHILD"] = "1"
        process = multiprocessing.Process(target=print)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    fabric = Fabric(accelerator="cpu", devices={devices})
    fabric.launch()
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, body)
    assert run.returncode == 1
    # Lightning has a message of its own since release 2.1
    assert re.search("requires that your script guards the main|before the launch has to import it", run.output)
    assert 'strategy="ddp"' not in run.output  # that would not help


def test_launch_in_running_worker(tmp_path):
    """A dataset can't launch processes, whatever the start method of the worker it runs in."""
    definitions = """
    class Launching(Numbers):
        def __getitem__(self, index):
            Fabric(accelerator="cpu", devices=2, strategy="ddp").launch()
    """
    body = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    train(fabric, [make_loader(Launching(), num_workers=1)])
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, definitions, body)
    assert run.returncode != 0
    assert "RuntimeError: Lightning can't launch processes from within a DataLoader worker" in run.output


def test_one_device_in_running_worker(tmp_path):
    """A dataset may use Fabric on a single device, which needs no launch of processes."""
    definitions = """
    class Launching(Numbers):
        def __getitem__(self, index):
            fabric = Fabric(accelerator="cpu", devices=1)
            fabric.launch()
            return index, fabric.to_device(torch.tensor([float(index)]))
    """
    body = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    train(fabric, [make_loader(Launching(), num_workers=1)])
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, definitions, body)
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=1)]


@pytest.mark.parametrize(
    ("break_script", "expected"),
    [
        ("open(__file__, 'a').write('def broken(:')", ["line {end}", "def broken(:", "SyntaxError"]),
        ("os.remove(__file__)", ["FileNotFoundError"]),
        (
            "open(__file__, 'w').write('import torch\\n\\nraise LookupError(__name__)')",
            ["line 3", "LookupError: __mp_main__"],
        ),
    ],
    ids=["broken", "deleted", "changed"],
)
def test_script_changes_between_launch_and_worker(break_script, expected, tmp_path):
    """A worker that can't import the script any more fails with Python's own error, with the script's name and line."""
    body = f"""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    {break_script}
    train(fabric, [make_loader(Numbers(), num_workers=1)])
    """
    parts = [SPAWN, DATA, IMPORT, TRAIN, body]
    run = run_script(tmp_path, *parts)
    assert run.returncode != 0
    end = make_script(*parts).count("\n") + 1
    for text in [str(tmp_path / "train.py"), *expected]:
        assert text.format(end=end) in run.output
    assert "DataLoader worker" in run.output  # the rank's error


@pytest.mark.parametrize("start", ["command", "interactive", "stdin"])
def test_main_module_without_a_file(start, tmp_path):
    """Where there is no script to import, the standard library decides what a worker does."""
    script = make_script(
        SPAWN,
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nfrom lightning.fabric import Fabric",
        'fabric = Fabric(accelerator="cpu", devices=1)\nfabric.launch()',
        "loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(4)), num_workers=1))",
        'print("sum:", sum(batch.item() for batch, in loader))',
    )
    args = {"command": ["-c", script], "interactive": ["-i"], "stdin": ["-"]}[start]
    run = run_python(args, tmp_path, tmp_path / "records", stdin="" if start == "command" else script)
    if start == "stdin":
        assert run.returncode == 1
        # Windows does not allow such a name, others do not find the file
        assert re.search(r"(FileNotFoundError|OSError): .*" + re.escape(repr(str(tmp_path / "<stdin>"))), run.output)
    else:
        assert run.returncode == 0, run.output
        assert "sum: 6" in run.output


@pytest.mark.parametrize("start", ["package", "zipapp"])
def test_main_module_that_children_do_not_import(start, tmp_path):
    """A package's or an archive's ``__main__`` is not imported in children, as without Lightning."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "data.py").write_text(DATA)
    main = make_script(
        "from data import *", "from data import torch", IMPORT, TRAIN, SPAWN, 'record("import")', ONE_DEVICE
    )
    (package / "__main__.py").write_text(main)
    zipapp.create_archive(package, tmp_path / "package.pyz")
    args = ["-m", "package"] if start == "package" else ["package.pyz"]
    run = run_python(args, tmp_path, tmp_path / "records", env={"PYTHONPATH": _python_path(tmp_path)})
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=1)]
    assert len(run.of("import")) == 1


@pytest.mark.parametrize(
    "args", [["-m", "pdb", "-c", "continue", "-c", "quit"], ["runner.py"]], ids=["debugger", "runpy"]
)
def test_script_under_a_runner(args, tmp_path):
    """A script that another program runs as ``__main__`` trains like one that Python itself runs."""
    (tmp_path / "runner.py").write_text(
        "import runpy, sys\n\nsys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    body = """
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    train(fabric, [make_loader(Numbers(), num_workers=2)])
    record("after")
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, body, args=args)
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=2)] * 2
    assert len(run.of("after")) == 2


@needs(libuv=True)
@pytest.mark.parametrize("cli", [False, True], ids=["torchrun", "fabric run"])
def test_outer_launcher(cli, tmp_path):
    """A script trains with workers when an outer launcher starts its ranks. With the CLI, creating Fabric launches."""
    env = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_DEVICES": "2", "LT_STRATEGY": "ddp"} if cli else {}
    body = f"""
    fabric = {"Fabric()" if cli else "Fabric(accelerator='cpu', devices=2, strategy='ddp')"}
    {"" if cli else "fabric.launch()"}
    train(fabric, [make_loader(Numbers(), num_workers=1)])
    record("after")
    """
    args = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, body, args=args, env=env)
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=2)] * 2
    assert len(run.of("after")) == 2


@pytest.mark.parametrize("as_module", [False, True])
def test_attributes_of_the_main_module(as_module, tmp_path):
    """A child sees its main module with the attributes that the standard library gives it, and the same arguments."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    body = """
    def child(event):
        main = sys.modules["__main__"]
        same = main is sys.modules["__mp_main__"]
        record(event, imported=IMPORTED, kept=describe(vars(main)), argv=sys.argv, same=same)


    def start(event):
        process = multiprocessing.Process(target=child, args=(event,))
        process.start()
        process.join()


    if __name__ == "__main__":
        start("without")
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        start("with")
    """
    describe = """
    def describe(namespace):
        spec = namespace["__spec__"]
        names = ["__name__", "__file__", "__package__", "__cached__", "__doc__"]
        values = [namespace.get(name) for name in names]
        names = sorted(name for name in namespace if name != "IMPORTED")
        return [*values, type(namespace["__loader__"]).__name__, getattr(spec, "name", None), sys.argv[0], names]


    IMPORTED = describe(globals())
    """
    (package / "train.py").write_text(make_script('"""A script."""', SPAWN, DATA, IMPORT, describe, body))
    args = ["-m", "package.train"] if as_module else [os.path.join("package", "train.py")]
    run = run_python([*args, "--option"], tmp_path, tmp_path / "records", env={"PYTHONPATH": _python_path(tmp_path)})
    assert run.returncode == 0, run.output
    (without,), (with_inheritance,) = run.of("without"), run.of("with")
    for record in (without, with_inheritance):
        del record["event"], record["pid"]
    assert with_inheritance == without


def test_worker_imports_lightning_only_if_the_script_does(tmp_path):
    """The inheritance itself needs nothing but the standard library in the worker."""
    definitions = """
    class Modules(Numbers):
        def __getitem__(self, index):
            record("modules", lightning="lightning" in sys.modules)
            return super().__getitem__(index)
    """
    body = """
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    assert len(list(make_loader(Modules(), num_workers=2))) == 8
    """
    run = run_script(tmp_path, SPAWN, DATA, definitions, under_main_guard(body))
    assert run.returncode == 0, run.output
    assert [record["lightning"] for record in run.of("modules")] == [False] * 16


@needs(start_method="forkserver")
def test_fork_server_that_imports_the_main_script(tmp_path):
    """A fork server that imports the script ahead of its children stops at the launch, too.

    From Python 3.13.8 and 3.14.1 on, fork servers do. Before, a part of the standard library asks for the path under a
    name that it does not have: the script gives it that name.

    """
    body = """
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()

    import multiprocessing.spawn
    get_preparation_data = multiprocessing.spawn.get_preparation_data

    def with_main_path(name):
        data = get_preparation_data(name)
        return dict(data, main_path=data["init_main_from_path"])

    multiprocessing.spawn.get_preparation_data = with_main_path
    train(fabric, [make_loader(Numbers(), num_workers=2)])
    record("after")
    """
    run = run_script(tmp_path, SPAWN.replace("spawn", "forkserver"), DATA, 'record("import")', IMPORT, TRAIN, body)
    assert run.returncode == 0, run.output
    assert [record["weight"] for record in run.of("rank")] == [expected_weight(devices=1)]
    assert len(run.of("worker")) == 2
    assert len(run.of("after")) == 1
    assert len(run.of("import")) == 2  # the rank and the fork server
    assert run.output.count("launches without an `if __name__") == 1


def test_missing_guard_is_explained_once(tmp_path):
    """Of all processes that import an unguarded script again, a single one says so."""
    body = """
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn")
    fabric.launch(train, [make_loader(Numbers(), num_workers=2)])
    """
    run = run_script(tmp_path, SPAWN, DATA, IMPORT, TRAIN, body)
    assert run.returncode == 0, run.output
    assert run.output.count("launches without an `if __name__") == 1


def test_inheritance_needs_only_the_standard_library(tmp_path):
    """The first pickle that a child reads is made of built-in types, for ``sys.path`` is not restored by then."""
    main = mock.Mock(__file__=str(tmp_path / "train.py"), __spec__=None)
    with mock.patch.dict(sys.modules, {"__main__": main}):
        _enable_inheritance()
        data = multiprocessing.spawn.get_preparation_data("name")
    data["authkey"] = bytes(data["authkey"])  # the standard library refuses to pickle it anywhere but into a child
    assert data["init_main_from_path"] == main_script.__file__
    code = "import pickle, sys; data = pickle.load(sys.stdin.buffer); print(*sys.modules); print(data)"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], input=pickle.dumps(data), capture_output=True, timeout=60, check=True
    )
    modules, unpickled = result.stdout.decode().split("\n", 1)
    assert main_script.KEPT_NAME in modules.split()
    assert not {"torch", "lightning"} & set(modules.split())
    assert str(tmp_path / "train.py") in unpickled or repr(str(tmp_path / "train.py")) in unpickled


def test_enabling_twice_is_enabling_once():
    _enable_inheritance()
    enabled = multiprocessing.spawn.get_preparation_data
    _enable_inheritance()
    assert multiprocessing.spawn.get_preparation_data is enabled


def test_two_distributions_in_one_process(tmp_path):
    """Where `lightning` and `lightning_fabric` both hand down the main script, it is that of the user, once."""
    main = mock.Mock(__file__=str(tmp_path / "train.py"), __spec__=None)
    with mock.patch.dict(sys.modules, {"__main__": main}):
        data = _PreparationData(_PreparationData(multiprocessing.spawn.get_preparation_data))("name")
    assert data["lightning_inheritance"].path == str(tmp_path / "train.py")


def test_ipython_is_not_imported_in_children(tmp_path):
    """The standard library excepts the start script of IPython; it stays excepted."""
    main = mock.Mock(__file__=str(tmp_path / "ipython.py"), __spec__=None)
    with mock.patch.dict(sys.modules, {"__main__": main}):
        before = multiprocessing.spawn.get_preparation_data("name")
        _enable_inheritance()
        data = multiprocessing.spawn.get_preparation_data("name")
    assert data.pop("lightning_inheritance").path is None  # it hands over the global state, and no script
    assert data == before


def test_frozen_program_is_left_alone(tmp_path, monkeypatch):
    """Where Lightning's modules are not files, as in a frozen program, a child gets what the standard library sends."""
    main = mock.Mock(__file__=str(tmp_path / "train.py"), __spec__=None)
    monkeypatch.setattr(main_script, "__file__", str(tmp_path / "frozen" / "main_script.pyc"))
    with mock.patch.dict(sys.modules, {"__main__": main}):
        before = multiprocessing.spawn.get_preparation_data("name")
        _enable_inheritance()
        assert multiprocessing.spawn.get_preparation_data("name") == before


def test_main_script_without_inheritance_does_nothing():
    """Only the process that was handed a script imports one."""
    before = set(sys.modules)
    runpy.run_path(main_script.__file__, run_name="__other__")
    assert set(sys.modules) == before


def test_not_a_dataloader_worker():
    assert not _is_dataloader_worker()
    _guard_launch()


def _python_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.getenv("PYTHONPATH")]))
