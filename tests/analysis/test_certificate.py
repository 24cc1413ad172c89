"""Certificates as records: what they print, what goes to JSON, and what cannot be examined."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

from catalog import HAMILTONIAN, build, each
from hdnn.analysis import advise, certify
from hdnn.errors import HdnnError


@each
def test_every_network_of_the_catalog(name: str, scheme: str) -> None:
    step = {} if (name, scheme) == ("FCNN", "own") else {"T": 0.1}
    net = build(name, scheme, layers=2, time_invariant=True, scale=0.7, **step)
    certificate = certify(net, torch.randn(4, 4))
    assert max(map(len, str(certificate).splitlines())) <= 80
    if name in HAMILTONIAN:
        assert certificate.ok, str(certificate)
        assert certificate["interconnection"].holds
        assert certificate["imaginary-spectrum"].holds
        keeps = net.scheme.structure_preserving
        assert certificate["structure"].holds is (True if keeps else None)
        if scheme in ("own", "ForwardEuler"):
            assert certificate["norm-at-least-one"].holds
    else:
        assert certificate["interconnection"].holds is False
        assert certificate["structure"].holds is None


def test_float32_is_examined_in_float64_and_left_alone() -> None:
    net = build("MS3", layers=30, T=1.0, dtype=torch.float32)
    before = copy.deepcopy(net.state_dict())
    certificate = certify(net, torch.randn(6, 4, dtype=torch.float32))
    assert certificate.dtype == "float32"
    assert certificate["structure"].value < 1e-13  # in float32 it would be 1e-6
    assert certificate["norm-at-least-one"].holds
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert next(net.parameters()).requires_grad


def test_states_that_overflow_in_float32_are_not_finite() -> None:
    net = build("H1", layers=64, T=300.0, activation="relu", dtype=torch.float32)
    y = torch.randn(6, 4, dtype=torch.float32)
    assert torch.isfinite(net.double()(y.double())).all()
    (finite,) = certify(net.float(), y).checks
    assert finite.name == "finite"
    assert finite.holds is False


def test_pixels_are_samples() -> None:
    net, images = build("H2", T=0.3), build("H2", channels=4, T=0.3)
    images.load_state_dict(net.state_dict())
    y = torch.randn(2, 4, 3)
    rows, pixels = certify(net, y.movedim(1, -1)), certify(images, y)
    assert pixels.samples == rows.samples == 6
    for mine, theirs in zip(pixels.checks, rows.checks, strict=True):
        assert mine.holds is theirs.holds
        if mine.name != "scheme-drift":  # on fewer samples
            assert mine.value == pytest.approx(theirs.value, rel=1e-6, abs=1e-12, nan_ok=True)


def test_what_is_not_proved_may_be_unmet() -> None:
    """Rough weights and a large step leave theorems as they are; a baseline has none of them."""
    y = torch.randn(5, 4)
    certificate = certify(build("H1", layers=24, T=8.0), y)
    assert {"smooth-weights", "scheme-drift"} <= {check.name for check in certificate.failed}
    assert {check.verdict for check in certificate.failed} == {"not met"}
    assert certificate.ok
    assert "everything that is proved holds; what is not met" in str(certificate)
    baseline = certify(build("ResNet", T=1.0), y)
    assert baseline["interconnection"].verdict == "FAILS"
    assert not baseline.ok
    assert baseline.summary == "what fails or is not met, and what it means:"


def test_json_text_and_lookup() -> None:
    certificate = certify(build("MS3", T=0.2, time_invariant=True), torch.randn(5, 4))
    plain = json.loads(json.dumps(certificate.to_dict()))
    assert plain["ok"] is True
    assert [check["name"] for check in plain["checks"]] == [c.name for c in certificate.checks]
    assert all(check.name in str(certificate) for check in certificate.checks)
    assert "everything that applies holds" in str(certificate)
    with pytest.raises(HdnnError, match="did you mean 'structure'"):
        certificate["strukture"]


@pytest.mark.parametrize("examine", [certify, advise])
def test_networks_and_states_that_cannot_be_examined_raise(examine: Any) -> None:
    for net, y, words in (
        (build("H1", ensemble=2), torch.randn(1, 3, 4), "ensemble"),
        (build("H1", layers=0), torch.randn(3, 4), "nothing"),
        (build("H1"), torch.randn(0, 4), "nothing"),
        (build("H1"), torch.randn(3, 5), "shape"),
        (build("H1", channels=4, kernel=3), torch.randn(2, 4, 5, 5), "convolution"),
        (torch.nn.Sequential(build("H1")), torch.randn(3, 4), "of a model, pass its block"),
    ):
        with pytest.raises(HdnnError, match=words):
            examine(net, y)
