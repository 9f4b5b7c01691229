"""Tiny installed distributions, and tiny patches for them."""

import difflib
from pathlib import Path

from lightning_windows_ddp._record import update

NUMBERS = "".join(f"line_{number} = {number}\n" for number in range(40))
FABRIC = "import lightning.fabric\n" + NUMBERS
PYTORCH = "from lightning.pytorch import callbacks  # see lightning.pytorch/callbacks\n" + NUMBERS
ADDED = 'from lightning.fabric import numbers\n\nNAMES = ("lightning", "lightning.pytorch")\n'
FILES = {
    "lightning": {"lightning/fabric/numbers.py": FABRIC, "lightning/pytorch/numbers.py": PYTORCH},
    "lightning-fabric": {"lightning_fabric/numbers.py": FABRIC.replace("lightning.fabric", "lightning_fabric")},
    "pytorch-lightning": {
        "lightning_fabric/numbers.py": FABRIC.replace("lightning.fabric", "lightning_fabric"),
        "pytorch_lightning/numbers.py": PYTORCH.replace("from lightning.pytorch", "from pytorch_lightning"),
    },
}


def install(site: Path, name: str = "lightning", version: str = "2.6.6") -> Path:
    """Write the files of a distribution to where packages are installed, and return its folder `*.dist-info`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    files = {path: content.encode() for path, content in FILES[name].items()}
    files[f"{info.name}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    info.joinpath("RECORD").write_bytes(update(b"", {**files, f"{info.name}/RECORD": None}))
    return info


def edit(path: str, old: str, new: str) -> str:
    """Return a patch in git's format that changes a file, or adds it if it was empty."""
    diff = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}" if old else "/dev/null", f"b/{path}"
    )
    mode = "" if old else "new file mode 100644\n"
    return f"diff --git a/{path} b/{path}\n{mode}index 0000000..1111111\n" + "".join(diff)


def write_series(patches: Path, line: str = "2.6", value: str = "hook") -> None:
    """Write two patches: hooks in two files, and then a file and another hook in one of the two."""
    once = FABRIC.replace("line_20 = 20", f"line_20 = {value!r}")
    twice = once.replace("line_5 = 5\n", "line_5 = 5\nextra = 5\n")
    texts = [
        edit("src/lightning/fabric/numbers.py", FABRIC, once)
        + edit("src/lightning/pytorch/numbers.py", PYTORCH, PYTORCH.replace("line_0 = 0", f"line_0 = {value!r}")),
        edit("src/lightning/fabric/numbers.py", once, twice)
        + edit("src/lightning/fabric/new/added.py", "", ADDED)
        + edit("tests/tests_fabric/test_added.py", "", "assert True\n"),
    ]
    folder = patches / line
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts, start=1):
        mail = f"From 0\nFrom: Someone <someone@example.com>\nSubject: [PATCH] Change {number}\n\nWhy.\n\n{text}"
        folder.joinpath(f"000{number}-change.patch").write_bytes(mail.encode())
    folder.joinpath("series").write_text("0001-change.patch\n0002-change.patch\n", encoding="utf-8")
