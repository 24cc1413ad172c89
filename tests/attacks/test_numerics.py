"""Numbers that go wrong: absurd, singular, overflowing, ill-conditioned, of a foreign precision."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdnn
from catalogue import NAMES, build, every_name
from hdnn.analysis import advise, layer_factors, sensitivities
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Weights
from hdnn.kernels import native
from hdnn.schemes import Leapfrog
from skips import needs_kernels
from twins import agree, derivatives, error, twin

# --- a J that couples nothing ---------------------------------------------------------------------


FUSED = pytest.param("fused", marks=needs_kernels)


@pytest.mark.parametrize("backend", ["auto", "reference", FUSED])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_singular_X_couples_less_and_a_zero_one_nothing(backend: str, rank: int) -> None:
    X = torch.zeros(2, 2)
    X[:rank, :rank] = 1.0
    net, y = build("HS", X=X, backend=backend), torch.randn(5, 4)
    agree(derivatives(net, y, y), derivatives(twin(net, "reference"), y, y))
    if not rank:
        assert torch.equal(net(y), y)
        assert not any(bool(g.any()) for g in torch.autograd.grad(net(y).sum(), net.parameters()))


def test_the_zeros_of_X_are_values_not_structure() -> None:
    """Weights that are loaded bring their own X."""
    net, other = build("HS", X=torch.zeros(2, 2)), build("HS", X=torch.randn(2, 2))
    net.load_state_dict(other.state_dict())
    y = torch.randn(5, 4)
    assert torch.equal(net(y), other(y))


def test_a_field_without_units_stands_still() -> None:
    field = HamiltonianField(torch.zeros(4, 4), Weights("dense", features=4, layers=3))
    net = hdnn.HamiltonianNetwork(field, Leapfrog(), T=1.0)
    y = torch.randn(5, 4)
    assert torch.equal(net(y), y)
    assert "nothing to compute" in net.explain_backend(y).reason


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_J_that_is_not_finite_says_so(value: float) -> None:
    with pytest.raises(HdnnError, match="finite"):
        build("HS", X=torch.full((2, 2), value))


# --- autocast -------------------------------------------------------------------------------------

WAYS = (("reference", "fast"), ("fused", "fast"), ("reference", "lean"))


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
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
def test_flows_keep_their_precision_too(scheme: str) -> None:
    net, y = build("H1", scheme, dtype=torch.float32), torch.randn(5, 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net(y), outside_autocast(net)(y))


def outside_autocast(net: Any) -> Callable[[Tensor], Tensor]:
    """The same network with autocast switched off around it."""

    def run(y: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            out: Tensor = net(y)
        return out

    return run


def test_autocast_around_a_model_and_under_compilation() -> None:
    net = build("H1", dtype=torch.float32, backend="reference")
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float32), net)
    x = torch.randn(5, 3, dtype=torch.float32)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
        assert torch.equal(compiled(x), out)
    assert out.dtype == torch.float32
    with pytest.raises(HdnnError, match="bfloat16"):  # a mistake, outside
        net(torch.zeros(5, 4, dtype=torch.bfloat16))


# --- growing states -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", ["relu", "identity", "tanh"])
@pytest.mark.parametrize(("layers", "T"), [(64, 20.0), (16, 40.0), (300, 15.0)])
def test_lean_gradients_are_those_of_the_reference_where_states_grow(
    activation: str, layers: int, T: float, dtype: torch.dtype
) -> None:
    """Growing states leave no digits of y_0 in y_N: what is undone would be wrong."""
    net = build("MS3", features=8, layers=layers, T=T, activation=activation, dtype=dtype)
    y, weight = torch.randn(10, 8).to(dtype), torch.randn(10, 8).to(dtype)
    mine = derivatives(twin(net, "reference", "lean"), y, weight)
    plain = derivatives(twin(net, "reference"), y, weight)
    if not all(bool(t.isfinite().all()) for t in plain.values()):
        assert all(torch.equal(mine[k].isfinite(), plain[k].isfinite()) for k in plain)
        return
    agree(mine, plain, tolerance=1000 * torch.finfo(dtype).eps)


def test_a_huge_sample_does_not_hide_what_the_others_lose() -> None:
    net = build("MS3", features=8, layers=64, T=6.0, activation="relu", scale=0.5)
    y = torch.randn(10, 8)
    y[0] *= 1e30
    state = [derivatives(twin(net, "reference", m), y, y)["state"] for m in ("lean", "fast")]
    for mine, plain in zip(*state, strict=True):
        assert error(mine, plain) <= 1e-12


# --- J(y, t) --------------------------------------------------------------------------------------


def state_dependent(J: Callable[[Tensor, Any], Tensor], **options: Any) -> Any:
    field = HamiltonianField(J, Weights("dense", features=4, layers=3))
    return hdnn.HamiltonianNetwork(field, T=1.0, **options)


S = torch.tensor([[0.0, 1, 0, 2], [-1, 0, 3, 0], [0, -3, 0, 1], [-2, 0, -1, 0]])


def turning(y: Tensor, t: Any) -> Tensor:
    return torch.cos(y[..., :1, None]) * S.to(y)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in jvp
def test_tracers_follow_J_of_the_state() -> None:
    net, y = state_dependent(turning), torch.randn(5, 4)
    expected = torch.func.vmap(net)(y)
    assert torch.func.jacrev(net)(y).shape == (5, 4, 5, 4)
    assert torch.func.jvp(net, (y,), (y,))[0].shape == y.shape
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(y), expected)
    assert net.to("meta")(y.to("meta")).shape == y.shape
    state_dependent(turning)(y.requires_grad_()).sum().backward()
    assert y.grad is not None


# --- advice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("T", [1e100, 1e40, 1e-40, 1e-100])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "FCNN"])
def test_advice_for_any_step_that_there_is(name: str, T: float) -> None:
    net, y = build(name, layers=16, T=T), torch.randn(20, 4)
    found = advise(net, y)
    assert str(found)
    assert json.loads(json.dumps(found.to_dict()))
    assert found.T_range is not None
    assert found.step_range is not None
    for low, high in (found.T_range, found.step_range):
        assert 0 < low <= high < math.inf
    assert found.ok == (T < 1)
    assert isinstance(found.layers, int)


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e308, 0.0, math.nan, math.inf])
@every_name
def test_advice_for_any_weights_and_data(name: str, size: float) -> None:
    for net, y in (
        (build(name, layers=6), torch.randn(5, 4) * size),
        (build(name, layers=6), torch.randn(5, 4)),
    ):
        if bool((y.abs() < 10).all()):
            with torch.no_grad():
                net.field.weights.theta.mul_(size)
        found = advise(net, y)
        assert str(found)
        low, high = found.T_range or (0.0, 0.0)
        assert low <= high
        assert found.breaks is not None or bool(found.forward_norms.isfinite().all())


def test_advice_that_lapack_gives_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(A: Tensor) -> Tensor:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr("hdnn.analysis.advice.unit_eigenvalues", fails)
    with pytest.raises(HdnnError, match=r"no advice.*converge"):
        advise(build("H1"), torch.randn(5, 4))


def test_a_training_that_overflows_ends_with_advice() -> None:
    model = hdnn.Model(build("H1", T=1e308), 1)
    config = hdnn.training.TrainingConfig(epochs=2, batch_size=20, method="joint")
    X, target = torch.randn(40, 4), torch.arange(40) % 2
    with pytest.raises(hdnn.training.DivergenceError, match=r"1e\+308|3\.33e\+307|T <="):
        hdnn.training.Trainer(model, config).fit(hdnn.data.Dataset.from_arrays(X, target))


# --- absurd numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["T", "step"])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (math.nan, torch.float64),
        (math.inf, torch.float64),
        (-1.0, torch.float64),
        (10**400, torch.float64),
        (1e308, torch.float32),
        (1e-60, torch.float32),
        (1e6, torch.float16),
    ],
    ids=reprlib.repr,
)
def test_a_step_is_a_number_of_the_networks_dtype(
    name: str, value: float, dtype: torch.dtype
) -> None:
    with pytest.raises(HdnnError, match=f"{name} must be|{name} gives") as caught:
        hdnn.network("H1", features=4, layers=3, dtype=dtype, **{name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("scale", [math.nan, math.inf, "big", None, True, 10**400], ids=type)
def test_a_scale_is_a_finite_number(scale: Any) -> None:
    with pytest.raises(HdnnError, match="scale"):
        build("H1", scale=scale)
    with pytest.raises(HdnnError, match="scale"):
        build("H1").reset_parameters(scale=scale)
