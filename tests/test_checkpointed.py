"""memory="lean": the values and gradients of the reference, with memory that ignores depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hdnn
from catalogue import build
from hdnn.errors import HdnnError
from twins import CATALOGUE, OWN_ONLY, Net, agree, derivatives, error, stepped, twin


def lean(net: Net) -> Net:
    return twin(net, "reference", "lean")


@pytest.mark.parametrize("layers", [1, 3, 70, 130])
@pytest.mark.parametrize("label", CATALOGUE)
def test_lean_is_the_reference_at_any_depth(label: str, layers: int) -> None:
    """In segments with a rest, in more segments than there are saved states, by undoing or not."""
    net = CATALOGUE[label](features=4, layers=layers, scale=0.5)
    y, weight = torch.randn(6, 4), torch.randn(6, 4)
    assert lean(net).explain_backend(y).backend == "checkpointed"
    agree(derivatives(lean(net), y, weight), derivatives(twin(net, "reference"), y, weight))


def test_both_ways_back_are_taken() -> None:
    ways = {CATALOGUE[label](layers=1, features=4).program().invertible for label in CATALOGUE}
    assert ways == {True, False}


@settings(max_examples=60)
@given(data=st.data(), label=st.sampled_from(OWN_ONLY), layers=st.integers(1, 40))
def test_lean_serves_every_layout(data: st.DataObject, label: str, layers: int) -> None:
    layout = data.draw(st.sampled_from(("features", "channels")))
    ensemble = data.draw(st.sampled_from((None, 1, 3)))
    options: dict[str, Any] = {
        layout: 4,
        "layers": layers,
        "ensemble": ensemble,
        "dtype": torch.float64,
        "time_invariant": data.draw(st.booleans()),
    }
    if stepped(label):
        options |= {"T": 1.0, "learn_steps": data.draw(st.booleans())}
    net = CATALOGUE[label](scale=0.5, **options)
    lead = () if ensemble is None else (data.draw(st.sampled_from((1, ensemble))),)
    rest = tuple(data.draw(st.lists(st.integers(0, 4), max_size=2)))
    shape = (*lead, *rest, 4) if layout == "features" else (*lead, 3, 4, *rest)
    y = torch.randn(shape, dtype=torch.float64)
    plain = twin(net, "reference")
    weight = torch.randn_like(plain(y))
    agree(derivatives(lean(net), y, weight), derivatives(plain, y, weight))


@pytest.mark.parametrize("name", ["MS1", "MS3", "H1"])
def test_float32_stays_accurate_at_depth(name: str) -> None:
    """Undoing a thousand layers loses no more than computing them."""
    single = torch.float32
    net = build(name, features=16, layers=1000, T=2.0, scale=0.25, dtype=single)
    y, weight = torch.randn(50, 16, dtype=single), torch.randn(50, 16, dtype=single)
    exact = derivatives(twin(net, "reference", dtype=torch.float64), y.double(), weight.double())
    mine, plain = (derivatives(n, y, weight) for n in (lean(net), twin(net, "reference")))
    for key, target in exact.items():
        assert error(mine[key], target) <= 3 * error(plain[key], target) + 1e-6, key


@pytest.mark.parametrize("special", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_a_sample_that_is_not_finite_spoils_no_other(name: str, special: float) -> None:
    net, y = build(name, layers=9), torch.randn(6, 4)
    y[2, 1] = special
    mine, plain = (derivatives(n, y, torch.ones_like(y)) for n in (lean(net), twin(net, "fused")))
    others = [0, 1, 3, 4, 5]
    for key in ("value", "state"):
        torch.testing.assert_close(mine[key][others], plain[key][others], rtol=1e-11, atol=1e-11)
        assert not bool(mine[key][2].isfinite().all()) or key == "state"


def test_a_flow_has_no_lean_form() -> None:
    net, y = build("H1", "RK4", memory="lean"), torch.randn(3, 4)
    for ask in (net, net.explain_backend):
        with pytest.raises(HdnnError, match=r"memory='lean'.*flow.*memory='fast'"):
            ask(y)


def test_the_kernels_are_lean_already() -> None:
    """Where the fused backend serves, memory="lean" changes nothing; elsewhere it is torch."""
    net, y = build("H1", memory="lean"), torch.randn(3, 4)
    assert net.explain_backend(y).backend == "fused"
    assert torch.equal(net(y), twin(net, "auto")(y))
    wide = build("H1", features=128, memory="lean")
    choice = wide.explain_backend(torch.randn(3, 128))
    assert choice.backend == "checkpointed"
    assert "depth" in choice.reason
    assert twin(wide, "auto").explain_backend(torch.randn(3, 128)).backend == "reference"


def test_other_dtypes_are_served_too() -> None:
    net = build("MS3", features=4, layers=9, memory="lean", dtype=torch.bfloat16)
    y = torch.randn(5, 4, dtype=torch.bfloat16)
    assert net.explain_backend(y).backend == "checkpointed"
    assert torch.equal(net(y), twin(net, "reference")(y))


@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_no_layers_and_empty_batches(name: str) -> None:
    for layers, batch in ((0, 3), (5, 0)):
        net, y = build(name, layers=layers), torch.randn(batch, 4)
        mine, plain = (derivatives(n, y, y) for n in (lean(net), twin(net, "reference")))
        for key, expected in plain.items():
            assert torch.equal(mine[key], expected), key


class _Held:
    """A tensor that a graph keeps, and the bytes that are kept so at any one time."""

    now = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        _Held.now += tensor.numel() * tensor.element_size()
        _Held.most = max(_Held.most, _Held.now)

    def __del__(self) -> None:
        _Held.now -= self.tensor.numel() * self.tensor.element_size()


def most_held(net: Net, y: Tensor) -> int:
    """The most bytes of states that graphs keep at once, over forward and backward."""
    _Held.now = _Held.most = 0

    def pack(tensor: Tensor) -> Tensor | _Held:
        return _Held(tensor) if len(y) in tensor.shape else tensor

    def unpack(kept: Tensor | _Held) -> Tensor:
        return kept.tensor if isinstance(kept, _Held) else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        net(y.detach().requires_grad_()).sum().backward()
    return _Held.most


@pytest.mark.parametrize("name", ["H1", "MS3", "FCNN"])
def test_memory_of_forward_and_backward_ignores_depth(name: str) -> None:
    """Only a segment is differentiated at a time, and the number of saved states is fixed."""
    y = torch.randn(37, 4)
    nets = {layers: build(name, layers=layers) for layers in (32, 512)}
    found = {layers: most_held(lean(net), y) for layers, net in nets.items()}
    assert found[32] == found[512]
    plain = {layers: most_held(twin(net, "reference"), y) for layers, net in nets.items()}
    assert plain[512] > 12 * plain[32]
    assert plain[32] > found[32]
    saved = hdnn.backends.checkpointed._Saved
    if not nets[32].invertible:
        assert most_saved(saved, lean(nets[512]), y) <= hdnn.backends.checkpointed.SLOTS


def most_saved(kind: Any, net: Net, y: Tensor) -> int:
    lengths: list[int] = []
    before = kind.before

    def recorded(self: Any, first: int, last: int) -> Tensor:
        state: Tensor = before(self, first, last)
        lengths.append(len(self.saved))
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "before", recorded)
        derivatives(net, y, y)
    assert len(lengths) == 512 / hdnn.backends.checkpointed.SEGMENT
    return max(lengths)
