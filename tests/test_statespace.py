"""State-space networks: every claim for random weights of any size, and what users rely on."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

import hdnn
from hdnn.control import feedback, gain_limit, sampled
from hdnn.errors import HdnnError
from hdnn.statespace import StateSpace
from hdnn.testing import assert_contracting, assert_passive
from skips import needs_kernels

DTYPES = [torch.float32, torch.float64]
MEMBERS = 50
"""Of an ensemble: as many models with weights of their own, of scales from 0.01 to 100."""


def models(seed: int, dtype: torch.dtype, **options: Any) -> StateSpace:
    """Random models of random sizes, steps from 0.01 to 10, mu h from 0.0001 to 1."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=draw))

    n, m, d, q = (int(number(*span)) for span in ((1, 9), (0, 20), (1, 4), (1, 4)))
    step = 10 ** number(-2, 1)
    sizes = {"states": n, "units": m, "inputs": d, "outputs": q} | options
    if options.get("passive"):
        sizes |= {"outputs": d, "gain": 10 ** number(-1, 2)}
    model = StateSpace(
        **sizes,
        step=step,
        mu=10 ** number(-4, 0) / step,
        ensemble=MEMBERS,
        generator=draw,
        scale=1.0,
        dtype=dtype,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 10 ** (4 * torch.rand(MEMBERS, generator=draw) - 2)
            parameter.mul_(scale.reshape(-1, *(1,) * (parameter.ndim - 1)).to(dtype))
    return model


def of_members(values: Any, ndim: int) -> Tensor:
    return torch.as_tensor(values).reshape(-1, *(1,) * (ndim - 1))


def rounding(model: StateSpace, *states: Tensor) -> Tensor:
    """What rounding may add to a step: as many roundings as a sum has terms, at the size of them.

    Terms are states, and units times h K; h |K| is at most sqrt(2 h).
    """
    eps, terms = torch.finfo(states[0].dtype).eps, model.states + model.units + model.inputs + 8
    size = sum(x.norm(dim=-1) for x in states) + math.sqrt(2 * model.h * max(model.units, 1))
    return eps * terms * size


SEEDS = range(10)  # times 50 members and two dtypes: 1,000 models for every claim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_claim_1_states_of_equal_inputs_approach_each_other(seed: int, dtype: torch.dtype) -> None:
    model = models(seed, dtype)
    for layer in model._layers:
        Q, K, M = layer.parts()
        largest = torch.linalg.eigvalsh(K.mT @ K + M)[:, -1] * model.h
        assert bool((largest <= 2 - model.h * model.mu + 1e-14).all())
        assert float((Q @ Q.mT - torch.eye(model.states)).abs().max()) < 1e-12
    rho, cell = of_members(model.rate, 2), model.assemble()
    assert bool((rho <= 1 - model.h * model.mu + 1e-14).all())
    u = 10 * torch.randn(MEMBERS, 20, model.inputs, dtype=dtype)
    x, other = (10 * torch.randn(MEMBERS, 20, model.states, dtype=dtype) for _ in range(2))
    for _ in range(5):
        after, other_after = cell.step(x, u)[0], cell.step(other, u)[0]
        allowed = rho * (x - other).norm(dim=-1)
        push = model.h * (u @ model.weights[0].G.mT).norm(dim=-1)
        slack = rounding(model, x, other) + 50 * torch.finfo(dtype).eps * push
        assert bool(((after - other_after).norm(dim=-1) <= allowed + slack).all())
        x, other = after, other_after


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_claim_2_the_gain_is_bounded(seed: int, dtype: torch.dtype) -> None:
    model = models(seed, dtype)
    model.weights[0].D.copy_(torch.randn_like(model.weights[0].D))
    u, v = (torch.randn(MEMBERS, 8, 60, model.inputs, dtype=dtype) for _ in range(2))
    dy, du = (model(u)[0] - model(v)[0]).double(), (u - v).double()
    gain = of_members(model.gain, 2)
    slack = 1 + 1e4 * torch.finfo(dtype).eps
    assert bool((dy.flatten(2).norm(dim=-1) <= slack * gain * du.flatten(2).norm(dim=-1)).all())
    largest = dy.norm(dim=-1).amax(-1), du.norm(dim=-1).amax(-1)
    assert bool((largest[0] <= slack * gain * largest[1]).all())


@pytest.mark.parametrize("seed", range(100))
def test_claim_3_every_stable_linear_system_is_contained(seed: int) -> None:
    """Ten of each: spectral radii up to 0.999, negative determinants and singular A among them."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(10):
        n, d, q = (int(k) for k in torch.randint(1, 9, (3,), generator=draw))
        A = torch.randn(n, n, generator=draw)
        radius = 1 - 10 ** (-3 * float(torch.rand((), generator=draw)))
        A *= radius / float(torch.linalg.eigvals(A).abs().max())
        if seed % 10 == 0:
            A = torch.diag(-0.9 * torch.rand(n, generator=draw) - 0.05)
        if seed % 10 == 1:
            A = torch.randn(n, n, generator=draw).triu(1)  # nilpotent
        B, C, D = (torch.randn(*s, generator=draw) for s in ((n, d), (q, n), (q, d)))
        step = 10 ** float(3 * torch.rand((), generator=draw) - 2)
        model = StateSpace.from_linear(A, B, C, D, step=step, units=3)
        u, x, outputs = torch.randn(100, d, generator=draw), torch.zeros(n), []
        for v in u:
            outputs.append(C @ x + D @ v)
            x = A @ x + B @ v
        expected = torch.stack(outputs)
        found = model(u)[0].detach()
        assert float((found - expected).abs().max()) < 1e-9 * float(expected.abs().max())
        assert model.rate < 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_claim_4_passive_mode_is_incrementally_passive(seed: int, dtype: torch.dtype) -> None:
    model = models(seed, dtype, passive=True)
    cell, eps = model.assemble(), torch.finfo(dtype).eps
    zero = torch.zeros(MEMBERS, 1, model.states, dtype=dtype)
    still, y = cell.step(zero, torch.zeros(MEMBERS, 1, model.inputs, dtype=dtype))
    assert bool((still.norm(dim=-1) <= rounding(model, zero)).all())  # an equilibrium at 0
    d, h = 1 / float(model.gain), model.h
    x, other = (3 * torch.randn(MEMBERS, 20, model.states, dtype=dtype) for _ in range(2))
    G = h * torch.linalg.matrix_norm(model.weights[0].matrix("G"), 2)[:, None]
    for _ in range(10):
        u, v = (torch.randn(MEMBERS, 20, model.inputs, dtype=dtype) for _ in range(2))
        (after, y), (other_after, z) = cell.step(x, u), cell.step(other, v)
        stored = ((after - other_after).double().square() - (x - other).double().square()).sum(-1)
        du, dy = (u - v).double(), (y - z).double()
        supplied = h * (du * dy).sum(-1) - h * d * dy.square().sum(-1)
        size = x.norm(dim=-1) + other.norm(dim=-1) + G * (u.norm(dim=-1) + v.norm(dim=-1))
        size = size.double() + math.sqrt(2 * h * max(model.units, 1))
        terms = model.states + model.units + model.inputs + 8
        assert bool((stored / 2 - supplied <= 2 * terms * eps * size.square()).all())
        x, other = after, other_after


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_claim_4_the_gain_of_passive_mode_is_the_given_one(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        model = models(seed, dtype, passive=True)
        u, v = (torch.randn(MEMBERS, 4, 60, model.inputs, dtype=dtype) for _ in range(2))
        dy, du = (model(u)[0] - model(v)[0]).double(), (u - v).double()
        allowed = float(model.gain) * du.flatten(2).norm(dim=-1)
        slack = 1 + 1e4 * torch.finfo(dtype).eps
        assert bool((dy.flatten(2).norm(dim=-1) <= slack * allowed).all())


@pytest.mark.parametrize("seed", range(20))
@torch.no_grad()
def test_claim_5_sampled_loops_below_the_limit_are_stable_for_all_weights(seed: int) -> None:
    """Masses with springs and friction; controllers of 95 % of the limit, untrained."""
    draw = torch.Generator().manual_seed(seed)
    mass, spring, friction, step = (0.2 + float(t) for t in torch.rand(4, generator=draw))
    step *= 0.1
    A = [[0.0, 1.0], [-spring / mass, -friction / mass]]
    plant = [A, [[0.0], [1 / mass]], [[0.0, 1.0]]]
    limit = gain_limit(*plant, step=step)
    assert limit.proved
    assert limit.gain == pytest.approx(2 * mass / step, rel=0.02)  # for little friction
    model = StateSpace(
        inputs=1,
        states=4,
        units=8,
        step=step,
        passive=True,
        gain=0.95 * limit.gain,
        ensemble=MEMBERS,
        generator=draw,
        scale=1.0,
    )
    for parameter in model.parameters():
        parameter.mul_(
            10
            ** (4 * torch.rand(MEMBERS, generator=draw) - 2).reshape(
                -1, *(1,) * (parameter.ndim - 1)
            )
        )
    loop = feedback(sampled(*plant, step=step), model, torch.ones(MEMBERS, 1, 2), steps=2000)
    assert float(loop.plant.norm(dim=-1).max()) < 100
    late, early = loop.plant[-200:].norm(dim=-1).amax(0), loop.plant[:200].norm(dim=-1).amax(0)
    assert bool((late <= early * (1 + 1e-9)).all())


@torch.no_grad()
def test_claim_5_above_the_limit_some_loop_diverges() -> None:
    plant = [[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]]
    model = StateSpace(
        **{"inputs": 1, "states": 4, "units": 8, "step": 0.05, "passive": True, "gain": 400.0},
        ensemble=MEMBERS,
        scale=10.0,
    )
    loop = feedback(sampled(*plant, step=0.05), model, torch.ones(MEMBERS, 1, 2), steps=2000)
    distance = loop.plant[-1].norm(dim=-1)
    assert not bool((distance < 1e6).all())  # infinite or NaN by then, too


def test_gradients_through_time_never_explode() -> None:
    model = StateSpace(inputs=1, states=6, units=12, step=0.5, scale=30.0)
    x0 = torch.randn(3, 6).requires_grad_()
    _, x = model(torch.randn(3, 500, 1), x0)
    for k in range(6):
        (gradient,) = torch.autograd.grad(x[:, k].sum(), x0, retain_graph=True)
        assert bool((gradient.norm(dim=-1) <= 1).all())


def test_layers_in_series_forget_within_the_washout() -> None:
    """The certified number of steps, which counts what earlier layers do to later ones."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = StateSpace(inputs=1, states=3, units=6, layers=3, mu=0.2, scale=2.0)
        steps = model.washout(1e-2)
        u = torch.randn(1, steps, 1).expand(8, -1, -1)
        one, other = 10 * torch.randn(2, 8, 9)
        left = (model(u, one)[1] - model(u, other)[1]).norm(dim=-1)
        assert bool((left <= 1e-2 * (one - other).norm(dim=-1)).all())
        assert steps > StateSpace(inputs=1, states=3, units=6, mu=0.2).washout(1e-2) * 0.9


def small(**options: Any) -> StateSpace:
    sizes = {"inputs": 2, "outputs": 3, "states": 4, "units": 5, "step": 0.3, "mu": 0.5}
    if options.get("passive"):
        sizes |= {"outputs": 2}
    torch.manual_seed(0)
    return StateSpace(**{**sizes, **options})


KINDS: dict[str, dict[str, Any]] = {
    "contracting": {},
    "scaled": {"scale": 3.0},
    "passive": {"passive": True, "gain": 3.0},
    "passive without bound": {"passive": True},
    "series": {"layers": 3},
    "linear": {"units": 0},
    "learned start": {"learn_initial": True},
    "relu": {"activation": "relu"},
    "arctan, on the reference": {"activation": "arctan"},
    "ensemble": {"ensemble": 2},
    "masks": {"structure": {"K": np.tri(5, 4, dtype=bool), "A": "skew", "G": np.eye(4, 2) > 0}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_equations(kind: str) -> None:
    """A step is what the definition says, written out; a sequence is its steps."""
    model = small(**KINDS[kind])
    lead = () if model.ensemble is None else (2,)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    u = torch.randn(*lead, 6, 7, 2)
    y, end = model(u)
    cell = model.assemble()
    x, h, sigma = cell.initial(6), model.h, model.activation.function
    for t in range(7):
        expected, v = [], u[..., t, :]
        for layer, own in zip(model._layers, x.chunk(model.layers, -1), strict=True):
            Q, K, M = layer.parts()
            b, G = layer.b.unsqueeze(-2), layer.matrix("G")
            if model.passive:
                d = 0.0 if model.gain_bound is None else 1 / model.gain_bound
                g = (sigma(own @ K.mT + b) - sigma(b)) @ K + own @ M
                q, half = own - h * g, h / 2 * G.mT @ G
                out = (q @ G + v @ half) @ torch.linalg.inv(torch.eye(2) + d * half).mT
                expected.append((q + h * (v - d * out) @ G.mT) @ Q.mT)
            else:
                B, C, D = (layer.matrix(name) for name in "BCD")
                g = sigma(own @ K.mT + v @ B.mT + b) @ K + own @ M
                out = own @ C.mT + v @ D.mT + layer.c.unsqueeze(-2)
                expected.append((own - h * g + h * v @ G.mT) @ Q.mT)
            v = out
        x, out = cell.step(x, u[..., t, :])
        torch.testing.assert_close(x, torch.cat(expected, -1), rtol=0, atol=1e-12)
        torch.testing.assert_close(out, v, rtol=0, atol=1e-12)
        torch.testing.assert_close(y[..., t, :], v, rtol=0, atol=1e-11)
    torch.testing.assert_close(end, x, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("series", "ensemble")])
def test_a_step_is_contracting_and_passive_for_all_weights(kind: str) -> None:
    """Claims 1 and 4 as anybody would test them: at the model's own weights and at typical ones."""
    model, x, u = small(**KINDS[kind]), torch.randn(5, 4), torch.randn(5, 2)
    h, d = model.h, 0.0 if model.gain_bound is None else 1 / model.gain_bound

    def step(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return model.assemble().step(x, u)

    def supply(u: Tensor, y: Tensor) -> Tensor:
        return h * (u * y).sum(-1) - h * d * y.square().sum(-1)

    assert_contracting(step, x, u, rate=1 - h * model.mu)
    if model.passive:
        energy = lambda x: x.square().sum(-1) / 2  # noqa: E731
        assert_passive(step, energy, x, u, supply=supply, incremental=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_everything(kind: str) -> None:
    model, u = small(**KINDS[kind]), torch.randn(2, 3, 2, requires_grad=True)
    names = [name for name, _ in model.named_parameters()]

    def run(u: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (u,))

    assert torch.autograd.gradcheck(run, (u, *model.parameters()))


@pytest.mark.parametrize("kind", ["contracting", "scaled", "masks"])
def test_derivatives_of_every_kind(kind: str) -> None:
    """Gradients of gradients, with some weights frozen, and those of torch.func."""
    model, u = small(**KINDS[kind], backend="reference"), torch.randn(1, 2, 2)
    values: dict[str, Tensor] = dict(model.named_parameters())
    free = [name for name in values if name.endswith((".K", ".A", ".G"))]

    def run(*given: Tensor) -> Tensor:
        named = values | dict(zip(free, given, strict=True))
        return torch.func.functional_call(model, named, (u,))[0]

    for name, parameter in values.items():
        parameter.requires_grad_(name in free)
    inputs = [values[name] for name in free]
    assert torch.autograd.gradgradcheck(run, inputs)
    expected = torch.autograd.grad(run(*inputs).sum(), inputs)
    by_func = torch.func.grad(lambda *v: run(*v).sum(), tuple(range(len(free))))(*inputs)
    for one, other in zip(by_func, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_save_load_copy_pickle_and_dtype(kind: str, tmp_path: Path) -> None:
    model, u = small(**KINDS[kind]), torch.randn(4, 5, 2)
    expected = model(u)[0]
    hdnn.save(model, tmp_path / "model.safetensors")
    for other in (
        hdnn.load(tmp_path / "model.safetensors"),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert torch.equal(other(u)[0], expected)
        assert repr(other) == repr(model)
    single = copy.deepcopy(model).float()
    torch.testing.assert_close(single(u.float())[0].double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["contracting", "passive", "series"])
def test_a_state_may_be_carried_from_call_to_call(kind: str) -> None:
    model, u = small(**KINDS[kind]), torch.randn(3, 10, 2)
    y, end = model(u)
    first, x = model(u[:, :4])
    second, x = model(u[:, 4:], x)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=0, atol=1e-13)
    torch.testing.assert_close(x, end, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["contracting", "passive", "series"])
def test_sequences_of_different_lengths(kind: str) -> None:
    """Packed as for `torch.nn.GRU`: each is computed as if it were alone."""
    model, sequences = small(**KINDS[kind]), [torch.randn(k, 2) for k in (3, 7, 1, 5)]
    packed, ends = model(pack_sequence(sequences, enforce_sorted=False))
    outputs, lengths = pad_packed_sequence(packed, batch_first=True)
    assert lengths.tolist() == [3, 7, 1, 5]
    for k, sequence in enumerate(sequences):
        y, x = model(sequence)
        torch.testing.assert_close(outputs[k, : len(sequence)], y, rtol=0, atol=1e-13)
        torch.testing.assert_close(ends[k], x, rtol=0, atol=1e-13)


def test_ensembles_are_their_members() -> None:
    for options in ({}, {"passive": True, "gain": 2.0}, {"layers": 2, "learn_initial": True}):
        many = small(ensemble=3, **options)
        u = torch.randn(4, 5, 2)
        y, x = many(u)
        rates, steps = many.rate, many.washout(0.1)
        assert isinstance(rates, Tensor)
        ones = []
        for e in range(3):
            one = small(**options)
            one.load_state_dict({k: v[e] for k, v in many.state_dict().items()})
            torch.testing.assert_close(one(u)[0], y[e], rtol=0, atol=1e-13)
            torch.testing.assert_close(one(u)[1], x[e], rtol=0, atol=1e-13)
            assert one.rate == pytest.approx(float(rates[e]), abs=1e-14)
            ones.append(one.washout(0.1))
        assert steps == max(ones)


def test_a_controller_at_rest_stays_there() -> None:
    with torch.no_grad():
        y, x = small(passive=True, gain=2.0)(torch.zeros(1, 50, 2))
    assert float(y.abs().max()) < 1e-15
    assert float(x.abs().max()) < 1e-15


@needs_kernels
@pytest.mark.parametrize("kind", ["contracting", "scaled", "passive", "series", "ensemble"])
def test_kernels_and_reference_agree(kind: str) -> None:
    fused = small(**KINDS[kind], backend="fused")
    plain = copy.deepcopy(fused)
    plain.backend = "reference"
    u, found = torch.randn(6, 40, 2), []
    for model in (fused, plain):
        y, x = model(u)
        gradients = torch.autograd.grad(y.sin().sum() + x.sum(), list(model.parameters()))
        found.append([y, x, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_torch_compile() -> None:
    model, u = small(), torch.randn(2, 30, 2)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(u)[0], model(u)[0], rtol=0, atol=1e-12)
    compiled(u)[0].sum().backward()
    assert model.weights[0].K.grad is not None


def test_a_structure_of_blocks_is_kept() -> None:
    """Two systems side by side that know nothing of each other."""
    blocks = np.kron(np.eye(2), np.ones((3, 2))) > 0
    square = np.kron(np.eye(2), np.ones((2, 2))) > 0
    ports = np.kron(np.eye(2), np.ones((2, 1))) > 0
    model = StateSpace(
        inputs=2,
        states=4,
        units=6,
        passive=True,
        gain=5.0,
        structure={"K": blocks, "L": square, "A": square, "G": ports},
    )
    u = torch.randn(1, 30, 2)
    y = model(u)[0]
    u[..., 1] = 0
    torch.testing.assert_close(model(u)[0][..., 0], y[..., 0], rtol=0, atol=1e-14)
    assert sum(p.numel() for p in model.parameters()) == 12 + 6 + 8 + 8 + 4


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"inputs": 0}, "inputs must be a positive integer"),
    ({"units": -1}, "units must be an integer of at least 0"),
    ({"step": 0.0}, "step"),
    ({"step": 2.0, "mu": 0.6}, "at most 1"),
    ({"passive": True, "outputs": 3}, "as many outputs as inputs"),
    ({"passive": True, "outputs": 2, "layers": 2}, "not passive"),
    ({"gain": 3.0}, "without passive=True it is a property"),
    ({"activation": "sin"}, "0 <= sigma' <= 1"),
    ({"structure": {"B": "dense"}}, "structure is of K, L, A and G"),
    ({"structure": {"K": np.ones((2, 2), bool)}}, "K must read|structure of K"),
    ({"backend": "gpu"}, "backend"),
    ({"ensemble": 0}, "ensemble must be a positive integer"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_impossible_models(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        StateSpace(**{"inputs": 2, "outputs": 3, "states": 4, "units": 5, **options})


def test_impossible_calls() -> None:
    model = small()
    for u, message in (
        (torch.randn(3, 5, 1), "inputs must have shape"),
        (torch.randn(5), "inputs must have shape"),
        (torch.randn(3, 0, 2), "at least one time"),
        (torch.randn(3, 5, 2).float(), "float32 but the model is"),
    ):
        with pytest.raises(HdnnError, match=message):
            model(u)
    with pytest.raises(HdnnError, match="states must have shape"):
        model(torch.randn(3, 5, 2), torch.zeros(3, 5))
    for tolerance in (0.0, 1.0, math.nan):
        with pytest.raises(HdnnError, match="between 0 and 1"):
            model.washout(tolerance)


def test_unstable_linear_systems_are_refused() -> None:
    for A, message in (
        ([[1.0]], "stable"),
        ([[1.5]], "1.5"),
        ([[math.nan]], "stable"),
    ):
        with pytest.raises(HdnnError, match=message):
            StateSpace.from_linear(A, [[1.0]], [[1.0]])
    with pytest.raises(HdnnError, match=r"A \(n, n\)"):
        StateSpace.from_linear([[0.5]], [[1.0], [2.0]], [[1.0]])
