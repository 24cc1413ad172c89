"""What is said of a training that diverged, or did not converge."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hdnn.training import DivergenceError, Trainer, TrainingConfig
from hdnn.training.diagnosis import convergence_warning
from skips import needs_kernels
from tasks import dataset, make, moons

COMPILED = pytest.param("compiled", marks=needs_kernels)


def config(**options: Any) -> TrainingConfig:
    return TrainingConfig(epochs=4, batch_size=20).replace(**options)


@pytest.mark.parametrize("loop", [COMPILED, "autograd"])
def test_divergence_names_the_remedy(loop: str) -> None:
    with pytest.raises(DivergenceError, match=r"use T <= .*rate \(now 1e\+200\)"):
        Trainer(make(), config(loop=loop, learning_rate=1e200)).fit(moons())
    data = moons()
    data.X[3, 0] = torch.nan
    with pytest.raises(DivergenceError, match="epoch 1: the inputs are not finite"):
        Trainer(make(), config(loop=loop)).fit(data)


def test_exploded_loss_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends a training where it does not fall, or at the end."""
    monkeypatch.setattr("hdnn.training.diagnosis.EXPLODED", 0.0)
    settings = config(method="joint", loop="autograd", epochs=20, learning_rate=0.001)
    falling = Trainer(make(), settings, [lambda t, r: setattr(t, "stopped", r.epoch == 5)])
    assert len(falling.fit(moons())) == 5
    with pytest.raises(DivergenceError, match="in epoch 3: "):
        Trainer(make(), settings.replace(epochs=3)).fit(moons())


def test_convergence_warning() -> None:
    """Both losses must be above that of guessing, log 2."""
    data, model = moons(), make()
    assert convergence_warning(model, data, 0.7) is None  # an untrained head guesses
    torch.nn.init.constant_(model.head.bias, 50.0)
    assert convergence_warning(model, data, 0.7) is None
    message = convergence_warning(model, data, 9.0)
    assert message is not None
    assert "above that of always predicting equal probabilities (0.6931)" in message
    far = dataset(data.X, 1e6 + data.X[:, 0])
    message = convergence_warning(make(task="regression"), far, 9.0)
    assert message is not None
    assert "its RMSE, 1e+06, is above that of always predicting the mean" in message
