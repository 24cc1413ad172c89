"""Predictions go through a frozen form of the model, which agrees with it and is never stale."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdnn
from hdnn.models import frozen as module
from hdnn.models.frozen import frozen

Make = Callable[[torch.dtype], hdnn.Model]
NAMES = ["MS1", "MS2", "MS3", "H1", "H2", "HS", "FCNN", "ResNet"]


def table(name: str, dtype: torch.dtype, outputs: int = 1, **options: Any) -> hdnn.Model:
    if name != "FCNN" and "step" not in options:
        options["T"] = 1.0
    net = hdnn.network(name, features=10, scale=0.5, layers=5, dtype=dtype, **options)
    scaler = hdnn.Scaler.fit(3 + 2 * torch.randn(50, 5, dtype=dtype))
    return filled(hdnn.Model(net, outputs, hdnn.Augmentation(5, 10, mode="spread"), scaler))


def images(dtype: torch.dtype, **options: Any) -> hdnn.Model:
    config = hdnn.ImageConfig(
        **{"size": (9, 11), "channels": 2, "classes": 3, "step": 0.2, "scale": 0.3, **options}
    )
    return filled(hdnn.ImageClassifier(config, dtype=dtype))


@torch.no_grad()
def filled(model: hdnn.Model) -> hdnn.Model:
    """With numbers everywhere, also where models start with zeros, ones and no statistics."""
    for part in (model.head, *(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))):
        for tensor in (*part.parameters(), *part.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.2, 1.0).mul_(0.3 if part is model.head else 1.0)
    return model.eval()


def projected(dtype: torch.dtype) -> hdnn.Model:
    net = hdnn.network("H2", features=20, layers=3, T=1.0, dtype=dtype)
    projection = hdnn.models.Projection(37, 20, dtype=dtype)
    scaler = hdnn.Scaler.fit(torch.randn(50, 37, dtype=dtype))
    return filled(hdnn.Model(net, 4, scaler=scaler, projection=projection))


def plain_net(dtype: torch.dtype) -> hdnn.Model:
    net = hdnn.network("MS3", features=6, layers=3, T=1.0, dtype=dtype, activation="sigmoid")
    return filled(hdnn.Model(net, 2, task="regression"))


CONVOLUTIONS: dict[str, Any] = {"kernel": 3, "widths": (6, 10), "layers": (2, 2)}
MODELS: dict[str, Make] = {
    **{name: lambda dtype, name=name: table(name, dtype) for name in NAMES},
    "time-invariant, 3 classes": lambda dtype: table("H1", dtype, 3, time_invariant=True),
    "own steps": lambda dtype: table("H1", dtype, step=[0.1, 0.2, 0.3, 0.1, 0.2]),
    "reference": lambda dtype: table("H1", dtype, backend="reference"),
    "projection": projected,
    "regression, no stem": plain_net,
    "images, H2": lambda dtype: images(dtype, architecture="H2", layers=3),
    "images, two stages": lambda dtype: images(dtype, widths=(4, 8), layers=(2, 2), norm="batch"),
    "normalized images": lambda dtype: images(dtype, mean=(0.1, 0.2), std=(0.5, 0.6), layers=2),
    "convolutions, batch norm": lambda dtype: images(
        dtype, **CONVOLUTIONS, norm="batch", head="pool"
    ),
    "convolutions, group norm": lambda dtype: images(
        dtype, **CONVOLUTIONS, norm="group", head="pool", architecture="MS3"
    ),
    "convolutions, stride": lambda dtype: images(
        dtype, **CONVOLUTIONS, connector="stride", architecture="MS1"
    ),
    "convolutions of side 5": lambda dtype: images(
        dtype, **{**CONVOLUTIONS, "kernel": 5}, architecture="MS2"
    ),
    "plain convolutions": lambda dtype: images(
        dtype, **CONVOLUTIONS, block="convolution", step=None
    ),
}


def inputs(model: hdnn.Model, samples: int, dtype: torch.dtype) -> Tensor:
    if model.stem.takes_images:
        return torch.randint(256, (samples, *model.stem.shape), dtype=torch.uint8)
    x = 3 + 2 * torch.randn(samples, model.features, dtype=dtype)
    if model.scaler is not None:
        x[0, 1] = torch.nan
    return x


def plain(model: hdnn.Model, x: Tensor) -> Tensor:
    """As with gradients, where nothing is frozen."""
    with torch.enable_grad():
        assert frozen(model, x) is None
        return model.probabilities(x).detach()


def compare(model: hdnn.Model, x: Tensor) -> None:
    with torch.no_grad():
        assert frozen(model, x) is not None
        found, logits = model.probabilities(x), model(x)
    small = 2e-5 if found.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found, plain(model, x), rtol=small, atol=small)
    torch.testing.assert_close(logits, model(x).detach(), rtol=10 * small, atol=10 * small)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_the_model(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = MODELS[name](dtype)
    for samples in (1, 7, 70):
        compare(model, inputs(model, samples, dtype))


def test_parts_in_front_of_and_behind_the_kernel_have_any_strides() -> None:
    model = table("H1", torch.float64)
    x = inputs(model, 40, torch.float64)
    compare(model, x[::3])
    compare(model, x.t().contiguous().t())
    model = MODELS["convolutions, batch norm"](torch.float64)
    x = torch.rand(8, *model.stem.shape, dtype=torch.float64)
    compare(model, x[::3])
    compare(model, x.contiguous(memory_format=torch.channels_last))


def change_head(model: hdnn.Model) -> None:
    model.head.weight.add_(1.0)


def change_data(model: hdnn.Model) -> None:
    model.networks[0].field.weights.theta.data.mul_(0.5)  # tells no version


def change_by_numpy(model: hdnn.Model) -> None:
    model.head.bias.detach().numpy()[...] += 1


def change_buffer(model: hdnn.Model) -> None:
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d | hdnn.Scaler):
            next(part.buffers()).add_(0.5)


def replace_head(model: hdnn.Model) -> None:
    model.head = nn.Linear(model.head.in_features, model.head.out_features)


def load_state(model: hdnn.Model) -> None:
    model.load_state_dict({k: v * 0.9 for k, v in model.state_dict().items()})


def load_and_assign(model: hdnn.Model) -> None:
    model.load_state_dict({k: v * 0.9 for k, v in model.state_dict().items()}, assign=True)


def add_a_layer(model: hdnn.Model) -> None:
    model.stages.closing.append(nn.Tanh())
    model.stages.closes = True


CHANGES = [
    change_head,
    change_data,
    change_by_numpy,
    change_buffer,
    replace_head,
    load_state,
    load_and_assign,
    add_a_layer,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["H1", "images, H2", "convolutions, batch norm"])
def test_it_is_never_stale(name: str, change: Callable[[hdnn.Model], None]) -> None:
    torch.manual_seed(1)
    model = MODELS[name](torch.float64)
    x = inputs(model, 3, torch.float64)
    with torch.no_grad():
        before = model(x)
        change(model)
        after = model(x)
    torch.testing.assert_close(after, model(x).detach(), rtol=1e-10, atol=1e-10)
    unchanged = change is change_buffer and name == "images, H2"  # which has none
    assert torch.equal(before, after) == unchanged


def test_nothing_is_made_anew_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(module.FrozenModel):
        def __init__(self, model: hdnn.Model) -> None:
            made.append(model)
            super().__init__(model)

    monkeypatch.setattr(module, "FrozenModel", Counted)
    model = table("H1", torch.float32)
    with torch.inference_mode():
        for samples in (1, 5, 1, 40):
            model.probabilities(inputs(model, samples, torch.float32))
    with torch.no_grad():
        model.predict(inputs(model, 3, torch.float32))
    assert made == [model]


def test_copies_and_other_dtypes_have_forms_of_their_own() -> None:
    model = table("H1", torch.float32)
    x = inputs(model, 4, torch.float32)
    with torch.no_grad():
        model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin._frozen is None
        with torch.no_grad():
            twin.head.weight.add_(1.0)
        compare(twin, x)
        compare(model, x)
    compare(model.double(), x.double())


def test_the_plain_way_where_somebody_looks_or_trains() -> None:
    model = MODELS["convolutions, batch norm"](torch.float32)
    x, seen = inputs(model, 2, torch.float32), []
    with torch.no_grad():
        assert frozen(model, x) is not None
        handle = model.networks[0].register_forward_hook(lambda *_: seen.append(1))
        assert frozen(model, x) is None
        model(x)
        assert seen == [1]
        handle.remove()
        assert frozen(model, x) is not None
        model.stages.train()
        assert frozen(model, x) is None
        model.eval()
        with torch.autocast("cpu"):
            assert frozen(model, x) is None
        assert frozen(model, x[:0]) is None
        assert frozen(model, x.float().requires_grad_()) is not None
        with pytest.raises(hdnn.HdnnError, match="expected images"):
            model(x[..., :5])
    tabular = table("H1", torch.float32)
    with torch.no_grad(), pytest.raises(hdnn.HdnnError, match="float64"):
        tabular(torch.zeros(3, 5, dtype=torch.float64))
    with torch.no_grad():
        assert torch.func.vmap(tabular)(torch.ones(3, 2, 5).float()).shape == (3, 2, 1)


def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HDNN_NUM_THREADS", "3")
    for name in ("H1", "convolutions, batch norm"):
        model = MODELS[name](torch.float64)
        data = [inputs(model, samples, torch.float64) for samples in (200, 90, 3, 1)]
        wanted = [plain(model, x) for x in data]
        failures: list[BaseException] = []

        def predict(
            x: Tensor,
            want: Tensor,
            model: hdnn.Model = model,
            failures: list[BaseException] = failures,
        ) -> None:
            try:
                for _ in range(5):
                    with torch.no_grad():
                        found = model.probabilities(x)
                    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-10)
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(target=predict, args=pair) for pair in zip(data, wanted, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_estimators_use_it_and_large_batches_of_narrow_networks_do_not() -> None:
    X = torch.randn(40, 2).numpy()
    fitted = hdnn.HDNNClassifier(layers=2, max_iter=1, random_state=0).fit(X, X[:, 0] > 0)
    fitted.predict_proba(X)
    assert fitted.model_._frozen is not None
    net = hdnn.network("H1", features=4, layers=2, T=1.0, dtype=torch.float32)
    model, x = filled(hdnn.Model(net, 1)), torch.randn(300, 4).float()
    compare(model, x[:256])
    with torch.no_grad():
        assert frozen(model, x) is None  # most lanes of its vectors would be idle
        torch.testing.assert_close(model(x)[:9], model(x[:9]))
