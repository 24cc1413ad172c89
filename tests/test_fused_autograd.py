"""The kernels inside torch graphs: strides, sharing, versions, double backward, transforms."""

from __future__ import annotations

import copy
import itertools
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from catalogue import build
from hdnn.errors import HdnnError
from twins import CATALOGUE, OWN_ONLY, Net, agree, derivatives, twin

SERVED = {"fused": ("fused", "fast"), "lean": ("reference", "lean")}
"""Backends behind an autograd.Function of their own, as (backend, memory)."""

every_served = pytest.mark.parametrize("served", SERVED)


def pair(served: str, name: str = "H1", **options: Any) -> tuple[Net, Net]:
    """A network, and the same on the reference."""
    net = build(name, **options)
    return twin(net, *SERVED[served]), twin(net, "reference")


def close(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same(function: Callable[[Net], Tensor], *nets: Net, inputs: tuple[Tensor, ...] = ()) -> None:
    """Equal losses and equal gradients of all parameters, and of the inputs."""
    results = []
    for net in nets:
        loss = function(net)
        wanted = [p for p in (*inputs, *net.parameters()) if p.requires_grad]
        results.append((loss.detach(), *torch.autograd.grad(loss, wanted)))
    for a, b in zip(*results, strict=True):
        close(a, b)


# --- inputs of every kind -------------------------------------------------------------------------

VIEWS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(4, 40).t(),
    "every second row": lambda: torch.randn(80, 4)[::2],
    "every third feature": lambda: torch.randn(40, 12)[:, ::3],
    "a slice": lambda: torch.randn(50, 9)[3:43, 2:6],
    "batch axes swapped": lambda: torch.randn(5, 8, 4).transpose(0, 1),
    "one row for all": lambda: torch.randn(4).expand(40, 4),
    "one column for all": lambda: torch.randn(40, 1).expand(40, 4),
    "one number": lambda: torch.randn(()).expand(40, 4),
    "imaginary part of a conjugate": lambda: torch.randn(40, 4, dtype=torch.complex128).conj().imag,
}


@every_served
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_states_with_any_strides(name: str, view: str, served: str) -> None:
    mine, plain = pair(served, name)
    y = VIEWS[view]()
    weight = torch.randn_like(y)
    agree(derivatives(mine, y, weight), derivatives(plain, y.clone(), weight))


@every_served
@pytest.mark.parametrize("view", [v for v in VIEWS if "batch" not in v])
def test_incoming_gradients_with_any_strides(view: str, served: str) -> None:
    mine, plain = pair(served)
    y, weight = torch.randn(40, 4), VIEWS[view]()
    agree(derivatives(mine, y, weight), derivatives(plain, y, weight.clone()))


@every_served
@pytest.mark.parametrize("view", ["channels last", "cropped", "one pixel for all"])
def test_images_with_any_strides(view: str, served: str) -> None:
    mine, plain = pair(served, "H2", channels=4)
    y = {
        "channels last": torch.randn(3, 5, 7, 4).movedim(-1, 1),
        "cropped": torch.randn(3, 8, 9, 11)[:, 1:8:2, 2:7, 1:11:2],
        "one pixel for all": torch.randn(3, 4, 1, 1).expand(3, 4, 5, 5),
    }[view]
    weight = torch.randn_like(y)
    agree(derivatives(mine, y, weight), derivatives(plain, y.contiguous(), weight))


# --- parts of larger graphs -----------------------------------------------------------------------


@every_served
@pytest.mark.parametrize("shared", [False, True])
def test_in_the_middle_of_a_graph_and_twice(served: str, shared: bool) -> None:
    """Before, after and around it is other torch; one network is used twice."""
    mine, plain = pair(served, time_invariant=shared)
    before, x = nn.Linear(3, 4), torch.randn(6, 3, requires_grad=True)

    def loss(net: Net) -> Tensor:
        y = before(x).relu()
        z = net(y)
        return (net(z * y).cos() * z).sum() + net.K.square().sum()

    same(loss, mine, plain, inputs=(x, *before.parameters()))


@every_served
def test_weights_that_other_torch_computes(served: str) -> None:
    """Weights that depend on the state: gradients arrive by both ways, once each."""
    mine, plain = pair(served)
    y = torch.randn(6, 4, requires_grad=True)

    def loss(net: Net) -> Tensor:
        theta = net.field.weights.theta * torch.tanh(y.sum())
        return functional_call(net, {"field.weights.theta": theta}, (y,)).square().sum()

    for create_graph in (False, True):
        found, expected = (
            torch.autograd.grad(loss(net), y, create_graph=create_graph)[0] for net in (mine, plain)
        )
        close(found, expected)


@every_served
def test_gradients_only_where_they_are_wanted(served: str) -> None:
    mine, plain = pair(served, "HS", X="learned", learn_steps=True)
    names = [name for name, _ in mine.named_parameters()]
    for wanted in (*([name] for name in names), ["state"], names[1:]):
        y = torch.randn(5, 4).requires_grad_("state" in wanted)
        for net in (mine, plain):
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(name in wanted)
        same(lambda net, y=y: net(y).square().sum(), mine, plain, inputs=(y,))
    for net in (mine, plain):
        net.requires_grad_(False)
    assert not mine(torch.randn(5, 4)).requires_grad


@every_served
def test_backward_twice_through_a_retained_graph(served: str) -> None:
    mine, plain = pair(served)
    y = torch.randn(5, 4, requires_grad=True)
    out = mine(y)
    for weight in (torch.randn(5, 4), torch.randn(5, 4)):
        found = torch.autograd.grad(out, [y, *mine.parameters()], weight, retain_graph=True)
        expected = derivatives(plain, y, weight)
        for a, b in zip(found, list(expected.values())[1:], strict=True):
            close(a, b)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


_OTHER_TIMES = (1 + k / 1000 for k in itertools.count())


@every_served
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("label", OWN_ONLY)
def test_without_gradients_the_same_values_and_training_goes_on(
    label: str, mode: Callable[[], Any], served: str
) -> None:
    """Every time with another step size, so that nothing which other tests left is met."""
    options = {} if label.startswith("FCNN") else {"T": next(_OTHER_TIMES)}
    net = twin(CATALOGUE[label](features=4, layers=3, **options), *SERVED[served])
    y = torch.randn(5, 4)
    with mode():
        out = net(y)
    assert not out.requires_grad
    expected = derivatives(twin(net, "reference"), y, y)
    agree(derivatives(net, y, y), expected)
    close(out, expected["value"])


def test_a_network_made_in_inference_mode() -> None:
    with torch.inference_mode():
        net, y = build("H1", backend="fused", T=0.77), torch.randn(5, 4)
        close(net(y), twin(net, "reference")(y))
        net.field.interconnection.J.mul_(2)
        close(net(y), twin(net, "reference")(y))
    other = build("H1", backend="fused", T=0.77)
    agree(
        derivatives(other, y.clone(), y.clone()),
        derivatives(twin(other, "reference"), y.clone(), y.clone()),
    )


# --- changes between calls, and between forward and backward --------------------------------------


@every_served
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("changed", ["theta", "beta", "state", "log_steps", "J"])
def test_what_changes_before_backward_is_an_error_or_harmless(
    changed: str, create_graph: bool, served: str
) -> None:
    """Torch's version error, or the gradient of what was computed; never a mixture."""
    mine, plain = pair(served, learn_steps=changed == "log_steps")
    y = torch.randn(5, 4, requires_grad=True)
    x = y * 1
    expected = derivatives(plain, y, torch.ones_like(y))["state"]
    loss = mine(x).sum()
    field = mine.field
    with torch.no_grad():
        {
            "theta": field.weights.theta,
            "beta": field.weights.beta,
            "state": x,
            "log_steps": getattr(mine, "log_steps", None),
            "J": field.interconnection.J,
        }[changed].mul_(1.5)
    try:
        found = torch.autograd.grad(loss, y, create_graph=create_graph)[0]
    except RuntimeError as error:
        assert "inplace" in str(error)  # noqa: PT017
        return
    assert changed in ("log_steps", "J")
    close(found, expected)


@every_served
def test_the_next_call_sees_what_changed(served: str) -> None:
    mine, _ = pair(served)
    y = torch.randn(5, 4)

    def check() -> Tensor:
        fresh = twin(copy.deepcopy(mine), "reference")
        found = derivatives(mine, y.to(mine.K.dtype), y.to(mine.K.dtype))
        single = mine.K.dtype == torch.float32
        agree(
            found,
            derivatives(fresh, y.to(mine.K.dtype), y.to(mine.K.dtype)),
            1e-5 if single else 1e-11,
        )
        return found["value"]

    seen = [check()]
    optimizer = torch.optim.SGD(mine.parameters(), 0.1)
    mine(y).square().sum().backward()
    optimizer.step()
    seen.append(check())
    J = torch.randn(4, 4)
    state = mine.state_dict() | {"field.interconnection.J": J - J.mT}
    mine.load_state_dict(state)
    seen.append(check())
    mine.field.weights.theta.data = torch.randn_like(mine.field.weights.theta)
    seen.append(check())
    mine.field.weights.theta = nn.Parameter(torch.randn_like(mine.field.weights.theta))
    seen.append(check())
    mine.to(torch.float32)
    close(check().double(), seen[-1], 1e-3)
    mine.to(torch.float64)
    mine.field.interconnection.J = -mine.field.interconnection.J
    seen.append(check())
    for a, b in itertools.pairwise(seen):
        assert not torch.allclose(a, b, rtol=1e-3)


@every_served
def test_the_next_call_sees_a_J_that_is_written_behind_torchs_back(served: str) -> None:
    """`.data` and numpy views do not move torch's version counter."""
    for write in (lambda J: J.data.mul_(2), lambda J: J.numpy().__imul__(2)):
        mine, plain = pair(served)
        y = torch.randn(5, 4)
        for net in (mine, plain):
            net(y)
            write(net.field.interconnection.J)
        agree(derivatives(mine, y, y), derivatives(plain, y, y))


# --- twice differentiable -------------------------------------------------------------------------


@every_served
@pytest.mark.parametrize("label", OWN_ONLY)
def test_second_derivatives(label: str, served: str) -> None:
    steps = {} if label.startswith("FCNN") else {"step": [0.2, 0.3], "learn_steps": True}
    net = CATALOGUE[label](features=2, layers=2, scale=0.5, **steps)
    mine = twin(net, *SERVED[served])
    names, values = zip(*mine.named_parameters(), strict=True)

    def function(y: Tensor, *values: Tensor) -> Tensor:
        return functional_call(mine, dict(zip(names, values, strict=True)), (y,))

    y = torch.randn(2, 2, requires_grad=True)
    inputs = (y, *(v.detach().clone().requires_grad_() for v in values))
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-6, rtol=1e-6)


@every_served
@pytest.mark.parametrize("label", CATALOGUE)
def test_a_gradient_penalty_trains_as_with_the_reference(label: str, served: str) -> None:
    net = CATALOGUE[label](features=4, layers=3, scale=0.5)
    y = torch.randn(6, 4, requires_grad=True)

    def loss(net: Net) -> Tensor:
        found = torch.autograd.grad(
            net(y).square().sum(), [y, *net.parameters()], create_graph=True
        )
        return sum((g.square().sum() for g in found), torch.zeros(()))

    same(loss, twin(net, *SERVED[served]), twin(net, "reference"), inputs=(y,))


@every_served
@pytest.mark.parametrize("label", CATALOGUE)
def test_a_gradient_is_the_same_whether_or_not_a_graph_of_it_is_made(
    label: str, served: str
) -> None:
    net = twin(CATALOGUE[label](features=4, layers=3), *SERVED[served])
    y, weight = torch.randn(6, 4), torch.randn(6, 4)
    agree(derivatives(net, y, weight, create_graph=True), derivatives(net, y, weight))


# --- transforms -----------------------------------------------------------------------------------

# Torch's own, when forward-mode differentiation is first used in a process.
ignore_script = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def jvp(net: Net, y: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(y, torch.ones_like(y))
        return torch.autograd.forward_ad.unpack_dual(net(dual)).tangent


TRANSFORMS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "vmap": lambda net, y: torch.func.vmap(net)(y),
    "jacrev": lambda net, y: torch.func.vmap(torch.func.jacrev(net))(y),
    "jacfwd": lambda net, y: torch.func.vmap(torch.func.jacfwd(net))(y),
    "grad": lambda net, y: torch.func.grad(lambda x: net(x).square().sum())(y),
    "hessian": lambda net, y: torch.func.hessian(lambda x: net(x).square().sum())(y[0]),
    "jvp": lambda net, y: torch.func.jvp(net, (y,), (torch.ones_like(y),))[1],
    "forward-mode": jvp,
}


@ignore_script
@pytest.mark.parametrize("memory", ["fast", "lean"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_get_plain_torch_from_auto(transform: str, memory: str) -> None:
    net, y = build("H1", memory=memory), torch.randn(5, 4)
    assert net.explain_backend(y).backend == "fused"
    apply = TRANSFORMS[transform]
    close(apply(net, y), apply(twin(net, "reference"), y))


@ignore_script
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_an_error_where_the_kernels_are_demanded(transform: str) -> None:
    net, y = build("H1", backend="fused"), torch.randn(5, 4)
    with pytest.raises(HdnnError, match="plain torch"):
        TRANSFORMS[transform](net, y)


@every_served
def test_batched_vector_jacobian_products(served: str) -> None:
    """`is_grads_batched` and `vectorize=True` run the backward pass alone under vmap.

    What it gives is right, or an error that says what to do instead.
    """
    mine, plain = pair(served)
    mine.backend = "auto" if served == "fused" else mine.backend
    y, weights = torch.randn(5, 4, requires_grad=True), torch.randn(3, 5, 4)

    def batched(net: Net) -> tuple[Tensor, ...]:
        return torch.autograd.grad(net(y), [y, *net.parameters()], weights, is_grads_batched=True)

    expected = batched(plain)
    try:
        found = batched(mine)
    except HdnnError as refusal:
        assert "backend='reference'" in str(refusal)  # noqa: PT017
        return
    for a, b in zip(found, expected, strict=True):
        close(a, b)
    jacobians: list[Any] = [
        torch.autograd.functional.jacobian(net, y[0].detach(), vectorize=True)
        for net in (mine, plain)
    ]
    close(*jacobians)


def derivatives_of(function: Callable[[Tensor], Tensor], net: Net, y: Tensor) -> dict[str, Tensor]:
    x = y.clone().requires_grad_()
    out, named = function(x), dict(net.named_parameters())
    found = torch.autograd.grad(out, [x, *named.values()], y)
    return {"value": out.detach()} | dict(zip(["state", *named], found, strict=True))


def test_checkpoints_of_torch_recompute_the_same() -> None:
    net, y = build("H1", backend="fused"), torch.randn(5, 4)

    def again(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)

    agree(derivatives_of(again, net, y), derivatives(net, y, y), 0.0)


# --- what the graph keeps -------------------------------------------------------------------------


def saved_bytes(net: Net, y: Tensor) -> int:
    """Bytes of states that the graph keeps: of tensors with an axis as long as the batch."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if len(y) in tensor.shape:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = net(y.detach().requires_grad_())
    assert out.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_the_graph_keeps_no_states_of_the_layers(name: str) -> None:
    y = torch.randn(37, 4)
    kept = {
        (served, layers): saved_bytes(
            twin(build(name, layers=layers), *SERVED.get(served, (served, "fast"))), y
        )
        for served in (*SERVED, "reference")
        for layers in (16, 1024)
    }
    state = y.numel() * y.element_size()
    assert kept["fused", 16] == kept["fused", 1024] == state
    assert kept["lean", 16] == kept["lean", 1024] <= 2 * state
    assert kept["reference", 1024] > 50 * kept["reference", 16]  # so the count does count


def peak(layers: int, batch: int) -> int:
    """The most bytes that forward and backward hold at once in numpy's arrays: all room of fused.

    In a thread of its own, so that it holds no room yet.
    """
    net = build("H1", features=8, layers=layers, backend="fused", dtype=torch.float32)
    y = torch.randn(batch, 8, dtype=torch.float32, requires_grad=True)
    net(y[:1]).sum().backward()  # compiles
    thread = threading.Thread(target=lambda: net(y).sum().backward())
    tracemalloc.start()
    try:
        thread.start()
        thread.join()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_depth_costs_no_memory_per_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room that the kernels hold, at depths that no tape has room for."""
    monkeypatch.setenv("HDNN_NUM_THREADS", "1")
    depths, batches = (512, 2048), (2000, 8000)
    held = {(layers, batch): peak(layers, batch) for layers in depths for batch in batches}
    assert min(held.values()) > 300_000  # so the count does count
    for batch in batches:  # at most the bytes of the parameters of the other layers
        assert held[2048, batch] - held[512, batch] < (2048 - 512) * (8 * 8 + 8) * 4
    for layers in depths:  # a state of 6000 samples has 192,000
        assert abs(held[layers, 8000] - held[layers, 2000]) < 50_000


def test_a_tensor_that_a_transform_has_left_behind() -> None:
    net, left = build("H1", backend="fused"), []

    def leaky(y: Tensor) -> Tensor:
        left.append(2 * y)
        return y.sum()

    y = torch.randn(5, 4)
    torch.func.grad(leaky)(y)
    close(net(left[0]), net(2 * y))
