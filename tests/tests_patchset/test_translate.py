import pytest

from lightning_windows_ddp._translate import FABRIC, LIGHTNING, PYTORCH, translate_path, translate_text


@pytest.mark.parametrize(
    ("path", "lightning", "fabric", "pytorch"),
    [
        (
            "src/lightning/fabric/fabric.py",
            "lightning/fabric/fabric.py",
            "lightning_fabric/fabric.py",
            "lightning_fabric/fabric.py",
        ),
        (
            "src/lightning/pytorch/loops/loop.py",
            "lightning/pytorch/loops/loop.py",
            None,
            "pytorch_lightning/loops/loop.py",
        ),
        ("src/lightning/__init__.py", "lightning/__init__.py", None, None),
        ("tests/tests_fabric/test_fabric.py", None, None, None),
        ("docs/src/lightning/fabric/page.py", None, None, None),
    ],
)
def test_path(path: str, lightning: str | None, fabric: str | None, pytorch: str | None) -> None:
    assert translate_path(path, LIGHTNING) == lightning
    assert translate_path(path, FABRIC) == fabric
    assert translate_path(path, PYTORCH) == pytorch


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("from lightning.fabric.utilities import x", "from lightning_fabric.utilities import x"),
        ("import lightning.pytorch as pl", "import pytorch_lightning as pl"),
        (
            '"lightning.pytorch", :class:`~lightning.fabric.Fabric`',
            '"pytorch_lightning", :class:`~lightning_fabric.Fabric`',
        ),
        ("import lightning as L", "import lightning as L"),
        ("lightning.pytorch_x, my_lightning.pytorch, a/lightning.fabric", None),
        ("lightning.fabric/strategies", None),
    ],
)
def test_text(text: str, translated: str | None) -> None:
    assert translate_text(text, FABRIC) == translate_text(text, PYTORCH) == (translated or text)
    assert translate_text(text, LIGHTNING) == text
