"""Mixed and low precision: what runs in which dtype, and that it trains."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hdnn
from catalogue import build, every_name
from hdnn.analysis import layer_factors, sensitivities
from hdnn.data import Dataset
from hdnn.kernels import native
from hdnn.training import Trainer, TrainingConfig
from skips import needs_kernels
from twins import derivatives, twin

LOW = (torch.bfloat16, torch.float16)
WAYS = (("reference", "fast"), ("fused", "fast"), ("reference", "lean"))


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", LOW, ids=str)
@every_name
def test_autocast_leaves_the_precision_of_a_network(name: str, lower: torch.dtype) -> None:
    """Every backend computes in the network's dtype; states of the lower one are taken too."""
    net = build(name, layers=9, dtype=torch.float32)
    y = torch.randn(6, 4).to(lower).float()
    for backend, memory in WAYS if native.obstacle() is None else WAYS[::2]:
        one = twin(net, backend, memory)
        plain = derivatives(one, y, y)
        for state in (y, y.to(lower)):
            with torch.autocast("cpu", lower):
                out = one(state.requires_grad_())
                path = one.trajectory(state)
            assert out.dtype == path.dtype == torch.float32
            assert torch.equal(out, plain["value"])
            found = torch.autograd.grad(out, list(one.parameters()), y, materialize_grads=True)
            assert all(
                torch.equal(g, plain[key])
                for g, (key, _) in zip(found, one.named_parameters(), strict=True)
            )
        with torch.autocast("cpu", lower):
            M, factors = sensitivities(one, y.detach()), layer_factors(one, y.detach())
        assert M.dtype == factors.dtype == torch.float32


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


@pytest.mark.parametrize("scheme", ["RK4", "ImplicitMidpoint"])
def test_autocast_leaves_the_precision_of_flows(scheme: str) -> None:
    net, y = build("H1", scheme, dtype=torch.float32), torch.randn(5, 4, dtype=torch.float32)
    expected = net(y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net(y), expected)


def test_autocast_and_compilation_agree() -> None:
    net = build("H1", dtype=torch.float32, backend="reference")
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float32), net)
    x = torch.randn(5, 3, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), out)
    assert out.dtype == torch.float32


# --- models ---------------------------------------------------------------------------------------


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
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert all(p.grad is not None for p in model.parameters())


def rings(samples: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 2, generator=draw, dtype=torch.float32)
    return x, (x.norm(dim=1) > 1.18).to(torch.float32)


def trained_accuracy(autocast: bool) -> float:
    x, labels = rings(400)
    draw = torch.Generator().manual_seed(2)
    net = hdnn.network("H1", features=4, layers=8, T=1.0, generator=draw, dtype=torch.float32)
    model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.binary_cross_entropy_with_logits(model(x)[:, 0].float(), labels)
        loss.backward()
        optimizer.step()
    x, labels = rings(2000)
    return float((model.predict(x) == labels).double().mean())


def test_training_under_autocast_reaches_the_accuracy_of_float32() -> None:
    plain, mixed = trained_accuracy(False), trained_accuracy(True)
    assert plain > 0.95
    assert mixed > plain - 0.02


def test_trainer_takes_bfloat16() -> None:
    x, labels = rings(200)
    config = TrainingConfig(method="joint", epochs=3, batch_size=50, learning_rate=0.02)
    net = hdnn.network("H1", features=4, layers=4, T=1.0, dtype=torch.bfloat16)
    trainer = Trainer(hdnn.Model(net, 1, hdnn.Augmentation(2, 4)), config)
    history = trainer.fit(Dataset.from_arrays(x, labels.long()))
    assert history[-1].loss < history[0].loss
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}
