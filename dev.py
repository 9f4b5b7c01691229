#!/usr/bin/env python3
"""Run a session of ``noxfile.py``: ``python dev.py SESSION [ARGUMENT ...]``; without a session, list them.

Needs Python and nothing else: nox is installed in ``.venv`` beside this file.

"""

import subprocess
import sys
import venv
from pathlib import Path

NOX = "nox==2026.10.20"
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def bootstrap() -> None:
    """Make the environment, unless a finished one with this nox and for this Python is there."""
    finished = VENV / "finished"  # written last
    content = f"{NOX}, Python {sys.version} in {sys.base_prefix}"
    if finished.is_file() and finished.read_text(encoding="utf-8") == content:
        return
    print(f"Installing {NOX} in {VENV}", file=sys.stderr, flush=True)
    finished.unlink(missing_ok=True)
    venv.create(VENV, clear=True, with_pip=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", NOX], stdout=sys.stderr, check=True)
    finished.write_text(content, encoding="utf-8")


def main() -> int:
    """Run nox and return its exit status."""
    if sys.version_info < (3, 10):  # noqa: UP036  (this file is what tells users of an older Python)
        sys.exit(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}.")
    try:
        bootstrap()
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        return 130
    arguments = ["-s", sys.argv[1], "--", *sys.argv[2:]] if len(sys.argv) > 1 else ["--list"]
    with subprocess.Popen([PYTHON, "-m", "nox", "--noxfile", ROOT / "noxfile.py", *arguments]) as nox:
        while True:
            try:
                return nox.wait()
            except KeyboardInterrupt:  # nox has received it, too, and is ending its session
                continue


if __name__ == "__main__":
    sys.exit(main())
