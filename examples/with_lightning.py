"""A Hamiltonian block in a LightningModule, with gradient norms by layer in its logger.

Run it:  python examples/with_lightning.py [--precision bf16-mixed] [--logger tensorboard]

It needs Lightning (pip install lightning); a logger other than csv needs its own package.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hdnn
from hdnn.data import split

LOGGERS = {
    "csv": L.loggers.CSVLogger,
    "tensorboard": L.loggers.TensorBoardLogger,
    "wandb": lambda folder: L.loggers.WandbLogger(save_dir=folder, offline=True),
}


class Classifier(L.LightningModule):
    """Two features, widened to eight, through 16 layers of H1, to one logit."""

    def __init__(self) -> None:
        super().__init__()
        block = hdnn.network("H1", features=8, layers=16, T=1.2, scale=0.5)
        self.net = nn.Sequential(nn.Linear(2, 8), block, nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, 0]

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, label = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(x), label.to(x.dtype))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train(folder: Path, epochs: int, precision: Any = "32-true", logger: str = "csv") -> float:
    """Train, and return the accuracy on the test part."""
    L.seed_everything(0, verbose=False)
    data = split("double-moons", size=2000)
    model, dtype = Classifier(), torch.get_default_dtype()
    chosen = LOGGERS[logger](folder)
    loader = DataLoader(TensorDataset(data.X_train.to(dtype), data.y_train), 50, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        precision=precision,
        max_epochs=epochs,
        logger=chosen,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with hdnn.analysis.monitor(model.net, every=100, log=chosen.log_metrics):
        trainer.fit(model, loader)
    with torch.no_grad():
        found = model.eval()(data.X_test.to(dtype)) > 0
    return float((found == data.y_test).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--logger", choices=LOGGERS, default="csv")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "hdnn-lightning")
    given = parser.parse_args()
    accuracy = train(given.out, given.epochs, given.precision, given.logger)
    print(f"test accuracy {accuracy:.4f}; gradient norms by layer: {given.out}")


if __name__ == "__main__":
    main()
