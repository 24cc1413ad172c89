"""Mixed and low precision of models: what runs in which dtype, and that it trains."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hdnn
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.training import Trainer, TrainingConfig

LOW = (torch.bfloat16, torch.float16)


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


def test_a_trainer_takes_bfloat16_and_refuses_float16_with_the_reason() -> None:
    x, labels = rings(200)
    config = TrainingConfig(method="joint", epochs=3, batch_size=50, learning_rate=0.02)
    for dtype in LOW:
        net = hdnn.network("H1", features=4, layers=4, T=1.0, dtype=dtype)
        trainer = Trainer(hdnn.Model(net, 1, hdnn.Augmentation(2, 4)), config)
        if dtype == torch.float16:
            with pytest.raises(HdnnError, match="0 in float16"):
                trainer.fit(Dataset.from_arrays(x, labels.long()))
        else:
            history = trainer.fit(Dataset.from_arrays(x, labels.long()))
            assert history[-1].loss < history[0].loss
            assert {p.dtype for p in trainer.model.parameters()} == {dtype}
