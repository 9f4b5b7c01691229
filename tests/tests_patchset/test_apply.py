import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_windows_ddp import _journal
from tests_fabric.helpers.needs import is_wine
from tests_patchset.installations import ADDED, FABRIC, PYTORCH, install, write_series

Snapshot = Callable[[Path], dict[str, bytes | None]]


@pytest.fixture
def lightning(site: Path) -> Path:
    """Install a tiny Lightning."""
    return install(site)


def test_apply_and_revert(site: Path, lightning: Path, cli: Any, snapshot: Snapshot) -> None:
    before = snapshot(site)
    assert cli("status", "lightning").status == 2  # it takes no names
    assert cli("apply", "lightning").out == "lightning 2.6.6: patched 4 files\n"
    numbers = (site / "lightning/fabric/numbers.py").read_text(encoding="utf-8")
    assert numbers == FABRIC.replace("line_20 = 20", "line_20 = 'hook'").replace(
        "line_5 = 5\n", "line_5 = 5\nextra = 5\n"
    )
    assert (site / "lightning/fabric/new/added.py").read_text(encoding="utf-8") == ADDED
    assert not (site / "tests").exists()
    after = snapshot(site)
    assert cli("apply", "lightning").out == "lightning 2.6.6 is patched already\n"
    assert snapshot(site) == after
    assert cli("revert", "lightning").out == "lightning 2.6.6: restored 4 files\n"
    assert snapshot(site) == before
    assert cli("revert", "lightning").out == "lightning 2.6.6 is not patched\n"
    assert snapshot(site) == before


def test_record_has_every_file(site: Path, lightning: Path, cli: Any) -> None:
    """What pip removes is what stands there, with the hash that it has."""
    assert cli("apply", "lightning").status == 0
    rows = [line.split(",") for line in (lightning / "RECORD").read_text(encoding="utf-8").splitlines()]
    files = [path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()]
    assert sorted(row[0] for row in rows) == sorted(files)
    for path, digest, size in rows:
        if digest:
            assert int(size) == (site / path).stat().st_size
    assert [row[0] for row in rows if not row[1]] == [
        f"{lightning.name}/RECORD",
        f"{lightning.name}/windows-ddp/manifest.json",
        f"{lightning.name}/windows-ddp/lightning+fabric+numbers.py",
        f"{lightning.name}/windows-ddp/lightning+pytorch+numbers.py",
        f"{lightning.name}/windows-ddp/{lightning.name}+RECORD",
    ]


@pytest.mark.parametrize(
    ("names", "files"),
    [(["lightning-fabric"], 3), (["pytorch-lightning"], 4), (["pytorch-lightning", "lightning-fabric"], 5)],
)
def test_parts_of_lightning_under_other_names(
    names: list[str], files: int, site: Path, cli: Any, snapshot: Snapshot
) -> None:
    """Imports, module names in strings and paths are those of the distribution; both may own the same files."""
    for name in names:
        install(site, name)
    before = snapshot(site)
    title = " and ".join(f"{name} 2.6.6" for name in names)
    assert cli("apply", names[-1]).out == f"{title}: patched {files} files\n"
    added = (site / "lightning_fabric/new/added.py").read_text(encoding="utf-8")
    assert added == 'from lightning_fabric import numbers\n\nNAMES = ("lightning", "pytorch_lightning")\n'
    if "pytorch-lightning" in names:
        numbers = (site / "pytorch_lightning/numbers.py").read_text(encoding="utf-8")
        assert numbers.startswith("from pytorch_lightning import callbacks  # see lightning.pytorch/callbacks\n")
        assert "line_0 = 'hook'\n" in numbers
    for record in site.glob("*.dist-info/RECORD"):
        assert "lightning_fabric/new/added.py,sha256=" in record.read_text(encoding="utf-8")
    assert [line for line in cli("status").out.splitlines() if "): patched by" in line and str(site) in line] == [
        line for line in cli("status").out.splitlines() if str(site) in line
    ]
    assert cli("revert", names[0]).status == 0
    assert snapshot(site) == before


def test_parts_that_do_not_belong_together(site: Path, checkout: Path, cli: Any, snapshot: Snapshot) -> None:
    write_series(checkout / "patches", "2.5")
    install(site, "pytorch-lightning")
    install(site, "lightning-fabric", "2.5.6")
    before = snapshot(site)
    run = cli("apply", "pytorch-lightning")
    assert run.status == 2
    assert "pytorch-lightning 2.6.6 and lightning-fabric 2.5.6 do not belong together" in run.err
    assert snapshot(site) == before


def test_all_that_is_installed(site: Path, lightning: Path, cli: Any, snapshot: Snapshot) -> None:
    """Who installs lightning gets pytorch-lightning, too. One that does not fit keeps the other as it is."""
    install(site, "pytorch-lightning")
    before = snapshot(site)
    assert cli("apply", "lightning", "pytorch-lightning").out.splitlines() == [
        "lightning 2.6.6: patched 4 files",
        "pytorch-lightning 2.6.6: patched 4 files",
    ]
    assert cli("revert", "lightning", "pytorch-lightning").status == 0
    assert snapshot(site) == before
    (site / "pytorch_lightning/numbers.py").write_bytes(b"")
    before = snapshot(site)
    assert cli("apply", "lightning", "pytorch-lightning").status == 2
    assert snapshot(site) == before


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("lightning/pytorch/numbers.py", PYTORCH + "# mine\n", "changed since it was installed"),
        ("lightning/pytorch/numbers.py", "# mine\n", "differs from the release where it is to be changed"),
        ("lightning/fabric/new/added.py", "# mine\n", "exists already"),
        ("lightning/fabric/numbers.py", None, "is missing"),
    ],
)
def test_files_that_somebody_has_changed(
    path: str, content: str | None, message: str, site: Path, lightning: Path, cli: Any, snapshot: Snapshot
) -> None:
    """All hunks are checked before the first file is written."""
    if content is None:
        (site / path).unlink()
    else:
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_text(content, encoding="utf-8")
    before = snapshot(site)
    run = cli("apply", "lightning")
    assert run.status == 2
    assert f"{path}: {message}" in run.err
    assert snapshot(site) == before


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_files_changed_after_the_patches(
    command: str, site: Path, lightning: Path, checkout: Path, cli: Any, snapshot: Snapshot
) -> None:
    assert cli("apply", "lightning").status == 0
    write_series(checkout / "patches", value="newer")
    (site / "lightning/fabric/numbers.py").write_text("# mine\n", encoding="utf-8")
    before = snapshot(site)
    run = cli(command, "lightning")
    assert run.status == 2
    assert str(Path("lightning/fabric/numbers.py")) in run.err
    assert "Somebody has changed files since they were patched" in run.err
    assert snapshot(site) == before
    run = cli("status")
    assert run.status == 1
    assert "lightning 2.6.6 (line 2.6): changed" in run.out
    assert "  changed: lightning/fabric/numbers.py" in run.out


def test_newer_patches(site: Path, lightning: Path, checkout: Path, cli: Any, snapshot: Snapshot) -> None:
    """They are applied to the originals, not to what older patches have made of them."""
    before = snapshot(site)
    assert cli("apply", "lightning").status == 0
    write_series(checkout / "patches", value="newer")
    assert "patched by another version" in cli("status").out
    assert cli("apply", "lightning").status == 0
    assert "'newer'" in (site / "lightning/pytorch/numbers.py").read_text(encoding="utf-8")
    assert cli("revert", "lightning").status == 0
    assert snapshot(site) == before


def test_newer_patches_that_do_not_fit(
    site: Path, lightning: Path, checkout: Path, cli: Any, snapshot: Snapshot
) -> None:
    assert cli("apply", "lightning").status == 0
    before = snapshot(site)
    patch = checkout / "patches/2.6/0001-change.patch"
    patch.write_bytes(patch.read_bytes().replace(b"-line_20 = 20", b"-line_20 = 21"))
    assert cli("apply", "lightning").status == 2
    assert snapshot(site) == before


def test_hunk_at_another_line(site: Path, lightning: Path, cli: Any) -> None:
    """As with git, a hunk applies where all its lines are, though not where it says."""
    path = site / "lightning/fabric/numbers.py"
    path.write_bytes(b"# one\n# two\n# three\n" + FABRIC.encode())
    (lightning / "RECORD").write_text("", encoding="utf-8")  # as of a release that has these lines
    assert cli("apply", "lightning").status == 0
    content = path.read_text(encoding="utf-8")
    assert content.startswith("# one\n# two\n# three\n")
    assert "line_20 = 'hook'\nline_21" in content
    assert "line_5 = 5\nextra = 5\nline_6" in content


def test_compiled_files_do_not_outlive_their_source(site: Path, lightning: Path, cli: Any) -> None:
    """Python would take them for those of a file of the same size that was written in the same second."""
    compiled = site / "lightning/pytorch/__pycache__/numbers.cpython-39.pyc"
    other = compiled.with_name("numbers_of_others.cpython-39.pyc")
    compiled.parent.mkdir()
    for command in ("apply", "revert"):
        compiled.touch()
        other.touch()
        assert cli(command, "lightning").status == 0
        assert not compiled.exists()
        assert other.exists()


def test_line_ends_are_kept(site: Path, lightning: Path, cli: Any) -> None:
    record = lightning / "RECORD"
    record.write_bytes(record.read_bytes().replace(b"\n", b"\r\n"))
    assert cli("apply", "lightning").status == 0
    assert record.read_bytes().count(b"\r\n") == record.read_bytes().count(b"\n")


@pytest.mark.skipif(is_wine(), reason="Requires: [file locks that others cannot have, too]")
def test_two_at_the_same_time(site: Path, lightning: Path, cli: Any, snapshot: Snapshot) -> None:
    before = snapshot(site)
    code = """
import sys
from pathlib import Path
from lightning_windows_ddp import _installed, _journal
with _journal.locked(_installed.choose(_installed.find_installed(Path(sys.executable)), ["lightning"])):
    print("locked", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        run = cli("apply", "lightning")
        other.communicate("\n", timeout=60)
    assert run.status == 2
    assert "Another lightning-windows-ddp is changing lightning 2.6.6" in run.err
    assert snapshot(site) == before


@pytest.mark.parametrize("function", ["_write", "_take_place"])
def test_system_refuses_a_file(
    function: str, site: Path, lightning: Path, cli: Any, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a read-only folder and for a file in use: root may write everywhere, and this is not Windows."""
    before = snapshot(site)
    genuine = getattr(_journal, function)

    def refuse(path: Path, *arguments: Any) -> None:
        if path.name.startswith("added.py"):
            raise PermissionError(13, "Permission denied", str(path))
        genuine(path, *arguments)

    monkeypatch.setattr(_journal, function, refuse)
    run = cli("apply", "lightning")
    assert run.status == 2
    assert "Permission denied" in run.err
    assert "was not changed" in run.err
    assert snapshot(site) == before


@pytest.mark.parametrize("command", ["revert", "apply"])
def test_system_refuses_to_restore_a_file(
    command: str,
    site: Path,
    lightning: Path,
    checkout: Path,
    cli: Any,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for a file in use. What is said then is true, and the next command goes on from there."""
    before = snapshot(site)
    assert cli("apply", "lightning").status == 0
    write_series(checkout / "patches", value="newer")
    genuine = _journal._take_place

    def refuse(path: Path) -> None:
        if path.name == "RECORD":
            raise PermissionError(13, "Permission denied", str(path))
        genuine(path)

    monkeypatch.setattr(_journal, "_take_place", refuse)
    run = cli(command, "lightning")
    assert run.status == 2
    assert "is restored in part only" in run.err
    assert "was not changed" not in run.err
    assert "interrupted" in cli("status").out
    monkeypatch.setattr(_journal, "_take_place", genuine)
    assert cli("revert", "lightning").status == 0
    assert snapshot(site) == before


def test_frozen(site: Path, lightning: Path, cli: Any) -> None:
    """A stand-in for a program that was made of an interpreter and its packages, and runs code like one."""
    (site / "sitecustomize.py").write_text("import sys\nsys.frozen = True\n", encoding="utf-8")
    run = cli("apply", "lightning")
    assert run.status == 2
    assert "a frozen program" in run.err


def test_editable(site: Path, lightning: Path, cli: Any) -> None:
    lightning.joinpath("direct_url.json").write_text(
        json.dumps({"url": "file:///src", "dir_info": {"editable": True}}), encoding="utf-8"
    )
    run = cli("apply", "lightning")
    assert run.status == 2
    assert "source tree (editable)" in run.err
    assert "lightning-windows-ddp fork" in run.err


def test_editable_fork(site: Path, lightning: Path, tmp_path: Path, cli: Any) -> None:
    """`status` looks into the source tree, whose name may have letters that an address escapes."""
    tree = tmp_path / "my fork"
    tree.mkdir()
    lightning.joinpath("direct_url.json").write_text(
        json.dumps({"url": tree.as_uri(), "dir_info": {"editable": True}}), encoding="utf-8"
    )
    own = cli("status").out.splitlines()
    assert "lightning 2.6.6 (line 2.6): not patched, in " in own[0]
    assert "It cannot be patched in place" in own[1]
    added = tree / "src/lightning/fabric/new/added.py"
    added.parent.mkdir(parents=True)
    added.write_text(ADDED, encoding="utf-8")
    own = cli("status").out.splitlines()
    assert "lightning 2.6.6 (line 2.6): patched in its source tree, in " in own[0]
    assert not [line for line in own if "It cannot be patched in place" in line]


def test_without_record(site: Path, lightning: Path, cli: Any) -> None:
    (lightning / "RECORD").unlink()
    run = cli("apply", "lightning")
    assert run.status == 2
    assert "it has no RECORD" in run.err


def test_archive(site: Path, lightning: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", site)
    monkeypatch.setenv("PYTHONPATH", archive)
    run = cli("apply", "lightning")
    assert run.status == 2
    assert "part of an archive" in run.err


def test_release_without_patches(site: Path, cli: Any, snapshot: Snapshot) -> None:
    install(site, version="1.9.5")
    before = snapshot(site)
    run = cli("apply", "lightning")
    assert run.status == 2
    assert "There are no patches for the release line 1.9" in run.err
    assert snapshot(site) == before
    assert "(no patches for this release): not patched" in cli("status").out


def test_no_lightning(interpreter: Path, checkout: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run = cli("apply", "--python", interpreter)
    assert run.status == 2
    assert "has none of lightning, lightning-fabric, pytorch-lightning installed" in run.err


@pytest.mark.parametrize("python", ["missing", "."])
def test_no_interpreter(python: str, tmp_path: Path, cli: Any) -> None:
    run = cli("status", "--python", tmp_path / python)
    assert run.status == 2
    assert "There is no Python interpreter at" in run.err or "cannot be run" in run.err


def test_program_that_is_no_interpreter(cli: Any) -> None:
    run = cli("status", "--python", "git" if os.name != "nt" else "where")
    assert run.status == 2
    assert "does not tell what it has installed" in run.err


@pytest.mark.parametrize("safe_path", ["", "1"])
def test_current_folder_is_not_looked_into(
    safe_path: str, site: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "here", version="2.6.5")
    install(site)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "here"))
    monkeypatch.setenv("PYTHONSAFEPATH", safe_path)
    assert cli("status").out.startswith("lightning 2.6.6 ")


def test_name_that_is_not_installed(site: Path, lightning: Path, cli: Any) -> None:
    run = cli("apply", "lightning-fabric")
    assert run.status == 2
    assert "lightning-fabric is not installed there" in run.err


def test_status_as_json(site: Path, lightning: Path, cli: Any) -> None:
    def found() -> dict[str, Any]:
        return next(each for each in json.loads(cli("status", "--json").out) if each["name"] == "lightning")

    expected = {"version": "2.6.6", "line": "2.6", "location": str(site.resolve()), "changed": [], "obstacle": None}
    assert found().items() >= {**expected, "state": "not patched", "patched_by": None}.items()
    cli("apply", "lightning")
    assert found().items() >= {**expected, "state": "patched"}.items()
    assert found()["patched_by"]


def test_damaged_journal(site: Path, lightning: Path, cli: Any) -> None:
    assert cli("apply", "lightning").status == 0
    (lightning / "windows-ddp" / "lightning+fabric+numbers.py").unlink()
    run = cli("revert", "lightning")
    assert run.status == 2
    assert "is damaged" in run.err
