"""One model in four training loops: hdnn's Trainer, plain torch, Lightning and skorch.

The same network, data, batches of 50, Adam and objective; the loops draw their own batches.

python benchmarks/loops.py [--seeds 5] [--epochs 150]
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hdnn
from hdnn.data import Dataset, split
from hdnn.training import Trainer, TrainingConfig

RATE, BATCH, SIZE = 0.02, 50, 2000
criterion = nn.BCEWithLogitsLoss()


def block(seed: int) -> hdnn.HamiltonianNetwork:
    draw = torch.Generator().manual_seed(seed)
    return hdnn.network("H1", features=8, layers=16, T=1.2, scale=0.5, generator=draw)


class Classifier(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.parts = nn.Sequential(hdnn.Augmentation(2, 8), block(seed), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)[:, 0]


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset) -> float:
    logits = model.eval()(data.X_test.float()).reshape(-1)
    return float(((logits > 0) == data.y_test).double().mean())


def with_trainer(data: Dataset, seed: int, epochs: int) -> float:
    model = hdnn.Model(block(seed), 1, hdnn.Augmentation(2, 8))
    config = TrainingConfig(
        method="joint",
        epochs=epochs,
        batch_size=BATCH,
        learning_rate=RATE,
        alpha=0.0,
        alpha_c=0.0,
        seed=seed,
    )
    Trainer(model, config).fit(Dataset.from_arrays(data.X, data.y))
    return accuracy(model, data)


def with_torch(data: Dataset, seed: int, epochs: int) -> float:
    model, x, y = Classifier(seed), data.X.float(), data.y.float()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            criterion(model(x[some]), y[some]).backward()
            optimizer.step()
    return accuracy(model, data)


def with_lightning(data: Dataset, seed: int, epochs: int) -> float:
    import lightning.pytorch as L

    class Lit(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier(seed)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return criterion(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=RATE)

    lit = Lit()
    pairs = TensorDataset(data.X.float(), data.y.float())
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(lit, DataLoader(pairs, BATCH, shuffle=True))
    return accuracy(lit.model, data)


def with_skorch(data: Dataset, seed: int, epochs: int) -> float:
    from skorch import NeuralNetBinaryClassifier

    net = NeuralNetBinaryClassifier(
        Classifier,
        module__seed=seed,
        criterion=nn.BCEWithLogitsLoss,
        optimizer=torch.optim.Adam,
        lr=RATE,
        batch_size=BATCH,
        max_epochs=epochs,
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
    )
    net.fit(data.X.float().numpy(), data.y.float().numpy())
    return accuracy(net.module_, data)


LOOPS: dict[str, Callable[[Dataset, int, int], float]] = {
    "hdnn's Trainer, method='joint'": with_trainer,
    "plain torch": with_torch,
    "Lightning": with_lightning,
    "skorch": with_skorch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=150)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    problems = ("double-moons", "swiss-roll")
    print(f"| loop | {' | '.join(f'{name}, test accuracy' for name in problems)} | CPU seconds |")
    print("| --- " * (2 + len(problems)) + "|")
    for title, loop in LOOPS.items():
        cells, begin = [], time.process_time()
        for name in problems:
            found = [
                100 * loop(split(name, size=SIZE, seed=seed), seed, given.epochs)
                for seed in range(given.seeds)
            ]
            low, high = min(found), max(found)
            cells.append(f"{np.mean(found):.1f} % ({low:.1f} to {high:.1f})")
        seconds = (time.process_time() - begin) / len(problems) / given.seeds
        print(f"| {title} | {' | '.join(cells)} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
