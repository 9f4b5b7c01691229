"""Tiny releases, an index of them, checkouts and forks for the tests of the command line.

Most tests call `main` in their own process with a faked package index: the three functions of `_index` that ask the
real one are its boundary, and are the only ones that are replaced. git is always the real one.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lightning_windows_ddp
from lightning_windows_ddp import _index, _patches, _translate
from lightning_windows_ddp.__main__ import main
from tests_patchset import installations

PACKAGE = Path(lightning_windows_ddp.__file__).resolve().parent
NUMBERS = "".join(f"line_{number} = {number}\n" for number in range(40))
# a build backend inside the release: pip reads the metadata without downloading setuptools
BACKEND = """
import os, pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    if "BLOCK_BACKEND" in os.environ:
        exec(os.environ["BLOCK_BACKEND"])
    info = pathlib.Path(folder, "lightning-VERSION.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: lightning\\nVersion: VERSION\\n")
    return info.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""


def release_files(version: str) -> dict[str, bytes]:
    """Return the files of a tiny release, with what git could get wrong: line ends, ignored files, generated ones."""
    return {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: lightning\nVersion: {version}\n".encode(),
        "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.replace("VERSION", version).encode(),
        "crlf.txt": b"one\r\ntwo\r\n",
        ".gitignore": b"ignored.txt\n",
        "ignored.txt": b"in the release all the same\n",
        "src/version.info": f"{version}\n".encode(),
        "src/lightning.egg-info/PKG-INFO": b"generated\n",
        "src/lightning/__init__.py": b"",
        "src/lightning/fabric/__init__.py": b"",
        "src/lightning/pytorch/__init__.py": b"",
        "src/lightning/pytorch/numbers.py": NUMBERS.encode(),
    }


# Some of their tests need no git, but hardly any. The test bed has none: the package index has no git for Windows
NEED_GIT = ("test_export.py", "test_fork.py", "test_interrupt.py", "test_verify.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs git where there is none."""
    if shutil.which("git") is not None:
        return
    for item in items:
        if item.path.name in NEED_GIT or item.get_closest_marker("git"):
            item.add_marker(pytest.mark.skip(reason="Requires: [git]"))


@dataclass
class Run:
    """What the command line did."""

    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test depend on the git settings of the machine; the commits that tests make get a stranger's name."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Someone Else")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "someone@example.com")


@pytest.fixture
def user_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give git's user settings, in every way in which git finds them."""

    def write(content: str) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (home / ".gitconfig").write_text(content, encoding="utf-8")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
        for name in ("HOME", "USERPROFILE"):
            monkeypatch.setenv(name, str(home))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    return write


@pytest.fixture
def make_sdist(tmp_path: Path) -> Callable[..., Path]:
    """Make the source archive of a tiny release; further entries may be anything that an archive can hold."""

    def make(version: str = "2.6.6", changes: dict[str, bytes] | None = None, *entries: tarfile.TarInfo) -> Path:
        archive = tmp_path / "index" / "simple" / "lightning" / f"lightning-{version}.tar.gz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz") as tar:
            for name, content in {**release_files(version), **(changes or {})}.items():
                info = tarfile.TarInfo(f"lightning-{version}/{name}")
                info.size = len(content)
                info.mode = 0o755 if name == "backend.py" else 0o644
                tar.addfile(info, io.BytesIO(content))
            for entry in entries:
                tar.addfile(entry)
        return archive

    return make


@pytest.fixture
def index(make_sdist: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Replace the package index by a mapping of versions to archives, with one release to begin with."""
    archives = {"2.6.6": make_sdist()}

    def download(version: str, folder: Path) -> Path:
        return Path(shutil.copy(archives[version], folder))

    monkeypatch.setattr(_index, "released_versions", lambda: list(archives))

    def download_wheel(name: str, version: str, folder: Path) -> Path:
        wheel = folder / f"{name}.whl"
        with tarfile.open(archives[version]) as tar, zipfile.ZipFile(wheel, "w") as files:
            for member in tar.getmembers():
                path = _translate.translate_path(member.name.partition("/")[2], name)
                if path is not None:
                    content = tar.extractfile(member)
                    assert content is not None
                    files.writestr(path, _translate.translate_text(content.read().decode(), name))
        return wheel

    monkeypatch.setattr(_index, "download_sdist", download)
    monkeypatch.setattr(_index, "download_wheel", download_wheel)
    return archives


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout of this repository without patches, and let the command line believe to lie in it."""
    folder = tmp_path / "checkout"
    shutil.copytree(PACKAGE, folder / "src" / "lightning_windows_ddp", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_patches, "_package", lambda: folder / "src" / "lightning_windows_ddp")
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Run the command line in this process."""

    def run(*arguments: object) -> Run:
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Run(status, out, err)

    return run


@pytest.fixture
def site(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for packages that this interpreter looks into first, and a checkout with tiny patches."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    installations.write_series(checkout / "patches")
    return folder


@pytest.fixture
def git() -> Callable[..., str]:
    """Run git as a developer does, with the settings that the environment names."""

    def run(folder: Path, *arguments: object) -> str:
        command = ["git", *(str(argument) for argument in arguments)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.rstrip("\n")

    return run


@pytest.fixture
def commit(git: Callable[..., str]) -> Callable[..., None]:
    """Write files in a fork and commit them."""

    def run(fork: Path, message: str, files: dict[str, str]) -> None:
        for name, content in files.items():
            (fork / name).parent.mkdir(parents=True, exist_ok=True)
            (fork / name).write_bytes(content.encode())
        git(fork, "add", "--all")
        git(fork, "commit", "--quiet", "-m", message)

    return run


@pytest.fixture
def developed(
    tmp_path: Path, index: dict[str, Path], cli: Callable[..., Run], commit: Callable[..., None]
) -> Callable[..., Path]:
    """Make a fork with two commits of a developer's: a hook and a module, and then a test and a page."""

    def make(name: str = "developed", version: str = "2.6.6") -> Path:
        fork = tmp_path / name
        assert cli("fork", version, fork, "--pristine").status == 0
        commit(
            fork,
            "Guard the läunch\n\nIt is needed because of #17777.\n\nA paragraph with ümlauts.",
            {
                "src/lightning/pytorch/numbers.py": NUMBERS.replace("line_20 = 20\n", "line_20 = 'hook'\n"),
                "src/lightning/fabric/guard.py": "GUARD = 'ä'\n",
            },
        )
        commit(
            fork,
            "[tests] Test the guard: does it hold?",
            {
                "tests/tests_fabric/test_guard.py": "def test_guard():\n    pass\n",
                "docs/source-pytorch/windows.rst": "Windows\n",
                "src/lightning/fabric/guard.py": "GUARD = 'ö'\n",
            },
        )
        return fork

    return make


@pytest.fixture
def patched(checkout: Path, developed: Callable[..., Path], cli: Callable[..., Run]) -> Path:
    """Make a checkout that has the patches of such a fork."""
    assert cli("export", developed("origin")).status == 0
    return checkout


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make an interpreter that has something called torch."""
    folder = tmp_path_factory.mktemp("interpreter")
    venv.EnvBuilder(symlinks=os.name != "nt").create(folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if os.name == "nt" and not python.is_file():  # in the test bed
        pytest.skip("Requires: [the launcher that virtual environments have on Windows]")
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    Path(site, "torch.py").touch()
    yield python


@pytest.fixture
def process(tmp_path: Path, make_sdist: Callable[..., Path], checkout: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Start the command line as a process of its own, from the checkout, with real pip on an index of local files."""
    archive = make_sdist()
    archive.parent.joinpath("index.html").write_text(f'<a href="{archive.name}">{archive.name}</a>', encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def start(*arguments: object, **variables: str) -> "subprocess.Popen[str]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment |= {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": archive.parents[1].as_uri(),
            "PYTHONPATH": str(checkout / "src"),
            "TMPDIR": str(temporary),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "lightning_windows_ddp", *(str(argument) for argument in arguments)],
            env=environment | variables,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    return start


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    """Read everything below a folder, so that two moments can be compared."""

    def read(folder: Path) -> dict[str, bytes | None]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
            for path in folder.rglob("*")
        }

    return read
