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
"""What a process that was started with ``spawn`` or ``forkserver`` does before it runs its own code.

It imports the user's script up to the launch and no further, and it restores the global state of its parent. This file
is run by ``main_script.py``, before ``sys.path`` is restored and whether or not the process imports Lightning: it needs
nothing but the standard library.

"""

import atexit
import importlib.util
import logging
import multiprocessing
import os
import runpy
import sys
import warnings
import weakref
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Callable, Dict, Iterable, NoReturn, Optional, Sequence

# Loggers of the messages that the parent has shown already when it ran the same lines of the script
_SILENCED_LOGGERS = (
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
    "lightning.pytorch.utilities.rank_zero",
)


class _LaunchReached(BaseException):
    """Ends the import of the script where it launches.

    Not an :class:`Exception`, so that no ``except Exception`` around the launch takes it for a failure.

    """


class _MainScript:
    """The user's script, in a process that was started with ``spawn`` or ``forkserver``.

    Args:
        path: The script's path, if it was run as ``python path``.
        module: The module's name, if it was run as ``python -m module``.
        explain: Whether this process is the one that tells the user about a missing main guard.

    """

    def __init__(self, path: Optional[str], module: Optional[str], explain: bool) -> None:
        self.path = path
        self.module = module
        self.explain = explain
        self.state: Optional[_State] = None
        self.importing = False
        self.launch_line: Optional[int] = None
        self._at_launch: Optional[Dict[str, Any]] = None

    @property
    def name(self) -> str:
        return self.path or str(self.module)

    def import_into(self, namespace: Dict[str, Any]) -> None:
        """Import the script up to the launch; runs in the child, as a part of its bootstrapping.

        Args:
            namespace: The globals of the module that is to become ``__main__`` here. They are replaced by the script's.

        Raises:
            BaseException: What the script raises before it launches, unchanged.

        """
        if self._is_imported():
            # A fork server that has imported the script already has forked this process
            content = vars(sys.modules["__main__"])
        else:
            content = self._import()
        namespace.clear()
        namespace.update(content)
        if self.state is not None:
            self.state.restore()  # in place of what the script has set above its launch

    def stop(self) -> NoReturn:
        """End the import: the script has reached a launch. Runs in the child, called by the guard of that launch."""
        content = vars(sys.modules["__mp_main__"])
        if self._at_launch is None:
            self.launch_line = _current_line(content)
            # `finally` blocks run while the exception travels, and may change what a worker will look up
            self._at_launch = dict(content)
        raise _LaunchReached(f"The import of {self.name} ends at line {self.launch_line}, where it launches.")

    def _is_imported(self) -> bool:
        main = sys.modules["__main__"]
        if self.path is not None:
            return getattr(main, "__file__", None) == self.path
        return getattr(getattr(main, "__spec__", None), "name", None) == self.module

    def _import(self) -> Dict[str, Any]:
        self.importing = True
        for logger in _SILENCED_LOGGERS:
            logging.getLogger(logger).addFilter(_is_warning)
        try:
            # The standard library would make the same two calls
            if self.path is not None:
                content = _call_with_room(runpy.run_path, self.path, run_name="__mp_main__")
            else:
                content = _call_with_room(runpy.run_module, str(self.module), run_name="__mp_main__", alter_sys=True)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # After the launch it can be another exception than ours, if a `finally` block needed the outcome
            if self._at_launch is None:
                raise
        finally:
            self.importing = False
            for logger in _SILENCED_LOGGERS:
                logging.getLogger(logger).removeFilter(_is_warning)

        if self._at_launch is None:
            return content
        self._at_launch.setdefault("__getattr__", self._explain_missing)
        return self._at_launch

    def _explain_missing(self, name: str) -> NoReturn:
        """Serve as the ``__getattr__`` of a main module whose import has ended at the launch."""
        if name.startswith("__") or not hasattr(multiprocessing.current_process(), "_inheriting"):
            raise AttributeError(f"module '__mp_main__' has no attribute '{name}'")
        # `pickle` would replace an AttributeError by its own
        raise RuntimeError(
            f"`{name}` is not defined in {self.name} at line {self.launch_line}, where the script launches. Worker"
            " processes that are spawned rather than forked import the script only up to the launch. Move the"
            f" definition of `{name}` above line {self.launch_line}, or put the code that launches below all"
            ' definitions and under an `if __name__ == "__main__":` guard.'
        )


class _State:
    """The global state of the parent, in a process that was started with ``spawn`` or ``forkserver``.

    It is restored when the process is ready to run its own code: when all that its parent has sent is unpickled. That
    is after the modules were imported that the process object needs, which can have made settings of their own. Parts
    of it are restored earlier, for those who unpickle, or later, for those modules that are imported only then.

    Args:
        state: What :func:`lightning.fabric.strategies.launchers.global_state._capture` has returned in the parent.
        name: The name of that module.
        path: Its path.
        modules: The names of the modules on whose import a part of the state waits.
        warn: Whether this process is the one that warns about settings that torch refuses.

    """

    def __init__(self, state: Dict[str, Any], name: str, path: str, modules: Iterable[str], warn: bool) -> None:
        self._state = state
        self._name = name
        self._path = path
        self._awaited = set(modules).difference(sys.modules)
        self._warn = warn
        self._module: Optional[ModuleType] = None
        self._modules = 0  # how many were imported when all of the state was restored

    def restore_in_time(self) -> None:
        """Arrange for the state to be restored; runs in the child, before anything else of its parent is unpickled."""
        sys.meta_path.insert(0, self)
        # `multiprocessing` deletes its mark of an unfinished start when all is unpickled, whether or not it succeeded
        mark = _Mark()
        weakref.finalize(mark, self.restore).atexit = False
        multiprocessing.current_process()._inheriting = mark  # type: ignore[attr-defined]

    def restore(self, module: Optional[str] = None) -> None:
        """Restore the state, as far as modules are imported that it concerns; runs in the child.

        Args:
            module: Restore only what depends on this module, because it has just been imported.

        """
        if module is not None and main_script.importing:
            return  # all of it follows when the script is imported
        if module is None:
            modules, self._modules = self._modules, len(sys.modules)
            if modules == self._modules:
                return  # nothing was imported since the last time, so there is nothing to set right
        try:
            self._load_module()._restore(self._state, module, self._warn)
        except Exception as error:
            warnings.warn(
                "This process could not be put into the state of the one that has started it:"
                f" {type(error).__name__}: {error}. It goes on with torch's own settings.",
                stacklevel=1,
            )

    def _load_module(self) -> Any:
        if self._module is None:
            imported = sys.modules.get(self._name)
            if getattr(imported, "__file__", None) == self._path and hasattr(imported, "_restore"):
                return imported
            self._module = _load_file(self._path)
        return self._module

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Serve as a finder of modules: find what the others find, but restore a part of the state after its import."""
        if name not in self._awaited:
            return None
        self._awaited.discard(name)
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "__dict__"):
            self._restore_after_import(spec.loader, name)
        if not self._awaited:
            sys.meta_path.remove(self)
        return spec

    def _restore_after_import(self, loader: Any, name: str) -> None:
        # In the loader's own `__dict__`, for this one call: modules keep their loader, and others ask it for resources
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            self.restore(name)

        loader.exec_module = exec_module


class _Mark:
    """An object to be told of the deletion of."""


def _call_with_room(function: Callable[..., Dict[str, Any]], *args: Any, **kwargs: Any) -> Dict[str, Any]:
    """Call a function whose calls are nested deeply, as those of imports are."""
    return function(*args, **kwargs)


if sys.version_info >= (3, 11):
    # These releases have their frames in chunks of 16 KiB. The interpreter maps a new one whenever a call does not fit,
    # and unmaps it when that call returns: thousands of times during an import, if the end of a chunk is at the wrong
    # place. A frame that asks for half a MiB begins a chunk of one MiB, and so leaves room for all the calls below it.
    _call_with_room.__code__ = _call_with_room.__code__.replace(co_stacksize=2**16)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _current_line(content: Dict[str, Any]) -> Optional[int]:
    """Return the line that the module with the globals ``content`` is executing at its top level."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and (frame.f_globals is not content or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


def _tie(path: str, parent: Optional[int], folder: Optional[str], leftover: Optional[str]) -> None:
    """Let this process end with the one that has started it, and leave a note if its start fails; runs in the child.

    Args:
        path: The folder of the modules that do that.
        parent: The identifier of the process to end with, or ``None`` for a process that may outlive its parent.
        folder: The folder for the notes, or ``None`` for a process whose failure does not concern the job.
        leftover: The same, if the process to end with is the one that is to remove it.

    """
    failure_notes = _load_file(os.path.join(path, "failure_notes.py"))
    failure_notes.note_failed_start(folder)
    if folder is not None:
        atexit.register(failure_notes.end_quickly)  # a rank waits for its workers, as its launcher does for it
    if parent is not None:
        _load_file(os.path.join(path, "parent_watch.py")).end_with(parent, leftover)


def _load_file(path: str) -> Any:
    # Not by its name: that would import Lightning
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(f"__lightning_{name}__", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


main_script: _MainScript  # what `receive` has kept


def receive(state: Optional[Dict[str, Any]], ties: Optional[Dict[str, Any]], **handed_over: Any) -> None:
    """Keep what the parent hands over; runs in the child, when it unpickles that.

    Args:
        state: The arguments of :class:`_State`, or ``None`` if there is no state to restore.
        ties: The arguments of :func:`_tie`, or ``None`` if the child is a fork server.
        **handed_over: The arguments of :class:`_MainScript`.

    """
    global main_script
    if ties is not None:
        _tie(**ties)
    main_script = _MainScript(**handed_over)
    if state is not None:
        main_script.state = _State(**state, warn=main_script.explain)
        main_script.state.restore_in_time()
