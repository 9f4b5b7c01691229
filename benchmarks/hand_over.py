"""Measure what handing over the global state costs: time in the rank, time in its worker, and bytes between them.

``python dev.py bench`` runs it on the patched fork. The rank is a process that has made the usual settings; each worker
is a new process that has imported torch and Lightning, as it has when its script is imported.

"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKERS = 20

RANK = """
import json
import pickle
import sys
import time

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.launchers import global_state

torch.use_deterministic_algorithms(True)
torch.set_float32_matmul_precision("medium")
torch.backends.cudnn.benchmark = True
for _ in sys.stdin:
    started = time.perf_counter()
    pickled = pickle.dumps(global_state._capture())
    print(json.dumps([1000 * (time.perf_counter() - started), pickled.hex()]), flush=True)
"""

WORKER = """
import json
import pickle
import sys
import time

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.launchers import bootstrap, global_state

pickled = bytes.fromhex(sys.stdin.read())
started = time.perf_counter()
state = bootstrap._State(
    pickle.loads(pickled), global_state.__name__, global_state.__file__, global_state.MODULES_WITH_STATE, warn=True
)
state.restore()  # when the script is imported
state.restore()  # when all that the rank has sent is unpickled
print(json.dumps(1000 * (time.perf_counter() - started)))
"""


def print_hand_over(patched: Path) -> None:
    """Run the benchmark and print the medians.

    Args:
        patched: The fork with the patches.

    """
    source = os.pathsep.join(filter(None, [str(patched / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}

    in_rank, in_worker, size = [], [], 0
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with rank:
        assert rank.stdin is not None and rank.stdout is not None
        for _ in range(WORKERS):
            print(file=rank.stdin, flush=True)
            milliseconds, pickled = json.loads(rank.stdout.readline())
            in_rank.append(milliseconds)
            size = len(pickled) // 2
            worker = subprocess.run(
                [sys.executable, "-c", WORKER],
                env=environment,
                input=pickled,
                capture_output=True,
                text=True,
                check=True,
            )
            in_worker.append(json.loads(worker.stdout))
    total = [sum(pair) for pair in zip(in_rank, in_worker, strict=True)]
    print("\nWhat it costs to hand a worker the global state\n")
    print(f"in the rank {statistics.median(in_rank):.2f} ms, in the worker {statistics.median(in_worker):.2f} ms,")
    print(f"together {statistics.median(total):.2f} ms (at most {max(total):.2f} ms), {size / 1000:.1f} kB")
    print(f"Medians of {WORKERS} workers.")
