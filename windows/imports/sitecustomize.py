"""Makes imports faster under Wine, where each look at a file takes most of a millisecond.

Python imports it at its start, because the folder is on the path of all processes in the test bed. An import of torch
and Lightning looks at thousands of files and folders, twice for each module only to see whether it has changed. The
interpreter, its packages and the fork of Lightning do not change while tests run: there, a folder is listed once, and
compiled files are taken as they are. All other modules, those that tests write among them, are imported as ever.

"""

# ruff: noqa: PTH112, PTH118 (pathlib would be one more import of each process)

import os
import sys
from importlib._bootstrap_external import _compile_bytecode, _get_supported_file_loaders
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from io import open_code
from types import CodeType, ModuleType

UNCHANGING = tuple(map(os.path.normcase, [sys.prefix, *filter(None, [os.environ.get("TESTBED_FORK")])]))
HEADER = 16  # of a compiled file: magic number, flags, and a time or a hash


class Loader(SourceFileLoader):
    """Loads the compiled file without a look at the source, if there is one."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module."""
        compiled = cache_from_source(self.path)
        try:
            with open_code(compiled) as file:
                data = file.read()
        except OSError:
            return super().get_code(fullname)
        if data[: len(MAGIC_NUMBER)] != MAGIC_NUMBER:
            return super().get_code(fullname)
        code: CodeType = _compile_bytecode(memoryview(data)[HEADER:], fullname, compiled, self.path)
        return code


class Finder(FileFinder):
    """Finds modules in a folder that it lists once."""

    _is_folder: dict[str, bool] | None = None

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where a module lies in the folder, a namespace package if there is nothing else, or ``None``."""
        name = fullname.rpartition(".")[2]
        entries = self._list()
        package = os.path.join(self.path, name)
        if entries.get(name):
            inner = sys.path_importer_cache.setdefault(package, Finder(package, *LOADERS))
            for suffix, loader in self._loaders:
                if isinstance(inner, Finder) and inner._list().get(f"__init__{suffix}") is False:
                    path = os.path.join(package, f"__init__{suffix}")
                    return self._get_spec(loader, fullname, path, [package], target)
        for suffix, loader in self._loaders:
            if entries.get(name + suffix) is False:
                return self._get_spec(loader, fullname, package + suffix, None, target)
        if not entries.get(name):
            return None
        namespace = ModuleSpec(fullname, None)
        namespace.submodule_search_locations = [package]
        return namespace

    def _list(self) -> dict[str, bool]:
        if self._is_folder is None:
            with os.scandir(self.path) as entries:
                self._is_folder = {entry.name: entry.is_dir() for entry in entries}
        return self._is_folder


LOADERS = [
    (Loader if loader is SourceFileLoader else loader, suffixes) for loader, suffixes in _get_supported_file_loaders()
]


def find_in_unchanging(path: str) -> Finder:
    """Serve as a hook of :data:`sys.path_hooks`."""
    if not os.path.normcase(path).startswith(UNCHANGING) or not os.path.isdir(path):
        raise ImportError("not a folder that does not change", path=path)
    return Finder(path, *LOADERS)


sys.path_hooks.insert(0, find_in_unchanging)
for path in list(sys.path_importer_cache):
    if os.path.normcase(path).startswith(UNCHANGING):
        del sys.path_importer_cache[path]
