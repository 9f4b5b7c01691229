"""Measure the time from the launch of two ranks to the end of their first optimizer step.

``python dev.py bench`` runs it on a pristine and a patched fork by turns, so that what else the machine does hits both.

"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import parse_arguments, print_pairs

SCRIPT = """
import json
import os
import sys
import time

import torch
from lightning.fabric import Fabric


def step(fabric, started):
    layer = torch.nn.Linear(1, 1)
    layer, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    fabric.backward(layer(torch.ones(1, 1)).mean())
    optimizer.step()
    if fabric.global_rank == 0:
        print(json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=2, strategy=sys.argv[1])
    started = time.perf_counter()
    if sys.argv[1] == "ddp":
        fabric.launch()
        step(fabric, started)
    else:
        # The clock of all processes of a machine is the same
        fabric.launch(step, started)
"""


def measure(fork: Path, script: Path, strategy: str) -> float:
    """Run the script on the Lightning of a fork.

    Args:
        fork: The fork's folder.
        script: The script's path.
        strategy: ``"ddp"`` or ``"ddp_spawn"``.

    Returns:
        The seconds from the launch to the end of the first step in rank 0.

    """
    environment = {**os.environ, "PYTHONPATH": str(fork / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), strategy]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode != 0:
        sys.exit(f"The script ended with exit status {process.returncode}:\n{process.stdout}{process.stderr}")
    return float(json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    """Parse the command line, measure, print the medians."""
    arguments = parse_arguments(__doc__, pairs=20)

    pairs: list[dict[str, list[float]]] = []
    strategies = ("ddp", "ddp_spawn")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT, encoding="utf-8")
        for number in range(arguments.pairs):
            pair: dict[str, list[float]] = {"pristine": [], "patched": []}
            for strategy in strategies:
                for name in list(pair)[:: -1 if number % 2 else 1]:
                    pair[name].append(measure(getattr(arguments, name), script, strategy))
            pairs.append(pair)
    print_pairs(pairs, [f"seconds to first step, {strategy}" for strategy in strategies])


if __name__ == "__main__":
    main()
