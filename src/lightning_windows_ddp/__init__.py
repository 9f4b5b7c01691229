"""The command line `lightning-windows-ddp`: patches for an installed Lightning, forks of it, and patches from forks.

Everything here runs in a developer's or user's shell. Nothing here is imported by Lightning, by a rank or by a worker.
"""

from lightning_windows_ddp._apply import apply, revert
from lightning_windows_ddp._errors import ToolError
from lightning_windows_ddp._export import export
from lightning_windows_ddp._fork import fork
from lightning_windows_ddp._status import status
from lightning_windows_ddp._verify import verify

__all__ = ["ToolError", "apply", "export", "fork", "revert", "status", "verify"]
