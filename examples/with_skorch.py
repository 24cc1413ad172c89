"""A Hamiltonian block in skorch: scikit-learn's pipelines and grid searches around one's own model.

Run it:  python examples/with_skorch.py

It needs skorch (pip install skorch). Where no model of one's own is wanted, hdnn.HDNNClassifier
does all of it, and faster.
"""

from __future__ import annotations

import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetBinaryClassifier
from torch import Tensor, nn

import hdnn
from hdnn.data import split


class Classifier(nn.Module):
    """Two features, widened to eight, through layers of a named architecture, to one logit."""

    def __init__(self, architecture: str = "H1", layers: int = 16) -> None:
        super().__init__()
        block = hdnn.network(
            architecture, features=8, layers=layers, T=1.2, scale=0.5, dtype=torch.float32
        )
        opening = nn.Linear(2, 8, dtype=torch.float32)
        self.net = nn.Sequential(opening, block, nn.Linear(8, 1, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, 0]


def search(epochs: int, size: int) -> tuple[dict[str, object], float]:
    """The best architecture and depth by cross-validation, and its accuracy on the test part."""
    torch.manual_seed(0)
    data = split("double-moons", size=size)
    net = NeuralNetBinaryClassifier(
        Classifier,
        optimizer=torch.optim.Adam,
        lr=0.02,
        batch_size=50,
        max_epochs=epochs,
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
    )
    grid = {
        "neuralnetbinaryclassifier__module__architecture": ["H1", "MS1"],
        "neuralnetbinaryclassifier__module__layers": [4, 16],
    }
    pipeline = make_pipeline(StandardScaler(), net)
    grid_search = GridSearchCV(pipeline, grid, cv=2, error_score="raise")
    grid_search.fit(data.X.float().numpy(), data.y.float().numpy())
    accuracy = grid_search.score(data.X_test.float().numpy(), data.y_test.float().numpy())
    best = {name.split("__")[-1]: value for name, value in grid_search.best_params_.items()}
    return best, float(accuracy)


def main() -> None:
    best, accuracy = search(epochs=20, size=2000)
    print(f"{best}: test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
