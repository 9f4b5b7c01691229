"""Patch an installed Lightning in place, and put the original files back."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp import _journal, _patches, _record, _signals
from lightning_windows_ddp._errors import InstallationError
from lightning_windows_ddp._hunks import Change, apply_series
from lightning_windows_ddp._installed import Distribution, choose, find_installed
from lightning_windows_ddp._translate import has_file
from lightning_windows_ddp._version import own_version

_SHOWN = 10


@dataclass(frozen=True)
class Done:
    """What was done to a distribution.

    Args:
        title: Its name and release.
        changed: Whether anything had to be done.
        files: How many files are patched, or were restored.

    """

    title: str
    changed: bool
    files: int


@dataclass(frozen=True)
class _Plan:
    distribution: Distribution
    line: str
    patches: str
    journal: _journal.Journal | None
    changes: dict[str, Change]  # empty if it is patched already


def apply(python: Path, names: Sequence[str] = (), *, report: Callable[[str], None] = lambda line: None) -> list[Done]:
    """Patch the installed distributions of Lightning.

    Everything is checked for all of them before the first file is written. If this process is killed meanwhile, the
    next `apply` or `revert` puts things in order.

    Args:
        python: The interpreter of the environment.
        names: The distributions; all that are installed, if empty.
        report: Called with a line of text before each step.

    Raises:
        ToolError: If they do not fit the patches, and nothing was changed then; or if the system refuses to change
            one of them, which is put back.

    """
    distributions = choose(find_installed(python), list(names))
    with _journal.locked(distributions):
        _require_patchable(distributions)
        plans = _plan_all(distributions)
        for plan in plans:
            _carry_out(plan, report)
    return [Done(plan.distribution.title, bool(plan.changes), _count(plan)) for plan in plans]


def revert(python: Path, names: Sequence[str] = (), *, report: Callable[[str], None] = lambda line: None) -> list[Done]:
    """Put the original files of the installed distributions of Lightning back.

    Args:
        python: The interpreter of the environment.
        names: The distributions; all that are installed, if empty.
        report: Called with a line of text before each step.

    Raises:
        ToolError: If somebody has changed patched files, and nothing was changed then; or if the system refuses to
            change one of them.

    """
    distributions = choose(find_installed(python), list(names))
    with _journal.locked(distributions):
        journals = _read_journals(distributions)
        for distribution in distributions:
            journal = journals[distribution.title]
            if journal is not None:
                report(f"restoring {distribution.title}")
                _roll_back(journal)
            elif distribution.obstacle is None:
                _journal.remove_leftovers(distribution)
    return [
        Done(title, journal is not None, len(journal.entries) if journal else 0) for title, journal in journals.items()
    ]


def hash_series(series: Sequence[Path]) -> str:
    """Return a hash that tells one series of patches from another."""
    digest = hashlib.sha256()
    for patch in series:
        digest.update(patch.read_bytes() + b"\0")
    return digest.hexdigest()


def _require_patchable(distributions: Sequence[Distribution]) -> None:
    for distribution in distributions:
        if distribution.obstacle is not None:
            raise InstallationError(
                f"{distribution.title} cannot be patched: {distribution.obstacle}. To patch others only,"
                " name them. Nothing was changed."
            )
        lines = {_patches.release_line(each.version) for each in (distribution, *distribution.others)}
        if len(lines) > 1:
            raise InstallationError(
                f"{distribution.title} do not belong together: they own the same files, and their releases are of"
                " different lines. Install the same release of both, and run again. Nothing was changed."
            )


def _read_journals(distributions: Sequence[Distribution]) -> dict[str, _journal.Journal | None]:
    """Return the journal of each distribution by its title; refuse if somebody has changed patched files."""
    journals = {each.title: _journal.read_journal(each) for each in distributions}
    changed = [
        str(each.distribution.root / path) for each in journals.values() if each is not None for path in each.changed()
    ]
    if changed:
        raise InstallationError(
            f"Somebody has changed files since they were patched: {_list(changed)}. Their changes would be lost. Take"
            " these back, or install Lightning again with `pip install --force-reinstall --no-deps`, and run again."
            " Nothing was changed."
        )
    return journals


def _plan_all(distributions: Sequence[Distribution]) -> list[_Plan]:
    journals = _read_journals(distributions)
    plans: list[_Plan] = []
    problems: list[str] = []
    for distribution in distributions:
        plan, found = _plan(distribution, journals[distribution.title])
        plans.append(plan)
        problems += found
    if problems:
        raise InstallationError(
            f"The patches do not fit what is installed: {_list(problems)}. Somebody has changed these files, or the"
            " release was built in another way. Install Lightning again with `pip install --force-reinstall --no-deps`"
            " and run again. Nothing was changed."
        )
    return plans


def _plan(distribution: Distribution, journal: _journal.Journal | None) -> tuple[_Plan, list[str]]:
    """Return what is to be done to a distribution, and why it cannot be done."""
    line = _patches.release_line(distribution.version)
    series = _patches.read_series(_patches.patches_folder(), line)
    patches = hash_series(series)
    if journal is not None and journal.patches == patches and journal.is_complete():
        return _Plan(distribution, line, patches, journal, {}), []

    def read(path: str) -> bytes | None:
        return _journal.read(distribution, path) if journal is None else journal.original(path)

    applied = apply_series(series, distribution.name, read)
    changes = applied.changes
    owners = (distribution, *distribution.others)
    records = {f"{owner.info.name}/RECORD": read(f"{owner.info.name}/RECORD") or b"" for owner in owners}
    recorded = [_record.hashes(record) for record in records.values()]
    problems = [
        f"{path}: changed since it was installed"
        for path, change in changes.items()
        if change.before is not None and not _is_recorded(path, change.before, recorded)
    ]
    originals = [*(path for path, change in changes.items() if change.before is not None), *records]
    names = [_journal.MANIFEST, *map(_journal.copy_name, originals)]
    kept = [f"{distribution.info.name}/{_journal.FOLDER}/{name}" for name in names]
    after = {path: change.after for path, change in changes.items()}
    for owner, (path, record) in zip(owners, records.items(), strict=True):
        files: dict[str, bytes | None] = {each: after[each] for each in after if has_file(owner.name, each)}
        if owner is distribution:
            files |= dict.fromkeys(kept)
        changes[path] = Change(record, _record.update(record, files))
    return _Plan(distribution, line, patches, journal, changes), [*problems, *applied.problems]


def _is_recorded(path: str, content: bytes, recorded: Sequence[dict[str, str]]) -> bool:
    """Return whether a file is as one of its owners has installed it, as far as they know."""
    hashes = [each[path] for each in recorded if each.get(path)]
    return not hashes or _record.hash_of(content) in hashes


def _carry_out(plan: _Plan, report: Callable[[str], None]) -> None:
    distribution = plan.distribution
    if not plan.changes:
        return
    report(f"patching {distribution.title} with the patches of the line {plan.line}")
    with _report_system_errors(distribution, "was not changed"), _signals.raised():
        if plan.journal is not None:
            _roll_back(plan.journal)
        _journal.remove_leftovers(distribution)
        try:
            journal = _journal.begin(distribution, plan.changes, own_version(), plan.patches)
            _journal.carry_out(journal, plan.changes)
        except BaseException:
            with _signals.ignored():
                begun = _journal.read_journal(distribution)
                if begun is not None:
                    _roll_back(begun)
                _journal.remove_leftovers(distribution)
            raise


def _roll_back(journal: _journal.Journal) -> None:
    outcome = "is restored in part only, which the next `apply` or `revert` puts in order"
    with _report_system_errors(journal.distribution, outcome):
        _journal.roll_back(journal)


@contextlib.contextmanager
def _report_system_errors(distribution: Distribution, outcome: str) -> Iterator[None]:
    """Report that the system refuses an operation on a file, and how it leaves the distribution."""
    try:
        yield
    except OSError as error:
        raise InstallationError(
            f"{distribution.title} in {distribution.root} {outcome}. The system has refused an operation on a file:"
            f" {error.strerror} ({error.filename}). End the programs that use this Lightning; if the folder belongs to"
            " somebody else or is read-only, run as who installed it, or use an environment of your own."
        ) from None


def _count(plan: _Plan) -> int:
    if plan.changes:
        return len(plan.changes)
    return len(plan.journal.entries) if plan.journal is not None else 0


def _list(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
