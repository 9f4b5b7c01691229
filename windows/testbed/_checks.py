"""What runs in a test bed: the reproduction of #17777, and the tests that the patches add."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import demo
from lightning_windows_ddp._errors import CommandError
from lightning_windows_ddp._scratch import scratch_folder
from testbed._bed import Bed, Report
from testbed._debian import WINE
from testbed._run import windows_path
from testbed._summary import Summary, read_junit
from testbed._wheels import compile_python

ROOT = Path(__file__).resolve().parents[2]
_IMPORTS = ROOT / "windows" / "imports"

_TESTS_LIMIT = 7200.0  # seconds
# The rest is as in pyproject.toml. As many processes as Linux has cores: the ones of the tests, mostly, wait for torch.
_OPTIONS = ["--verbose", "-p", "no:cacheprovider", f"--numprocesses={os.cpu_count()}", "--dist=worksteal"]


def reproduce(bed: Bed, pristine: Path, patched: Path, figures_file: Path) -> list[str]:
    """Run the demo under Wine: the same script, the same table, the same figures.

    Args:
        bed: The test bed.
        pristine: The fork of the pristine release.
        patched: The fork with the patches.
        figures_file: Where to write the figures.

    Returns:
        What was not as it must be.

    """
    runs: list[demo.Run] = []
    python = [str(WINE), str(bed.python)]
    for lightning, fork in (("pristine", pristine), ("patched", patched)):
        env = _environment(bed, fork, PYTHONUTF8="1")
        # Anew for each: what a failed run leaves behind outlives the processes that `demo` knows of
        with bed.wine.running():
            runs += demo.reproduce(lightning, python, env)
    with bed.wine.running():
        versions = demo.find_versions(python, env)
    figures = demo.collect(runs, versions)
    print(demo.format_table(figures))
    demo.write_json(figures_file, figures)
    return demo.list_surprises(runs)


def run_tests(bed: Bed, patched: Path, arguments: Sequence[str], junit: Path, report: Report) -> Summary:
    """Run pytest under Wine.

    Args:
        bed: The test bed.
        patched: The fork with the patches.
        arguments: The tests to run, and other arguments for pytest.
        junit: The JUnit file to write.
        report: Is called with each line of pytest's output.

    Raises:
        CommandError: If pytest could not run the tests.

    """
    junit.unlink(missing_ok=True)
    env = _environment(bed, patched, PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1")
    with scratch_folder(Path(tempfile.gettempdir()), "windows") as scratch, bed.wine.running():
        options = [*_OPTIONS, f"--basetemp={windows_path(scratch / 'pytest')}", f"--junitxml={windows_path(junit)}"]
        try:
            command = [str(bed.python), "-m", "pytest", *options, *arguments]
            bed.wine.run(command, _TESTS_LIMIT, env=env, cwd=ROOT, show=report)
        except CommandError:
            if not junit.is_file():
                raise
    return read_junit(junit)


def run_on_forks(
    bed: Bed, module: str, pristine: Path, patched: Path, arguments: Sequence[str], report: Report
) -> bool:
    """Run the fault matrix or the benchmarks under Wine.

    Args:
        bed: The test bed.
        module: ``"faults"`` or ``"benchmarks"``.
        pristine: The fork of the pristine release.
        patched: The fork with the patches.
        arguments: Other arguments for the module.
        report: Is called with each line of its output.

    Returns:
        Whether it ended with exit status 0.

    """
    env = _environment(bed, patched, PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1")
    compile_python(pristine / "src", for_good=False)
    command = [str(bed.python), "-m", module, windows_path(pristine), windows_path(patched), *arguments]
    with bed.wine.running():
        try:
            bed.wine.run(command, _TESTS_LIMIT, env=env, cwd=ROOT, show=report)
        except CommandError:
            return False
    return True


def _environment(bed: Bed, fork: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a Windows Python that imports a fork of Lightning, compiled if need be."""
    source = fork / "src"
    compile_python(source, for_good=False)
    # The command line last: beside it lie the modules that the fork has in place
    path = ";".join(map(windows_path, (_IMPORTS, source, ROOT / "src")))
    return bed.wine.environment(PYTHONPATH=path, TESTBED_FORK=windows_path(source), **variables)
