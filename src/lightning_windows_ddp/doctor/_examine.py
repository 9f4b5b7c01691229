"""All checks, in the order in which what they find would stop a job."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_windows_ddp._scratch import scratch_folder
from lightning_windows_ddp.doctor import _lightning, _memory, _network, _ports, _script, _torch, _trials, _variables
from lightning_windows_ddp.doctor._check import Check
from lightning_windows_ddp.doctor._probe import Probe


@dataclass(frozen=True)
class Plan:
    """The job that is to run on this machine.

    Args:
        python: The interpreter of the environment that it runs in.
        script: The user's script, or None.
        devices: How many ranks it has; the number of GPUs, but at least 2, by default.
        workers: How many workers each rank has.
        time_limit: For how many seconds each trial may run.

    """

    python: Path = Path(sys.executable)
    script: Path | None = None
    devices: int | None = None
    workers: int = 2
    time_limit: float = 180.0


def examine(plan: Plan, report: Callable[[str], None] = lambda line: None) -> list[Check]:
    """Check whether a job would run on this machine.

    The trials start processes of their own and end them again. Nothing is changed.

    Args:
        plan: The job.
        report: Called with a line of text before each step.

    Returns:
        The checks, in order.

    Raises:
        BadInputError: If the script or the interpreter is not there.

    """
    script = None if plan.script is None else _script.read(plan.script)
    with scratch_folder(Path(tempfile.gettempdir()), "lightning-windows-ddp") as scratch:
        return list(_checks(plan, script, Probe(plan.python, scratch, plan.time_limit), report))


def _checks(plan: Plan, script: bytes | None, probe: Probe, report: Callable[[str], None]) -> Iterator[Check]:
    report("[1/5] importing torch")
    facts = _torch.find_facts(probe)
    yield _torch.check_python(facts)
    yield _torch.check_torch(facts)
    yield _torch.check_gloo(facts)
    yield _torch.check_libuv(facts)
    yield _lightning.check(plan.python, facts)
    yield _variables.check(os.environ)
    devices = plan.devices or max(2, facts.gpus)
    yield _torch.check_devices(facts, plan.devices)
    report("[2/5] looking at names, sockets and ports")
    yield _network.check_localhost()
    yield _network.check_host_name()
    yield from _network.check_loopback()
    yield _ports.check()
    report("[3/5] reducing over two ranks")
    yield _trials.reduce_over_two_ranks(probe, facts)
    report("[4/5] starting a worker")
    worker, memory = _trials.start_worker(probe, facts)
    yield worker
    yield _memory.check(memory, devices, plan.workers)
    report("[5/5] running a job of two ranks with a worker each")
    yield _trials.run_job(probe, facts)
    if script is not None:
        yield _script.check(script, bool(facts.patched))
