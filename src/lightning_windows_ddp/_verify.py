"""Prove, for every release of a line, that the patches apply, leave a tree that imports, and match the checkout."""

import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tabulate import tabulate

from lightning_windows_ddp import _git, _index, _patches, _upstream
from lightning_windows_ddp._errors import BadInputError, CommandError, ProgramNotFoundError
from lightning_windows_ddp._hunks import apply_series
from lightning_windows_ddp._run import run
from lightning_windows_ddp._scratch import scratch_folder
from lightning_windows_ddp._translate import FABRIC, LIGHTNING, PYTORCH

_MODULES = ("lightning", "lightning.fabric", "lightning.pytorch")
_IMPORT = f"import {', '.join(_MODULES)}; print(*(m.__file__ for m in ({', '.join(_MODULES)})), sep='\\n')"
_SAME_TEXT = "same text"
_IN_PLACE = "in place"


@dataclass
class Result:
    """What was found for one release.

    Args:
        line: The release line.
        version: The release.
        outcomes: For each patch, the comparison with the checkout, and what `apply` does to each distribution: `ok`, or
            in two words what failed.
        details: What failed in full, under the name of the patch.

    """

    line: str
    version: str
    outcomes: dict[str, str] = field(default_factory=dict)
    details: list[tuple[str, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.details

    def fail(self, what: str, outcome: str, detail: str) -> None:
        """Note a failure; a patch keeps the first one."""
        self.outcomes.setdefault(what, outcome)
        self.details.append((what, detail.strip()))


def verify(
    lines: Sequence[str],
    python: Path,
    *,
    report: Callable[[str], None] = lambda line: None,
    releases: Sequence[str] | None = None,
    upstream: str = _upstream.URL,
) -> list[Result]:
    """Check the patches against the releases on the package index.

    Args:
        lines: The release lines; all that there are patches for, if empty, but for `master`, which must be named.
        python: An interpreter that can import torch and what else Lightning depends on.
        report: Called with a line of text before each step.
        releases: Check these releases only.
        upstream: Where to get `master` from: a clone of upstream's repository, or its address.

    Returns:
        One result for each release, in order.

    Raises:
        ToolError: If it could not be checked, which is not a failure of the patches.

    """
    patches = _patches.patches_folder()
    series = {line: _patches.read_series(patches, line) for line in lines or _patches.lines(patches)}
    if not series:
        raise BadInputError(f"There are no patches in {patches}. Restore the folder from the repository's history.")
    _git.require_git()
    _require_torch(python)
    versions = [_patches.MASTER] if _patches.MASTER in series else []
    if set(series) - {_patches.MASTER}:
        report("asking the package index for the releases")
        versions += [version for version in _index.released_versions() if not releases or version in releases]
    wanted = [(line, version) for line in series for version in versions if _patches.release_line(version) == line]
    for line in series:
        if not any(line == other for other, _ in wanted):
            raise BadInputError(f"The package index has no such release of the line {line}. Check the line.")
    results = []
    for number, (line, version) in enumerate(wanted, start=1):
        step = partial(_report_step, report, f"[{number}/{len(wanted)}] lightning {version}")
        with scratch_folder(Path(tempfile.gettempdir()), "lightning-windows-ddp") as scratch:
            step("downloading")
            archive = _upstream.download_sources(version, upstream, patches, scratch)
            result = Result(line, version)
            _verify_release(result, archive, series[line], python, scratch, step)
            results.append(result)
    return results


def format_results(results: Sequence[Result]) -> str:
    """Return a table release x patch for each line, and the details of what failed under it."""
    parts = []
    for line in dict.fromkeys(result.line for result in results):
        rows = [result for result in results if result.line == line]
        columns = list(rows[0].outcomes)
        table = [[row.version, *(row.outcomes.get(column, "") for column in columns)] for row in rows]
        heads = [column[:4] if column.endswith(".patch") else column for column in columns]
        parts.append(tabulate(table, headers=["lightning", *heads], tablefmt="github", disable_numparse=True))
        parts.append("\n".join(column for column in columns if column.endswith(".patch")))
    for result in results:
        for what, detail in result.details:
            indented = "\n".join(f"  {text}" for text in detail.splitlines())
            parts.append(f"lightning {result.version}, {what}:\n{indented}")
    return "\n\n".join(parts)


def _report_step(report: Callable[[str], None], prefix: str, text: str) -> None:
    report(f"{prefix}: {text}")


def _require_torch(python: Path) -> None:
    remedy = "Name an interpreter that has torch and Lightning's dependencies with --python."
    try:
        _python(python, "import torch", Path(tempfile.gettempdir()))
    except ProgramNotFoundError:
        raise BadInputError(f"There is no Python interpreter at {python}. {remedy}") from None
    except OSError as error:
        raise BadInputError(f"{python} cannot be run ({error.strerror}). {remedy}") from None
    except CommandError as error:
        reason = error.output.splitlines()[-1] if error.output else f"status {error.status}"
        raise BadInputError(f"{python} cannot import torch ({reason}), which Lightning needs. {remedy}") from None


def _verify_release(
    result: Result,
    archive: Path,
    series: Sequence[Path],
    python: Path,
    scratch: Path,
    report: Callable[[str], None],
) -> None:
    tree = scratch / "tree"
    _index.unpack_sdist(archive, tree)
    before = _files(tree)
    fitting = [patch for patch in series if _patches.is_for(patch, tree)]
    # outside of a repository of its own, `git apply` would look for one above and skip files that lie outside of it
    _git.init(tree)
    for number, patch in enumerate(series, start=1):
        report(f"{patch.name} ({number} of {len(series)})")
        if patch not in fitting:
            result.outcomes[patch.name] = "no docs"
            # Its links have nothing to be put into; the pages that it adds are to be compared all the same
            pages = [f"--include={name}" for name in _patches.added_files(patch)]
            _git.git("apply", *pages, str(patch), cwd=tree)
            continue
        if not _apply(result, tree, patch):
            for later in [*(path.name for path in series[number:]), _SAME_TEXT, _IN_PLACE, PYTORCH, FABRIC]:
                result.outcomes[later] = "not tried"
            return
        failure = _why_no_import(tree, python, scratch)
        if failure:
            pristine = scratch / f"pristine-{number}"
            _index.unpack_sdist(archive, pristine)
            if _why_no_import(pristine, python, scratch):
                failure += "\nThe release does not import without the patches either: look at the interpreter first."
            result.fail(patch.name, "no import", failure)
        result.outcomes.setdefault(patch.name, "ok")
    _compare(result, tree, _files(tree) - before)
    report("as installed")
    pristine = scratch / "pristine"
    _index.unpack_sdist(archive, pristine)
    _apply_in_place(result, series, pristine, tree)
    if result.version != _patches.MASTER:
        _apply_to_wheels(result, series, scratch)


def _apply_to_wheels(result: Result, series: Sequence[Path], scratch: Path) -> None:
    """Check that `apply` can patch the distributions that hold a part of Lightning."""
    for name in (PYTORCH, FABRIC):
        wheel = _index.download_wheel(name, result.version, scratch)
        if wheel is None:
            result.outcomes[name] = "no release"
            continue
        with zipfile.ZipFile(wheel) as files:
            applied = apply_series(series, name, partial(_read_member, files))
        _note(result, name, applied.problems)


def _read_member(files: zipfile.ZipFile, path: str) -> bytes | None:
    try:
        return files.read(path)
    except KeyError:
        return None


def _apply_in_place(result: Result, series: Sequence[Path], pristine: Path, tree: Path) -> None:
    """Check that `apply` makes of the release what git has made of it."""

    def read(path: str) -> bytes | None:
        file = pristine / "src" / path
        return file.read_bytes() if file.is_file() else None

    applied = apply_series(series, LIGHTNING, read)
    others = [path for path, change in applied.changes.items() if change.after != (tree / "src" / path).read_bytes()]
    _note(result, _IN_PLACE, [*applied.problems, *(f"{path}: not as git has it" for path in others)])


def _note(result: Result, what: str, problems: Sequence[str]) -> None:
    if problems:
        result.fail(what, "no apply", "\n".join(problems))
    else:
        result.outcomes[what] = "ok"


def _apply(result: Result, tree: Path, patch: Path) -> bool:
    """Apply a patch with plain `git apply`: at another line if need be, but only where all its context is the same."""
    try:
        _git.git("apply", "--check", "--whitespace=error", str(patch), cwd=tree)
    except CommandError as strict:
        try:
            _git.git("apply", "--check", "--whitespace=nowarn", str(patch), cwd=tree)
        except CommandError as error:
            result.fail(patch.name, "no apply", error.output)
            return False
        result.fail(patch.name, "whitespace", strict.output)
    _git.git("apply", "--whitespace=nowarn", str(patch), cwd=tree)
    return True


def _why_no_import(tree: Path, python: Path, scratch: Path) -> str | None:
    """Import Lightning from a tree in a fresh interpreter, and return what went wrong."""
    source = tree / "src"
    try:
        output = _python(python, _IMPORT, scratch, source)
    except CommandError as error:
        return error.output or f"The interpreter ended with status {error.status}."
    found = output.decode("utf-8", "replace").splitlines()[-len(_MODULES) :]
    strangers = [path for path in found if not Path(path).resolve().is_relative_to(source.resolve())]
    if strangers:
        return f"Another Lightning was imported than the patched one in {source}: {', '.join(strangers)}"
    return None


def _compare(result: Result, tree: Path, added: set[str]) -> None:
    """Compare the files that the series adds with those that the checkout holds."""
    checkout = _patches.checkout_folder()
    if checkout is None:
        result.outcomes[_SAME_TEXT] = "no checkout"  # an installed wheel has nothing to compare with
        return
    problems = [f"{name}: in the checkout, but no patch adds it" for name in sorted(_mirrored(checkout) - added)]
    for name in sorted(added):
        if not (checkout / name).is_file():
            problems.append(f"{name}: added by a patch, but not in the checkout")
        elif (checkout / name).read_bytes() != (tree / name).read_bytes():
            problems.append(f"{name}: not the same bytes in the checkout as a patch adds")
    if problems:
        result.fail(_SAME_TEXT, "differs", "\n".join(problems))
    else:
        result.outcomes[_SAME_TEXT] = "ok"


def _mirrored(checkout: Path) -> set[str]:
    """Return the checkout's files in the mirrored folders, without what git ignores."""
    mirrored = (*_patches.MIRRORED, _patches.DOCUMENTATION)
    try:
        listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *mirrored)
        return set(_git.names(_git.git(*listing, cwd=checkout)))
    except CommandError:  # not a git repository: an unpacked archive of this one
        return {
            f"{mirror}/{name}" for mirror in mirrored for name in _files(checkout / mirror) if not name.endswith(".pyc")
        }


def _files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if path.parts[0] != ".git"}


def _python(python: Path, code: str, cwd: Path, path: Path | None = None) -> bytes:
    """Run code in a fresh interpreter that leaves no compiled files; the next patch may change a file in no time."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return run([str(python), "-c", code], cwd=cwd, env=environment)
