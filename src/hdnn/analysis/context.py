"""What checks look at: a network in float64, states, and all that is derived from them, once."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import cast

import torch
from torch import Tensor

from hdnn.analysis.jacobians import (
    factors_of,
    jacobian_at,
    jacobians_at,
    products,
    sample_size,
    too_large,
    velocity_jacobians_at,
)
from hdnn.analysis.norms import Norms, spectral_norm, unit_eigenvalues
from hdnn.analysis.profile import profile
from hdnn.analysis.watch import linear_maps
from hdnn.backends import reference
from hdnn.fields import ActivationField, canonical
from hdnn.fields.field import of_layer
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.maps import matrix_product
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Flow, Program, signed, times
from hdnn.schemes import RK4, ForwardEuler

IMAGES, LARGE_IMAGES, WORK = 16, 4, 10**9
"""Images at most whose pixels are coupled; multiplications in products of all their Jacobians."""
FLOW_SAMPLES, FLOW_ENTRIES = 16, 2**14
"""Samples, and entries of their Jacobians, that the ODE is integrated for; the other checks look
at all."""
PHASE = 0.4
"""Radians that the fastest mode of the ODE may turn in a substep of its integration."""
MOST_SUBSTEPS = 64
"""Substeps of a layer at most; beyond, a step says nothing about the ODE."""
DEPTHS = 9
"""Depths at which norms are estimated where Jacobians are too large."""


class Context:
    """A copy of a network in float64, and lazily its states, Jacobians and spectra.

    A *sample* has n numbers: those of a state, or of a pixel; where a convolution couples all
    pixels, those of an image. Of matrices ``(n, n)`` nothing may be asked where `large`.

    Args:
        net: one network, not an ensemble, with at least one layer.
        y: states ``(..., n)`` or ``(B, n, *spatial)``; of coupled images, some are examined.

    Attributes:
        large: whether Jacobians are too large to be written out.
        R: the dissipation, or None.
        standard: the field, if H = 1' E(K y + b): not a baseline, not a custom energy.
        implied: whether J is the inverse of K' (MS1, MS2); state_dependent: whether it is J(y, t).
        stepped: whether the network discretizes an ODE.
        h: ``(layers,)``, the steps.
        own_states_finite: ``(layers + 1, ...)``, which numbers are finite in the dtype of the
            network.
    """

    def __init__(self, net: HamiltonianNetwork, y: Tensor) -> None:
        self.dtype, self.layers = y.dtype, net.layers
        # In float32 rounding hides what the theory says of the weights.
        self.net = copy.deepcopy(net).to(torch.float64).requires_grad_(False)
        self.field = field = self.net.field
        self.large, self.n = too_large(net, y), sample_size(net, y)
        y, _ = field.layout.flatten(y.detach())
        if field.couples_pixels:
            fits = min(IMAGES, WORK // (net.layers * self.n**3))
            y = evenly_spaced(y, LARGE_IMAGES if self.large else fits)
        # float64 may hold what overflows in the network's own dtype.
        with torch.no_grad():
            self.own_states_finite = torch.isfinite(net.trajectory(y))
        self.y = y.to(torch.float64)
        self.R, self.stepped = field.R, net.scheme.uses_step
        known = field.hamiltonian and isinstance(field, WeightedField)
        self.standard = cast(WeightedField, field) if known else None
        self.implied = field.hamiltonian and isinstance(field, ActivationField)
        matrix = self.implied or field.interconnection is not None
        self.state_dependent = field.hamiltonian and not matrix
        self.h = torch.as_tensor(self.net.h, dtype=torch.float64).expand(self.layers)

    # --- what the network promises ----------------------------------------------------------------

    @property
    def obstacle(self) -> str:
        """Why df/dy is not the product of a skew J and a symmetric matrix; empty where it is."""
        if not self.field.hamiltonian:
            return "a baseline has neither J nor an energy"
        if self.state_dependent:
            return "df/dy has a term with the derivative of J(y, t)"
        return "" if self.R is None else "there is dissipation"

    @property
    def no_lemma_3(self) -> str:
        """Why Lemma 3 says nothing, whatever the states; empty where it may apply."""
        if self.obstacle or self.standard is None or self.standard.signs is None:
            return self.obstacle
        return "with signs of the hidden units H need not be convex, and Lemma 3 needs that"

    @property
    def preserves(self) -> str | None:
        """Where M J M' = J is promised: in the "network", within every "layer", or nowhere."""
        if self.obstacle or not self.net.scheme.structure_preserving:
            return None
        return "network" if self.net.structure_preserving else "layer"

    @property
    def keeps_volume(self) -> bool:
        """Whether no layer can shrink volumes: det (d y_{l+1} / d y_l) >= 1, for all weights.

        Stages that read and write disjoint parts have determinant 1, and so has an implicit
        midpoint: I + A and I - A have the same, for A = J P with P symmetric. A forward Euler step
        has the Jacobian I + h J P with P = K' D K >= 0, and

            det(I + h J P) = det(I + h P^(1/2) J P^(1/2)) = product of (1 + h^2 w^2) >= 1

        as the matrix on the right is skew, with eigenvalues +-i w. Where J K' = I (MS1 and MS2), it
        is I + h D K with K skew, and D takes the place of P.
        """
        if self.obstacle:
            return False
        if self.net.scheme.structure_preserving:
            return True
        return isinstance(self.net.scheme, ForwardEuler) and self.convex

    @property
    def convex(self) -> bool:
        """Whether the Hessian of H is K' D K with D >= 0."""
        return self.D is not None and bool((self.D >= 0).all())

    # --- states and Jacobians ---------------------------------------------------------------------

    @cached_property
    def path(self) -> Tensor:
        """``(layers + 1, B, width, *spatial)``: the states y_0 to y_N."""
        with torch.no_grad():
            return self.net.trajectory(self.y)

    def samples_of(self, path: Tensor) -> Tensor:
        """``(layers, samples, n)`` of ``(layers, B, width, *spatial)``; of hidden units as well."""
        return path.flatten(2) if self.field.couples_pixels else path.movedim(2, -1).flatten(1, -2)

    @property
    def samples(self) -> int:
        """How many are examined."""
        return self.y.numel() // self.n

    @cached_property
    def M(self) -> Tensor:
        """``(layers + 1, samples, n, n)``: d y_N / d y_l."""
        return jacobians_at(self.net, self.y, range(self.layers + 1))[0]

    @cached_property
    def M_norm(self) -> Tensor:
        """``(layers + 1, samples)``: spectral norms of M."""
        return spectral_norm(self.M)

    @cached_property
    def factors(self) -> Tensor:
        """``(layers, samples, n, n)``: d y_{l+1} / d y_l."""
        return factors_of(self.net, self.y)

    @cached_property
    def profile(self) -> Norms:
        """Norms of M at some depths, estimated from below."""
        return profile(self.net, self.y, DEPTHS)

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``(layers, samples, n)`` of A / ||A||, A = df/dy, and the norms of A."""
        return unit_eigenvalues(velocity_jacobians_at(self.net, self.path[:-1].unbind()))

    @cached_property
    def gradients_and_velocities(self) -> tuple[Tensor, Tensor]:
        """dH/dy and y' at the state of every layer, ``(layers, samples, n)`` each."""
        t, functions = times(self.net.h, self.layers), (self.field.gradient, self.field.velocity)
        with torch.no_grad():
            gradients, velocities = (
                torch.stack([f(x, j, t[j]) for j, x in enumerate(self.path[:-1])])
                for f in functions
            )
        return self.samples_of(gradients), self.samples_of(velocities)

    # --- J and K ----------------------------------------------------------------------------------

    @cached_property
    def J(self) -> Tensor:
        """``(width, width)``; for J(t) and J(y, t) ``(layers, [samples,] width, width)``.

        Where it is the inverse of K', K instead: M J M' = J says the same as M' K M = K.
        """
        if self.implied:
            if not self.field.couples_pixels:
                return self.net.K
            basis = torch.eye(self.n).to(self.y)
            return torch.stack([self.interconnect(j, basis).mT for j in range(self.layers)])
        if not self.state_dependent:
            return self.field.J
        t, states = times(self.net.h, self.layers), self.path[:-1].movedim(2, -1).flatten(1, -2)
        return torch.stack([self.field.J_at(x, j, t[j]) for j, x in enumerate(states)])

    @property
    def J_size(self) -> Tensor:
        """The Frobenius norm of `J`, a number or ``(layers, 1)``; of a convolution, of its kernels.

        It is at least the norm that bounds rounding.
        """
        norms = (self.net.K.flatten(1) if self.implied else self.J.flatten(-2)).norm(dim=-1)
        return norms.reshape(self.layers, -1).amax(1, keepdim=True) if norms.ndim else norms

    def interconnect(self, layer: int, rows: Tensor) -> Tensor:
        """J v (or K v) of a layer for rows v ``(B, n)`` of images."""
        x = rows.unflatten(1, self.y.shape[1:])
        if not isinstance(self.field, ActivationField):
            return matrix_product(of_layer(self.J, layer, self.field.layout), x).flatten(1)
        weights = self.field.weights
        x = weights.map.multiply(weights.assembled[layer], x)
        # The K of the general form is P K.
        x = matrix_product(canonical(x.shape[1]).to(x), x) if self.field.turn else x
        return x.flatten(1)

    def directions(self, span: range) -> tuple[Tensor, ...]:
        """M' u (or M u) of some layers for random u, J of that, u, and J u: ``(B, 4, n)`` each."""
        advance = reference.layer_map(self.net.program, self.net.values(), self.y.ndim)
        y = self.path[span[0]]
        x = y.flatten(1).requires_grad_()
        with torch.enable_grad():
            out = reduce(lambda v, j: advance(j, v), span, x.unflatten(1, y.shape[1:])).flatten(1)
        product = linear_maps(out, x)[self.implied]
        generator = torch.Generator().manual_seed(0)
        us = torch.randn(4, *x.shape, generator=generator, dtype=x.dtype)
        A, B = ([f(u) for u in us] for f in (product, torch.clone))
        J_A, J_B = ([self.interconnect(span[0], v) for v in rows] for rows in (A, B))
        return tuple(torch.stack(rows, 1) for rows in (A, J_A, B, J_B))

    def of_sample(self, J: Tensor) -> Tensor:
        """A matrix of channels ``(..., width, width)`` as it acts on a sample, ``(..., n, n)``."""
        pixels = self.n // J.shape[-1]
        return torch.kron(J, torch.eye(pixels).to(J)) if pixels > 1 else J

    @cached_property
    def K(self) -> Tensor:
        """``(layers, m, n)``, with H = 1' E(K y + b)."""
        assert self.standard is not None
        weights = self.standard.weights
        if not self.field.couples_pixels:
            return weights.K
        basis = torch.eye(self.n).to(self.y).unflatten(1, self.y.shape[1:])
        maps = [weights.map.multiply(K, basis).flatten(1).mT for K in weights.assembled]
        return torch.stack(maps)

    # --- Lemma 3 ----------------------------------------------------------------------------------

    def units(self, layers: Iterable[int]) -> Tensor:
        """K_j y_l + b_j of given layers j at the states y_0, y_1, ..., ``(layers, samples, m)``."""
        assert self.standard is not None
        units = self.standard.units_fn()
        z = [units(j, x) for j, x in zip(layers, self.path, strict=False)]
        return self.samples_of(torch.stack(z))

    @cached_property
    def D(self) -> Tensor | None:
        """s sigma'(K y_j + b) of every layer, ``(layers, samples, m)``; None without such units."""
        if self.standard is None:
            return None
        # Plain autograd: torch.func.grad would import the compiler of torch, which takes seconds.
        with torch.enable_grad():
            z = self.units(range(self.layers)).detach().requires_grad_()
            sigma = self.standard.activation.function
            (derivative,) = torch.autograd.grad(sigma(z).sum(), z)
        return signed(self.standard.signs, derivative, 2)

    @cached_property
    def hessian_eigenvalues(self) -> Tensor:
        """Ascending eigenvalues of the Hessian P of H, ``(layers, samples, n)``: P = K' D K."""
        if self.D is not None:
            K = self.K.unsqueeze(1)
            P = K.mT @ (self.D.unsqueeze(-1) * K)
        else:  # a custom energy
            t, gradient = times(self.net.h, self.layers), self.field.gradient
            P = torch.stack(
                [
                    jacobian_at(partial(gradient, layer=j, t=t[j]), x, self.field)[1]
                    for j, x in enumerate(self.path[:-1])
                ]
            )
        return torch.linalg.eigvalsh(P)

    @cached_property
    def kappa(self) -> Tensor:
        """A bound on the condition number of eigenvectors of df/dy, ``(layers, samples)``.

        df/dy = J P with J skew and P > 0 is similar to P^(1/2) J P^(1/2), which is skew and has
        orthonormal eigenvectors; those of df/dy are P^(-1/2) times them, so that

            kappa <= sqrt(cond(P))

        Where J K' = I (MS1 and MS2), df/dy = D K with K skew, and D takes the place of P. Infinite
        where P is not positive. There is none where there is an `obstacle`.
        """
        values = self.D if self.implied and self.D is not None else self.hessian_eigenvalues
        smallest, largest = values.amin(-1), values.amax(-1)
        bound = (largest / smallest.clamp_min(1e-300)).sqrt()
        return torch.where(smallest > 0, bound, torch.inf)

    # --- the ODE ----------------------------------------------------------------------------------

    def sensitivities_with(self, program: Program) -> Tensor:
        """``(layers + 1, few samples, n, n)`` by another program over the same parameters."""
        count = min(FLOW_SAMPLES, FLOW_ENTRIES // (self.y[0].numel() * self.n))
        few = evenly_spaced(self.y, count)
        return products(factors_of(self.net, few, program))

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


def evenly_spaced(y: Tensor, count: int) -> Tensor:
    """So many of the samples, at least one."""
    return y[torch.linspace(0, len(y) - 1, min(len(y), max(1, count))).long()]


def ode_program(net: HamiltonianNetwork, substeps: int) -> Program:
    """The ODE of a network: every layer by RK4 in so many substeps, with the same weights."""
    (step,) = RK4().lower(net.field)
    assert isinstance(step, Flow)
    advance = step.advance
    shorter = Flow(lambda f, x, h, layout: advance(f, x, h / substeps, layout))
    return replace(net.program, steps=(shorter,) * substeps)
