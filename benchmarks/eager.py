"""The peer: appendix B.1 of the paper, written plainly in eager PyTorch.

H1 on the Swiss roll by coordinate descent, as a researcher would write it: a Python loop over the
layers, autograd, torch.optim.Adam on the hidden layers, and in every iteration ten Adam steps from
zero for the output layer. One forward pass of the hidden layers serves both. Nothing of
`hdnn.training` is used; the data are those of `hdnn.data`.

    python benchmarks/eager.py --epochs 1
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.data import split

BATCH, RATE, BETAS = 125, 0.05, (0.9, 0.999)
ALPHA, ALPHA_C = 5e-3, 1e-4
OUTPUT_STEPS = 10


class H1(nn.Module):
    """y_{j+1} = y_j + h J K_j' tanh(K_j y_j + b_j), J = [0 I; -I 0]."""

    def __init__(self, features: int, layers: int, T: float) -> None:
        super().__init__()
        self.h = T / layers
        self.K = nn.Parameter(torch.randn(layers, features, features))
        self.b = nn.Parameter(torch.randn(layers, features))
        J = torch.zeros(features, features)
        J[: features // 2, features // 2 :] = torch.eye(features // 2)
        self.register_buffer("J", J - J.T)

    def forward(self, y: Tensor) -> Tensor:
        for K, b in zip(self.K.unbind(), self.b.unbind(), strict=True):
            y = y + self.h * F.linear(torch.tanh(F.linear(y, K, b)), self.J @ K.T)
        return y

    def smoothness(self) -> Tensor:
        """h/2 sum_j ||K_j - K_{j-1}||^2 + ||b_j - b_{j-1}||^2."""
        changes = self.K.diff(dim=0).square().sum() + self.b.diff(dim=0).square().sum()
        return self.h / 2 * changes


def fit_output(features: Tensor, target: Tensor) -> nn.Linear:
    """Ten Adam steps from zero on the regularized cross-entropy, given the features."""
    head = nn.Linear(features.shape[1], 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE, betas=BETAS)
    for _ in range(OUTPUT_STEPS):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(head(features)[:, 0], target)
        loss = loss + ALPHA_C * (head.weight.square().sum() + head.bias.square().sum())
        loss.backward()
        optimizer.step()
    return head.requires_grad_(False)


def train(layers: int = 64, epochs: int = 50, seed: int = 0, T: float = 1.2) -> tuple[float, float]:
    """Train once; returns the seconds that it took and the accuracy on the test points."""
    data = split("swiss-roll")
    X, X_test = (F.pad(x.float(), (0, 2)) for x in (data.X_train, data.X_test))
    target = data.y_train.float()
    torch.manual_seed(seed)
    network = H1(4, layers, T)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, betas=BETAS)

    start = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(BATCH):
            features = network(X[batch])
            head = fit_output(features.detach(), target[batch])
            loss = F.binary_cross_entropy_with_logits(head(features)[:, 0], target[batch])
            loss = loss + ALPHA * network.smoothness()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        features = network(X)
    head = fit_output(features, target)
    seconds = time.perf_counter() - start

    with torch.no_grad():
        predicted = head(network(X_test))[:, 0] > 0
    return seconds, float((predicted == data.y_test).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--T", type=float, default=1.2)
    given = parser.parse_args()
    seconds, accuracy = train(given.layers, given.epochs, given.seed, given.T)
    each = seconds / max(given.epochs, 1)
    print(
        f"{each:.2f} s per epoch, {given.layers} layers, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads; test accuracy {accuracy:.1%} "
        f"after {given.epochs} epochs"
    )


if __name__ == "__main__":
    main()
