"""What a certificate looks at: a network in float64 and all that is derived from it, once."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor

from hdnn.analysis.continuous import Solution, solve
from hdnn.analysis.gradient_norms import singular_values
from hdnn.analysis.sensitivity import check_no_convolution, layer_factors, sensitivities
from hdnn.analysis.spectra import Spectrum, spectrum, velocity_jacobians
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField, InverseTranspose, StateDependent
from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork

FLOW_SAMPLES = 16
"""How many samples the ODE is integrated for; the other checks look at all."""


class Context:
    """A copy of a network in float64, and lazily its states, Jacobians and spectra.

    Args:
        net: one network, not an ensemble, with at least one layer.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.
    """

    def __init__(self, net: HamiltonianNetwork, y: Tensor) -> None:
        net.check_state(y)
        check_no_convolution(net)
        if net.ensemble is not None:
            raise HdnnError("an ensemble holds several networks; examine them one by one")
        if not net.layers or not y.numel():
            raise HdnnError("there is nothing to examine: no layers or no samples")
        self.dtype = y.dtype
        # In float32 rounding hides what the theory says of the weights.
        self.net = copy.deepcopy(net).to(torch.float64).requires_grad_(False)
        layout = net.field.layout
        self.y = y.detach().to(torch.float64)
        if not layout.channels:
            self.y = self.y.reshape(-1, layout.width)
        self.field = self.net.field
        if self.hamiltonian is not None and isinstance(
            self.hamiltonian.interconnection, StateDependent
        ):
            self.hamiltonian.interconnection.checked = True  # what J is, a certificate reports
        self.n, self.layers = layout.width, net.layers

    # --- what kind of network ---------------------------------------------------------------------

    @property
    def hamiltonian(self) -> HamiltonianField | EnergyField | None:
        """The field, unless it is a baseline."""
        return self.field if isinstance(self.field, HamiltonianField | EnergyField) else None

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

    @cached_property
    def h(self) -> Tensor:
        """``(layers,)``."""
        return torch.as_tensor(self.net.h, dtype=torch.float64).expand(self.layers)

    # --- what is derived --------------------------------------------------------------------------

    def rows(self, states: Tensor) -> Tensor:
        """States ``(k, ...)`` in the layout of the network as ``(k, samples, n)``."""
        axis = 2 if self.field.layout.channels else -1
        return states.movedim(axis, -1).reshape(len(states), -1, self.n)

    @cached_property
    def states(self) -> Tensor:
        """``(layers + 1, samples, n)``."""
        with torch.no_grad():
            return self.rows(self.net.trajectory(self.y))

    @cached_property
    def finite(self) -> bool:
        """Whether all states are numbers."""
        return bool(torch.isfinite(self.states).all())

    @cached_property
    def M(self) -> Tensor:
        """``(layers + 1, samples, n, n)``: d y_N / d y_l."""
        return sensitivities(self.net, self.y).reshape(self.layers + 1, -1, self.n, self.n)

    @cached_property
    def factors(self) -> Tensor:
        """``(layers, samples, n, n)``: d y_{l+1} / d y_l."""
        return layer_factors(self.net, self.y).reshape(self.layers, -1, self.n, self.n)

    @cached_property
    def singular(self) -> Tensor:
        """``(layers + 1, samples, n)``: singular values of M."""
        return singular_values(self.M)

    @cached_property
    def spectrum(self) -> Spectrum:
        """Of the velocity Jacobians, ``(layers, samples)``."""
        return spectrum(velocity_jacobians(self.net, self.y))

    @cached_property
    def few(self) -> Tensor:
        """Some states, evenly chosen, in the layout of the network."""
        pixels = self.y[0].numel() // self.n
        count = min(len(self.y), max(1, FLOW_SAMPLES // pixels))
        return self.y[torch.linspace(0, len(self.y) - 1, count).long()]

    @cached_property
    def solution(self) -> Solution:
        """The underlying ODE from `few`; an error where the step is too large to follow it."""
        return solve(self.net, self.few)
