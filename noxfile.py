"""The sessions of ``python dev.py SESSION``.

``LIGHTNING_VERSION`` and ``TORCH_VERSION`` in the environment choose other releases: of Lightning than the newest that
has patches, and of torch than the one that ``pyproject.toml`` pins.

"""

import hashlib
import os
import shutil
import stat
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
FORKS = ROOT / ".cache" / "forks"
VERSION = os.environ.get("LIGHTNING_VERSION") or "2.6.6"
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# For sessions that start processes of their own: nox would kill them 0.5 s after a Ctrl+C, and orphan those
TIME_TO_END = 30.0

nox.options.default_venv_backend = "virtualenv"  # with pip, which the demo needs and which follows the user's settings
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = True


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, spelling and workflows; arguments go to pre-commit (Python 3.11 or newer)."""
    install(session, "tools", *group("lint"))
    session.run("pre-commit", "run", "--all-files", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, all but the matrix; arguments go to pytest."""
    install_patched(session)
    session.run("pytest", *session.posargs, interrupt_timeout=TIME_TO_END)


@nox.session
def matrix(session: nox.Session) -> None:
    """Run the full product of the settings that the tests take in pairs (takes hours); arguments go to pytest."""
    install_patched(session)
    arguments = session.posargs or ["-k", "trains_with_workers"]
    session.run("pytest", *arguments, env={"PL_RUN_LAUNCH_MATRIX": "1"}, interrupt_timeout=TIME_TO_END)


@nox.session
def verify(session: nox.Session) -> None:
    """Prove that the patches apply, import and match src/ and tests/; the argument is a release line."""
    install_patched(session)
    install(session, "lightning-2-0", *group("lightning-2-0"))
    session.run("lightning-windows-ddp", "verify", *session.posargs, interrupt_timeout=TIME_TO_END)


@nox.session
def demo(session: nox.Session) -> None:
    """Show #17777 before and after; --json FILE writes the figures, other options go to the reproduction."""
    install(session, "package", "--editable", str(ROOT))
    pristine, patched = make_fork(session, "pristine"), make_fork(session, hash_patches())
    # The demo itself swaps one fork for the other
    install(session, "lightning", *group("demo"), *editable(pristine))
    with session.chdir(session.invoked_from):
        session.run(
            "python",
            str(ROOT / "examples" / "demo.py"),
            "--pristine",
            str(pristine),
            "--patched",
            str(patched),
            *session.posargs,
            interrupt_timeout=TIME_TO_END,
        )


@nox.session
def bench(session: nox.Session) -> None:
    """Measure how fast ranks and workers start, on both forks; --only NAME ..., --rounds N, --json FILE."""
    install(session, "package", "--editable", str(ROOT))
    pristine, patched = make_fork(session, "pristine"), make_fork(session, hash_patches())
    install(session, "lightning", *group("bench"), *editable(patched))
    install(session, "photographs", "--no-deps", *group("photographs"))
    command = ["python", "-m", "benchmarks", str(pristine), str(patched), *session.posargs]
    session.run(*command, interrupt_timeout=TIME_TO_END)


@nox.session
def faults(session: nox.Session) -> None:
    """Break jobs in every way, on both forks; --all, --only TEXT, --no-pristine, --json FILE say which."""
    install(session, "package", "--editable", str(ROOT))
    pristine, patched = make_fork(session, "pristine"), make_fork(session, hash_patches())
    install(session, "lightning", *group("faults"), *editable(patched))
    command = ["python", "-m", "faults", str(pristine), str(patched), *session.posargs]
    session.run(*command, interrupt_timeout=TIME_TO_END)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site in build/docs, and check its spelling and its links; arguments go to sphinx-build."""
    install(session, "docs", *group("docs"))
    site = ROOT / "build" / "docs"
    session.run("codespell", "docs", "README.md", "CHANGELOG.md")
    session.run("sphinx-build", "-W", "-n", "--keep-going", *session.posargs, "docs", str(site))
    session.run("linkchecker", "--no-status", "--config=docs/linkchecker.ini", str(site / "index.html"))
    session.log(f"The site begins with {site / 'index.html'}")


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel, sdist and a tarball of the patches in dist/; --tag vX.Y.Z checks that this is the version."""
    version = PYPROJECT["project"]["version"]
    if session.posargs and session.posargs != ["--tag", f"v{version}"]:
        session.error(f"pyproject.toml says version {version}, so the only arguments are --tag v{version}.")
    install(session, "build", *group("build"))
    session.run("python", "-m", "build", "--outdir", "dist/packages")
    archive = Path("dist", "patches", f"lightning-windows-ddp-{version}-patches")
    archive.parent.mkdir(parents=True, exist_ok=True)
    shutil.make_archive(str(archive), "gztar", ROOT, "patches")


@nox.session(python="3.11")  # the version of the Windows Python, which gets this one's standard library
def windows(session: nox.Session) -> None:
    """Run the demo and the tests under Windows Python, with Wine on Linux; arguments after -- go to pytest."""
    install(session, "package", *group("windows"), "--editable", str(ROOT))
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "windows"), str(ROOT / "examples")])}
    command = ["python", "-m", "testbed", "--results", str(ROOT / "build" / "windows")]
    # Only sets up; before the forks are made, because it may have to refuse
    session.run(*command, *session.posargs, env=env, interrupt_timeout=TIME_TO_END)
    pristine, patched = make_fork(session, "pristine"), make_fork(session, hash_patches())
    command += ["--pristine", str(pristine), "--patched", str(patched)]
    session.run(*command, *session.posargs, env=env, interrupt_timeout=TIME_TO_END)


def install_patched(session: nox.Session) -> None:
    """Install this package, the patched Lightning and what the tests need."""
    install(session, "package", "--editable", str(ROOT))
    patched = make_fork(session, hash_patches())
    requirements = [*group("tests"), *editable(patched)]
    if VERSION.startswith(("2.0.", "2.1.")):
        # They ask for the rest themselves, but not for releases of these that still have what importing them uses
        own = [pin for pin in group("lightning-2-0") if pin.startswith(("lightning-cloud", "psutil", "setuptools"))]
        requirements = [*(pin for pin in requirements if not pin.startswith("psutil")), *own]
    install(session, "lightning", *requirements)


def group(name: str) -> tuple[str, ...]:
    """Return the pinned requirements of a dependency group, with the release of torch that the environment asks for."""
    pinned = nox.project.dependency_groups(PYPROJECT, name)
    version = os.environ.get("TORCH_VERSION")
    if not version:
        return pinned
    others = [requirement for requirement in pinned if not requirement.startswith("torch==")]
    # Releases of torch before 2.3 were built for numpy 1
    numpy = ["numpy<2"] if tuple(map(int, version.split(".")[:2])) < (2, 3) else []
    return (*others, *numpy, f"torch=={version}")


def install(session: nox.Session, what: str, *arguments: str) -> None:
    """Install with pip, unless the same was installed before: that is what lets a second run start at once.

    Args:
        session: The session whose environment to install in.
        what: The name of this part of the environment. Another installation under the same name replaces it.
        *arguments: The arguments for pip.

    """
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = hashlib.sha256("\0".join([*arguments, project]).encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / f"{what}.installed"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)
    session.install(*arguments)
    stamp.write_text(wanted, encoding="utf-8")


def make_fork(session: nox.Session, variant: str) -> Path:
    """Make a fork of Lightning with the command line, unless it is there.

    Args:
        session: A session that has this package installed.
        variant: ``pristine``, or the hash of the patches that the fork has. Forks with other patches are removed.

    Returns:
        The fork's folder.

    """
    fork = FORKS / f"{VERSION}-{variant}"
    if not fork.is_dir():
        options = ["--pristine"] if variant == "pristine" else []
        session.run("lightning-windows-ddp", "fork", VERSION, str(fork), *options, interrupt_timeout=TIME_TO_END)
        # Where PYTHONDONTWRITEBYTECODE is set, each of many processes would compile it again
        session.run("python", "-m", "compileall", "-q", str(fork / "src"), silent=True)
    for other in FORKS.iterdir():
        if not other.name.endswith(("-pristine", f"-{hash_patches()}")):
            remove(other)
    return fork


def editable(fork: Path) -> list[str]:
    """Return the arguments for pip that install a fork, and build it with what it can be built with."""
    constraints = fork / ".git" / "info" / "build-constraints.txt"
    return ["--editable", str(fork), *(["--build-constraint", str(constraints)] if constraints.is_file() else [])]


def hash_patches() -> str:
    """Return a short hash of the patches of all lines."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "patches").glob("*/*")):
        digest.update(f"{file.parent.name}/{file.name}".encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def remove(folder: Path) -> None:
    """Remove a folder, read-only files included: git makes such, and Windows keeps them."""
    for file in folder.rglob("*"):
        if not file.is_symlink():
            file.chmod(file.stat().st_mode | stat.S_IWRITE)
    shutil.rmtree(folder)
