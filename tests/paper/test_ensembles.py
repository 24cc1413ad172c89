"""The networks of many seeds, side by side: each is that of its own seed."""

from __future__ import annotations

import torch

import hdnn
from hdnn.data import split
from hdnn.paper import ensembles


def test_data_and_weights_are_those_of_the_seeds() -> None:
    seeds = [3, 11]
    parts = [split("double-moons", size=40, seed=seed) for seed in seeds]
    data = ensembles.SeedSamples.stack(seeds, parts, "spread", torch.float64)
    for k, part in enumerate(parts):
        assert torch.equal(data.X[k][:, [0, 3]], part.X.double())
        assert torch.equal(data.X_test[k][:, [0, 3]], part.X_test.double())
        assert not data.X[k][:, 1:3].any()
        assert torch.equal(data.y[k], part.y)
    both = ensembles.networks("H1", seeds, torch.float64, layers=3, T=1.0)
    for k, seed in enumerate(seeds):
        alone = hdnn.network(
            "H1",
            features=4,
            layers=3,
            T=1.0,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(seed),
        )
        assert torch.equal(both.K[k], alone.K)


def test_several_networks_a_seed_share_its_training_part() -> None:
    parts = [split("double-moons", size=40, seed=seed) for seed in (3, 11)]
    data = ensembles.SeedSamples.stack([3, 11], parts, "append", torch.float64)
    twice = data.repeat(2)
    assert twice.seeds == [3, 11, 3, 11]
    assert torch.equal(twice.X[2:], data.X)
    assert torch.equal(twice.y[2:], data.y)


def test_accuracies_and_losses_longhand() -> None:
    parts = [split("double-moons", size=40, seed=seed) for seed in (3, 11)]
    data = ensembles.SeedSamples.stack([3, 11], parts, "append", torch.float64)
    nets = ensembles.networks("H1", [3, 11], torch.float64, layers=3, T=1.0)
    V = torch.randn(2, 1, 5, dtype=torch.float64)
    accuracies, losses = ensembles.measure(nets, V.numpy(), data.X, data.y)
    for k in range(2):
        logits = nets.member(k)(data.X[k]).detach() @ V[k, 0, :4] + V[k, 0, 4]
        assert accuracies[k] == float(((logits > 0) == data.y[k]).double().mean())
        sign = 2.0 * data.y[k] - 1
        expected = float(torch.log1p(torch.exp(-sign * logits)).mean())
        torch.testing.assert_close(float(losses[k]), expected)
