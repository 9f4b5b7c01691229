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
"""The file that a spawned process imports as ``__mp_main__`` in place of the user's script.

A process that is started with ``spawn`` or ``forkserver`` runs this file twice, by its path:

1. as :data:`RUN_NAME`, when it unpickles the :class:`~lightning.fabric.strategies.launchers.inheritance._Inheritance`
   of its parent. That is before ``sys.path`` is restored, hence nothing but the standard library can be imported here.
2. as ``__mp_main__``, when :func:`multiprocessing.spawn.prepare` imports the main module.

What it does then stands in ``bootstrap.py``: Python compiles a file that is run by its path each time anew, so this one
is short.

"""

import importlib.util
import os
import sys

RUN_NAME = "__lightning_main_script__"
# `runpy` takes the name of a run out of `sys.modules` when the run ends: what is kept needs another one
KEPT_NAME = "__lightning_inheritance__"

if __name__ == RUN_NAME:
    spec = importlib.util.spec_from_file_location(KEPT_NAME, os.path.join(os.path.dirname(__file__), "bootstrap.py"))
    assert spec is not None and spec.loader is not None
    sys.modules[KEPT_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[KEPT_NAME])
    sys.modules[KEPT_NAME].receive(**globals()["handed_over"])
elif __name__ == "__mp_main__":
    sys.modules[KEPT_NAME].main_script.import_into(globals())  # last statement: it replaces these globals
