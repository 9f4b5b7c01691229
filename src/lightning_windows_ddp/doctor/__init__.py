"""`lightning-windows-ddp doctor`: what would stop DDP on this machine, and how to mend it.

`_examine` has the order of the checks, and the modules beside it the checks. What concerns torch and Lightning is found
out by the scripts in `probes`, which the interpreter runs that the user trains with.
"""

from lightning_windows_ddp.doctor._check import Check, is_fit
from lightning_windows_ddp.doctor._examine import Plan, examine
from lightning_windows_ddp.doctor._format import as_json, as_text

__all__ = ["Check", "Plan", "as_json", "as_text", "examine", "is_fit"]
