"""The benchmarks: who runs when, and what is made of the values. How long something takes is not tested anywhere."""

from pathlib import Path

import pytest
from benchmarks import measure
from benchmarks.__main__ import NAMES
from benchmarks.catalogue import Ratio, catalogue
from benchmarks.measure import Side, Values, alternate
from benchmarks.report import format_growth, format_measured


def test_sides_run_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCRIPTS", tmp_path)
    log = tmp_path / "log"
    (tmp_path / "script.py").write_text(
        "import os, sys, time\n"
        f"with open({str(log)!r}, 'a') as file: file.write(sys.argv[1])\n"
        "print('something else')\n"
        "print('{\"late\": %d}' % (time.perf_counter() >= float(os.environ['BENCH_STARTED'])))\n",
        encoding="utf-8",
    )
    values = alternate([Side("first", "script.py", ("a",)), Side("second", "script.py", ("b",))], 2, "test")
    assert log.read_text(encoding="utf-8") == "abbaab"  # the first two are not counted
    assert [len(rounds) for rounds in values.values()] == [2, 2]
    assert all(found["late"] == 1 and found["end"] > 0 for rounds in values.values() for found in rounds)


@pytest.mark.parametrize("code", ["raise ValueError('the reason')", "print('the reason')"])
def test_script_that_fails_is_shown(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCRIPTS", tmp_path)
    (tmp_path / "script.py").write_text(code, encoding="utf-8")
    with pytest.raises(SystemExit, match="the reason"):
        Side("first", "script.py").run()


def test_fork_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCRIPTS", tmp_path)
    for name, number in (("fork/src", 1), ("other", 2)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "answer.py").write_text(f"number = {number}", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    (tmp_path / "script.py").write_text("import answer; print('{\"number\": %d}' % answer.number)", encoding="utf-8")
    assert Side("first", "script.py").run()["number"] == 2
    assert Side("first", "script.py", fork=tmp_path / "fork").run()["number"] == 1


def test_ratios_are_of_rounds() -> None:
    """The median of the ratios, of those to the smaller one of two bounds, and none of what could not be measured."""
    values: dict[str, list[Values]] = {
        "a": [{"x": 1.0}, {"x": 4.0}, {"x": 100.0}],
        "b": [{"x": 2.0, "y": 1.0}, {"x": 4.0, "y": 1.0}, {"x": 1.0, "y": 1.0}],
        "c": [{"x": 4.0}, {"x": 2.0}, {"x": 1000.0}],
    }
    ratios = [
        Ratio("b", ("a",), "x", "<= 3"),
        Ratio("c", ("a", "b"), "x"),
        Ratio("b", ("a",), "y"),
        Ratio("b", ("d",), "x"),
    ]
    table = format_measured(values, ratios)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert [cells[:3] for cells in lines if "/" in "".join(cells)] == [
        ["b / a", "x", "1.000"],
        ["c / a or b", "x", "4.000"],
    ]
    assert ["a", "4.000", ""] in lines


def test_growth_is_a_line() -> None:
    values: dict[str, list[Values]] = {
        f"{fork}, {ranks} x {workers}": [{"first step": 2.0 + each * ranks * (1 + workers)}]
        for fork, each in (("pristine", 0.5), ("patched", 0.25))
        for ranks in (1, 2)
        for workers in (0, 2)
    }
    assert format_growth(values).splitlines() == [
        "- pristine: 2.00 s, and 0.500 s for each process; correlation 1.000",
        "- patched: 2.00 s, and 0.250 s for each process; correlation 1.000",
    ]


def test_catalogue_is_whole(tmp_path: Path) -> None:
    benchmarks = catalogue(tmp_path / "pristine", tmp_path / "patched")
    assert {benchmark.name for benchmark in benchmarks} | {"images", "hand-over"} == set(NAMES)
    for benchmark in benchmarks:
        names = [side.name for side in benchmark.sides]
        assert len(set(names)) == len(names)
        assert all((measure.SCRIPTS / side.script).is_file() for side in benchmark.sides)
        others = ("torchrun", "Accelerate", "Ray Train")  # they run where they are installed
        for ratio in benchmark.ratios:
            assert all(name in names or name.startswith(others) for name in (ratio.after, *ratio.before))
