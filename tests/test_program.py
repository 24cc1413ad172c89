"""The program: static stages and flows, the table of the design, and numbers read at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import NAMES, build
from hdnn.backends import reference
from hdnn.program import Flow, Program, Stage
from hdnn.schemes import Leapfrog, Yoshida4

ALL, Y, Z = (0, 4), (0, 2), (2, 4)


def row(stage: Stage) -> tuple[Any, ...]:
    return stage.read, stage.write, stage.adjoint, stage.factor, stage.carry


TABLE: dict[str, list[tuple[Any, ...]]] = {
    "MS1": [(Y, Z, False, 1.0, 1), (Z, Y, False, 1.0, 1)],
    "MS2": [(ALL, ALL, False, 1.0, 1)],
    "MS3": [(Z, Y, True, 1.0, 1), (Y, Z, True, 1.0, 1)],
    "H1": [(ALL, ALL, True, 1.0, 1)],
    "H2": [(ALL, ALL, True, 1.0, 1)],
    "HS": [(Z, Y, True, 1.0, 1), (Y, Z, True, 1.0, 1)],
    "FCNN": [(ALL, ALL, False, 1.0, 0)],
    "ResNet": [(ALL, ALL, False, 1.0, 1)],
}


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_lowers_to_its_stages(name: str) -> None:
    program = build(name).program
    assert [row(stage) for stage in program.stages] == TABLE[name]
    assert program.steps == program.stages
    assert not program.has_flows
    assert program.invertible == (name in ("MS1", "MS3", "HS"))


def test_splittings_are_stages_with_their_coefficients_and_other_schemes_flows() -> None:
    for scheme in (Leapfrog("z"), Yoshida4()):
        stages = hdnn.network("MS3", features=4, layers=3, T=1.0, scheme=scheme).program.stages
        assert tuple(stage.factor for stage in stages) == scheme.coefficients
        writes = [Y, Z] if scheme.first == "y" else [Z, Y]
        assert [s.write for s in stages] == [writes[k % 2] for k in range(len(stages))]
        assert all(stage.invertible for stage in stages)
    for name in ("RK4", "ImplicitMidpoint"):
        program = build("H2", name).program
        assert program.has_flows
        assert not program.stages
        assert program.invertible == (name == "ImplicitMidpoint")


def test_stages_and_flows_mix() -> None:
    """A flow between two stages: the reference interprets any sequence of steps."""

    def doubled(f: Any, x: Tensor, h: Any, layout: Any) -> Tensor:
        return 2 * x

    net = build("MS3", layers=2)
    first, second = net.program.steps
    program = Program(2, (first, Flow(doubled), second), net.program.layout)
    values = net.values()._replace(velocity=net.field.velocity_fn())
    y = torch.randn(3, 4)
    found = reference.run(program, values, y)
    J, K, b, expected = net.J, net.K, net.b, y
    for j in range(2):
        K1, K2 = K[j, :2, 2:], K[j, 2:, :2]
        p, q = expected.chunk(2, -1)
        p = p + net.h * torch.tanh(q @ K1.mT + b[j, :2]) @ K1 @ J[:2, 2:].mT
        p, q = 2 * p, 2 * q
        q = q + net.h * torch.tanh(p @ K2.mT + b[j, 2:]) @ K2 @ J[2:, :2].mT
        expected = torch.cat([p, q], -1)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
