"""Windows CPython, from packages on the index: there is no installer to be had that runs without Windows."""

import shutil
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from lightning_windows_ddp._run import run

# Loads the DLL beside it and runs it: all that python.exe does
_PYTHON_EXE = r"""
#include <windows.h>
#include <stdio.h>

int wmain(int argc, wchar_t **argv)
{
    wchar_t path[MAX_PATH + 32], *name;
    GetModuleFileNameW(NULL, path, MAX_PATH);
    if ((name = wcsrchr(path, L'\\')))
        name[1] = 0;
    wcscat(path, L"python311.dll");
    HMODULE dll = LoadLibraryExW(path, NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
    if (!dll) {
        fwprintf(stderr, L"cannot load %ls: error %lu\n", path, GetLastError());
        return 103;
    }
    int (*run)(int, wchar_t **) = (void *)GetProcAddress(dll, "Py_Main");
    return run ? run(argc, argv) : 104;
}
"""
_COMPILER = "x86_64-w64-mingw32-gcc"
# Of the standard library: what needs the tests, a display or Linux
_LEFT_OUT = ("site-packages", "test", "lib-dynload", "ensurepip", "idlelib", "tkinter", "turtledemo", "lib2to3")


def make_interpreter(python: Path, wheels: Mapping[str, Path]) -> None:
    """Make the interpreter: the official DLL and extension modules, an executable that loads them, the library.

    Args:
        python: The folder to make.
        wheels: The downloaded wheels. Among them is the one of ``panda3d``: this game engine ships a whole Python for
            the games that it packs.

    """
    dlls = python / "DLLs"
    dlls.mkdir(parents=True)
    with zipfile.ZipFile(wheels["panda3d"]) as archive:
        for member in archive.namelist():
            path = PurePosixPath(member)
            if path.parent.name != "deploy_libs":
                continue
            if path.name in ("python311.dll", "zlib1.dll"):
                (python / path.name).write_bytes(archive.read(member))
            # OpenSSL and libffi for the modules ssl, hashlib and ctypes
            elif path.suffix == ".pyd" or path.name.startswith(("libffi", "libcrypto", "libssl", "sqlite3")):
                (dlls / path.name).write_bytes(archive.read(member))

    # Pure Python is the same everywhere; this process runs on the same minor version (`__main__` checks it)
    unwanted = shutil.ignore_patterns(*_LEFT_OUT, "config-*", "__pycache__")
    shutil.copytree(sysconfig.get_path("stdlib"), python / "Lib", ignore=unwanted)
    (python / "Lib" / "site-packages").mkdir()

    source = python / "python.c"
    source.write_text(_PYTHON_EXE, encoding="utf-8")
    run([_COMPILER, "-O2", "-s", "-municode", "-o", str(python / "python.exe"), str(source)])
    source.unlink()
