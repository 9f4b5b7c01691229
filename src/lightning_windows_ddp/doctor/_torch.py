"""Python, torch and what it was built with, as the user's interpreter has them."""

import os
from dataclasses import dataclass, field

from lightning_windows_ddp.doctor._check import Check
from lightning_windows_ddp.doctor._probe import Probe

# Measured with the wheels in Wine: docs/source-pytorch/accelerators/ddp_on_windows.rst has the table
_WITH_GLOO = "torch 2.7 or 2.11 or a newer one"


@dataclass(frozen=True)
class Facts:
    """What the user's interpreter has told. What it could not tell is None.

    Args:
        python: The version of Python.
        implementation: `CPython` or another one.
        bits: How long its pointers are.
        platform: As in `sys.platform`.
        start_method: How it starts processes by default.
        packages: The packages of Lightning that would be imported, and whether the patches are in them.
        torch: The release of torch.
        cuda: The release of CUDA that torch was built for.
        distributed: Whether `torch.distributed` is there.
        nccl: Whether torch has NCCL.
        gloo: Why gloo cannot make a device; None if it can.
        libuv: `yes`, `no`, `no choice` if torch is too old to ask for it, `no store` if none could be made.
        store_failure: Why no store could be made.
        gpu_names: The GPUs that torch sees.
        failure: Why the rest is unknown.

    """

    python: str | None = None
    implementation: str | None = None
    bits: int | None = None
    platform: str | None = None
    start_method: str | None = None
    packages: dict[str, bool] = field(default_factory=dict)
    torch: str | None = None
    cuda: str | None = None
    distributed: bool | None = None
    nccl: bool | None = None
    gloo: str | None = None
    libuv: str | None = None
    store_failure: str | None = None
    gpu_names: list[str] = field(default_factory=list)
    failure: str | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs torch sees."""
        return len(self.gpu_names)

    @property
    def patched(self) -> list[str]:
        """The packages of Lightning that have the patches."""
        return [name for name, is_patched in self.packages.items() if is_patched]

    @property
    def has_gloo(self) -> bool:
        """Whether processes can meet over gloo."""
        return self.libuv is not None and self.gloo is None


def find_facts(probe: Probe) -> Facts:
    """Ask the user's interpreter."""
    answer = probe.run("torch_build.py")
    known = {key: value for key, value in answer.facts.items() if key != "gpus"}
    reason = "it took too long" if answer.timed_out else answer.reason
    failure = None if answer.failure is None else reason
    return Facts(**known, gpu_names=answer.facts.get("gpus", []), failure=failure)


def check_python(facts: Facts) -> Check:
    """Check the interpreter."""
    if facts.python is None:
        remedy = "Install Python 3.8 or newer and name it with --python."
        return Check("Python", "problem", f"the interpreter does not start ({facts.failure})", remedy)
    found = f"{facts.implementation} {facts.python}, {facts.bits} bits; starts processes by {facts.start_method}"
    if facts.bits != 64 or facts.implementation != "CPython":
        return Check("Python", "problem", found, "torch is made for CPython with 64 bits only: install that.")
    return Check("Python", "ok", found)


def check_torch(facts: Facts) -> Check:
    """Check that torch can be imported and has `torch.distributed`."""
    if facts.python is None:
        return Check("torch", "skipped", "")
    if facts.torch is None:
        return Check("torch", "problem", f"can't be imported: {facts.failure}", _why_no_import(facts.failure or ""))
    found = f"{facts.torch}, built for {'CUDA ' + facts.cuda if facts.cuda else 'no CUDA'}"
    if not facts.distributed:
        return Check("torch", "problem", f"{found}, without torch.distributed", "Install a build of torch that has it.")
    return Check("torch", "ok", f"{found}; {'has NCCL' if facts.nccl else 'no NCCL, so gloo is the backend'}")


def check_gloo(facts: Facts) -> Check:
    """Check that gloo can make a device, by what the probe has tried."""
    if not facts.distributed:
        return Check("gloo", "skipped", "")
    if facts.libuv is None and facts.gloo is None:
        return Check("gloo", "problem", f"can't be tried: {facts.failure}", "Install torch anew.")
    if facts.gloo is None:
        return Check("gloo", "ok", "makes a device")
    found = f"can't make a device: {facts.gloo}"
    if os.environ.get("GLOO_DEVICE_TRANSPORT"):
        return Check("gloo", "problem", found, "Unset the environment variable GLOO_DEVICE_TRANSPORT.")
    if "unsupported gloo device" in facts.gloo:
        remedy = f"torch 2.8, 2.9 and 2.10 for Windows have no gloo that works: install {_WITH_GLOO}."
    elif os.environ.get("GLOO_SOCKET_IFNAME"):
        remedy = "GLOO_SOCKET_IFNAME has to be the name of a network interface with an address: mend or unset it."
    else:
        remedy = "Give the machine a name that leads to one of its addresses: see the system's hosts file."
    return Check("gloo", "problem", found, remedy)


def check_libuv(facts: Facts) -> Check:
    """Check that the store does without libuv where torch has none."""
    if facts.libuv is None:
        return Check("store", "skipped", "")
    if facts.libuv == "no store":
        remedy = "Look at the lines about loopback sockets below: the store uses one."
        return Check("store", "problem", f"can't be made: {facts.store_failure}", remedy)
    if facts.libuv == "no" and os.environ.get("USE_LIBUV") == "1":
        remedy = "Set USE_LIBUV=0, or unset it: this build of torch has no libuv."
        return Check("store", "problem", "the environment variable USE_LIBUV asks for libuv", remedy)
    if facts.libuv == "no":
        return Check("store", "ok", "works; no libuv, which torchrun would need and Lightning's launchers do without")
    return Check("store", "ok", "works" if facts.libuv == "no choice" else "works, with libuv")


def check_devices(facts: Facts, wanted: int | None) -> Check:
    """Check that there are as many GPUs as the user has asked for."""
    if facts.torch is None:
        return Check("devices", "skipped", "")
    found = ", ".join(dict.fromkeys(f"{facts.gpu_names.count(name)} x {name}" for name in facts.gpu_names))
    if facts.gpus and wanted and wanted > facts.gpus:
        remedy = "Ask for as many as there are. CUDA_VISIBLE_DEVICES hides GPUs, if it is set."
        return Check("devices", "problem", f"{found}, but {wanted} asked for", remedy)
    if not facts.gpus and facts.cuda:
        remedy = "Look whether nvidia-smi lists GPUs, and whether CUDA_VISIBLE_DEVICES hides them."
        return Check("devices", "note", "torch was built for CUDA and sees no GPU", remedy)
    if not facts.gpus:
        return Check("devices", "ok", "no GPU that this torch can use: ranks run on the CPU")
    return Check("devices", "ok", found)


def _why_no_import(reason: str) -> str:
    if "No module named 'torch'" in reason:
        return "Install torch, or name the interpreter of the environment that has it with --python."
    if "1455" in reason:
        return "The paging file is too small: enlarge it (System, Advanced, Performance, Virtual memory)."
    if "126" in reason or "DLL load failed" in reason:
        return "Install the Microsoft Visual C++ Redistributable (x64), then torch anew."
    return "Install torch anew, in an environment of its own."
