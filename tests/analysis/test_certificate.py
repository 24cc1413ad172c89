"""Certificates as records: what they print, what goes to JSON, and what cannot be examined."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor, nn

import hdnn
from catalog import HAMILTONIAN, build, each
from hdnn.analysis import advise, certify
from hdnn.errors import HdnnError
from hdnn.models import image_model
from hdnn.schemes import ForwardEuler


@dataclass(frozen=True)
class Boastful(ForwardEuler):
    """It claims what it does not keep."""

    structure_preserving: ClassVar[bool] = True


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
        proved = None if scheme in ("RK4", "DiscreteGradient") else True
        assert certificate["volume"].holds is certificate["norm-at-least-one"].holds is proved
    else:  # n/a, and no failure
        assert certificate.ok
        assert not certificate.theorems
        assert {c.holds for c in certificate.checks} - {None} == {True}
        assert certificate["interconnection"].verdict == "n/a"
        assert "no theorem applies here" in str(certificate)
        assert "a baseline has neither J nor an energy" in " ".join(str(certificate).split())


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
    """Rough weights and a large step leave theorems as they are."""
    y = torch.randn(5, 4)
    certificate = certify(build("H1", layers=24, T=8.0), y)
    assert {"smooth-weights", "scheme-drift"} <= {check.name for check in certificate.failed}
    assert {check.verdict for check in certificate.failed} == {"not met"}
    assert certificate.ok
    assert "everything that is proved holds; what is not met" in str(certificate)


def test_json_text_and_lookup() -> None:
    certificate = certify(build("MS3", T=0.2, time_invariant=True), torch.randn(5, 4))
    plain = json.loads(json.dumps(certificate.to_dict()))
    assert plain["ok"] is True
    assert [check["name"] for check in plain["checks"]] == [c.name for c in certificate.checks]
    shown = {check.name for check in certificate.checks if check.name in str(certificate)}
    named = {check.name for check in certificate.checks}
    assert named - shown == {"dissipation", "no-growing-mode"}  # there is no R
    assert "everything that applies holds" in str(certificate)
    with pytest.raises(HdnnError, match="did you mean 'structure'"):
        certificate["strukture"]


# --- models ---------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """Somebody's CNN, with a Hamiltonian block that runs twice and functions between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.body = nn.ModuleDict({"block": build("H1", channels=2, kernel=3, T=0.5)})
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        block = self.body["block"]
        y = torch.relu(block(torch.relu(self.norm(self.stem(x)))))
        return self.head(self.drop(block(y)).flatten(1))


def test_a_block_in_a_model_is_examined_on_the_states_that_enter_it() -> None:
    model, x = Classifier(), torch.randn(5, 1, 4, 4)
    before = copy.deepcopy(model.state_dict())
    certificate = certify(model, x)
    assert model.training  # dropout and batch normalization are only switched off meanwhile
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not model.body["block"]._forward_pre_hooks
    model.eval()
    block = cast("hdnn.HamiltonianNetwork", model.body["block"])
    y = torch.relu(model.norm(model.stem(x)))
    expected = {"body.block": y, "body.block:2": torch.relu(block(y))}
    assert list(certificate.blocks) == list(expected)
    for name, state in expected.items():
        assert str(certificate[name]) == str(certify(block, state.detach()))
    assert certificate.ok
    assert certificate.others == (
        *("stem (Conv2d)", "norm (BatchNorm2d)"),
        *("drop (Dropout)", "head (Linear)"),
    )
    assert "nothing is proved about the rest of the model: stem (Conv2d)" in str(certificate)
    plain = json.loads(json.dumps(certificate.to_dict()))
    assert (plain["ok"], plain["others"][-1]) == (True, "head (Linear)")
    assert plain["blocks"]["body.block"]["checks"][0]["name"] == "finite"


def test_a_model_fails_with_one_of_its_blocks() -> None:
    options = {"features": 4, "layers": 4, "T": 1.0}
    good, bad = build("H1", **options), hdnn.network("H1", scheme=Boastful(), **options)
    certificate = certify(nn.Sequential(good, bad), torch.randn(3, 4))
    assert certificate["0"].ok
    assert not certificate["1"].ok
    assert not certificate.ok
    assert certificate.others == ()
    assert "what the model computes between its networks" in str(certificate)
    with pytest.raises(HdnnError, match="unknown network '2': known are 0, 1"):
        certificate["2"]


def test_a_model_of_ours_names_stem_and_head() -> None:
    model = image_model(channels=1, size=(6, 6), classes=3, layers=(2, 1), widths=(2, 4), kernel=3)
    images = torch.randint(0, 256, (4, 1, 6, 6), dtype=torch.uint8)
    certificate = certify(model, images)
    assert list(certificate.blocks) == ["blocks.0", "blocks.2"]
    assert certificate.others == ("stem (ImageStem)", "blocks.1 (Sequential)", "head (Linear)")
    pairs = model.block_inputs(model.prepare(images))
    for block, (net, y) in zip(certificate.blocks.values(), pairs, strict=True):
        assert block.checks == certify(net, y.detach()).checks


def test_models_without_networks_raise() -> None:
    unused = nn.Linear(4, 4)
    unused.add_module("block", build("H1"))
    for model, words in (
        (nn.Linear(4, 4), "there is no Hamiltonian network with layers in this Linear"),
        (nn.Sequential(build("H1", layers=0)), "no Hamiltonian network"),
        (unused, "no Hamiltonian network ran: block"),
        ("H1", "certify takes a network, or a model that contains one, got a str"),
    ):
        with pytest.raises(HdnnError, match=words):
            certify(cast("nn.Module", model), torch.randn(3, 4))


@pytest.mark.parametrize("examine", [certify, advise])
def test_networks_and_states_that_cannot_be_examined_raise(examine: Any) -> None:
    for net, y, words in (
        (build("H1", ensemble=2), torch.randn(1, 3, 4), "ensemble"),
        (build("H1", layers=0), torch.randn(3, 4), "nothing"),
        (build("H1"), torch.randn(0, 4), "nothing"),
        (build("H1"), torch.randn(3, 5), "shape"),
    ):
        with pytest.raises(HdnnError, match=words):
            examine(net, y)
    large = build("H1", channels=4, kernel=3), torch.randn(2, 4, 20, 20)
    with pytest.raises(HdnnError, match="couples all 1600 numbers"):
        advise(*large)
