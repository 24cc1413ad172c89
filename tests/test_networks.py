"""The network as a torch module: derivatives, shapes, ensembles, copies, and the values of now."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import jacrev, vmap
from torch.nn.utils import parametrize

import hdnn
from catalog import (
    BACKENDS,
    EACH,
    IMPLICIT,
    OWN,
    as_function,
    build,
    each,
    every_name,
    every_pair,
    jacobian,
    skew,
)
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField, Learned, Weights
from hdnn.zoo import ARCHITECTURES
from twins import agree, derivatives, error

Net = hdnn.HamiltonianNetwork
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def stepped(name: str, scheme: str = OWN) -> bool:
    return build(name, scheme).scheme.uses_step


@pytest.mark.parametrize("kind", [*BACKENDS, "learned steps"])
@each
def test_gradients_of_state_and_parameters(name: str, scheme: str, kind: str) -> None:
    options: dict[str, Any] = {"backend": kind}
    if kind == "learned steps":
        options = {"step": [0.2, 0.3], "learn_steps": True} if stepped(name, scheme) else {}
    net = build(name, scheme, features=2, layers=2, **options)
    function, parameters = as_function(net)
    y = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(function, (y, *parameters))


@every_pair([*((n, s) for n, s in EACH if s == OWN), *(("H2", s) for s in ("RK4", *IMPLICIT))])
def test_second_derivatives(name: str, scheme: str) -> None:
    function, parameters = as_function(build(name, scheme, features=2, layers=2))
    y = torch.randn(1, 2, requires_grad=True)
    # Sharper than the default, which lets a midpoint without its second derivatives pass.
    assert torch.autograd.gradgradcheck(function, (y, *parameters), atol=1e-6, rtol=1e-6)


@each
def test_functional_transforms_see_the_same_network(name: str, scheme: str) -> None:
    net, y = build(name, scheme, scale=0.5), torch.randn(3, 4)
    close(vmap(net)(y), net(y))
    M = vmap(jacrev(net))(y)
    for k in range(3):
        close(M[k], jacobian(net, y[k]), 1e-10)


@every_name
@given(batch=st.lists(st.integers(0, 3), max_size=3))
def test_any_batch_shape_is_rows_one_by_one(name: str, batch: list[int]) -> None:
    net = build(name, dtype=torch.float64)
    y = torch.randn(*batch, 4, dtype=torch.float64)
    out = net(y)
    assert out.shape == y.shape
    assert net.trajectory(y).shape == (4, *y.shape)
    for row, expected in zip(y.reshape(-1, 4), out.reshape(-1, 4), strict=True):
        close(net(row), expected)
    if net.invertible:
        close(net.inverse(out), y, 1e-10)


@each
def test_a_network_without_layers_is_the_identity(name: str, scheme: str) -> None:
    identity, y = build(name, scheme, layers=0), torch.randn(3, 4)
    assert torch.equal(identity(y), y)
    assert torch.equal(identity.trajectory(y), y.unsqueeze(0))
    if identity.invertible:
        assert torch.equal(identity.inverse(y), y)


@each
def test_channels_are_features_on_another_axis(name: str, scheme: str) -> None:
    for spatial in ((), (5,), (2, 1, 3), (0, 2)):
        features, channels = build(name, scheme, scale=0.5), build(name, scheme, channels=4)
        channels.load_state_dict(features.state_dict())
        y = torch.randn(2, 4, *spatial)
        expected = features.trajectory(y.movedim(1, -1)).movedim(-1, 2)
        close(channels.trajectory(y), expected)
        close(channels(y), expected[-1])
        if channels.invertible:
            close(channels.inverse(channels(y)), y, 1e-10)


@pytest.mark.parametrize("layout", ["features", "channels"])
@each
def test_an_ensemble_is_its_members_side_by_side(name: str, scheme: str, layout: str) -> None:
    steps: Any = {"step": 0.1 + torch.rand(3, 2) / 4} if stepped(name, scheme) else {}
    together = build(name, scheme, layers=2, ensemble=3, scale=0.5, **{layout: 4}, **steps)
    y = torch.randn(3, 2, 4) if layout == "features" else torch.randn(3, 2, 4, 5)
    out, shared, path = together(y), together(y[:1]), together.trajectory(y)
    for e in range(3):
        member = together.member(e)
        assert member.ensemble is None
        for own, both in zip(member.parameters(), together.parameters(), strict=True):
            assert torch.equal(own, both[e])
        close(out[e], member(y[e]))
        close(shared[e], member(y[0]))
        close(path[:, e], member.trajectory(y[e]))
        if member.invertible:
            close(together.inverse(out)[e], y[e], 1e-10)


def test_members_share_no_parameters() -> None:
    """E networks at once are E networks, also with a learned J and learned steps."""
    net = build("HS", ensemble=3, X="learned", learn_steps=True)
    torch.nn.init.normal_(net.field.interconnection.theta)
    y = torch.randn(3, 5, 4)
    for gradient in torch.autograd.grad(net(y)[1].sum(), list(net.parameters())):
        assert gradient.shape[0] == 3
        assert bool((gradient[[0, 2]] == 0).all())
        assert bool((gradient[1] != 0).any())
    two = net.member([2, 0])
    close(two(y[[2, 0]]), net(y)[[2, 0]])
    close(two.member(1).J, net.J[0])
    with torch.no_grad():
        two.field.weights.theta.zero_()
    assert bool(net.K.any())
    with pytest.raises(HdnnError, match="single network; build one with ensemble=E"):
        two.member(0).member(0)


# --- form and values: a call computes with the numbers of now -------------------------------------


def energy(x: Tensor, t: Tensor | float) -> Tensor:
    return x.cos().sum(-1)


def variants() -> dict[str, Callable[[], Net]]:
    """Networks that hold something which a copy or a change could lose."""
    weights = {"features": 4, "layers": 3}
    options: dict[str, Callable[[], Net]] = {
        "X given": lambda: build("HS", X=torch.randn(2, 2)),
        "X learned": lambda: build("HS", X="learned"),
        "steps": lambda: build("H1", step=[0.1, 0.2, 0.3]),
        "learned steps": lambda: build("H1", learn_steps=True),
        "ensemble": lambda: build("MS1", ensemble=2),
        "channels": lambda: build("H2", channels=4),
        "convolution": lambda: build("MS3", channels=4, kernel=3),
        "time-invariant": lambda: build("MS2", time_invariant=True),
        "sin": lambda: build("H1", activation="sin"),
        "J(t)": lambda: Net(HamiltonianField(skew(4, 3), Weights("skew", **weights)), T=1.0),
        "damped": lambda: Net(
            HamiltonianField(skew(4), Weights("dense", **weights), dissipation=torch.eye(4)), T=1.0
        ),
        "graph": lambda: Net(
            HamiltonianField("J2", Weights(torch.eye(4).tolist(), **weights)), T=1.0
        ),
        "energy": lambda: Net(EnergyField(skew(4), energy, features=4), layers=3, T=1.0),
    }
    plain = [("H1", OWN), ("MS1", OWN), ("FCNN", OWN), ("MS3", "RK4"), ("MS3", "ImplicitMidpoint")]
    return options | {f"{n}-{s}": lambda n=n, s=s: build(n, s, scale=0.5) for n, s in plain}


VARIANTS = variants()
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def sample(net: Net) -> Tensor:
    shape = (3, 4, 2, 2) if net.channels else (3, 4)
    return torch.randn(*shape if net.ensemble is None else (net.ensemble, *shape))


def pickled(net: Net) -> Net:
    return pickle.loads(pickle.dumps(net))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=lambda f: f.__name__)
@every_variant
def test_copies_keep_everything_and_are_independent(variant: str, copied: Any) -> None:
    net = VARIANTS[variant]()
    y = sample(net)
    expected = net(y)  # so that there is something to keep
    other = copied(net)
    assert repr(other) == repr(net)
    assert torch.equal(other(y), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    if list(other.parameters()):
        assert not torch.equal(other(y), expected)
    assert torch.equal(net(y), expected)


@every_variant
def test_to_another_dtype_moves_everything(variant: str) -> None:
    net = VARIANTS[variant]()
    y = sample(net)
    expected = net(y)
    net.to(torch.float32)
    out = net(y.to(torch.float32))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.to(torch.float64), expected, rtol=1e-3, atol=1e-3)
    assert all(t.dtype == torch.float32 for t in net.state_dict().values())
    net.to(torch.float64)
    assert error(net(y), expected) < 1e-5


def in_place(net: Net) -> None:
    """What an optimizer and load_state_dict do."""
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.mul_(1.25)


def assigned(net: Net) -> None:
    """New tensors in the place of the old ones."""
    state = {name: 1.25 * tensor for name, tensor in net.state_dict().items()}
    net.load_state_dict(state, assign=True)


def behind(net: Net) -> None:
    """Numpy views do not move torch's version counter."""
    for tensor in net.state_dict().values():
        tensor.numpy()[...] *= 1.25


CHANGES = (in_place, assigned, behind)


@every_backend
@every_variant
def test_a_network_follows_its_tensors(variant: str, backend: str) -> None:
    """Whatever is kept between calls, the weights, the J and the steps of now count."""
    for change in CHANGES:
        net = VARIANTS[variant]()
        net.backend = backend
        y = sample(net)
        with torch.no_grad():
            before = net(y)
        change(net)
        fresh = copy.deepcopy(net)
        fresh.backend = "reference"
        fresh.lower()
        assert not torch.allclose(net(y), before)
        agree(derivatives(net, y, y), derivatives(fresh, y, y))


class Halved(nn.Module):
    def forward(self, theta: Tensor) -> Tensor:
        return theta / 2


@every_backend
def test_parametrized_weights_are_used_and_trained(backend: str) -> None:
    net, y = build("MS1", backend=backend), torch.randn(5, 4)
    half = copy.deepcopy(net)
    with torch.no_grad():
        half.field.weights.theta.div_(2)
    parametrize.register_parametrization(net.field.weights, "theta", Halved())
    close(net(y), half(y))
    expected = torch.autograd.grad(half(y), half.field.weights.theta, y)[0] / 2
    original = net.field.weights.parametrizations.theta.original
    close(torch.autograd.grad(net(y), original, y)[0], expected, 1e-11)


@pytest.mark.slow  # it compiles
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in jvp
def test_transforms_and_tracers_follow_J_of_the_state() -> None:
    S = skew(4)

    def J(y: Tensor, t: Any) -> Tensor:
        return torch.cos(y[..., :1, None]) * S.to(y)

    net = Net(HamiltonianField(J, Weights("dense", features=4, layers=3)), T=1.0)
    y = torch.randn(5, 4)
    M = torch.func.jacrev(net)(y[0])
    close(torch.func.jvp(net, (y[0],), (y[1],))[1], M @ y[1])
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(y), vmap(net)(y))
    assert net.to("meta")(y.to("meta")).shape == y.shape


@every_name
def test_a_network_made_without_memory_is_the_one_whose_state_it_loads(name: str) -> None:
    net, y = build(name), torch.randn(5, 4)
    empty = build(name, device="meta").to_empty(device="cpu")
    empty.load_state_dict(net.state_dict())
    close(empty(y), net(y), 0.0)


def test_members_of_an_ensemble_that_shares_a_learned_J() -> None:
    """One J for all networks has no axis for them; numbers may be numpy's."""
    weights = Weights(features=4, layers=4, ensemble=4)
    net, y = Net(HamiltonianField(Learned(4), weights), step=0.2), torch.randn(5, 4)
    together = net(y[None])
    for index in (2, np.int64(2)):
        close(net.member(index)(y), together[2])
    close(net.member([3, 1])(y[None]), together[[3, 1]])


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in jvp
def test_a_loss_on_a_tangent_trains_all_of_the_network() -> None:
    """Forward mode, then backward: what is lost of the tangent's graph is a wrong gradient."""
    y, v = torch.randn(2, 5, 4)
    grads = []
    for backend in BACKENDS:
        torch.manual_seed(0)
        net = build("H1", backend=backend)
        with forward_ad.dual_level():
            out, tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(y, v)))
            (tangent.square().sum() + out.sum()).backward()
        grads.append(net.field.weights.theta.grad)
    close(*grads)


# --- a final time for every sample ----------------------------------------------------------------

TIMED = [("H1", OWN), ("MS1", OWN), ("MS3", "Leapfrog"), ("H2", "RK4"), ("HS", "ImplicitMidpoint"),
         ("H1", "DiscreteGradient")]  # fmt: skip
SHAPES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "batch": ({}, (2, 3, 4), (2, 3)),
    "one state": ({}, (4,), ()),
    "channels": ({"channels": 4}, (3, 4, 2, 5), (3,)),
    "convolution": ({"channels": 4, "kernel": 3}, (3, 4, 2, 5), (3,)),
}


@pytest.mark.parametrize("steps", [False, True], ids=["T", "steps"])
@pytest.mark.parametrize("shape", SHAPES)
@every_pair(TIMED)
def test_every_sample_may_have_a_final_time_of_its_own(
    name: str, scheme: str, shape: str, steps: bool
) -> None:
    """Each as a network with that T computes it; longer steps stay longer."""
    options, size, batch = SHAPES[shape]
    times = (
        (lambda T: {"step": [T * share for share in (0.2, 0.5, 0.3)]})
        if steps
        else (lambda T: {"T": T})
    )
    net, y, T = (
        build(name, scheme, **options, **times(1.0)),
        torch.randn(size),
        0.5 + torch.rand(batch),
    )
    out = net(y, T=T)
    assert torch.equal(net.trajectory(y, T=T)[-1], out)
    if net.invertible:
        close(net.inverse(out, T=T), y, 1e-11)
    for place in np.ndindex(*batch):
        alone = build(name, scheme, **options, **times(float(T[place])))
        state = {k: v for k, v in net.state_dict().items() if k != "steps"}
        alone.load_state_dict(state, strict=False)
        x = y[place].unsqueeze(0) if options else y[place]
        close(out[place], alone(x).squeeze(0) if options else alone(x))


def test_times_of_ensembles_and_of_one_batch_for_all() -> None:
    nets = build("H1", ensemble=2, T=1.0)
    y, T = torch.randn(2, 5, 4), torch.rand(2, 5)
    for e in range(2):
        close(nets(y, T=T)[e], nets.member(e)(y[e], T=T[e]))
        close(nets(y[:1], T=T[:1])[e], nets.member(e)(y[0], T=T[0]))


def test_derivatives_with_respect_to_times() -> None:
    """dy_N/dT of one layer of forward Euler is the velocity; and lean memory is the same."""
    net = build("H2", layers=1, T=0.3)
    y, T = torch.randn(3, 4), torch.rand(3)
    change: Any = torch.autograd.functional.jacobian(lambda T: net(y, T=T).sum(0), T)
    close(change.mT, net.field.velocity(y))
    deep = build("H2", layers=9, T=0.3, memory="lean")
    T.requires_grad_()
    gradients = torch.autograd.grad(deep(y, T=T).sum(), (T, deep.field.weights.theta))
    deep.memory = "fast"
    for one, other in zip(
        gradients,
        torch.autograd.grad(deep(y, T=T).sum(), (T, deep.field.weights.theta)),
        strict=True,
    ):
        close(one, other)


def test_times_run_on_the_reference_and_have_the_shape_of_the_batch() -> None:
    net, y, T = build("H1"), torch.randn(5, 4), torch.ones(5)
    assert "every sample has a T of its own" in net.explain_backend(y, T).reason
    assert "every sample" not in net.explain_backend(y).reason
    close(net(y, T=T), net(y))
    for wrong in (torch.ones(4), torch.ones(5, 1), torch.ones(5, 3), 1.0):
        with pytest.raises(HdnnError, match=r"T must be a tensor \(5,\)"):
            net(y, T=wrong)
    with pytest.raises(HdnnError, match="steps must have shape"):  # no kernel sees such steps
        hdnn.backends.run(net.program, net.values()._replace(h=torch.ones(5, 3)), y)
    net.backend = "fused"
    with pytest.raises(HdnnError, match="every sample has a T of its own"):
        net(y, T=T)
    with pytest.raises(HdnnError, match="takes no T"):
        build("FCNN")(y, T=T)


@pytest.mark.parametrize("ensemble", [None, 2])
@pytest.mark.parametrize("name", [*ARCHITECTURES])
def test_inputs_move_the_biases_at_every_time(name: str, ensemble: int | None) -> None:
    """A recurrent cell: for each input all layers, with biases b + B u."""
    steps = {} if name == "FCNN" else {"step": 0.3}
    options = {"features": 4, "layers": 2, "time_invariant": True, "inputs": 3} | steps
    net = hdnn.network(name, **options, ensemble=ensemble)
    lead = () if ensemble is None else (ensemble,)
    y, u = torch.randn(*lead, 1, 4), torch.randn(*lead, 1, 6, 3)
    states = net(y, u)
    assert states.shape == (*lead, 1, 7, 4)
    weights = net.field.weights
    beta = weights.beta.detach().clone()
    with torch.no_grad():
        for t in range(6):
            moved = (weights.B @ u[..., 0, t, :].reshape(*lead, 1, 3, 1)).squeeze(-1)
            weights.beta.copy_(beta + moved)
            y = net(y)
            torch.testing.assert_close(states[..., t + 1, :], y, rtol=0, atol=1e-12)


def test_networks_with_inputs_are_differentiated_and_saved(tmp_path: Path) -> None:
    net = hdnn.network("H1", features=4, layers=1, step=0.3, time_invariant=True, inputs=2)
    y, u = torch.randn(2, 4), torch.randn(2, 5, 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: net(y, u), u)
    net(y, u).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    hdnn.save(net, tmp_path / "net.safetensors")
    assert torch.equal(hdnn.load(tmp_path / "net.safetensors")(y, u), net(y, u))


def test_inputs_need_a_network_that_repeats_one_layer_of_matrices() -> None:
    for options in (
        {"features": 4, "time_invariant": False},
        {"channels": 4, "time_invariant": True},
        {"channels": 4, "kernel": 3, "time_invariant": True},
    ):
        with pytest.raises(HdnnError, match="repeats one layer over time"):
            hdnn.network("H1", layers=2, T=1.0, inputs=1, **options)
    options = {"features": 4, "layers": 2, "T": 1.0, "time_invariant": True}
    y, u = torch.randn(3, 4), torch.randn(3, 5, 1)
    for net in (
        hdnn.network("H1", **options),
        hdnn.network("H1", **options, inputs=1, scheme="RK4"),
    ):
        with pytest.raises(HdnnError, match="built with inputs"):
            net(y, u)
    net = hdnn.network("H1", **options, inputs=1)
    for state, inputs in ((y[0], u), (y, u[..., :0]), (y, u[:2])):
        with pytest.raises(HdnnError, match=r"shape|state is"):
            net(state, inputs)
