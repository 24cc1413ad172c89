"""Which backend is chosen and why: by program, shape, dtype and device, and by nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import hdnn
from catalog import NAMES, build
from hdnn.backends.selection import WIDEST
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField, Learned, Weights
from hdnn.fields.activations import Activation
from hdnn.kernels import native
from skips import needs_kernels
from twins import twin

Net = hdnn.HamiltonianNetwork

_steep = Activation("tanh", lambda x: torch.tanh(3 * x), lambda x: torch.log(torch.cosh(3 * x)) / 3)
"""Not the catalog's tanh, but of the same name."""


def varying() -> Net:
    field = HamiltonianField(Learned(4, layers=2), Weights(features=4, layers=2))
    return Net(field, T=1.0)


ROWS, PIXELS = (3, 4), (2, 4, 3, 3)
OBSTACLES: dict[str, tuple[Callable[..., Net], tuple[int, ...], str]] = {
    "flow": (lambda: build("H1", "RK4"), ROWS, "flow"),
    "energy": (
        lambda: Net(EnergyField("J1", lambda x, t: x.cos().sum(-1), features=4), layers=2, T=1.0),
        ROWS,
        "flow",
    ),
    "float16": (lambda: build("H1", dtype=torch.float16), ROWS, "float16"),
    "meta": (lambda: build("H1", device="meta"), ROWS, "meta"),
    "convolution": (lambda: build("H1", channels=4, kernel=3), PIXELS, "Convolution"),
    "no samples": (lambda: build("H1"), (0, 4), "nothing to compute"),
    "no layers": (lambda: build("H1", layers=0), ROWS, "nothing to compute"),
    "sin": (lambda: build("H1", activation="sin"), ROWS, "sin"),
    "custom activation": (lambda: build("H1", activation=_steep), ROWS, "tanh"),
}
"""A network that the kernels cannot serve, the shape of a state, and a word of the reason."""


@needs_kernels
@pytest.mark.parametrize("case", OBSTACLES)
def test_where_the_kernels_cannot_serve(case: str) -> None:
    """auto falls back and says why; asking for the kernels raises the same reason."""
    make, shape, word = OBSTACLES[case]
    net = make()
    parameter = next(net.parameters(), torch.zeros(()))
    y = torch.randn(shape, dtype=parameter.dtype, device=parameter.device)
    choice = net.explain_backend(y)
    assert choice.backend == "reference"
    assert word in choice.reason
    assert str(choice) == f"reference: {choice.reason}"
    assert net(y).shape == y.shape
    if case != "meta":
        assert torch.equal(net(y), twin(net, "reference")(y))
    with pytest.raises(HdnnError, match=rf"cannot serve: .*{word}.*use backend='auto'"):
        twin(net, "fused")(y)


EXPLICIT: dict[str, Callable[..., Net]] = {
    "learned X": lambda: build("HS", X="learned"),
    "J(t)": varying,
    "learned steps": lambda: build("H1", learn_steps=True),
    "learned steps of two stages": lambda: build("MS1", learn_steps=True),
    "learned J of an ensemble": lambda: build("HS", X="learned", ensemble=3),
    "learned steps of images": lambda: build("H1", channels=4, learn_steps=True),
}
"""What the kernels take as explicit matrices."""


@needs_kernels
@pytest.mark.parametrize("case", EXPLICIT)
def test_learned_J_and_steps_are_compiled(case: str) -> None:
    """The same numbers, and gradients of everything, as the reference."""
    net = EXPLICIT[case]().double()
    layout = net.field.layout
    y = torch.randn(*layout.lead, *(PIXELS if layout.channels else ROWS), dtype=torch.float64)
    choice, plain = net.explain_backend(y), twin(net, "reference")
    assert (choice.backend, choice.explicit, choice.in_stages) == ("fused", True, False)
    torch.testing.assert_close(net(y), plain(y), rtol=0, atol=1e-12)
    torch.testing.assert_close(net.trajectory(y), plain.trajectory(y), rtol=0, atol=1e-12)
    gradients = [
        torch.autograd.grad(each(y).sin().sum(), [*each.parameters()]) for each in (net, plain)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_auto_takes_the_kernels_up_to_a_width(name: str) -> None:
    limit = WIDEST[native.instruction_set()]
    limit = limit if build(name, features=4, layers=1).program.has_adjoint else min(limit, 256)
    for n, expected in ((8, "fused"), (limit, "fused"), (limit + 2, "reference")):
        net, y = build(name, features=n, layers=1), torch.randn(3, n)
        choice = net.explain_backend(y)
        assert choice.backend == expected
        assert f"width {n} is" in choice.reason
        assert f" {limit}" in choice.reason
        for request in ("fused", "reference"):
            explained = twin(net, request).explain_backend(y)
            assert (explained.backend, explained.reason) == (request, "requested")


def test_without_the_kernels_the_reference_serves_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "obstacle", lambda: "install a C++ compiler")
    net, y = build("H1"), torch.randn(5, 4)
    choice = net.explain_backend(y)
    assert choice.backend == "reference"
    assert "install a C++ compiler" in choice.reason
    net(y).sum().backward()
    with pytest.raises(HdnnError, match="install a C"):
        build("H1", backend="fused")(y)


@pytest.mark.parametrize("n", [4, 98])
def test_the_choice_depends_on_program_shape_dtype_and_device_only(n: int) -> None:
    """Not on values, strides, gradients, calls before or threads."""
    net, y = build("MS3", features=n), torch.randn(200, n)
    first = net.explain_backend(y)
    for state in (y * torch.nan, y.clone().requires_grad_(), torch.randn(1).expand_as(y)):
        assert net.explain_backend(state) == first
    with torch.no_grad():
        net(y)
        assert net.explain_backend(y) == first
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(before, 2))
        assert build("MS3", features=n).explain_backend(y) == first
    finally:
        torch.set_num_threads(before)


@needs_kernels
def test_fake_tensors_are_never_read_and_leave_no_trace() -> None:
    net, y = build("H1"), torch.randn(5, 4)
    exact, fresh = net(y), twin(net, "fused")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(y)
        assert net(fake).shape == exact.shape
        with pytest.raises(HdnnError, match="dispatch mode"):
            fresh(fake)
    assert net.explain_backend(fake).backend == "reference"  # also outside the mode
    assert torch.equal(fresh(y), exact)


@needs_kernels
def test_a_choice_holds_for_its_kind_of_state_only() -> None:
    """What is remembered of one call is not applied to another."""
    net, y = build("HS", X=torch.randn(2, 2)), torch.randn(5, 4)

    def choice(state: Tensor) -> str:
        return net.explain_backend(state).backend

    for k in range(300):  # more shapes than are remembered
        assert net(y.expand(k, 5, 4)).shape == (k, 5, 4)
    assert (choice(y), choice(y.to("meta")), choice(y)) == ("fused", "reference", "fused")
    J = net.field.interconnection.J.requires_grad_()
    assert net.explain_backend(y).explicit
    J.requires_grad_(False)
    assert net.explain_backend(y).in_stages


@needs_kernels
def test_a_pickled_network_chooses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is loaded there may be no kernels."""
    net, y = build("H1"), torch.randn(5, 4)
    assert net.explain_backend(y).backend == "fused"
    expected, stored = net(y), pickle.dumps(net)
    monkeypatch.setattr(native, "obstacle", lambda: "there are none")
    loaded = pickle.loads(stored)
    assert "there are none" in loaded.explain_backend(y).reason
    torch.testing.assert_close(loaded(y), expected)
