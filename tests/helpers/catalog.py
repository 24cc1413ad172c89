"""Walking the catalogs: every architecture, and every scheme that it allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hdnn
from hdnn.errors import IncompatibleError
from hdnn.schemes import SCHEMES
from hdnn.testing import form_defect
from hdnn.zoo import ARCHITECTURES

NAMES = list(ARCHITECTURES)
BACKENDS = ("reference", "auto")
OWN = "own"
IMPLICIT = [name for name in SCHEMES if SCHEMES[name]().implicit]


def build(name: str, scheme: str = OWN, **options: Any) -> hdnn.HamiltonianNetwork:
    """A small network of the catalog with a scheme of SCHEMES, or the architecture's own."""
    method = ARCHITECTURES[name].scheme if scheme == OWN else SCHEMES[scheme]()
    options = {"layers": 3} | options
    if "channels" not in options:
        options.setdefault("features", 4)
    if method.uses_step and "step" not in options:
        options.setdefault("T", 1.0)
    return hdnn.network(name, scheme=method, **options)


def allowed(name: str, scheme: str) -> bool:
    try:
        build(name, scheme, layers=1)
    except IncompatibleError:
        return False
    return True


HAMILTONIAN = [name for name in NAMES if build(name).field.hamiltonian]
PAIRS = [(name, s) for name in NAMES for s in (OWN, *SCHEMES) if allowed(name, s)]
INCOMPATIBLE = [(name, s) for name in NAMES for s in SCHEMES if (name, s) not in PAIRS]
EACH = [*((name, OWN) for name in NAMES), *(("MS3", scheme) for scheme in SCHEMES)]
"""Every architecture with its own scheme, and every scheme once: MS3 allows them all."""


def every_pair(pairs: list[tuple[str, str]] = PAIRS) -> pytest.MarkDecorator:
    """Parametrize over architecture x allowed scheme."""
    ids = [f"{name}-{scheme}" for name, scheme in pairs]
    return pytest.mark.parametrize(("name", "scheme"), pairs, ids=ids)


each = every_pair(EACH)
every_name = pytest.mark.parametrize("name", NAMES)


def skew(n: int, *lead: int) -> torch.Tensor:
    """A random skew-symmetric matrix, or a stack of them."""
    A = torch.randn(*lead, n, n)
    return A - A.mT


def jacobian(function: Any, y: torch.Tensor) -> torch.Tensor:
    """M = d function(y) / dy of one state, by the plainest autograd there is."""
    J: Any = torch.autograd.functional.jacobian(function, y)
    return J


def structure_defect(function: Any, y: torch.Tensor, J: torch.Tensor) -> float:
    """How far M J M' is from J, to rounding: `hdnn.testing.symplectic_defect` differentiates."""
    M, J = jacobian(function, y).reshape(len(J), len(J)), J.detach()
    return float(form_defect(M, M @ J.mT, torch.eye(len(J)), J.mT))


def as_function(net: hdnn.HamiltonianNetwork) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """The network as a function of the state and all parameters, and values for these."""
    names = [name for name, _ in net.named_parameters()]

    def function(y: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(names, values, strict=True))
        out: torch.Tensor = torch.func.functional_call(net, parameters, (y,))
        return out

    return function, tuple(p.detach().clone().requires_grad_() for p in net.parameters())
