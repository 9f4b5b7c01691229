"""Parse the command line, set the test bed up, run the checks, print what came out. Nothing else is done here."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_windows_ddp import _signals
from lightning_windows_ddp._errors import Stopped, ToolError
from testbed._downloads import PYTHON, torch_versions
from testbed._selection import ALL, SELECTION

_ON_FORKS = {"faults": "faults", "bench": "benchmarks"}  # what to run, and the module that does


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments; those of the process by default.

    Returns:
        The exit status: 0 if all is well, 1 if a check failed, 2 if the checks could not be made, 128 and the number of
        the signal if it was interrupted.

    """
    arguments = _parser().parse_args(argv)
    if sys.platform != "linux":
        return _fail("The Windows test bed runs under Wine on Linux. On Windows, run `python dev.py tests`.", 2)
    if "{}.{}".format(*sys.version_info) != PYTHON:
        return _fail(f"The test bed takes the standard library of the Python that makes it: use Python {PYTHON}.", 2)
    try:
        with _signals.raised():
            return _check(arguments)
    except ToolError as error:
        return _fail(str(error), 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"The system refused an operation on a file: {where}{error.strerror}. Mend that and run again.", 2)
    except KeyboardInterrupt:
        return _fail("Interrupted.", 128 + signal.SIGINT)
    except Stopped as stopped:
        return _fail("Stopped.", 128 + stopped.signum)


def _check(arguments: argparse.Namespace) -> int:
    # Local imports: only Linux has what these modules need
    from testbed._bed import cache_folder, locked, set_up
    from testbed._checks import reproduce, run_on_forks, run_tests

    cache = cache_folder()
    with locked(cache, _report):
        bed = set_up(arguments.torch, cache, _report)
        _report(f"the test bed is {bed.folder}")
        if arguments.patched is None:
            return 0
        arguments.results.mkdir(parents=True, exist_ok=True)
        status = 0
        if arguments.only in _ON_FORKS:
            module = _ON_FORKS[arguments.only]
            ok = run_on_forks(bed, module, arguments.pristine, arguments.patched, arguments.pytest, _report)
            return 0 if ok else 1
        if arguments.only != "tests":
            surprises = reproduce(bed, arguments.pristine, arguments.patched, arguments.results / "demo.json")
            for surprise in surprises:
                _report(surprise)
            status = 1 if surprises else 0
        if arguments.only != "demo":
            selection = arguments.pytest or (ALL if arguments.all else SELECTION)
            summary = run_tests(bed, arguments.patched, selection, arguments.results / "junit.xml", _report)
            print(summary.format())
            if summary.failed or not summary.passed:
                status = 1
    return status


def _parser() -> argparse.ArgumentParser:
    versions = torch_versions()
    parser = argparse.ArgumentParser(
        prog="python dev.py windows", description="Run the demo and the tests under Windows Python, with Wine."
    )
    parser.add_argument(
        "--torch", choices=versions, default=versions[0], help=f"the version of torch (default: {versions[0]})"
    )
    parser.add_argument("--all", action="store_true", help="run all tests instead of one of each kind")
    parser.add_argument(
        "--only",
        choices=["demo", "tests", *_ON_FORKS],
        help="run this part alone; faults and bench run only so",
    )
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", required=True, help="where to write demo.json and junit.xml"
    )
    parser.add_argument("--pristine", type=Path, metavar="FORK", help="the fork of the pristine release")
    parser.add_argument("--patched", type=Path, metavar="FORK", help="the fork with the patches")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="arguments for pytest, faults or bench")
    return parser


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fail(message: str, status: int) -> int:
    print(f"windows: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
