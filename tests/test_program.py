"""The program: every architecture and scheme lowers to its stages or flows."""

from __future__ import annotations

from typing import Any

import pytest

import hdnn
from catalog import NAMES, build
from hdnn.program import Stage
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
