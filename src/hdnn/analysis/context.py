"""What checks look at: a network in float64, states, and all that is derived from them, once."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate

import torch
from torch import Tensor

from hdnn.analysis.jacobians import (
    batch_jacobian,
    check_single_network,
    factors_of,
    jacobians_at,
    velocity_jacobians,
)
from hdnn.analysis.norms import spectral_norm, unit_eigenvalues
from hdnn.fields import ActivationField, Field
from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Flow, Program, times
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

    Attributes:
        hamiltonian: the field, unless it is a baseline.
        standard: the field, if H = 1' E(K y + b): not a baseline, not a custom energy.
        conservative: the field, if it is (J(t) skew) dH/dy: no J(y, t), no dissipation R.
        inverse: whether J K' = I, as in MS1 and MS2.
        stepped: whether the network discretizes an ODE.
        own_states_finite: ``(layers + 1, samples, n)``, which numbers are finite in the dtype of
            the network.
        h: ``(layers,)``, the steps.
    """

    def __init__(self, net: HamiltonianNetwork, y: Tensor) -> None:
        check_single_network(net, y)
        self.dtype = y.dtype
        # In float32 rounding hides what the theory says of the weights.
        self.net = copy.deepcopy(net).to(torch.float64).requires_grad_(False)
        self.field = field = self.net.field
        self.n, self.layers = field.layout.width, net.layers
        self.y = y.detach().to(torch.float64)
        # float64 may hold what overflows in the network's own dtype.
        with torch.no_grad():
            own = torch.stack([field.layout.flatten(s)[0] for s in net.trajectory(y)])
        self.own_states_finite = torch.isfinite(own)
        if not field.layout.channels:
            self.y = self.y.reshape(-1, self.n)
        self.hamiltonian = field if field.hamiltonian else None
        self.standard = field if field.hamiltonian and isinstance(field, WeightedField) else None
        self.inverse = isinstance(field, ActivationField)
        implied = self.inverse or field.interconnection is not None
        self.state_dependent = field.hamiltonian and not implied
        self.conservative = field if field.conservative and not self.state_dependent else None
        self.stepped = net.scheme.uses_step
        self.h = torch.as_tensor(self.net.h, dtype=torch.float64).expand(self.layers)

    # --- what the network promises ----------------------------------------------------------------

    @property
    def preserves(self) -> str | None:
        """Where M J M' = J is promised: in the "network", within every "layer", or nowhere."""
        if self.conservative is None or not self.net.scheme.structure_preserving:
            return None
        return "network" if self.net.structure_preserving else "layer"

    @property
    def keeps_volume(self) -> bool:
        """Whether no layer can shrink volumes: det (d y_{l+1} / d y_l) >= 1, for all weights.

        Stages that read and write disjoint parts have determinant 1. A forward Euler step has the
        Jacobian I + h J P with P = K' D K >= 0, and

            det(I + h J P) = det(I + h P^(1/2) J P^(1/2)) = product of (1 + h^2 w^2) >= 1

        as the matrix on the right is skew, with eigenvalues +-i w. Where J K' = I (MS1 and MS2), it
        is I + h D K with K skew, and D takes the place of P.
        """
        if self.conservative is None or self.D is None:
            return False
        program = self.net.program
        if program.invertible and not program.has_flows:
            return True
        return isinstance(self.net.scheme, ForwardEuler) and bool((self.D >= 0).all())

    # --- states and Jacobians ---------------------------------------------------------------------

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
    def M_norm(self) -> Tensor:
        """``(layers + 1, samples)``: spectral norms of M."""
        return spectral_norm(self.M)

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``(layers, samples, n)`` of A / ||A||, A = df/dy, and the norms of A."""
        return unit_eigenvalues(velocity_jacobians(self.net, self.y))

    # --- Lemma 3 ----------------------------------------------------------------------------------

    @cached_property
    def D(self) -> Tensor | None:
        """sigma'(K y_j + b) of every layer, ``(layers, samples, m)``; None without such units."""
        if self.standard is None:
            return None
        weights, sigma = self.standard.weights, self.standard.activation.function
        z = self.states[:-1] @ weights.K.mT + weights.b.unsqueeze(-2)
        # Plain autograd: torch.func.grad would import the compiler of torch, which takes seconds.
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (derivative,) = torch.autograd.grad(sigma(z).sum(), z)
        return derivative

    def hessian_eigenvalues(self, field: Field) -> Tensor:
        """Ascending eigenvalues of the Hessian P of H, ``(layers, samples, n)``: P = K' D K."""
        if self.standard is not None and self.D is not None:
            K = self.standard.weights.K.unsqueeze(1)
            P = K.mT @ (self.D.unsqueeze(-1) * K)
        else:  # a custom energy
            t, axis = times(self.net.h, self.layers), field.layout.axis
            P = torch.stack(
                [
                    batch_jacobian(partial(field.gradient, layer=j, t=t[j]), x, axis)[1]
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
        if self.conservative is None or not self.stepped:
            return None
        values = self.D if self.inverse else self.hessian_eigenvalues(self.conservative)
        assert values is not None  # MS1 and MS2 have units
        smallest, largest = values.amin(-1), values.amax(-1)
        bound = (largest / smallest.clamp_min(1e-300)).sqrt()
        return torch.where(smallest > 0, bound, torch.inf)

    # --- the ODE ----------------------------------------------------------------------------------

    def sensitivities_with(self, program: Program) -> Tensor:
        """``(layers + 1, few samples, n, n)`` by another program over the same parameters."""
        pixels = self.y[0].numel() // self.n
        count = min(len(self.y), max(1, FLOW_SAMPLES // pixels))
        few = self.y[torch.linspace(0, len(self.y) - 1, count).long()]
        factors = factors_of(self.net, few, program).flip(0)
        identity = torch.eye(self.n).to(factors).expand_as(factors[0])
        return torch.stack([*accumulate(factors, torch.matmul, initial=identity)]).flip(0)

    def ode_sensitivities(self) -> Tensor | None:
        """d y(T) / d y(t_l) of the ODE; None where a step turns modes too far for that.

        By RK4, with substeps that resolve the fastest mode, extrapolated from two such refinements.
        """
        phase = float(self.h.max() * self.spectrum[1].max())
        if not phase < PHASE * MOST_SUBSTEPS:
            return None
        m = int(phase / PHASE) + 1
        coarse, fine = (self.sensitivities_with(ode_program(self.net, k)) for k in (m, 2 * m))
        return fine + (fine - coarse) / 15  # order 4: 2^4 - 1


def ode_program(net: HamiltonianNetwork, substeps: int) -> Program:
    """The ODE of a network: every layer by RK4 in so many substeps, with the same weights."""
    (step,) = RK4().lower(net.field)
    assert isinstance(step, Flow)
    advance = step.advance
    shorter = Flow(lambda f, x, h, layout: advance(f, x, h / substeps, layout))
    return replace(net.program, steps=(shorter,) * substeps)
