"""Lightning: which releases are installed, and whether they are patched."""

from pathlib import Path

from lightning_windows_ddp._errors import BadInputError
from lightning_windows_ddp._status import Status, status
from lightning_windows_ddp._translate import FABRIC, LIGHTNING, PYTORCH
from lightning_windows_ddp.doctor._check import Check, Outcome
from lightning_windows_ddp.doctor._torch import Facts

_NAME = "Lightning"
_PACKAGES = {LIGHTNING: "lightning", PYTORCH: "pytorch_lightning", FABRIC: "lightning_fabric"}


def check(python: Path, facts: Facts) -> Check:
    """Check that a Lightning is installed that has the patches.

    Args:
        python: The interpreter of the environment.
        facts: What that interpreter has told.

    """
    if facts.python is None:
        return Check(_NAME, "skipped", "")
    try:
        found = status(python)
    except BadInputError:
        found = []
    if not found:
        remedy = "Install lightning, pytorch-lightning or lightning-fabric there, or name another --python."
        return Check(_NAME, "problem", "not installed in this environment", remedy)
    titles = ", ".join(f"{each.name} {each.version}" for each in found)
    wanting = [each for each in found if not _is_fine(each, facts)]
    if not wanting:
        return Check(_NAME, "ok", f"{titles}: patched")
    details = ", ".join(f"{each.name} {each.version}: {_state(each, facts)}" for each in found)
    # `lightning` brings pytorch-lightning, which a script that imports `lightning` does not use
    outcome: Outcome = "problem" if len(wanting) == len(found) else "note"
    return Check(_NAME, outcome, details, _remedy(wanting[0]))


def _is_fine(each: Status, facts: Facts) -> bool:
    # An archive or a frozen program can hold the patches, too
    return each.ok or (each.obstacle is not None and _PACKAGES[each.name] in facts.patched)


def _state(each: Status, facts: Facts) -> str:
    return "patched" if _is_fine(each, facts) else each.state


def _remedy(each: Status) -> str:
    if each.line is None:
        return "There are no patches for this release: install one that has some, such as 2.6.6."
    if each.obstacle is not None:
        return each.obstacle[:1].upper() + each.obstacle[1:] + "."
    if each.state == "changed":
        return "Somebody has changed its files: install Lightning anew, then run `lightning-windows-ddp apply`."
    return "Run `lightning-windows-ddp apply`, with the same --python."
