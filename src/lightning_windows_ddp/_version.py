"""Which version of this package runs."""

import importlib.metadata

_PACKAGE = "lightning-windows-ddp"


def own_version() -> str:
    """Return the version of this package."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "a source tree"  # that is run without being installed
