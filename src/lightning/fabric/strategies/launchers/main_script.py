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
"""The module that a spawned process imports as ``__mp_main__`` in place of the user's script.

A process that is started with ``spawn`` or ``forkserver`` runs this file twice, by its path:

1. as :data:`RUN_NAME`, when it unpickles the :class:`~lightning.fabric.strategies.launchers.inheritance._Inheritance`
   of its parent. That is before ``sys.path`` is restored, hence nothing but the standard library can be imported here.
   This run only keeps what was handed over.
2. as ``__mp_main__``, when :func:`multiprocessing.spawn.prepare` imports the main module. This run imports the user's
   script up to the launch and no further.

"""

import logging
import multiprocessing
import runpy
import sys
from types import FrameType
from typing import Any, Callable, Dict, NoReturn, Optional

RUN_NAME = "__lightning_main_script__"
# `runpy` takes the name of a run out of `sys.modules` when the run ends: what is kept needs another one
KEPT_NAME = "__lightning_inheritance__"

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


if __name__ == RUN_NAME:
    main_script = _MainScript(**globals()["handed_over"])
    sys.modules[KEPT_NAME] = sys.modules[RUN_NAME]
elif __name__ == "__mp_main__":
    sys.modules[KEPT_NAME].main_script.import_into(globals())  # last statement: it replaces these globals
