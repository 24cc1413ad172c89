"""Models: a stem, blocks and a head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hdnn
from hdnn import Augmentation, Model, Scaler, image_model
from hdnn.errors import HdnnError
from hdnn.models import ImageStem


def table(**options: Any) -> Model:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    scaler = Scaler(torch.ones(2), torch.full((2,), 2.0))
    return Model(net, 1, Augmentation(2, 4), scaler, **options)


def images() -> Model:
    given = {"channels": 1, "size": (4, 4), "classes": 10, "widths": (2, 4), "layers": (1, 1)}
    return image_model(**given, norm="batch", head="pool")


@pytest.mark.parametrize(
    ("make", "x"),
    [(table, torch.randn(5, 2)), (images, torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8))],
    ids=["table", "images"],
)
def test_a_model_is_its_parts_one_after_the_other(make: Any, x: torch.Tensor) -> None:
    model = make().eval()
    torch.nn.init.normal_(model.head.weight)
    x = x if x.dtype == torch.uint8 else x.to(model.head.weight.dtype)
    prepared, y = model.prepare(x), model.preprocess(x)
    assert torch.equal(model.stem(prepared), y)
    assert torch.equal(model.hidden(prepared), model.blocks(y))
    assert torch.equal(model(x), model.head(model.blocks(y)))
    assert torch.equal(model(x), model.logits(prepared))
    (first, entering), *rest = model.block_inputs(prepared)
    assert first is model.networks[0]
    assert torch.equal(entering, y)
    assert [network for network, _ in rest] == list(model.networks[1:])
    for network, state in rest:  # what leaves the last network is what the layers after it take
        assert network(state).shape == state.shape
    assert y[:1].numel() == prepared[:1].numel() * model.stem.expansion


@pytest.mark.parametrize("outputs", [1, 3])
def test_probabilities_and_predictions(outputs: int) -> None:
    model = Model(hdnn.network("H2", features=4, layers=2, T=1.0), outputs)
    torch.nn.init.normal_(model.head.weight)
    x = torch.randn(50, 4)
    probabilities = model.probabilities(x)
    assert probabilities.shape == (50, max(2, outputs))
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(50))
    assert torch.equal(model.predict(x), probabilities.argmax(-1))
    assert model.labels == list(range(max(2, outputs)))


def test_parts_that_do_not_fit() -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    with pytest.raises(HdnnError, match="over features"):
        Model(hdnn.network("H1", channels=4, layers=2, T=1.0), 1)
    with pytest.raises(HdnnError, match="2 labels do not fit 3 classes"):
        Model(net, 3, classes=["a", "b"])
    with pytest.raises(HdnnError, match="strings, numbers or booleans"):
        Model(net, 1, classes=[["a"], ["b"]])  # type: ignore[list-item]
    with pytest.raises(HdnnError, match="feature_names are 4 strings"):
        Model(net, 1, feature_names=["a", "b"])
    with pytest.raises(HdnnError, match="unknown task 'sorting'"):
        Model(net, 1, task="sorting")
    with pytest.raises(HdnnError, match="not both"):
        table(stem=ImageStem(1, (4, 4), 4))
    with pytest.raises(HdnnError, match="2 networks"):
        _ = images().network
    with pytest.raises(HdnnError, match="X must have 2 features"):
        table().check(torch.zeros(3, 5))
    with pytest.raises(HdnnError, match="convert one of them"):
        table().check(torch.zeros(3, 2, dtype=torch.float16))
