"""Two processes add up their ranks plus one over gloo; the first one starts the other."""

import datetime
import os
import socket
import subprocess
import sys

import torch
from _reports import report

_TIMEOUT = datetime.timedelta(seconds=60)


def choose_meeting_point() -> None:
    """Set the variables that name it, as Lightning does for one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
    if sys.platform == "win32":
        os.environ.setdefault("USE_LIBUV", "0")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def reduce(rank: int) -> float:
    """Meet the other rank, and return the sum."""
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=_TIMEOUT)
    number = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(number)
    torch.distributed.destroy_process_group()
    return number.item()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(reduce(int(sys.argv[1])) != 3.0)
    choose_meeting_point()
    other = subprocess.Popen([sys.executable, __file__, "1"])
    try:
        total = reduce(0)
        status = other.wait()
    finally:
        other.kill()
    if total != 3.0 or status:
        sys.exit(f"The sum is {total}, not 3.0; the other rank ended with status {status}.")
    report(done=True)
