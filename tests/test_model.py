"""Models: feature augmentation, the parts of a model, and their names in files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hdnn
from hdnn import Augmentation, ImageClassifier, ImageConfig, Model, Scaler
from hdnn.errors import HdnnError
from hdnn.models import ImageStem, Projection
from hdnn.training import prepare
from hdnn.training.prepare import Prepared
from hdnn.training.run_config import RunConfig
from hdnn.training.settings import DataConfig, ModelConfig


def test_the_two_ways_of_the_paper() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert Augmentation(2, 4, mode="append")(x).tolist() == [[1, 2, 0, 0]]
    assert Augmentation(2, 4, mode="spread")(x).tolist() == [[1, 0, 0, 2]]
    assert Augmentation(3, 6, mode="spread")(torch.tensor([1.0, 2, 3])).tolist() == [
        1,
        2,
        0,
        0,
        0,
        3,
    ]
    assert torch.equal(Augmentation(2)(x), Augmentation(2, 4)(x))


@given(
    features=st.integers(1, 6),
    extra=st.integers(0, 5),
    mode=st.sampled_from(["append", "spread"]),
    batch=st.lists(st.integers(0, 3), max_size=2),
)
def test_widths_become_even_and_nothing_is_lost(
    features: int, extra: int, mode: str, batch: list[int]
) -> None:
    module = Augmentation(features, features + extra, mode)
    x = torch.randn(*batch, features, requires_grad=True)
    out = module(x)
    width = features + extra
    assert module.width == out.shape[-1] == width + width % 2
    assert out.shape[:-1] == x.shape[:-1]
    for before, after in zip(x.reshape(-1, features), out.reshape(-1, module.width), strict=True):
        assert after[after != 0].tolist() == before.tolist()
    out.sum().backward()
    assert bool((x.grad == 1).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), "too small for 3"),
        ((0, 4), "positive"),
        ((2.0, 4), "integer"),
        ((2, 4.5), "integer"),
        ((2, 4, "apend"), "did you mean 'append'"),
    ],
    ids=str,
)
def test_what_cannot_be_augmented(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        Augmentation(*arguments)


def test_data_of_another_width_is_refused() -> None:
    for x in (torch.ones(4, 3), torch.tensor(1.0)):
        with pytest.raises(HdnnError, match="2"):
            Augmentation(2, 4)(x)


# --- the parts of a model -------------------------------------------------------------------------


def table(**options: Any) -> Model:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    return Model(
        net, 1, Augmentation(2, 4), Scaler(torch.ones(2), torch.full((2,), 2.0)), **options
    )


def images() -> Model:
    config = ImageConfig(size=(4, 4), widths=(2, 4), layers=(1, 1), norm="batch", head="pool")
    return ImageClassifier(config)


BLOCK = ["field.weights.theta", "field.weights.beta", "field.interconnection.J"]
NORM = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
NAMES = {
    table: {
        "scaler.mean",
        "scaler.scale",
        *(f"network.{name}" for name in BLOCK),
        "head.weight",
        "head.bias",
    },
    images: {
        *(
            f"{part}.0.{name}"
            for part in ("opening", "connectors.0")
            for name in ("weight", "bias")
        ),
        *(f"{part}.{n}" for part in ("opening.1", "connectors.0.1", "closing.0") for n in NORM),
        *(f"blocks.{k}.{name}" for k in (0, 1) for name in BLOCK),
        "head.weight",
        "head.bias",
    },
}


@pytest.mark.parametrize("make", NAMES)
def test_names_in_files_and_checkpoints_stay(make: Any) -> None:
    """Files, checkpoints and everybody's torch.save have these names, also within a module."""
    model, other = make(), make()
    state = model.state_dict()
    assert set(state) == NAMES[make]
    holder = torch.nn.ModuleDict({"a": other, "b": copy.deepcopy(other)})
    assert set(holder.state_dict()) == {f"{k}.{name}" for k in "ab" for name in NAMES[make]}
    holder.load_state_dict({f"{k}.{name}": t for k in "ab" for name, t in state.items()})
    for part in holder.values():
        assert all(torch.equal(t, state[name]) for name, t in part.state_dict().items())
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        other.load_state_dict({name: t for name, t in state.items() if name != "head.bias"})


@pytest.mark.parametrize(
    ("make", "x"),
    [(table, torch.randn(5, 2)), (images, torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8))],
)
def test_a_model_is_its_parts_one_after_the_other(make: Any, x: torch.Tensor) -> None:
    model = make().eval()
    torch.nn.init.normal_(model.head.weight)
    x = x if x.dtype == torch.uint8 else x.to(model.head.weight.dtype)
    states, y = model.prepare(x), model.preprocess(x)
    assert torch.equal(model.stem(states), y)
    assert torch.equal(model(x), model.head(model.stages(y)))
    assert torch.equal(model(x), model.logits(states))
    (first, entering), *rest = model.block_inputs(states)
    assert first is model.networks[0]
    assert torch.equal(entering, y)
    assert [network for network, _ in rest] == list(model.networks[1:])
    assert y[:1].numel() == states[:1].numel() * model.stem.expansion


def test_parts_that_do_not_fit() -> None:
    over_channels = hdnn.network("H1", channels=4, layers=2, T=1.0)
    with pytest.raises(HdnnError, match="over features"):
        Model(over_channels, 1)
    with pytest.raises(HdnnError, match="2 labels do not fit 3 classes"):
        Model(hdnn.network("H1", features=4, layers=2, T=1.0), 3, classes=["a", "b"])
    with pytest.raises(HdnnError, match="not both"):
        table(stem=ImageStem(ImageConfig(), torch.float64))
    with pytest.raises(HdnnError, match="2 blocks"):
        _ = images().network


# --- the input projection -------------------------------------------------------------------------


def test_a_projection_starts_with_states_of_variance_one_and_an_even_width() -> None:
    projection = Projection(2000, 15, torch.Generator().manual_seed(0))
    y = projection(torch.randn(500, 2000, generator=torch.Generator().manual_seed(1)))
    assert y.shape == (500, 16)
    torch.testing.assert_close(y.std(), torch.ones(()), rtol=0.05, atol=0)
    with pytest.raises(HdnnError, match=r"expected.*2000"):
        projection(torch.ones(3, 4))
    with pytest.raises(HdnnError, match="features is a positive integer, got 0"):
        Projection(0, 4)


def test_a_model_with_a_projection_is_saved_and_loaded(tmp_path: Path) -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    scaler = Scaler(torch.ones(50), torch.full((50,), 2.0))
    model = Model(net, 1, scaler=scaler, projection=Projection(50, 4)).eval()
    torch.nn.init.normal_(model.head.weight)
    assert {"projection.weight", "projection.bias"} <= set(model.state_dict())
    hdnn.save(model, tmp_path / "model")
    loaded = hdnn.load(tmp_path / "model")
    x = torch.randn(5, 50)
    assert torch.equal(loaded(x), model(x))
    with pytest.raises(HdnnError, match="not both"):
        Model(net, 1, Augmentation(2, 4), projection=Projection(50, 4))
    with pytest.raises(HdnnError, match="the projection gives 6 features"):
        Model(net, 1, projection=Projection(50, 6))


@pytest.mark.parametrize(
    ("settings", "features", "width", "projected"),
    [
        ({}, 3, 6, False),
        ({}, 500, 64, True),
        ({"width": 16}, 50, 16, True),
        ({"projection": "on"}, 3, 6, True),
        ({"projection": "off"}, 100, 132, False),
    ],
)
def test_a_network_has_a_sensible_width_for_any_number_of_features(
    settings: dict[str, Any], features: int, width: int, projected: bool
) -> None:
    data = Prepared(
        DataConfig("table.csv"),
        torch.randn(8, features, dtype=torch.float32),
        torch.arange(8) % 2,
        *(torch.empty(0),) * 2,
        "classification",
        [0, 1],
    )
    config = RunConfig(data=DataConfig(source="table.csv"), model=ModelConfig(**settings))
    model = prepare.build(config, data)
    assert model.network.features == width
    assert (model.projection is not None) == projected
    assert model(data.X_train).shape == (8, 1)


def test_without_a_projection_a_small_width_is_an_error() -> None:
    with pytest.raises(HdnnError, match="width=16 is too small for 50 features"):
        hdnn.Augmentation(50, 16)
