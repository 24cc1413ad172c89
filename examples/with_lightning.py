"""A Hamiltonian block in a LightningModule, with gradient norms by layer in its logger.

Run it:  python examples/with_lightning.py [--precision bf16-mixed] [--processes 2]

It needs Lightning (pip install lightning). On several machines, see Lightning's num_nodes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hdnn
from hdnn.data import split


class Classifier(L.LightningModule):
    """Two features, widened to eight, through 16 layers of H1, to one logit."""

    def __init__(self) -> None:
        super().__init__()
        block = hdnn.network("H1", features=8, layers=16, T=1.2, scale=0.5)
        self.net = nn.Sequential(nn.Linear(2, 8), block, nn.Linear(8, 1))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, label = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(x)[:, 0], label.to(x.dtype))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train(folder: Path, epochs: int, precision: Any = "32-true", processes: int = 1) -> float:
    """Train, and return the accuracy on the test part."""
    L.seed_everything(0, verbose=False)
    data, model, dtype = split("double-moons", size=2000), Classifier(), torch.get_default_dtype()
    rows, logger = TensorDataset(data.X.to(dtype), data.y), L.loggers.CSVLogger(folder)
    quiet = dict.fromkeys(("checkpointing", "progress_bar", "model_summary"), False)
    options: dict[str, Any] = {f"enable_{name}": value for name, value in quiet.items()}
    options |= {"accelerator": "cpu", "devices": processes, "precision": precision}
    trainer = L.Trainer(max_epochs=epochs, logger=logger, **options)
    with hdnn.analysis.monitor(model.net, every=100, log=logger.log_metrics):
        trainer.fit(model, DataLoader(rows, 50 // processes, shuffle=True))
    with torch.no_grad():
        predicted = model.net.eval()(data.X_test.to(dtype))[:, 0] > 0
    return float((predicted == data.y_test).double().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("epochs", 30), ("processes", 1), ("precision", "32-true")):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    print(f"test accuracy {train(Path('lightning'), **vars(options)):.4f}; see lightning/")
