"""What checks look at: a network in float64, states, and all that is derived from them, once."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis.jacobians import (
    batch_jacobian,
    check_no_convolution,
    factors_of,
    jacobians_at,
    velocity_jacobians,
)
from hdnn.analysis.norms import singular_values
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, InverseTranspose, StateDependent
from hdnn.fields.field import InterconnectedField
from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Flow, Program, Stage, times
from hdnn.schemes import RK4, ForwardEuler

FLOW_SAMPLES = 16
"""How many samples the ODE is integrated for; the other checks look at all."""
PHASE = 0.4
"""Radians that the fastest mode of the ODE may turn in a substep of its integration."""
MOST_SUBSTEPS = 64
"""Substeps of a layer at most; beyond, a step says nothing about the ODE."""


class Context:
    """A copy of a network in float64, and lazily its states, Jacobians and spectra.

    Args:
        net: one network, not an ensemble, with at least one layer.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.
        tolerance: relative tolerance of equations; None: from rounding, see the checks.
    """

    def __init__(self, net: HamiltonianNetwork, y: Tensor, tolerance: float | None = None) -> None:
        net.check_state(y)
        check_no_convolution(net)
        if net.ensemble is not None:
            raise HdnnError("an ensemble holds several networks; examine them one by one")
        if not net.layers or not y.numel():
            raise HdnnError("there is nothing to examine: no layers or no samples")
        self.dtype, self.tolerance = y.dtype, tolerance
        # In float32 rounding hides what the theory says of the weights.
        self.net = copy.deepcopy(net).to(torch.float64).requires_grad_(False)
        layout = net.field.layout
        self.y = y.detach().to(torch.float64)
        if not layout.channels:
            self.y = self.y.reshape(-1, layout.width)
        self.field = self.net.field
        self.n, self.layers = layout.width, net.layers

    def allowed(self, rounding: Any) -> Any:
        """The given tolerance, else what rounding allows."""
        return rounding if self.tolerance is None else self.tolerance

    # --- what kind of network ---------------------------------------------------------------------

    @property
    def hamiltonian(self) -> InterconnectedField | None:
        """The field, unless it is a baseline."""
        return self.field if isinstance(self.field, InterconnectedField) else None

    @property
    def weighted(self) -> WeightedField | None:
        """The field, if it has K and b."""
        return self.field if isinstance(self.field, WeightedField) else None

    @property
    def inverse(self) -> bool:
        """Whether J K' = I: MS1 and MS2."""
        field = self.hamiltonian
        return field is not None and isinstance(field.interconnection, InverseTranspose)

    @property
    def state_dependent(self) -> bool:
        """Whether J is J(y, t)."""
        field = self.hamiltonian
        return field is not None and isinstance(field.interconnection, StateDependent)

    @property
    def stepped(self) -> bool:
        """Whether it discretizes an ODE."""
        return self.net.scheme.uses_step

    @property
    def preserves(self) -> str | None:
        """Where M J M' = J is promised: in the "network", within every "layer", or nowhere."""
        field = self.hamiltonian
        if field is None or field.R is not None or self.state_dependent:
            return None
        if not self.net.scheme.structure_preserving:
            return None
        return "network" if field.interconnection.constant else "layer"

    @property
    def keeps_volume(self) -> bool:
        """Whether no layer can shrink volumes: det (d y_{l+1} / d y_l) >= 1, for all weights.

        Stages that read and write disjoint parts have determinant 1. A forward Euler step has the
        Jacobian I + h J P with P = K' D K >= 0, and

            det(I + h J P) = det(I + h P^(1/2) J P^(1/2)) = product of (1 + h^2 w^2) >= 1

        as the matrix on the right is skew, with eigenvalues +-i w. Where J K' = I (MS1 and MS2), it
        is I + h D K with K skew, and D takes the place of P.
        """
        field = self.hamiltonian
        if not isinstance(field, HamiltonianField) or field.R is not None or self.state_dependent:
            return False
        program = self.net.program
        if program.invertible and not program.has_flows:
            return True
        D = self.D
        monotone = D is not None and bool((D >= 0).all())
        return monotone and isinstance(self.net.scheme, ForwardEuler)

    # --- states and Jacobians ---------------------------------------------------------------------

    @cached_property
    def h(self) -> Tensor:
        """``(layers,)``."""
        return torch.as_tensor(self.net.h, dtype=torch.float64).expand(self.layers)

    @cached_property
    def states(self) -> Tensor:
        """``(layers + 1, samples, n)``."""
        with torch.no_grad():
            states = self.net.trajectory(self.y)
        axis = 2 if self.field.layout.channels else -1
        return states.movedim(axis, -1).flatten(1, -2)

    @cached_property
    def M(self) -> Tensor:
        """``(layers + 1, samples, n, n)``: d y_N / d y_l."""
        return jacobians_at(self.net, self.y, range(self.layers + 1))[0]

    @cached_property
    def factors(self) -> Tensor:
        """``(layers, samples, n, n)``: d y_{l+1} / d y_l."""
        return factors_of(self.net, self.y)

    @cached_property
    def svd(self) -> Tensor:
        """``(layers + 1, samples, n)``: singular values of M."""
        return singular_values(self.M)

    @cached_property
    def A(self) -> Tensor:
        """``(layers, samples, n, n)``: Jacobians df/dy of the velocity."""
        return velocity_jacobians(self.net, self.y)

    @cached_property
    def A_norm(self) -> Tensor:
        """``(layers, samples)``: spectral norms of df/dy."""
        return torch.linalg.matrix_norm(self.A, 2)

    # --- Lemma 3 ----------------------------------------------------------------------------------

    @cached_property
    def D(self) -> Tensor | None:
        """sigma'(K y_j + b) of every layer, ``(layers, samples, m)``; None without such units."""
        field = self.hamiltonian
        if not isinstance(field, HamiltonianField):
            return None
        z = self.states[:-1] @ field.weights.K.mT + field.weights.b.unsqueeze(-2)
        # Plain autograd: torch.func.grad would import the compiler of torch, which takes seconds.
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (derivative,) = torch.autograd.grad(field.activation.function(z).sum(), z)
        return derivative

    @cached_property
    def hessian_eigenvalues(self) -> Tensor:
        """Ascending eigenvalues of the Hessian P of H, ``(layers, samples, n)``: P = K' D K."""
        field = self.hamiltonian
        assert field is not None
        if isinstance(field, HamiltonianField):
            assert self.D is not None
            K = field.weights.K.unsqueeze(1)
            P = K.mT @ (self.D.unsqueeze(-1) * K)
        else:  # an energy of one's own
            t, axis = times(self.net.h, self.layers), field.layout.axis
            P = torch.stack(
                [
                    batch_jacobian(partial(field.gradient, layer=j, t=t[j]), x, axis)
                    for j, x in enumerate(self.states[:-1])
                ]
            )
        return torch.linalg.eigvalsh(P)

    @cached_property
    def kappa(self) -> Tensor | None:
        """A bound on the condition number of eigenvectors of df/dy, ``(layers, samples)``.

        df/dy = J P with J skew and P > 0 is similar to P^(1/2) J P^(1/2), which is skew and has
        orthonormal eigenvectors; those of df/dy are P^(-1/2) times them, so that

            kappa <= sqrt(cond(P))

        Where J K' = I (MS1 and MS2), df/dy = D K with K skew, and D takes the place of P. Infinite
        where P is not positive; None where df/dy has not this form (a baseline, J(y, t), R).
        """
        field = self.hamiltonian
        if field is None or field.R is not None or self.state_dependent:
            return None
        values = self.hessian_eigenvalues if not self.inverse else self.D
        assert values is not None
        smallest, largest = values.amin(-1), values.amax(-1)
        bound = (largest / smallest.clamp_min(1e-300)).sqrt()
        return torch.where(smallest > 0, bound, torch.inf)

    # --- the ODE ----------------------------------------------------------------------------------

    @cached_property
    def few(self) -> Tensor:
        """Some states, evenly chosen, in the layout of the network."""
        pixels = self.y[0].numel() // self.n
        count = min(len(self.y), max(1, FLOW_SAMPLES // pixels))
        return self.y[torch.linspace(0, len(self.y) - 1, count).long()]

    def sensitivities_with(self, program: Program) -> Tensor:
        """``(layers + 1, samples, n, n)`` of `few`, by another program over the same parameters."""
        factors = factors_of(self.net, self.few, program)
        matrices = [torch.eye(self.n).to(factors).expand_as(factors[0])]
        for factor in factors.flip(0):
            matrices.append(matrices[-1] @ factor)
        return torch.stack(matrices[::-1])

    @cached_property
    def ode_sensitivities(self) -> Tensor | None:
        """d y(T) / d y(t_l) of the ODE from `few`; None where a step turns modes too far for that.

        By RK4, with substeps that resolve the fastest mode, extrapolated from two such refinements.
        """
        phase = float(self.h.max() * self.A_norm.max())
        if not phase < PHASE * MOST_SUBSTEPS:
            return None
        program = replace(self.net.program, steps=RK4().lower(self.field))
        m = int(phase / PHASE) + 1
        coarse, fine = (self.sensitivities_with(with_substeps(program, k)) for k in (m, 2 * m))
        return fine + (fine - coarse) / 15  # order 4: 2^4 - 1


def with_substeps(program: Program, count: int) -> Program:
    """A program with every layer cut into substeps of its own scheme, with the same weights."""

    def shortened(step: Stage | Flow) -> Stage | Flow:
        if isinstance(step, Stage):
            return replace(step, factor=step.factor / count)
        return Flow(lambda f, x, h, layout: step.advance(f, x, h / count, layout))

    return replace(program, steps=tuple(map(shortened, program.steps)) * count)
