"""The kernels inside torch: strides, graphs, transforms, memory; `test_passes` has the numbers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import hdnn
from catalog import OWN, build
from hdnn.kernels import native
from skips import needs_kernels
from twins import CATALOG, Net, agree, derivatives, twin

pytestmark = needs_kernels


def test_the_catalog_has_what_the_kernels_must_serve() -> None:
    assert {f"{name}-{OWN}" for name in hdnn.zoo.ARCHITECTURES} <= set(CATALOG)
    assert {"MS1-Yoshida4", "MS3-Leapfrog", "HS-Yoshida4"} <= set(CATALOG)


def pair(name: str = "H1", **options: Any) -> tuple[Net, Net]:
    """A network on the kernels, and the same on the reference."""
    net = build(name, **options)
    return twin(net, "fused"), twin(net, "reference")


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


VIEWS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(4, 40).t(),
    "a slice": lambda: torch.randn(100, 20)[3:83:2, 2:14:3],
    "one column for all": lambda: torch.randn(40, 1).expand(40, 4),
    "imaginary part of a conjugate": lambda: torch.randn(40, 4, dtype=torch.complex128).conj().imag,
}
IMAGES: dict[str, Callable[[], Tensor]] = {
    "channels last": lambda: torch.randn(3, 5, 7, 4).movedim(-1, 1),
    "cropped": lambda: torch.randn(3, 8, 9, 11)[:, 1:8:2, 2:7, 1:11:2],
}


@pytest.mark.parametrize("view", [*VIEWS, *IMAGES])
@pytest.mark.parametrize("name", ["H2", "MS3"])
def test_states_and_incoming_gradients_with_any_strides(name: str, view: str) -> None:
    make = (VIEWS | IMAGES)[view]
    mine, plain = pair(name, **{"channels" if view in IMAGES else "features": 4})
    y, weight = make(), make()
    agree(derivatives(mine, y, weight), derivatives(plain, y.clone(), weight.clone()))


# --- parts of larger graphs -----------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_in_the_middle_of_a_graph_and_twice(shared: bool) -> None:
    """Before, after and around it is other torch; one network is used twice."""
    mine, plain = pair(time_invariant=shared)
    before, x = nn.Linear(3, 4), torch.randn(6, 3, requires_grad=True)

    def loss(net: Net) -> Tensor:
        y = before(x).relu()
        z = net(y)
        return (net(z * y).cos() * z).sum() + net.K.square().sum()

    same(loss, mine, plain, inputs=(x, *before.parameters()))


def test_weights_that_other_torch_computes() -> None:
    """Weights that depend on the state: gradients arrive by both ways, once each."""
    mine, plain = pair()
    y = torch.randn(6, 4, requires_grad=True)

    def loss(net: Net) -> Tensor:
        theta = net.field.weights.theta * torch.tanh(y.sum())
        return functional_call(net, {"field.weights.theta": theta}, (y,)).square().sum()

    for create_graph in (False, True):
        gradient, expected = (
            torch.autograd.grad(loss(net), y, create_graph=create_graph)[0] for net in (mine, plain)
        )
        close(gradient, expected)


def test_gradients_only_where_they_are_wanted() -> None:
    mine, plain = pair("HS")
    names = [name for name, _ in mine.named_parameters()]
    for wanted in (*([name] for name in names), ["state"], names):
        y = torch.randn(5, 4).requires_grad_("state" in wanted)
        for net in (mine, plain):
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(name in wanted)
        same(lambda net, y=y: net(y).square().sum(), mine, plain, inputs=(y,))
    for net in (mine, plain):
        net.requires_grad_(False)
    assert not mine(torch.randn(5, 4)).requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_same_values_and_training_goes_on(mode: Callable[[], Any]) -> None:
    mine, plain = pair("MS1")
    y = torch.randn(5, 4)
    with mode():
        out = mine(y)
        within = build("H1", backend="fused")
        close(within(y), twin(within, "reference")(y))
    assert not out.requires_grad
    expected = derivatives(plain, y, y)
    agree(derivatives(mine, y, y), expected)
    close(out, expected["value"])


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("changed", ["theta", "beta", "state", "J"])
def test_what_changes_before_backward_is_an_error_or_harmless(
    changed: str, create_graph: bool
) -> None:
    """Torch's version error, or the gradient of what was computed; never a mixture."""
    mine, plain = pair()
    y = torch.randn(5, 4, requires_grad=True)
    x = y * 1
    expected = derivatives(plain, y, torch.ones_like(y))["state"]
    loss = mine(x).sum()
    _, theta, beta, J, *_ = mine.values()
    with torch.no_grad():
        {"theta": theta, "beta": beta, "state": x, "J": J}[changed].mul_(1.5)
    try:
        gradient = torch.autograd.grad(loss, y, create_graph=create_graph)[0]
    except RuntimeError as error:
        assert "inplace" in str(error)  # noqa: PT017
        return
    assert changed == "J"
    close(gradient, expected)


# --- transforms -----------------------------------------------------------------------------------

# Torch's own, when forward-mode differentiation is first used in a process.
ignore_script = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def forward_over_reverse(net: Net, y: Tensor) -> Tensor:
    """A Hessian-vector product: the tangent of a gradient."""
    with torch.autograd.forward_ad.dual_level():
        x = y.clone().requires_grad_()
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        (g,) = torch.autograd.grad(net(dual).square().sum(), dual, create_graph=True)
        return torch.autograd.forward_ad.unpack_dual(g).tangent


def batched_vjp(net: Net, y: Tensor) -> Tensor:
    """`is_grads_batched` runs the backward pass alone under vmap."""
    x = y.clone().requires_grad_()
    weights = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(0))
    inputs = [x, *net.parameters()]
    gradients = torch.autograd.grad(net(x), inputs, weights, is_grads_batched=True)
    return torch.cat([g.flatten(1) for g in gradients], 1)


TRANSFORMS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "vmap": lambda net, y: torch.func.vmap(net)(y),
    "jacrev": lambda net, y: torch.func.vmap(torch.func.jacrev(net))(y),
    "jacfwd": lambda net, y: torch.func.vmap(torch.func.jacfwd(net))(y),
    "hessian": lambda net, y: torch.func.hessian(lambda x: net(x).square().sum())(y[0]),
    "jvp": lambda net, y: torch.func.jvp(net, (y,), (torch.ones_like(y),))[1],
    "forward over reverse": forward_over_reverse,
    "batched vjp": batched_vjp,
}


@ignore_script
@pytest.mark.parametrize("name", ["H1", "MS1"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_those_of_the_reference(transform: str, name: str) -> None:
    """The kernels compute values and gradients; everything else comes from the reference."""
    mine, plain = pair(name)
    y, apply = torch.randn(5, 4), TRANSFORMS[transform]
    close(apply(mine, y), apply(plain, y))


@pytest.mark.parametrize("transform", ["vmap", "jacrev"])
def test_transforms_of_images_are_those_of_the_reference(transform: str) -> None:
    mine, plain = pair("H1", channels=4)
    y, apply = torch.randn(2, 3, 4, 2), TRANSFORMS[transform]  # a batch of batches
    close(apply(mine, y), apply(plain, y))


@ignore_script
def test_forward_mode_sees_tangents_of_parameters() -> None:
    mine, plain = pair()
    y = torch.randn(5, 4)
    tangents = {name: torch.randn_like(p) for name, p in mine.named_parameters()}

    def moved(net: Net) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            make = torch.autograd.forward_ad.make_dual
            duals = {n: make(p.detach(), tangents[n]) for n, p in net.named_parameters()}
            out = functional_call(net, duals, (y,))
            return torch.autograd.forward_ad.unpack_dual(out).tangent

    close(moved(mine), moved(plain))


# --- what the graph keeps -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_the_graph_keeps_nothing_but_the_inputs(name: str) -> None:
    net, saved = build(name, layers=100, backend="fused"), []
    y = torch.randn(37, 4, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with hooks:
        net(y)
    inputs = (y, *net.values()[1:4])  # theta, beta and, where there is one, J
    assert {t.data_ptr() for t in saved} == {t.data_ptr() for t in inputs if t is not None}


# --- activations that the forward pass keeps for the backward pass --------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every backward pass of the kernels, whether it got the activations."""
    library, passes = native.library(), []
    backward = library.hdnn_backward

    def observed(*arguments: Any) -> Any:
        passes.append(arguments[4] is not None)
        return backward(*arguments)

    monkeypatch.setattr(library, "hdnn_backward", observed)
    return passes


DEEP: dict[str, Any] = {"layers": 40, "dtype": torch.float32, "backend": "fused"}


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)


@pytest.mark.parametrize("name", CATALOG)
def test_the_same_bits_whether_activations_are_kept_or_not(name: str, kept: list[bool]) -> None:
    """They are used once, and more graphs are alive than there is memory for."""
    net = CATALOG[name](features=6, **DEEP)
    states = [torch.randn(1001, 6, dtype=torch.float32, requires_grad=True) for _ in range(6)]
    inputs = [(y, *net.parameters()) for y in states]
    alone = [gradients(net(y), *own) for y, own in zip(states, inputs, strict=True)]
    assert kept == [True] * 6
    outs = [net(y) for y in states]
    for k in (3, 0, 5, 2, 1, 4, 3, 0, 5):
        for mine, expected in zip(gradients(outs[k], *inputs[k]), alone[k], strict=True):
            assert torch.equal(mine, expected)
    assert kept[6:].count(True) == 4
    with torch.no_grad():
        assert all(torch.equal(net(y), out) for y, out in zip(states, outs, strict=True))


def hooked(net: Net, y: Tensor) -> None:
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone):
        out = net(y)
    out.sum().backward()


def changed(net: Net, y: Tensor) -> None:
    x = y * 1
    out = net(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        out.sum().backward()


def without(net: Net, y: Tensor) -> None:
    net(y).sum().backward()
    with torch.no_grad():
        net(y)


ENDS: dict[str, tuple[Callable[[Net, Tensor], object], list[bool]]] = {
    "backward": (lambda net, y: net(y).sum().backward(), [True]),
    "no backward": (lambda net, y: net(y), []),
    "twice": (lambda net, y: [gradients(out, y) for out in [net(y)] * 2], [True, False]),
    "no gradients": (without, [True]),
    "double": (lambda net, y: torch.autograd.grad(net(y).sum(), y, create_graph=True), []),
    "error": (changed, []),
    "hooks": (hooked, [False]),
    "checkpoint": (
        lambda net, y: checkpoint(net, y, use_reentrant=False).sum().backward(),
        [False],
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_however_a_graph_ends_another_has_its_memory(end: str, kept: list[bool]) -> None:
    net, y = build("H1", **DEEP), torch.randn(301, 4, dtype=torch.float32, requires_grad=True)
    run, expected = ENDS[end]
    for _ in range(6):
        run(net, y)
    assert kept == expected * 6
    net(y).sum().backward()
    assert kept[-1]


@pytest.mark.parametrize("shape", [(2, 4), (100_000, 4)], ids=["few", "many"])
def test_few_and_many_activations_are_computed_again(
    shape: tuple[int, ...], kept: list[bool]
) -> None:
    """A buffer for few takes as long; those of many would grow with samples and depth."""
    net, y = build("H1", **DEEP), torch.randn(shape, dtype=torch.float32, requires_grad=True)
    net(y).sum().backward()
    assert kept == [False]


MEMORY = """
import resource, sys
import torch, hdnn
layers = int(sys.argv[1])
torch.set_num_threads(1)
net = hdnn.network("H1", features=8, layers=layers, T=1.0, backend="fused")
y = torch.randn(100_000, 8, requires_grad=True)
net(y[:1]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
net(y).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts kilobytes as Linux does")
def test_depth_costs_no_memory_per_sample() -> None:
    """A state of this batch has 3 MB; a graph of 512 layers would hold thousands."""
    run = [sys.executable, "-c", MEMORY]
    shallow, deep = (int(subprocess.check_output([*run, layers])) for layers in ("8", "512"))
    assert deep < 1.2 * shallow + 4000


def test_hooks_that_give_back_other_steps_are_noticed() -> None:
    """Steps without memory would be read as none: a network whose layers do nothing."""
    y = torch.randn(5, 4)

    def unpack(tensor: Tensor) -> Tensor:
        return tensor.to("meta") if tensor.ndim == 1 else tensor

    net = build("H1", step=[0.1, 0.2, 0.3], backend="fused")
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        out = net(y)
    with pytest.raises(RuntimeError):
        out.sum().backward()


@pytest.mark.parametrize("units", [2, 6, 24])
@pytest.mark.parametrize("name", ["H1", "H2", "MS3", "HS"])
def test_rectangular_K(name: str, units: int) -> None:
    for options, shape in (
        ({}, (9, 4)),
        ({"channels": 4}, (3, 4, 2, 3)),
        ({"ensemble": 3}, (3, 9, 4)),
    ):
        mine, plain = pair(name, units=units, **options)
        y, weight = torch.randn(2, *shape)
        agree(derivatives(mine, y, weight), derivatives(plain, y, weight))
