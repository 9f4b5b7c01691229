"""Parse the command line, call what was asked for, print what came out. Nothing else is done here."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_windows_ddp._apply import Done, apply, revert
from lightning_windows_ddp._errors import Stopped, ToolError
from lightning_windows_ddp._export import export
from lightning_windows_ddp._fork import BUILD_CONSTRAINTS, fork
from lightning_windows_ddp._status import status
from lightning_windows_ddp._translate import DISTRIBUTIONS
from lightning_windows_ddp._upstream import URL
from lightning_windows_ddp._verify import format_results, verify
from lightning_windows_ddp._version import own_version
from lightning_windows_ddp.doctor import Plan, as_json, as_text, examine, is_fit


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments; those of the process by default.

    Returns:
        The exit status: 0 if all is well, 1 if `verify` found a failure, `status` a Lightning that is not patched or
        `doctor` something that would stop a job, 2 if the command could not be carried out, 128 and the number of the
        signal if it was interrupted.

    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a path may hold letters that a Windows console lacks
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.command(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader of a pipe (`| head`) has gone; keep the interpreter from failing at its last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ToolError as error:
        return _fail(str(error), 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"The system refused an operation on a file: {where}{error.strerror}. Mend that and run again.", 2)
    except KeyboardInterrupt:
        return _fail("Interrupted.", 130)
    except Stopped as stopped:
        return _fail("Stopped.", 128 + stopped.signum)


def _apply(arguments: argparse.Namespace) -> int:
    _print_done(apply(arguments.python, arguments.names, report=_report), "patched", "is patched already")
    return 0


def _revert(arguments: argparse.Namespace) -> int:
    _print_done(revert(arguments.python, arguments.names, report=_report), "restored", "is not patched")
    return 0


def _print_done(results: list[Done], done: str, nothing_to_do: str) -> None:
    for result in results:
        print(f"{result.title}: {done} {result.files} files" if result.changed else f"{result.title} {nothing_to_do}")


def _status(arguments: argparse.Namespace) -> int:
    found = status(arguments.python)
    print(
        json.dumps([vars(each) for each in found], indent=1)
        if arguments.json
        else "\n".join(each.describe() for each in found)
    )
    return 0 if all(each.ok for each in found) else 1


def _doctor(arguments: argparse.Namespace) -> int:
    plan = Plan(arguments.python, arguments.script, arguments.devices, arguments.workers, arguments.time_limit)
    checks = examine(plan, report=_report)
    print(as_json(checks, own_version()) if arguments.json else as_text(checks))
    return 0 if is_fit(checks) else 1


def _fork(arguments: argparse.Namespace) -> int:
    destination = arguments.destination or Path(f"lightning-{arguments.version}")
    made = fork(
        arguments.version,
        destination,
        pristine=arguments.pristine,
        upstream=arguments.upstream,
        report=_report,
    )
    kind = "pristine" if arguments.pristine else "patched"
    print(f"{destination} holds lightning {arguments.version}, {kind}. Install it with:")
    command = ["pip", "install", "-e", str(made)]
    if (made / BUILD_CONSTRAINTS).is_file():
        command += ["--build-constraint", str(made / BUILD_CONSTRAINTS)]
    print("  " + (subprocess.list2cmdline(command) if os.name == "nt" else shlex.join(command)))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    result = export(arguments.fork, arguments.to, report=_report)
    for name in result.written:
        print(f"wrote   {name}")
    for name in result.removed:
        print(f"removed {name}")
    if not result.written and not result.removed:
        print(f"Nothing changed: {result.checkout} already holds what {arguments.fork} gives.")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    results = verify(arguments.line, arguments.python, upstream=arguments.upstream, report=_report)
    print(format_results(results))
    return 0 if all(result.ok for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-windows-ddp",
        description="Lightning whose DDP works on Windows: patches for an installed one, and forks of its releases.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for name, command, text in (
        ("apply", _apply, "patch the installed Lightning"),
        ("revert", _revert, "give the installed Lightning its original files back"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.add_argument(
            "names", metavar="DISTRIBUTION", nargs="*", help=f"one of {', '.join(DISTRIBUTIONS)} (default: all)"
        )
        _add_python(sub, "the interpreter of the environment that has it (default: this one)")
        sub.set_defaults(command=command)

    sub = commands.add_parser("status", help="tell what is installed of Lightning, and whether it is patched")
    _add_python(sub, "the interpreter of the environment (default: this one)")
    sub.add_argument("--json", action="store_true", help="print it as JSON")
    sub.set_defaults(command=_status)

    sub = commands.add_parser("doctor", help="tell what would stop DDP on this machine, and how to mend it")
    sub.add_argument("script", metavar="SCRIPT", nargs="?", type=Path, help="the script that trains, to look at it too")
    _add_python(sub, "the interpreter that it is trained with (default: this one)")
    sub.add_argument("--devices", metavar="N", type=_positive, help="how many ranks (default: the GPUs, at least 2)")
    sub.add_argument("--workers", metavar="N", type=int, default=2, help="how many workers for each rank (default: 2)")
    text = "for how long each trial may run (default: 180)"
    sub.add_argument("--time-limit", metavar="SECONDS", type=_positive, default=180, help=text)
    sub.add_argument("--json", action="store_true", help="print it as JSON without names of users, hosts and folders")
    sub.set_defaults(command=_doctor)

    sub = commands.add_parser("fork", help="make a git repository of a release with one commit per patch")
    sub.add_argument("version", metavar="VERSION", help="the release, such as 2.6.1, or master")
    sub.add_argument(
        "destination", metavar="DEST", nargs="?", type=Path, help="the folder to make (default: ./lightning-VERSION)"
    )
    sub.add_argument("--pristine", action="store_true", help="leave the patches out")
    _add_upstream(sub)
    sub.set_defaults(command=_fork)

    sub = commands.add_parser("export", help="write a fork's commits as patches, and the files that they add")
    sub.add_argument("fork", metavar="FORK", type=Path, help="a folder that `fork` made")
    sub.add_argument(
        "--to", metavar="CHECKOUT", type=Path, help="where to write (default: the repository this command lies in)"
    )
    sub.set_defaults(command=_export)

    sub = commands.add_parser("verify", help="prove that the patches apply to every release, import and match src/")
    sub.add_argument(
        "line", metavar="LINE", nargs="*", help="a line, such as 2.6, 2.2-2.4 or master (default: all but master)"
    )
    _add_python(sub, "the interpreter to import with; it needs torch and Lightning's dependencies (default: this one)")
    _add_upstream(sub)
    sub.set_defaults(command=_verify)
    return parser


def _add_upstream(parser: argparse.ArgumentParser) -> None:
    text = f"a clone of Lightning's repository, or its address; for master only (default: {URL})"
    parser.add_argument("--upstream", metavar="CLONE", default=URL, help=text)


def _add_python(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--python", metavar="PATH", type=_program, default=Path(sys.executable), help=text)


def _program(argument: str) -> Path:
    """Return a program by its path, or by its name alone if it is to be looked up on `PATH`."""
    # `Path` drops the "./" that tells the two apart
    return Path(argument).absolute() if os.path.basename(argument) != argument else Path(argument)  # noqa: PTH119


def _positive(argument: str) -> int:
    number = int(argument)
    if number <= 0:
        raise ValueError(argument)
    return number


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fail(message: str, status: int) -> int:
    print(f"lightning-windows-ddp: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
