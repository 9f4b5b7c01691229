"""Directives that describe the patch set from its own files: `patches` and `release-lines`."""

import email
import email.policy
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PATCHES = Path(__file__).parents[2] / "patches"
NEWEST = "2.6"


class Patches(SphinxDirective):
    """A section for each patch of the newest release line: its subject, its reason, what it changes and adds."""

    def run(self) -> list[nodes.Node]:
        """Return the sections, from the mails that the patches are."""
        parts = []
        for path in _series(NEWEST):
            self.env.note_dependency(str(path))
            mail = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
            reason, _, diff = mail.get_content().partition("\ndiff --git ")
            number, subject = path.name.partition("-")[0], mail["Subject"].removeprefix("[PATCH] ")
            parts += [f"(patch-{number})=", f"## {number}: {subject}", reason, _summary(f"\ndiff --git {diff}")]
        return self.parse_text_to_nodes("\n\n".join(parts), allow_section_headings=True)


class ReleaseLines(SphinxDirective):
    """A table of the release lines and the number of their patches."""

    def run(self) -> list[nodes.Node]:
        """Return the table, newest line first, and upstream's master after it."""
        rows = ["| folder | for | patches |", "| --- | --- | --- |"]
        folders = sorted((path.parent.name for path in PATCHES.glob("[0-9]*/series")), reverse=True)
        for line in folders:
            self.env.note_dependency(str(PATCHES / line / "series"))
            first, _, last = line.partition("-")
            releases = f"{first}.x to {last}.x" if last else f"{first}.x"
            rows.append(f"| `patches/{line}` | releases {releases} | {len(_series(line))} |")
        base = (PATCHES / "master" / "BASE").read_text(encoding="utf-8").strip()
        rows.append(f"| `patches/master` | upstream's commit `{base[:12]}` | {len(_series('master'))} |")
        return self.parse_text_to_nodes("\n".join(rows))


def _series(line: str) -> list[Path]:
    folder = PATCHES / line
    return [folder / name for name in (folder / "series").read_text(encoding="utf-8").split()]


def _summary(diff: str) -> str:
    """Return what a diff changes and adds, as a Markdown list."""
    changed, added, tests = [], [], 0
    for part in diff.split("\ndiff --git a/")[1:]:
        name = part.partition(" b/")[0]
        if name.startswith("tests/"):
            tests += 1
        elif "\nnew file mode " in part.partition("\n@@")[0]:
            added.append(name)
        else:
            hunks = part.count("\n@@ ")
            changed.append(f"`{name}` ({hunks} hunk{'s' * (hunks > 1)})")
    lines = [f"- Changes {', '.join(changed)}"] if changed else []
    lines += ["- Adds " + ", ".join(f"`{name}`" for name in added)] if added else []
    lines += [f"- Tests in {tests} file{'s' * (tests > 1)}"] if tests else []
    return "\n".join(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives to Sphinx."""
    app.add_directive("patches", Patches)
    app.add_directive("release-lines", ReleaseLines)
    return {"parallel_read_safe": True}
