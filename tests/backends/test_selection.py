"""Which backend is chosen and why: by program, shape, dtype and device, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import hdnn
from catalogue import NAMES, build
from hdnn.backends.selection import FEW_SAMPLES, WIDEST
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Learned, Weights
from hdnn.fields.activations import Activation
from hdnn.kernels import native
from skips import needs_kernels
from twins import agree, derivatives, twin

Net = hdnn.HamiltonianNetwork


def obstacles() -> dict[str, tuple[Any, Any, str]]:
    """A network and a state that the kernels cannot serve, and a word of the reason."""
    half, brain = torch.float16, torch.bfloat16
    rows = torch.randn(3, 4)
    return {
        "flow": (lambda: build("H1", "RK4"), rows, "flow"),
        "implicit": (lambda: build("H2", "ImplicitMidpoint"), rows, "flow"),
        "energy": (
            lambda: Net(hdnn.fields.EnergyField("J1", _energy, features=4), layers=2, T=1.0),
            rows,
            "flow",
        ),
        "J(y, t)": (
            lambda: Net(
                HamiltonianField(
                    lambda y, t: hdnn.fields.canonical(4).expand(*y.shape[:-1], 4, 4),
                    Weights("dense", features=4, layers=2),
                ),
                T=1.0,
            ),
            rows,
            "flow",
        ),
        "float16": (lambda: build("H1", dtype=half), rows.to(half), "float16"),
        "bfloat16": (lambda: build("H1", dtype=brain), rows.to(brain), "bfloat16"),
        "meta": (lambda: build("H1", device="meta"), rows.to("meta"), "meta"),
        "convolution": (
            lambda: build("H1", channels=4, kernel=3),
            torch.randn(2, 4, 3, 3),
            "Convolution",
        ),
        "learned X": (lambda: build("HS", X="learned"), rows, "learned"),
        "learned J(t)": (
            lambda: Net(
                HamiltonianField(Learned(4, layers=2), Weights(features=4, layers=2)), T=1.0
            ),
            rows,
            "differs from layer to layer",
        ),
        "learned steps": (lambda: build("H1", learn_steps=True), rows, "steps"),
        "empty": (lambda: build("H1"), rows[:0], "nothing to compute"),
        "no layers": (lambda: build("H1", layers=0), rows, "nothing to compute"),
        "sin": (lambda: build("H1", activation="sin"), rows, "tanh"),
        "activation of ones own": (lambda: build("H1", activation=_steep), rows, "tanh"),
    }


def _energy(x: torch.Tensor, t: Any) -> torch.Tensor:
    return x.cos().sum(-1)


_steep = Activation("tanh", lambda x: torch.tanh(3 * x), lambda x: torch.log(torch.cosh(3 * x)) / 3)
"""Not the catalogue's tanh, but of the same name."""

OBSTACLES = obstacles()


@needs_kernels
@pytest.mark.parametrize("case", OBSTACLES)
def test_where_the_kernels_cannot_serve(case: str) -> None:
    """auto falls back and says why; asking for the kernels raises the same reason."""
    make, y, word = OBSTACLES[case]
    y = y if y.dtype in (torch.float16, torch.bfloat16) else y.to(torch.float64)
    net = make()
    choice = net.explain_backend(y)
    assert choice.backend == "reference"
    assert word in choice.reason
    assert str(choice) == f"reference: {choice.reason}"
    out = net(y)
    assert out.shape == y.shape
    if case != "meta":
        assert torch.equal(out, twin(net, "reference")(y))
    demanding = twin(net, "fused")
    for ask in (demanding, demanding.explain_backend):
        with pytest.raises(
            HdnnError, match=r"fused backend cannot serve: .*use backend='auto'"
        ) as e:
            ask(y)
        assert word in str(e.value)


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_auto_takes_the_kernels_up_to_a_width(name: str, dtype: torch.dtype) -> None:
    for samples, kind in ((FEW_SAMPLES, "few"), (FEW_SAMPLES + 1, "many")):
        widest = WIDEST[kind][name == "H2"]  # whose J is full
        for n, expected in ((8, "fused"), (widest, "fused"), (widest + 2, "reference")):
            net = build(name, features=n, layers=1, dtype=dtype)
            y = torch.randn(samples, n, dtype=dtype)
            choice = net.explain_backend(y)
            assert choice.backend == expected
            assert f"width {n} is" in choice.reason
            assert n == 8 or f" {widest}" in choice.reason
            forced = twin(net, "fused").explain_backend(y)
            assert (forced.backend, forced.reason) == ("fused", "asked for")
    asked = twin(net, "reference").explain_backend(y)
    assert (asked.backend, asked.reason) == ("reference", "asked for")


def test_without_the_kernels_the_reference_serves_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> None:
        raise OSError("hdnn was installed without a compiler")

    monkeypatch.setattr(native, "library", missing)
    native.obstacle.cache_clear()
    try:
        net, y = build("H1"), torch.randn(5, 4)
        choice = net.explain_backend(y)
        assert choice.backend == "reference"
        assert "install a C++ compiler" in choice.reason
        net(y).sum().backward()
        with pytest.raises(HdnnError, match="installed without a compiler"):
            build("H1", backend="fused")(y)
    finally:
        native.obstacle.cache_clear()


@given(
    batch=st.lists(st.integers(1, 30), max_size=2),
    n=st.sampled_from((2, 4, 30, 32, 34, 64)),
    layers=st.integers(1, 5),
)
def test_the_choice_depends_on_program_shape_dtype_and_device_only(
    batch: list[int], n: int, layers: int
) -> None:
    """Not on values, strides, gradients, calls before or threads."""
    net = build("MS3", features=n, layers=layers, dtype=torch.float64)
    y = torch.randn(*batch, n, dtype=torch.float64)
    first = net.explain_backend(y)
    for state in (
        torch.full_like(y, torch.nan),
        y.clone().requires_grad_(),
        torch.randn(1, dtype=torch.float64).expand(*batch, n),
    ):
        assert net.explain_backend(state) == first
    net(y)
    with torch.no_grad():
        net(y)
        assert net.explain_backend(y) == first
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(before, 2))
        assert net.explain_backend(y) == first
    finally:
        torch.set_num_threads(before)
    assert build("MS3", features=n, layers=layers, dtype=torch.float64).explain_backend(y) == first


@pytest.mark.parametrize("name", ["H1", "FCNN"])
def test_an_activation_of_ones_own_is_the_one_that_counts(name: str) -> None:
    net, y = build(name, activation=_steep), torch.randn(5, 4)
    agree(derivatives(net, y, y), derivatives(twin(net, "reference"), y, y))


@needs_kernels
def test_fake_tensors_are_never_read_and_leave_no_trace() -> None:
    net, y = build("H1"), torch.randn(5, 4)
    exact = net(y)
    fresh = twin(net, "fused")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(y)
        assert net(fake).shape == exact.shape
        with pytest.raises(HdnnError, match="FakeTensor"):
            fresh(fake)
    assert net.explain_backend(fake).backend == "reference"  # also outside the mode
    assert torch.equal(fresh(y), exact)


def test_a_choice_holds_for_its_kind_of_state_only() -> None:
    """What is remembered of one call is not applied to another."""
    net, y = build("HS", X=torch.randn(2, 2)), torch.randn(5, 4)
    expected = {"cpu": net.explain_backend(y).backend, "meta": "reference"}
    for device in ("meta", "cpu", "meta", "cpu"):
        shapes = twin(net, "auto").to(device)
        assert shapes.explain_backend(y.to(device)).backend == expected[device]
        assert net.explain_backend(y).backend == expected["cpu"]
    wide = torch.randn(5, 3, 4)
    assert net(wide).shape == wide.shape
    net.field.interconnection.J.requires_grad_()
    assert net.explain_backend(y).backend == "reference"
    net.field.interconnection.J.requires_grad_(False)
    assert net.explain_backend(y).backend == expected["cpu"]


@needs_kernels
def test_a_shared_batch_counts_for_every_network() -> None:
    net = build("H1", features=80, layers=1, ensemble=8)
    y = torch.randn(1, 100, 80)
    assert net.explain_backend(y) == net.explain_backend(y.expand(8, 100, 80))
