"""Recurrences: the kernels compute what the reference does, forward and backward, everywhere."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hdnn.backends import reference, rollout
from hdnn.errors import HdnnError
from hdnn.fields import ACTIVATIONS
from hdnn.program import Recurrence
from skips import needs_kernels

COMPILED = [name for name, activation in ACTIVATIONS.items() if activation.code is not None]


def draw(
    n: int = 4,
    m: int = 6,
    d: int = 2,
    batch: int = 5,
    steps: int = 9,
    period: int = 1,
    hold: int = 1,
    ensemble: int | None = None,
    activation: str = "tanh",
    **options: Any,
) -> tuple[Recurrence, Tensor, Tensor | None]:
    """A recurrence that neither grows nor dies, a state and inputs."""
    lead, r = (() if ensemble is None else (ensemble,)), n + d + 1
    W = torch.randn(*lead, period, m, r, **options) / r**0.5
    A = 0.8 * torch.randn(*lead, period, n, r + m, **options) / (r + m) ** 0.5
    u = torch.randn(*lead, batch, -(-steps // hold), d, **options) if d else None
    x = torch.randn(*lead, batch, n, **options)
    return Recurrence(W, A, ACTIVATIONS[activation], steps, hold), x, u


def everything(
    form: Recurrence, x: Tensor, u: Tensor | None, backend: str, outputs: Sequence[int] = (0, 1)
) -> list[Tensor]:
    """States, the last one, and the gradients of sums of their sines."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, form.W, form.A) if t.numel()]
    if u is not None:
        u = u.detach().clone().requires_grad_()
        leaves.append(u)
    x, *rest = leaves
    W = rest.pop(0) if form.W.numel() else form.W
    found = rollout(form._replace(W=W, A=rest[0]), x, u, backend)
    loss = sum(found[k].sin().sum() for k in outputs)
    assert isinstance(loss, Tensor)
    return [*found, *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def agree(one: Sequence[Tensor], other: Sequence[Tensor], tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        scale = float(b.detach().abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale)


@needs_kernels
@given(
    sizes=st.tuples(*(st.integers(low, high) for low, high in ((1, 40), (0, 40), (0, 5)))),
    batch=st.integers(1, 40),
    steps=st.integers(1, 30),
    period=st.integers(1, 4),
    hold=st.integers(1, 3),
    ensemble=st.sampled_from([None, 1, 3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_kernels_compute_what_the_reference_does(
    sizes: tuple[int, int, int],
    batch: int,
    steps: int,
    period: int,
    hold: int,
    ensemble: int | None,
    dtype: torch.dtype,
) -> None:
    n, m, d = sizes
    case = draw(n, m, d, batch, steps, period, hold, ensemble, dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-4
    agree(everything(*case, "fused"), everything(*case, "reference"), tolerance)


@needs_kernels
@pytest.mark.parametrize("activation", COMPILED)
def test_every_activation(activation: str) -> None:
    case = draw(activation=activation)
    agree(everything(*case, "fused"), everything(*case, "reference"), 1e-12)


@needs_kernels
@pytest.mark.parametrize("outputs", [(0,), (1,)])
def test_either_output_alone_may_be_differentiated(outputs: tuple[int, ...]) -> None:
    case = draw()
    found = [everything(*case, backend, outputs) for backend in ("fused", "reference")]
    agree(*found, 1e-12)


@needs_kernels
def test_derivatives_are_right_and_may_be_differentiated() -> None:
    form, x, u = draw(n=2, m=3, d=1, batch=2, steps=4)

    def states(x: Tensor, u: Tensor, W: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
        return rollout(form._replace(W=W, A=A), x, u, "fused")

    leaves = [t.requires_grad_() for t in (x, u, form.W, form.A) if t is not None]
    assert torch.autograd.gradcheck(states, leaves)
    assert torch.autograd.gradgradcheck(states, leaves)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [{"batch": 300}, {"batch": 40, "ensemble": 3}, {"period": 7}, {"batch": 100, "period": 200}],
)
def test_the_same_bits_for_any_number_of_threads(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    sizes = {"n": 16, "m": 32, "batch": 64, "steps": 200} | options
    case, found = draw(**sizes, dtype=dtype), []
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 16):
            torch.set_num_threads(count)
            found.append(everything(*case, "fused"))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@needs_kernels
def test_a_chunk_of_steps_ends_anywhere() -> None:
    """The way back goes in chunks, here of many and of one step."""
    for batch, steps in ((1, 3000), (600, 5)):
        case = draw(n=8, m=16, batch=batch, steps=steps)
        agree(everything(*case, "fused"), everything(*case, "reference"), 1e-11)


@needs_kernels
def test_nan_stays_with_its_sample() -> None:
    form, x, u = draw(batch=20)
    expected = rollout(form, x, u, "fused")[1]
    x[7, 1] = torch.nan
    found = rollout(form, x, u, "fused")[1]
    assert found[7].isnan().all()
    rest = torch.arange(20) != 7
    assert torch.equal(found[rest], expected[rest])


@needs_kernels
def test_views_expanded_inputs_and_gradients_without_memory() -> None:
    form, x, u = draw(n=4, d=2, batch=4, steps=6)
    assert u is not None
    x, u = x.T.contiguous().T, u[:1].expand(4, -1, -1)
    states, last = rollout(form, x, u, "fused")
    plain = reference.rollout(form, x, u)
    torch.testing.assert_close((states, last), plain)
    W = form.W.clone().requires_grad_()
    rollout(form._replace(W=W), x, u, "fused")[0].sum().backward()  # an expanded gradient
    assert W.grad is not None
    assert W.grad.isfinite().all()


@needs_kernels
def test_memory_of_the_way_back_does_not_grow_with_the_steps() -> None:
    """Beside the states themselves, as chunks of steps go back one after the other."""
    form, x, u = draw(n=8, m=16, d=1, batch=4, steps=10_000)
    tracemalloc.start()
    everything(form, x, u, "fused")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # of Python's objects: a loop over steps would keep ten thousand nodes


@needs_kernels
@pytest.mark.parametrize("options", [{"fullgraph": True}, {"fullgraph": True, "dynamic": True}])
@pytest.mark.slow
def test_torch_compile_takes_a_recurrence_as_one_operator(options: dict[str, Any]) -> None:
    form, x, u = draw()
    leaves = [t.clone().requires_grad_() for t in (form.W, form.A)]

    def loss(W: Tensor, A: Tensor) -> Tensor:
        states, last = rollout(form._replace(W=W, A=A), x, u)
        return states.sin().sum() + last.sum()

    compiled = torch.compile(loss, **options)
    for one, other in zip(
        torch.autograd.grad(compiled(*leaves), leaves),
        torch.autograd.grad(loss(*leaves), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_does_not_fit_is_an_error() -> None:
    form, x, u = draw()
    assert u is not None
    for wrong, word in (
        ((form, x[0], u), "states must have shape"),
        ((form, x[:, :3], u), "states must have shape"),
        ((form, x, None), "inputs must have shape"),
        ((form, x, u[:, :-1]), "inputs must have shape"),
        ((form, x, u[:3]), "inputs must have shape"),
        ((form._replace(A=form.A[..., :-1]), x, u), "are no recurrence"),
    ):
        for backend in ("auto", "reference"):
            with pytest.raises(HdnnError, match=word):
                rollout(*wrong, backend)  # type: ignore[arg-type]


@needs_kernels
def test_where_the_kernels_cannot_serve_the_reference_does() -> None:
    form, x, u = draw(activation="sin")
    with pytest.raises(HdnnError, match="do not know the activation sin"):
        rollout(form, x, u, "fused")
    torch.testing.assert_close(rollout(form, x, u), reference.rollout(form, x, u), rtol=0, atol=0)
    form, x, u = draw(dtype=torch.float16)
    with pytest.raises(HdnnError, match="float16"):
        rollout(form, x, u, "fused")
    form, x, u = draw()
    assert u is not None
    jacobian = torch.func.jacrev(lambda v: rollout(form, v, u)[1])(x)  # transforms take torch
    assert jacobian.shape == (5, 4, 5, 4)
