"""What Python, torch and Lightning can do here. Any Python from 3.8 on runs this, with or without torch."""

import importlib.util
import multiprocessing
import os
import platform
import struct
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from _reports import report

# Where the patches add a file, by the package that holds it
_ADDED = {
    "lightning": ("fabric", "strategies", "launchers", "inheritance.py"),
    "pytorch_lightning": ("strategies", "launchers", "shutdown.py"),
    "lightning_fabric": ("strategies", "launchers", "inheritance.py"),
}


def find_lightning() -> Dict[str, bool]:
    """Return for each package of Lightning that would be imported whether the patches are in it."""
    found = {}
    for package, path in _ADDED.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders = list(spec.submodule_search_locations)
            found[package] = any(Path(folder, *path).is_file() for folder in folders)
    return found


def why_not(function: Callable[..., object], *arguments: Any, **keywords: Any) -> Optional[str]:
    """Return why a function fails, or None if it does not."""
    try:
        function(*arguments, **keywords)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


report(
    python=platform.python_version(),
    implementation=platform.python_implementation(),
    bits=8 * struct.calcsize("P"),
    platform=sys.platform,
    start_method=multiprocessing.get_start_method(),
    packages=find_lightning(),
)

import torch  # noqa: E402

distributed = torch.distributed.is_available()
report(torch=torch.__version__, cuda=torch.version.cuda, distributed=distributed)
if distributed:
    from torch.distributed import ProcessGroupGloo, TCPStore

    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    report(
        nccl=torch.distributed.is_nccl_available(),
        gloo=why_not(ProcessGroupGloo.create_device, interface=interface)
        if interface
        else why_not(ProcessGroupGloo.create_default_device),
    )
    try:
        TCPStore("127.0.0.1", 0, 1, True, use_libuv=False)
    except TypeError:
        report(libuv="no choice")  # torch 2.0
    except Exception as error:
        report(libuv="no store", store_failure=f"{type(error).__name__}: {error}")
    else:
        report(libuv="no" if why_not(TCPStore, "127.0.0.1", 0, 1, True, use_libuv=True) else "yes")
report(gpus=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())])
