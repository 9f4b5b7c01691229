"""The user's script: whether it can be run again by each rank and worker."""

import ast
from pathlib import Path

from lightning_windows_ddp._errors import BadInputError
from lightning_windows_ddp.doctor._check import Check

_NAME = "script"


def read(script: Path) -> bytes:
    """Return what is in the script.

    Raises:
        BadInputError: If it can't be read.

    """
    try:
        return script.read_bytes()
    except OSError as error:
        raise BadInputError(f"{script} cannot be read ({error.strerror}). Name the script that trains.") from None


def check(source: bytes, is_patched: bool) -> Check:
    """Check that a script has a main guard.

    Args:
        source: What is in the script.
        is_patched: Whether Lightning is patched.

    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return Check(_NAME, "problem", f"is no Python: {error}", "Name the script that trains.")
    if any(isinstance(node, ast.If) and _is_guard(node.test) for node in tree.body):
        return Check(_NAME, "ok", "has a main guard")
    if not any(_runs_something(node) for node in tree.body):
        return Check(_NAME, "ok", "only defines things, so it needs no main guard")
    remedy = 'Put what starts the training below `if __name__ == "__main__":`.'
    if is_patched:
        found = "has no main guard; it runs, but each worker repeats everything above the launch"
        return Check(_NAME, "note", found, remedy)
    return Check(_NAME, "problem", "has no main guard, which Lightning needs unless it is patched", remedy)


def _is_guard(test: ast.expr) -> bool:
    """Return whether a condition compares `__name__` with `"__main__"`, alone or with others."""
    compared = [node for node in ast.walk(test) if isinstance(node, ast.Compare)]
    return any(
        any(isinstance(part, ast.Name) and part.id == "__name__" for part in (node.left, *node.comparators))
        and any(isinstance(part, ast.Constant) and part.value == "__main__" for part in (node.left, *node.comparators))
        for node in compared
    )


def _runs_something(node: ast.stmt) -> bool:
    defines = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not isinstance(node, defines) and not is_text
