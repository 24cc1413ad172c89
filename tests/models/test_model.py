"""Models: a stem, blocks and a head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hdnn
from hdnn import Model, Padding, Scaler, image_model
from hdnn.errors import HdnnError
from hdnn.models import ImageStem, TableStem


def table(**options: Any) -> Model:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    scaler = Scaler(torch.ones(2), torch.full((2,), 2.0))
    return Model(net, 1, Padding(2, 4), scaler, **options)


def images() -> Model:
    shape = {"channels": 1, "size": (4, 4), "classes": 10, "widths": (2, 4), "layers": (1, 1)}
    return image_model(**shape, norm="batch")


@pytest.mark.parametrize("make", [table, images])
def test_a_model_is_its_parts_one_after_the_other(make: Any) -> None:
    model = make().eval()
    torch.nn.init.normal_(model.head.weight)
    x = torch.randint(0, 256, (5, *model.stem.shape), dtype=torch.uint8)
    x = x if model.stem.takes_images else x.double()
    prepared, y = model.prepare(x), model.preprocess(x)
    assert torch.equal(model.stem(prepared), y)
    assert torch.equal(model.hidden(prepared), model.blocks(y))
    assert torch.equal(model(x), model.head(model.blocks(y)))
    assert torch.equal(model(x), model.logits(prepared))
    (first, state), *rest = model.block_inputs(prepared)
    assert first is model.networks[0]
    assert torch.equal(state, y)
    assert [network for network, _ in rest] == list(model.networks[1:])
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


def test_parts_that_do_not_fit_raise() -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    with pytest.raises(HdnnError, match="over features"):
        Model(hdnn.network("H1", channels=4, layers=2, T=1.0), 1)
    with pytest.raises(HdnnError, match="the model has 3 classes, got"):
        Model(net, 3, classes=["a", "b"])
    with pytest.raises(HdnnError, match="the model has 4 feature_names, got"):
        Model(net, 1, feature_names=["a", "b"])
    with pytest.raises(HdnnError, match="outputs is a positive integer, got 0"):
        Model(net, 0)
    with pytest.raises(HdnnError, match="unknown task 'sorting'"):
        Model(net, 1, task="sorting")
    with pytest.raises(HdnnError, match="not both"):
        table(stem=ImageStem(1, (4, 4), 4))
    with pytest.raises(HdnnError, match="the stem gives 6 features, but the network takes 4"):
        Model(net, 1, stem=TableStem(6, Padding(2, 6)))
    with pytest.raises(HdnnError, match="2 networks"):
        _ = images().network


def test_data_of_another_shape_or_dtype_raise() -> None:
    with pytest.raises(HdnnError, match=r"expected \(\.\.\., 2\) features, got \(3, 5\)"):
        table()(torch.zeros(3, 5))
    with pytest.raises(HdnnError, match="convert one of them"):
        table()(torch.zeros(3, 2, dtype=torch.float16))
