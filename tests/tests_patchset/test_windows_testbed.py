"""The set-up of the Windows test bed, as far as it needs no Wine."""

import hashlib
import importlib
import os
import py_compile
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lightning_windows_ddp._errors import BadInputError, CommandError, ProgramNotFoundError

ROOT = Path(__file__).resolve().parents[2]
JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure message="assert 0">text</failure></testcase>
<testcase classname="a" name="broken"><error message="fixture">text</error></testcase>
<testcase classname="b" name="one"><skipped type="pytest.skip" message="no fork server">x</skipped></testcase>
<testcase classname="b" name="two"><skipped type="pytest.skip" message="no fork server">x</skipped></testcase>
</testsuite></testsuites>
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the test bed is set up on Linux")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Import a module of the test bed, whose package is not installed."""
    monkeypatch.syspath_prepend(str(ROOT / "windows"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    def load(name: str) -> types.ModuleType:
        return importlib.import_module(f"testbed.{name}")

    yield load
    for name in [name for name in sys.modules if name == "testbed" or name.startswith("testbed.")]:
        del sys.modules[name]


@pytest.fixture
def said() -> list[str]:
    return []


def fake_index(monkeypatch: pytest.MonkeyPatch, downloads, files: dict[str, bytes]) -> list[Sequence[str]]:
    """Serve wheels instead of pip; returns what is asked for."""
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str], **options: object) -> bytes:
        asked.append(command)
        target = Path(command[command.index("--dest") + 1])
        for name, content in files.items():
            (target / name).write_bytes(content)
        return b""

    monkeypatch.setattr(downloads, "run", run)
    return asked


def test_every_pin_has_a_hash(load) -> None:
    downloads = load("_downloads")
    assert downloads.torch_versions() == ["2.15.0", "2.7.1", "2.0.1"]
    for file in downloads.PINS.iterdir():
        assert downloads.read_pins(file)


def test_old_torch_brings_its_own_packages(load) -> None:
    """Each package once, in the release that goes with what is pinned beside torch."""
    bed = load("_bed")
    names = [pin.name for pin in bed.pins_of("2.0.1")]
    assert len(set(names)) == len(names)
    assert "fastapi" in names
    releases = {torch: {pin.name: pin.requirement for pin in bed.pins_of(torch)} for torch in ("2.0.1", "2.15.0")}
    assert releases["2.0.1"]["fsspec"] != releases["2.15.0"]["fsspec"]


def test_line_that_is_no_pin(load, tmp_path: Path) -> None:
    file = tmp_path / "packages.txt"
    file.write_text("# comment\n\ntorch>=2\n")
    with pytest.raises(BadInputError, match=r"packages.txt: `torch>=2` is not of the form"):
        load("_downloads").read_pins(file)


def test_download_once(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    downloads = load("_downloads")
    asked = fake_index(monkeypatch, downloads, {"a-1-py3-none-any.whl": b"content"})
    pin = downloads.Pin("a==1", hashlib.sha256(b"content").hexdigest())
    for _ in range(2):
        wheels = downloads.download([pin], tmp_path, said.append)
        assert wheels["a"].read_bytes() == b"content"
    assert len(asked) == 1
    assert {"win_amd64", "--no-deps", "a==1"} <= set(asked[0])


def test_hash_mismatch_leaves_nothing(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    downloads = load("_downloads")
    fake_index(monkeypatch, downloads, {"a-1-py3-none-any.whl": b"other", "b-1-py3-none-any.whl": b"good"})
    pins = [downloads.Pin("a==1", "0" * 64), downloads.Pin("b==1", hashlib.sha256(b"good").hexdigest())]
    with pytest.raises(downloads.HashMismatchError, match=r"another file than the pinned one for a==1\. "):
        downloads.download(pins, tmp_path, said.append)
    assert not list(tmp_path.iterdir())


def test_name_changes_with_versions_and_code(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = load("_bed")
    pins = tmp_path / "pins"
    pins.mkdir()
    for file in bed.PINS.iterdir():
        (pins / file.name).write_bytes(file.read_bytes())
    before = bed.bed_name("2.15.0")
    monkeypatch.setattr(bed, "PINS", pins)
    assert bed.bed_name("2.15.0") == before
    assert bed.bed_name("2.7.1") != before

    (pins / "torch-2.7.1.txt").write_text("")  # of another bed
    assert bed.bed_name("2.15.0") == before
    text = (pins / "packages.txt").read_text()
    (pins / "packages.txt").write_text(text.replace("pytest==", "pytest==1"))
    assert bed.bed_name("2.15.0") != before
    (pins / "packages.txt").write_text(text)
    monkeypatch.setattr(bed, "_CODE", bed._CODE[1:])
    assert bed.bed_name("2.15.0") != before


@pytest.fixture
def steps(load, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replace the steps of making a bed by ones that need nothing; return their module."""
    bed = load("_bed")

    def make_folder(folder: Path, *_: object) -> object:
        folder.mkdir(exist_ok=True)
        return bed.Wine(folder)

    for name in ("require_programs", "add_runtime", "install_wheels", "compile_python"):
        monkeypatch.setattr(bed, name, lambda *arguments, **options: None)
    monkeypatch.setattr(bed, "download", lambda *arguments: {})
    monkeypatch.setattr(bed, "make_interpreter", make_folder)
    monkeypatch.setattr(bed, "make_prefix", make_folder)
    monkeypatch.setattr(bed, "try_python", lambda *arguments: "tried")
    monkeypatch.setattr(bed, "wine_version", lambda: "wine-8.0")
    return bed


def test_made_once(steps, tmp_path: Path, said: list[str]) -> None:
    first = steps.set_up("2.15.0", tmp_path, said.append)
    assert said
    said.clear()
    assert steps.set_up("2.15.0", tmp_path, said.append) == first
    assert not said
    assert [path.name for path in tmp_path.iterdir()] == [steps.bed_name("2.15.0")]


@pytest.mark.parametrize("step", ["make_interpreter", "compile_python", "make_prefix", "try_python"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), CommandError(["wine"], 1, "no")])
def test_interrupted_set_up_is_not_taken_for_a_finished_one(
    steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], step: str, error: BaseException
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(steps, step, fail)
        with pytest.raises(type(error)):
            steps.set_up("2.15.0", tmp_path, said.append)
    assert not list(tmp_path.iterdir())
    assert steps.set_up("2.15.0", tmp_path, said.append).folder.is_dir()


def test_another_wine_makes_it_anew(steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    bed = steps.set_up("2.15.0", tmp_path, said.append)
    (bed.folder / "old").touch()
    monkeypatch.setattr(steps, "wine_version", lambda: "wine-9.0")
    assert steps.set_up("2.15.0", tmp_path, said.append) == bed
    assert not (bed.folder / "old").exists()
    assert any("was made with another Wine than wine-9.0" in line for line in said)


def test_old_beds_of_the_same_torch_are_removed(steps, tmp_path: Path, said: list[str]) -> None:
    for name in ("windows-2.15.0-old", "windows-2.7.1-other", "downloads"):
        (tmp_path / name).mkdir()
    steps.set_up("2.15.0", tmp_path, said.append)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"windows-2.7.1-other", "downloads", steps.bed_name("2.15.0")}


def test_full_disk(steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(steps.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=steps.GIB))
    with pytest.raises(BadInputError, match=r"1\.0 GiB of free space.* need 3\.0\. "):
        steps.set_up("2.15.0", tmp_path, said.append)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "user", "message"),
    [(None, 0, "there is no apt-get"), ("/usr/bin/apt-get", 1000, "only root can install them. Run `sudo apt-get")],
)
def test_no_wine(
    load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
    program: "str | None",
    user: int,
    message: str,
) -> None:
    debian = load("_debian")
    monkeypatch.setattr(debian, "WINE", tmp_path / "wine64")
    monkeypatch.setattr(debian.shutil, "which", lambda name: program)
    monkeypatch.setattr(debian.os, "geteuid", lambda: user)
    with pytest.raises(ProgramNotFoundError, match=message):
        debian.require_programs(said.append)


def test_not_on_linux(load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main = load("__main__").main
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert main(["--results", "results"]) == 2
    assert "runs under Wine on Linux" in capsys.readouterr().err


def test_unknown_torch(load, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("__main__").main(["--torch", "1.13.1", "--results", "results"])
    assert "2.15.0" in capsys.readouterr().err


def test_summary_lists_reasons(load, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    assert load("_summary").read_junit(file).format().splitlines() == [
        "failed: a::bad",
        "failed: a::broken",
        "skipped 2: no fork server",
        "1 passed, 2 failed, 2 skipped",
    ]


def test_fast_imports_find_what_python_finds(tmp_path: Path) -> None:
    """The finder for folders that do not change finds modules, packages and namespaces, compiled or not."""
    for name, text in {
        "module.py": "value = 1",
        "package/__init__.py": "",
        "package/inner.py": "value = 2",
        "namespace/inner.py": "value = 3",
        "compiled.py": "value = 4",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    py_compile.compile(str(tmp_path / "compiled.py"), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    (tmp_path / "compiled.py").write_text("value = 5", encoding="utf-8")  # nobody looks at that any more
    code = """if True:
        import inspect, sys
        import compiled, module, namespace.inner, package.inner
        print(module.value, package.inner.value, namespace.inner.value, compiled.value)
        print(inspect.getsource(module).strip(), type(package.__spec__.loader).__name__)
        try:
            import package.missing
        except ModuleNotFoundError as error:
            print(error)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "windows" / "imports"), str(tmp_path)])}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "TESTBED_FORK": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.splitlines() == ["1 2 3 4", "value = 1 Loader", "No module named 'package.missing'"]
