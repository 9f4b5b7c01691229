"""What a check has found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "note", "problem", "skipped"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        name: What was checked, in one or two words.
        outcome: `problem` if no job would run because of it, `note` if the user should know it, `skipped` if an earlier
            problem kept it from being checked.
        found: What was found, in a phrase.
        remedy: What to do about it, in full sentences, or nothing.
        details: All that a failed trial has printed: for bug reports, not for the screen.

    """

    name: str
    outcome: Outcome
    found: str
    remedy: str = ""
    details: str = ""


def is_fit(checks: Sequence[Check]) -> bool:
    """Return whether a job would run: all was checked, and there is no problem."""
    return all(check.outcome in ("ok", "note") for check in checks)
