"""The command line `lightning-windows-ddp`: forks of Lightning with the patches applied, and the patches from forks.

Everything here runs in a developer's or user's shell. Nothing here is imported by Lightning, by a rank or by a worker.
"""

from lightning_windows_ddp._errors import ToolError
from lightning_windows_ddp._export import export
from lightning_windows_ddp._fork import fork
from lightning_windows_ddp._verify import verify

__all__ = ["ToolError", "export", "fork", "verify"]
