# Copyright The Lightning AI team.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a process that is started with ``spawn`` or ``forkserver`` is handed by its parent.

A forked child inherits its parent's world; a spawned child must be handed it. In particular, such a child imports the
main script anew. Where the script launches without a main guard, the child must not launch again but stop there: at
that line, the parent's ``__main__`` had no more in it either. And it starts with torch's own settings instead of those
that the program has made (see :mod:`~lightning.fabric.strategies.launchers.global_state`).

"""

import logging
import multiprocessing
import multiprocessing.spawn
import os
import runpy
import sys
from functools import wraps
from typing import Any, Callable, Dict, Optional, Tuple

from torch.utils.data import get_worker_info

from lightning.fabric.strategies.launchers import global_state, main_script
from lightning.fabric.strategies.launchers.lifetime import _be_part_of_job, _ties_of
from lightning.fabric.utilities.rank_zero import rank_zero_only

_log = logging.getLogger(__name__)
_KEY = "lightning_inheritance"  # in the preparation data


def _guard_launch(multiple_processes: bool = True) -> None:
    """Let a launch pass in a process that may launch, and stop it in one that must not.

    Every launch calls this before it does anything else. In the process that launches, the processes that it starts
    from here on are handed their inheritance. In a process that is importing the main script, because a launched one
    has started it, the import ends here and the call does not return.

    Args:
        multiple_processes: Whether the launch needs processes beside the current one.

    Raises:
        RuntimeError: If the process was started before anything had been launched and is importing a main script
            without a main guard, or if the launch of multiple processes is attempted in a running DataLoader worker.

    """
    if _is_importing_main_script():
        _enable_inheritance()  # the children of this process need to stop here, too
        script = sys.modules[main_script.KEPT_NAME].main_script
        if script.explain and script.launch_line is None:
            _log.warning(
                f'{script.name} launches without an `if __name__ == "__main__"` guard. Each worker process imports the'
                " script up to the launch, and so repeats all work above it: in every worker, whenever workers are"
                " started. To save that time and memory, move the code that works into a function and guard its call:"
                '\n\nif __name__ == "__main__":\n    main()\n'
            )
        script.stop()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # local import to avoid a circular import
        import lightning.fabric.strategies.launchers.multiprocessing as launcher

        if hasattr(launcher, "_check_missing_main_guard"):  # since release 2.1
            launcher._check_missing_main_guard()
        raise RuntimeError(
            'The main script launches without an `if __name__ == "__main__"` guard, and a process that was started'
            " before the launch has to import it. Move the code that works into a function and guard its call."
        )
    if multiple_processes and _is_dataloader_worker():
        raise RuntimeError(
            "Lightning can't launch processes from within a DataLoader worker. Code that runs in the worker, such as"
            " the dataset, the `collate_fn` or the `worker_init_fn`, has started a run with a multi-process strategy."
            " Start that run in the main process, or run it there on a single device with `devices=1` and the default"
            " strategy."
        )
    _be_part_of_job()
    _enable_inheritance()


def _guards_launch(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Make the ``launch`` of a launcher call :func:`_guard_launch` before it does anything else.

    Only the launchers of release 2.0 need it; later ones call that function themselves.

    """

    @wraps(launch)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        _guard_launch()
        return launch(self, *args, **kwargs)

    return guarded


def _is_dataloader_worker() -> bool:
    """Whether this process works for a rank instead of being one: it must neither launch nor announce a run.

    This is the case in a DataLoader worker that is running, and in every spawned process (which can be a rank of a
    spawn-based strategy, too) for as long as it is importing the main script.

    """
    return _is_importing_main_script() or get_worker_info() is not None


def _is_importing_main_script() -> bool:
    """Whether this process is a spawned one that was handed the main script and is importing it."""
    kept = sys.modules.get(main_script.KEPT_NAME)
    return kept is not None and kept.main_script.importing


def _enable_inheritance() -> None:
    """Hand an inheritance to every process that this process starts from now on with ``spawn`` or ``forkserver``.

    Runs in every process that launches, and in the ranks of a spawn-based strategy.

    """
    main = sys.modules["__main__"]
    if not hasattr(main, "__spec__"):
        # `python -m pdb script.py` (until Python 3.12): the standard library fails without it
        main.__spec__ = None
    if not isinstance(multiprocessing.spawn.get_preparation_data, _PreparationData):
        multiprocessing.spawn.get_preparation_data = _PreparationData(multiprocessing.spawn.get_preparation_data)


class _PreparationData:
    """Takes the place of :func:`multiprocessing.spawn.get_preparation_data` and adds the inheritance to its result.

    Processes of all kinds (DataLoader workers, ranks, pools, managers) are started with these data, so nothing in the
    child needs to change. Runs in the parent, once for each process that it starts.

    Args:
        get_preparation_data: The function whose place it takes.

    """

    def __init__(self, get_preparation_data: Callable[[str], Dict[str, Any]]) -> None:
        self._get_preparation_data = get_preparation_data
        self._explained = False

    def __call__(self, name: str) -> Dict[str, Any]:
        data = self._get_preparation_data(name)
        if _KEY in data or not os.path.isfile(main_script.__file__):
            return data
        state = global_state._capture(_inherited_state())
        # The caller is the standard library's, and the only one that knows what it is about to start
        ties = _ties_of(sys._getframe(1).f_locals.get("process_obj"))
        path, module = data.get("init_main_from_path"), data.get("init_main_from_name")
        if not _is_imported_by_children(path, module):
            data[_KEY] = _Inheritance(None, None, False, state, ties)
            return data

        # Once for each job: by the first child of rank 0, or of the process that launches it. A fork server is started
        # after the data for its first child were made, and may be the only one that imports the script.
        can_explain = rank_zero_only.rank == 0 and main_script.KEPT_NAME not in sys.modules
        data.pop("init_main_from_name", None)
        data["init_main_from_path"] = _MainScriptPath(main_script.__file__, _Inheritance(path, module, can_explain))
        data[_KEY] = _Inheritance(path, module, can_explain and not self._explained, state, ties)
        self._explained = True
        return data


class _Inheritance:
    """What a parent hands to a child that it starts with ``spawn`` or ``forkserver``.

    It travels in the preparation data, which the child unpickles before ``sys.path`` is restored: the pickle holds
    built-in types only and is a call of the standard library that runs ``main_script.py`` by its path.

    Args:
        path: The path of the main script, or ``None`` if it was run as a module or is not imported by the child.
        module: The name of the main module, or ``None`` if it was run by its path or is not imported by the child.
        explain: Whether the child tells the user about a missing main guard when it finds that it is missing.
        state: The global state of the parent. ``None`` for a fork server, which does no work of its own.
        ties: What :func:`lightning.fabric.strategies.launchers.lifetime._ties_of` has returned for the child.

    """

    def __init__(
        self,
        path: Optional[str],
        module: Optional[str],
        explain: bool,
        state: Optional[Dict[str, Any]] = None,
        ties: Optional[Dict[str, Any]] = None,
    ) -> None:
        # `str`, because the debugger's path of a script is an instance of a class of its own
        self.path = None if path is None else str(path)
        self.module = module
        self.explain = explain
        self.state = state
        self.ties = ties

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[str, Dict[str, Any], str]]:
        state = self.state and {
            "state": self.state,
            "name": global_state.__name__,
            "path": global_state.__file__,
            "modules": global_state.MODULES_WITH_STATE,
        }
        handed_over = {
            "path": self.path,
            "module": self.module,
            "explain": self.explain,
            "state": state,
            "ties": self.ties,
        }
        return runpy.run_path, (main_script.__file__, {"handed_over": handed_over}, main_script.RUN_NAME)


class _MainScriptPath(str):
    """The path of ``main_script.py`` in the preparation data.

    A fork server that imports the main script ahead of its children (Python 3.13.8, 3.14.1 and later) is not sent the
    preparation data as a pickle: it gets the path as source code, in its command line.

    Args:
        path: The path.
        inheritance: What the fork server is handed.

    """

    def __new__(cls, path: str, inheritance: _Inheritance) -> "_MainScriptPath":
        return super().__new__(cls, path)

    def __init__(self, path: str, inheritance: _Inheritance) -> None:
        self._inheritance = inheritance

    def __repr__(self) -> str:
        _, arguments = self._inheritance.__reduce__()
        return f"__import__('runpy').run_path{arguments!r} and {str(self)!r}"

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[str]]:
        return str, (str(self),)


def _inherited_state() -> Optional[Dict[str, Any]]:
    """Return the global state that this process was handed, or ``None`` if it was not started with an inheritance."""
    kept = sys.modules.get(main_script.KEPT_NAME)
    state = None if kept is None else kept.main_script.state
    return None if state is None else state._state


def _is_imported_by_children(path: Optional[str], module: Optional[str]) -> bool:
    """Whether the standard library would import the main script in a spawned process, by one of these two."""
    if module is not None:
        return module != "__main__" and not module.endswith(".__main__")
    return path is not None and os.path.splitext(os.path.basename(path))[0] != "ipython"
