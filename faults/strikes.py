"""Strikes a process of a job at a given place; imported by the processes of the job.

Each process calls :func:`reach` where a fault can strike. The environment variables ``FAULT_*`` say which process is
struck, where and how; the struck process tells the time in the folder ``FAULT_FOLDER``. Nothing is imported that takes
time: the first place comes before the import of torch.

"""

import json
import os
import time
from pathlib import Path

FOLDER = Path(os.environ["FAULT_FOLDER"])
KIND, WHO, WHEN = (os.environ[name] for name in ("FAULT_KIND", "FAULT_WHO", "FAULT_WHEN"))
MESSAGE = "the injected fault"
STATUS = 7
STEPS = 40
MEMORY_LEFT = 2**28  # bytes that a process may still take when its memory is limited


def tell(event: str) -> None:
    """Leave a note with the time; each process leaves its own."""
    note = FOLDER / f"{event}-{os.getpid()}.json"
    new = note.with_suffix(".new")
    new.write_text(json.dumps({"pid": os.getpid(), "time": time.time()}), encoding="utf-8")
    new.replace(note)


def reach(who: str, when: str) -> None:
    """Say that this process is at a place, and strike it if the fault is meant for it."""
    tell(f"{who}-{when}")
    if when != WHEN:
        return
    if who != WHO:
        if WHO == "launcher" and who == "rank1":
            tell("ready")  # nothing else shows that the launcher is at this place
        return
    if KIND == "exception":
        tell("struck")
        raise RuntimeError(MESSAGE)
    if KIND == "exit":
        tell("struck")
        os._exit(STATUS)
    if KIND == "memory":
        tell("struck")
        exhaust_memory()
    hold()


def hold() -> None:
    """Wait to be struck from outside; in a rank, the others come to wait for it in a collective meanwhile."""
    tell("ready")
    time.sleep(60)


def exhaust_memory() -> None:
    """Allocate memory up to a limit, and beyond."""
    import resource  # local import: only Unix has it

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LEFT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    blocks = []
    while True:
        blocks.append(bytearray(2**24))
