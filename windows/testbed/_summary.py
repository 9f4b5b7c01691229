"""What a run of pytest came to, read from its JUnit file."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Summary:
    """The outcome of the tests.

    Attributes:
        passed: How many passed.
        failed: The names of those that failed or broke.
        skipped: The reasons of those that were skipped, each with the number of tests.

    """

    passed: int
    failed: list[str]
    skipped: dict[str, int]

    def format(self) -> str:
        """Return the summary as lines of text; the last one counts."""
        lines = [f"failed: {name}" for name in self.failed]
        lines += [f"skipped {number}: {reason}" for reason, number in sorted(self.skipped.items())]
        lines.append(f"{self.passed} passed, {len(self.failed)} failed, {sum(self.skipped.values())} skipped")
        return "\n".join(lines)


def read_junit(file: Path) -> Summary:
    """Read a JUnit file that pytest has written."""
    passed, failed, skipped = 0, [], Counter[str]()
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif skip is not None:
            skipped[skip.get("message") or "no reason given"] += 1
        else:
            passed += 1
    return Summary(passed, failed, dict(skipped))
