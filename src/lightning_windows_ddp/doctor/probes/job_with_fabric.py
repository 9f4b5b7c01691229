"""A job of two ranks with a worker each, without a main guard; the argument is the accelerator."""

import sys

import torch
from _reports import report
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator=sys.argv[1], devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
fabric.launch()
layer = torch.nn.Linear(2, 1)
module, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
data = DataLoader(TensorDataset(torch.ones(8, 2)), num_workers=1, multiprocessing_context="spawn")
steps = 0
for (batch,) in fabric.setup_dataloaders(data):
    optimizer.zero_grad()
    fabric.backward(module(batch).pow(2).mean())
    optimizer.step()
    steps += 1
if steps != 4:
    sys.exit(f"The job made {steps} steps, not 4.")
if fabric.is_global_zero:
    report(done=True)
