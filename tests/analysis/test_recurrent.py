"""Certificates of state-space networks: what is proved, and that a broken promise is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hdnn
from hdnn.analysis import certify
from hdnn.errors import HdnnError
from hdnn.statespace import Layer, LayerWeights, StateSpace

KINDS: dict[str, dict[str, Any]] = {
    "contracting": {"outputs": 2},
    "passive": {"passive": True, "gain": 4.0},
    "passive without bound": {"passive": True},
    "series": {"layers": 3},
    "linear": {"units": 0},
    "float32": {"dtype": torch.float32},
}


def model(**options: Any) -> StateSpace:
    return StateSpace(**{"inputs": 1, "states": 5, "units": 8, "step": 0.5, "mu": 0.1, **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.01, 0.3, 30.0])
def test_everything_that_is_proved_holds(kind: str, scale: float) -> None:
    certificate = certify(model(scale=scale, **KINDS[kind]), torch.randn(3, 60, 1))
    assert certificate.ok
    assert not certificate.failed
    names = [check.name for check in certificate.theorems]
    assert "contraction" in names
    assert ("passivity" in names) == ("passive" in kind)
    assert certificate["contraction"].tolerance < 1
    assert "everything that applies holds" in str(certificate)


def test_only_for_one_layer_gradients_are_proved_not_to_grow() -> None:
    u = torch.randn(30, 1)
    assert certify(model(), u)["gradients"].proved
    assert not certify(model(layers=2), u)["gradients"].proved


def test_a_broken_promise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the scaling of K, or with a Q that is no rotation."""
    right = LayerWeights.assemble

    def unscaled(self: LayerWeights) -> Layer:
        layer = right(self)
        states, units = layer.A.split([layer.A.shape[-1] - len(layer.W), len(layer.W)], -1)
        return layer._replace(W=3 * layer.W, A=torch.cat([states, 3 * units], -1))

    def growing(self: LayerWeights) -> Layer:
        layer = right(self)
        return layer._replace(A=1.2 * layer.A)

    for wrong in (unscaled, growing):
        broken = model(scale=3.0)
        assert certify(broken, torch.randn(4, 80, 1)).ok
        with monkeypatch.context() as patch:
            patch.setattr(LayerWeights, "assemble", wrong)
            certificate = certify(broken, torch.randn(4, 80, 1))
        assert not certificate.ok
        assert "contraction" in [check.name for check in certificate.failed]


def test_what_cannot_be_examined_is_an_error_or_said() -> None:
    with pytest.raises(HdnnError, match="inputs"):
        certify(model(), torch.randn(3, 60, 2))
    with pytest.raises(HdnnError, match="no inputs"):
        certify(model(), torch.randn(0, 60, 1))
    with pytest.raises(HdnnError, match="ensemble"):
        certify(model(ensemble=2), torch.randn(3, 60, 1))
    certificate = certify(model(), torch.full((2, 5, 1), torch.nan))
    assert [check.name for check in certificate.checks] == ["finite"]
    assert not certificate.ok


def test_it_is_json_and_leaves_the_model_alone() -> None:
    own = model(dtype=torch.float32)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    found = hdnn.analysis.certify(own, torch.randn(2, 9, 1)).to_dict()
    assert found["ok"]
    assert all(torch.equal(before[name], value) for name, value in own.state_dict().items())
