"""What the loops train on: the right rows, each with its weight, in the model's precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdnn.errors import HdnnError
from hdnn.training import TrainingConfig
from hdnn.training.samples import to_samples
from tasks import dataset, make, moons


def test_rows_without_weight_are_no_samples() -> None:
    data, model = moons(), make()
    weight = torch.arange(50) % 3 / 4
    train, validation, scale = to_samples(model, dataset(data.X, data.y, weight), TrainingConfig())
    kept = weight > 0
    assert (validation, scale) == (None, None)
    assert torch.equal(train.states, model.prepare(data.X[kept].double()))
    assert torch.equal(train.target, data.y[kept])
    assert torch.equal(train.weight, weight[kept].double())


def test_balanced_classes_weigh_alike_whatever_the_weights_of_samples() -> None:
    data, weight = moons(), torch.rand(50, dtype=torch.float64)
    config = TrainingConfig(class_weight="balanced")
    train, _, _ = to_samples(make(), dataset(data.X, data.y, weight), config)
    totals = torch.bincount(train.target, weights=train.weight)
    assert totals.tolist() == pytest.approx([float(weight.sum()) / 2] * 2)
    explicit = TrainingConfig(class_weight=(0.5, 3.0))
    train, _, _ = to_samples(make(), dataset(data.X, data.y, weight), explicit)
    torch.testing.assert_close(train.weight, weight * torch.tensor([0.5, 3.0]).double()[data.y])


def test_targets_of_a_regression_are_standardized_by_weight() -> None:
    data, weight = moons(), torch.rand(50, dtype=torch.float64)
    y = 1e3 + 7 * data.X[:, 0].double()
    train, _, scale = to_samples(
        make(task="regression"), dataset(data.X, y, weight), TrainingConfig()
    )
    assert scale is not None
    mean = np.average(train.target[:, 0], weights=weight)
    variance = np.average(train.target[:, 0] ** 2, weights=weight)
    assert (mean, variance) == pytest.approx((0, 1), abs=1e-9)
    torch.testing.assert_close(train.target[:, 0] * scale.scale + scale.mean, y)


def test_a_validation_share_is_stratified_and_the_rest_is_trained_on() -> None:
    data, config = moons(), TrainingConfig(validation=0.2, seed=3)
    weight = torch.arange(1.0, 51.0)  # names the rows
    train, held_out, _ = to_samples(make(), dataset(data.X, data.y, weight), config)
    assert held_out is not None
    assert sorted([*train.weight.tolist(), *held_out.weight.tolist()]) == weight.tolist()
    assert len(held_out.target) == 10
    share = data.y.double().mean()
    assert float(held_out.target.double().mean()) == pytest.approx(float(share), abs=0.1)
    again = to_samples(make(), dataset(data.X, data.y, weight), config)
    other = to_samples(make(), dataset(data.X, data.y, weight), config.replace(seed=4))
    assert torch.equal(again.train.weight, train.weight)
    assert not torch.equal(other.train.weight, train.weight)


def test_weights_of_another_number_of_classes_raise() -> None:
    data = moons()
    config = TrainingConfig(class_weight=(1.0, 2.0, 3.0))
    with pytest.raises(HdnnError, match="3 entries for 2 classes"):
        to_samples(make(), dataset(data.X, data.y), config)
