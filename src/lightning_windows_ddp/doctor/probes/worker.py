"""A spawned worker loads an item, and tells how much memory it has for itself."""

import os
import sys
import time
from pathlib import Path
from typing import List

from _reports import report
from torch.utils.data import DataLoader, Dataset


class Memory(Dataset):
    """Its one item is the number of the process that loads it, and that process' memory."""

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, index: int) -> List[int]:
        """Return the numbers of the process."""
        return [os.getpid(), own_memory()]


def own_memory() -> int:
    """Return the bytes that this process has for itself (on Windows: has committed), or 0 if that is not known."""
    if sys.platform == "win32":
        import ctypes

        # PROCESS_MEMORY_COUNTERS_EX in the reference of the Windows API: two numbers of 32 bits, then nine of 64;
        # the last of those is what this process alone has committed
        numbers = (ctypes.c_uint64 * 10)()
        handle = ctypes.c_void_p(ctypes.windll.kernel32.GetCurrentProcess())
        ctypes.cast(numbers, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(numbers)
        known = ctypes.windll.kernel32.K32GetProcessMemoryInfo(handle, numbers, ctypes.sizeof(numbers))
        return numbers[9] if known else 0
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))


if __name__ == "__main__":
    start = time.perf_counter()
    loader = DataLoader(Memory(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    pid, memory = map(int, next(iter(loader)))
    if pid == os.getpid():
        sys.exit("The item was loaded in the main process.")
    report(done=True, seconds=time.perf_counter() - start, memory=memory)
