"""What the checks have found, as text for the screen and as JSON for bug reports."""

import contextlib
import getpass
import json
import os
import re
import socket
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from lightning_windows_ddp.doctor._check import Check, is_fit

_WIDTH = 110
_INDENT = 25


def as_text(checks: Sequence[Check]) -> str:
    """Return a line for each check, and below it what to do, if anything."""
    lines = []
    for check in checks:
        mark = "PROBLEM" if check.outcome == "problem" else check.outcome
        lines += _wrap(f"{mark:<9}{check.name:<{_INDENT - 9}}", check.found or "not checked, because of the above")
        if check.remedy:
            lines += _wrap(" " * _INDENT, f"-> {check.remedy}")
    problems = sum(check.outcome == "problem" for check in checks)
    if is_fit(checks):
        verdict = "A job would run here."
    elif problems:
        verdict = f"{problems} problem{'s keep' if problems > 1 else ' keeps'} a job from running here."
    else:
        verdict = "It could not be checked whether a job would run here."
    return "\n".join([*lines, "", verdict])


def as_json(checks: Sequence[Check], version: str) -> str:
    """Return the checks for programs and bug reports, without names of users, hosts and folders.

    Args:
        checks: The checks.
        version: The version of this package.

    """
    content = {
        "version": version,
        "platform": sys.platform,
        "fit": is_fit(checks),
        "checks": [{name: anonymize(value) for name, value in vars(check).items()} for check in checks],
    }
    return json.dumps(content, indent=1)


def anonymize(text: str) -> str:
    """Return a text without the names of this user, this host and the folders of absolute paths."""
    # Only the last part of a path is left; that of a library tells what is missing. In quotes, it may have spaces.
    text = re.sub(r"([\"'])(?:[A-Za-z]:)?[\\/][^\"'\n]*([\\/][^\"'\n\\/]+)\1", r"\1...\2\1", text)
    text = re.sub(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][^\s\\/:*?\"'<>|,()\[\]]+)+(?=[\\/])", "...", text)
    text = re.sub(r"\[[^\[\]\s]+\]:(\d+)", r"[...]:\1", text)  # torch's way to print a host and a port
    for name in _own_names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "...", text, flags=re.IGNORECASE)
    return text


def _own_names() -> list[str]:
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with contextlib.suppress(OSError, KeyError, ImportError):  # neither a variable nor a table has the user's name
        names.add(getpass.getuser())
    names |= {os.environ.get(name, "") for name in ("COMPUTERNAME", "USERDOMAIN")}
    return sorted((name for name in names if len(name) > 1), key=len, reverse=True)


def _wrap(first: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * (_INDENT + 3 * text.startswith("->"))
    )
