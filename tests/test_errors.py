"""What a user can get wrong: each is an HdnnError that says what is allowed, and a remedy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import hdnn
from catalog import build, every_name
from hdnn.errors import HdnnError, optional, printable, unknown_name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of T .* and step"),
        ({"T": 1.0, "step": 0.1}, "exactly one of T .* and step"),
        ({"T": -1.0}, "T must be positive and finite, got -1"),
        ({"T": math.nan}, "T must be positive and finite"),
        ({"step": math.inf}, "step must be positive and finite"),
        ({"step": [0.1, -0.1]}, "positive and finite"),
        ({"step": [0.1, 0.1, 0.1]}, r"shape \(2,\)"),
        ({"T": 1.0, "channels": 4}, "exactly one of features"),
        ({"T": 1.0, "features": None}, "exactly one of features"),
        ({"T": 1.0, "features": 4.0}, "positive integer, got 4.0"),
        ({"T": 1.0, "features": 3}, "even width"),
        ({"T": 1.0, "layers": -1}, "at least 0, got -1"),
        ({"T": 1.0, "layers": True}, "at least 0, got True"),
        ({"T": 1.0, "generator": [torch.Generator()]}, "ensemble"),
        ({"T": 1.0, "activation": "tahn"}, "did you mean 'tanh'"),
        ({"T": 1.0, "X": torch.eye(2)}, "HS"),
        ({"T": 1.0, "backend": "fussed"}, "fused"),
        ({"T": 1.0, "scheme": 4}, "unknown scheme 4: known are ForwardEuler"),
        ({"T": 1.0, "scheme": "RK5"}, "unknown scheme 'RK5'.*did you mean 'RK4'"),
    ],
)
def test_arguments_of_a_network(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message) as caught:
        hdnn.network("H1", **({"features": 4, "layers": 2} | options))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("scale", [math.nan, "big", None, True], ids=type)
def test_a_scale_is_a_finite_number(scale: Any) -> None:
    with pytest.raises(HdnnError, match="scale"):
        build("H1", scale=scale)
    with pytest.raises(HdnnError, match="scale"):
        build("H1").reset_parameters(scale=scale)


def test_arguments_of_one_architecture_only() -> None:
    for X in (torch.eye(3), torch.full((2, 2), math.nan), "lerned"):
        with pytest.raises(HdnnError, match=r"X|finite"):
            build("HS", X=X)
    for options in ({"T": 1.0}, {"step": 0.1}, {"learn_steps": True}):
        with pytest.raises(HdnnError, match="FCNN takes neither T nor step"):
            hdnn.network("FCNN", features=4, layers=2, **options)


@every_name
def test_states_of_another_shape_or_dtype_raise(name: str) -> None:
    net = build(name)
    for method in (net, net.trajectory, net.explain_backend):
        with pytest.raises(HdnnError, match=r"shape \(\.\.\., 4\), got \(4, 3\)"):
            method(torch.randn(4, 3))
        for dtype in (torch.float32, torch.int64):
            with pytest.raises(HdnnError, match=r"torch\.float64"):
                method(torch.ones(2, 4, dtype=dtype))


def test_field_at_is_for_layers_that_exist() -> None:
    with pytest.raises(HdnnError, match="there are 3"):
        build("H1", layers=3).field_at(3)
    for net in (build("ResNet"), build("H1", ensemble=2)):
        with pytest.raises(HdnnError):
            net.field_at(0)


def test_depth_of_field_and_network_agree() -> None:
    field = build("H1", layers=3).field
    with pytest.raises(HdnnError, match="layers=4"):
        hdnn.HamiltonianNetwork(field, layers=4, T=1.0)
    free = hdnn.fields.EnergyField("J1", lambda x, t: (x**2).sum(-1), features=2)
    with pytest.raises(HdnnError, match="give layers"):
        hdnn.HamiltonianNetwork(free, T=1.0)
    with pytest.raises(HdnnError, match="has a custom energy, and so no K"):
        _ = hdnn.HamiltonianNetwork(free, layers=2, T=1.0).K


def test_unknown_names_and_missing_packages() -> None:
    error = unknown_name("scheme", "verlett", ["Verlet", "RK4"])
    assert str(error) == "unknown scheme 'verlett': known are Verlet, RK4; did you mean 'Verlet'?"
    # Several are as near: none is named.
    assert str(unknown_name("architecture", "H7", ["H1", "H2"])).endswith("known are H1, H2")
    with pytest.raises(HdnnError, match=r"this needs no_such: pip install 'hdnn\[app\]'"):
        optional("no_such.part", "app")


def test_what_people_read_has_no_control_characters() -> None:
    bad = [chr(k) for k in (*range(10), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0xDC9B)]
    assert printable("".join(bad)).isprintable()
    assert str(HdnnError("a\x1b[2J\tb")) == r"a\x1b[2J\tb"
    fine = "Größe ≤ 1\n日本語 \u200c \N{FAMILY}\u200d \xa0 \\"  # joiners belong to scripts
    assert printable(fine) == printable(printable(fine)) == fine
