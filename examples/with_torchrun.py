"""A Hamiltonian model trained by several processes, with DistributedDataParallel.

Run it:  torchrun --nproc-per-node 2 examples/with_torchrun.py

`hdnn.Model` is a torch module: every process has a copy and its own share of each batch, and
gradients are averaged over the processes. On several machines, see torchrun's --nnodes.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hdnn
from hdnn.data import split


def build() -> hdnn.Model:
    """Two features, widened to eight, through 16 layers of H1, to one logit."""
    torch.manual_seed(0)
    block = hdnn.network("H1", features=8, layers=16, T=1.2, scale=0.5, dtype=torch.float32)
    return hdnn.Model(block, 1, hdnn.Padding(2, 8))


def train(epochs: int) -> tuple[hdnn.Model, float]:
    """Train in this process and its peers; returns the model and its test accuracy."""
    data, model = split("double-moons", size=2000), build()
    rows = TensorDataset(data.X.float(), data.y)
    sampler = DistributedSampler(rows, seed=0)  # another share of every epoch for each process
    loader = DataLoader(rows, batch_size=50 // dist.get_world_size(), sampler=sampler)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.02)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, label in loader:
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(parallel(x)[:, 0], label.float()).backward()
            optimizer.step()
    right = model.predict(data.X_test.float()) == data.y_test
    return model, float(right.double().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", default="model.safetensors")
    options = parser.parse_args()
    dist.init_process_group("gloo")  # "nccl" on GPUs
    trained, accuracy = train(options.epochs)
    if dist.get_rank() == 0:  # all have the same weights
        hdnn.save(trained, options.out)
        print(f"{dist.get_world_size()} processes, test accuracy {accuracy:.4f}: {options.out}")
    dist.destroy_process_group()
