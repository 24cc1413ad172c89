"""Mixed and low precision: what runs in which dtype, and that it trains."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import hdnn
from catalog import build, each, every_name
from hdnn.analysis import (
    advise,
    certify,
    layer_factors,
    profile,
    sensitivities,
    velocity_jacobians,
)
from hdnn.data import Dataset
from hdnn.training import Trainer, TrainingConfig
from skips import needs_kernels
from twins import derivatives, twin

LOW = (torch.bfloat16, torch.float16)
WAYS = (("auto", "fast"), ("reference", "fast"), ("reference", "lean"))


@each
def test_autocast_leaves_the_precision_of_a_network(name: str, scheme: str) -> None:
    """Every backend computes in the network's dtype; states of the lower one are taken too."""
    net = build(name, scheme, layers=9, scale=0.5, dtype=torch.float32)
    y = torch.randn(6, 4).to(torch.bfloat16).float()
    for backend, memory in WAYS:
        one = twin(net, backend, memory)
        plain = derivatives(one, y, y)
        for state in (y, y.to(torch.bfloat16)):
            with torch.autocast("cpu", torch.bfloat16):
                out = one(state)
                path = one.trajectory(state)
                assert one.explain_backend(state) == one.explain_backend(y)
            assert out.dtype == path.dtype == torch.float32
            assert torch.equal(out, plain["value"])
            gradients = torch.autograd.grad(out, list(one.parameters()), y, materialize_grads=True)
            for gradient, (key, _) in zip(gradients, one.named_parameters(), strict=True):
                assert torch.equal(gradient, plain[key])
    if net.invertible:
        with torch.autocast("cpu", torch.bfloat16):
            assert net.inverse(y).dtype == torch.float32


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_analysis_under_autocast_is_no_less_precise(backend: str) -> None:
    net = build("MS3", layers=9, dtype=torch.float32, backend=backend)
    y = torch.randn(6, 4).to(torch.bfloat16).float()
    for function in (sensitivities, layer_factors, velocity_jacobians):
        for state in (y, y.to(torch.bfloat16)):
            with torch.autocast("cpu", torch.bfloat16):
                low = function(net, state)
            assert torch.equal(low, function(net, y))
    plain = certify(net, y), advise(net, y), profile(net, y)
    with torch.autocast("cpu", torch.bfloat16):
        assert [*map(str, plain)] == [str(f(net, y)) for f in (certify, advise, profile)]


@needs_kernels
@every_name
def test_backward_under_autocast_is_no_less_precise(name: str) -> None:
    """Where the backward pass is ours; that of plain torch belongs outside, as torch says."""
    net = twin(build(name, layers=9, dtype=torch.float32), "fused")
    y = torch.randn(6, 4, dtype=torch.float32)
    plain = derivatives(net, y, y)
    with torch.autocast("cpu", torch.bfloat16):
        cast = derivatives(net, y, y)
    assert all(torch.equal(cast[key], plain[key]) for key in plain)


@pytest.mark.parametrize("lower", LOW, ids=str)
def test_autocast_lowers_stem_and_head_but_not_the_blocks(lower: torch.dtype) -> None:
    images = {"channels": 1, "size": (6, 6), "classes": 10}
    model = hdnn.image_model(**images, kernel=3, layers=4, norm="batch", dtype=torch.float32)
    images = torch.randint(256, (4, 1, 6, 6), dtype=torch.uint8)
    with torch.autocast("cpu", lower):
        y = model.preprocess(images)
        out = model.network(y)
        logits = model(images)
        loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
    assert (y.dtype, out.dtype, logits.dtype) == (lower, torch.float32, lower)
    assert torch.equal(out, model.network(y.float()))  # every layer of it in float32
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_training_in_bfloat16_converges() -> None:
    x = torch.randn(200, 2, dtype=torch.float32)
    data = Dataset.from_arrays(x, (x.norm(dim=1) > 1.18).long())
    config = TrainingConfig(method="joint", epochs=3, batch_size=50, learning_rate=0.02)
    net = hdnn.network("H1", features=4, layers=4, T=1.0, dtype=torch.bfloat16)
    trainer = Trainer(hdnn.Model(net, 1, hdnn.Padding(2, 4)), config)
    history = trainer.fit(data)
    assert history[-1].loss < history[0].loss
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}
