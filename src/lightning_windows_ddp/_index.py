"""The package index, through pip: which releases of Lightning there are, and their sources."""

import os
import re
import sys
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from lightning_windows_ddp._errors import BadInputError, CommandError, IndexUnreachableError, ProgramNotFoundError
from lightning_windows_ddp._run import run

# Releases that are never downloaded, even where an index (a mirror, say) still has them: the download itself runs the
# code of a source release, to read its metadata.
WITHDRAWN = {
    "2.6.2": "withdrawn from the package index, its upload was a supply-chain compromise",
    "2.6.3": "withdrawn from the package index, its upload was a supply-chain compromise",
}

# The metadata of Lightning before 2.5 are made with pkg_resources, which later releases of setuptools do not have
_BUILD_CONSTRAINT = "setuptools<81\n"

_FINAL = re.compile(r"\d+\.\d+\.\d+(\.post\d+)?", re.ASCII)


def released_versions() -> list[str]:
    """Ask the package index for the releases of Lightning.

    Returns:
        The versions, oldest first, without pre-releases and without withdrawn ones.

    Raises:
        IndexUnreachableError: If pip finds no release at all.
        ProgramNotFoundError: If this interpreter has no pip.

    """
    try:
        output = _pip("index", "versions", "--retries", "2", "lightning").decode("utf-8", "replace")
    except CommandError as error:
        if "No module named pip" in error.output:
            raise ProgramNotFoundError(
                f"pip is missing from {sys.executable}, and Lightning is downloaded with it. Install it there with"
                " `python -m ensurepip` and run again."
            ) from None
        if "No matching distribution" not in error.output:
            raise
        reason = error.output.splitlines()[-1]
        raise IndexUnreachableError(
            "The package index cannot be reached, or it has no lightning: pip found no release of it at all"
            f" ({reason!r}). Check the network connection and pip's index and proxy settings (`pip config list`), then"
            " run again."
        ) from None
    found = re.search(r"^Available versions:(.*)$", output, re.MULTILINE)
    versions = [version.strip() for version in found.group(1).split(",")] if found else []
    final = [version for version in versions if _FINAL.fullmatch(version) and version not in WITHDRAWN]
    return sorted(final, key=lambda version: [int(number) for number in re.findall(r"\d+", version)])


def download_sdist(version: str, folder: Path) -> Path:
    """Download the source release of a version of Lightning.

    Args:
        version: The version; one of `released_versions()`.
        folder: An existing empty folder. pip's own temporary files go there too, so that nothing is left elsewhere
            when the download is interrupted.

    Returns:
        The archive.

    Raises:
        BadInputError: If the release is withdrawn, or was made without sources.
        CommandError: If the download fails.

    """
    if version in WITHDRAWN:
        raise BadInputError(f"lightning {version} is refused: {WITHDRAWN[version]}. Use another release.")
    target, temporary = folder / "sdist", folder / "pip"
    temporary.mkdir()
    constraint = folder / "constraint.txt"
    constraint.write_text(_BUILD_CONSTRAINT, encoding="utf-8")
    try:
        # only lightning is wanted from source; ":all:" would also build the tools that read its metadata
        _pip(
            *("download", "--no-deps", "--no-binary", "lightning", "--progress-bar", "off"),
            *("--dest", str(target), f"lightning=={version}"),
            temporary=temporary,
            constraint=constraint,
        )
    except CommandError as error:
        if "No matching distribution found for lightning" not in error.output:
            raise
        raise BadInputError(
            f"The package index no longer answers, or it has lightning {version} without its sources, which a fork is"
            " made from. Run again, or use another release or index."
        ) from None
    archives = sorted(target.glob("lightning-*.tar.gz"))
    if len(archives) != 1:
        found = ", ".join(path.name for path in target.iterdir()) or "nothing"
        raise BadInputError(
            f"lightning {version} is not on the index as a .tar.gz: pip got {found}. Use another release."
        )
    return archives[0]


def download_wheel(name: str, version: str, folder: Path) -> Path | None:
    """Download the wheel of a distribution.

    Args:
        name: The distribution.
        version: Its version.
        folder: An existing folder.

    Returns:
        The wheel, or None if the index has no such release.

    Raises:
        BadInputError: If the release is withdrawn.
        CommandError: If the download fails.

    """
    if version in WITHDRAWN:
        raise BadInputError(f"{name} {version} is refused: {WITHDRAWN[version]}. Use another release.")
    target = folder / name
    try:
        _pip(
            *("download", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off"),
            *("--dest", str(target), f"{name}=={version}"),
        )
    except CommandError as error:
        if "No matching distribution" in error.output:
            return None
        raise
    return next(target.glob("*.whl"))


def unpack_sdist(archive: Path, folder: Path) -> list[str]:
    """Unpack a source release without the folder `lightning-X.Y.Z` that everything in it lies in.

    Args:
        archive: The archive.
        folder: Where to put the files; it is made.

    Returns:
        The names of the executable files, relative to the folder.

    Raises:
        BadInputError: If the archive is damaged, or holds anything but files and folders below one top folder.

    """
    executable = []
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):  # Python 3.10 and 3.11 have it in their later micro releases only
                tar.extraction_filter = tarfile.data_filter
            members = [member for member in tar.getmembers() if not member.isdir()]
            for member in members:
                parts = PurePosixPath(member.name).parts
                if not member.isreg() or len(parts) < 2 or parts[0] in ("/", "..") or not _is_plain(parts[1:]):
                    raise BadInputError(
                        f"{archive.name} is refused: its entry {member.name!r} is not a plain file below one folder."
                        " Such a release cannot be unpacked safely; look at where it comes from."
                    )
                if member.mode & 0o100:
                    executable.append("/".join(parts[1:]))
                member.name = "/".join(parts[1:])
            folder.mkdir()
            for member in members:
                tar.extract(member, folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BadInputError(f"{archive.name} is damaged ({error}). Run again to download it anew.") from None
    return executable


def _is_plain(parts: tuple[str, ...]) -> bool:
    # a backslash or a drive means another folder on Windows; nothing may write into the repository's own `.git`
    return not any(part in ("", "..") or "\\" in part or ":" in part or part.lower() == ".git" for part in parts)


def _pip(*arguments: str, temporary: Path | None = None, constraint: Path | None = None) -> bytes:
    """Run the pip of this interpreter, with its user's index settings but none that change what it prints."""
    environment = os.environ | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        "PIP_NO_INPUT": "1",
        "PIP_QUIET": "0",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_VERBOSE": "0",
        "PYTHONUTF8": "1",
    }
    environment.pop("PACKAGE_NAME", None)  # Lightning's setup.py packs something else when it is set
    if temporary is not None:
        environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    if constraint is not None:
        # for what pip installs to build with: by the first name since pip 25.3, by the second before. pip splits the
        # value at spaces, which a URL has none of
        for name in ("PIP_BUILD_CONSTRAINT", "PIP_CONSTRAINT"):
            environment[name] = f"{environment.get(name, '')} {constraint.as_uri()}".strip()
    return run([sys.executable, "-m", "pip", *arguments], env=environment)
