"""Controllers in a loop: how much gain a sampled plant bears, and the loop itself.

A plant that is sampled with a zero-order hold lacks passivity by nu = -min_w lambda_min(Re G(w)).
A controller that is output-strictly passive by 1 / gain > nu keeps the loop u = -y stable, whatever
its weights: so the gain may be up to 1 / nu.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from hdnn.errors import HdnnError, finite_number, is_count
from hdnn.statespace import StateSpace, linear_system

Numbers = Tensor | npt.ArrayLike


class LinearPlant(NamedTuple):
    """A linear plant in discrete time: z+ = A z + B u, y = C z + D u.

    Args:
        A: ``(n, n)``.
        B: ``(n, inputs)``.
        C: ``(outputs, n)``.
        D: ``(outputs, inputs)``.

    >>> mass = sampled([[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]], step=0.05)
    >>> mass.A.shape, mass.B.shape
    (torch.Size([2, 2]), torch.Size([2, 1]))
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor

    def measure(self, z: Tensor) -> Tensor:
        """What a controller sees: C z.

        Args:
            z: states ``(..., n)``.

        Returns:
            ``(..., outputs)``.
        """
        return z @ self.C.mT

    def advance(self, z: Tensor, u: Tensor) -> Tensor:
        """The next state.

        Args:
            z: states ``(..., n)``.
            u: inputs ``(..., inputs)``.

        Returns:
            ``(..., n)``.
        """
        return z @ self.A.mT + u @ self.B.mT


class Plant(Protocol):
    """Anything that is measured and advanced, a simulator of one's own among it."""

    def measure(self, z: Tensor) -> Tensor:
        """What a controller sees of the state."""

    def advance(self, z: Tensor, u: Tensor) -> Tensor:
        """The state after one sampling time with the input u held."""


class Controller(Protocol):
    """Anything that begins somewhere and takes steps: `Cell`, or a controller of one's own."""

    def initial(self, batch: int) -> Tensor:
        """The first states of a batch; of width 0 without memory."""

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The next state, and the output y for the measured u."""


class GainLimit(NamedTuple):
    """The largest gain of a controller with which every loop is stable.

    Args:
        gain: 1 / shortage; infinite where the plant is passive.
        shortage: nu, by which the sampled plant lacks passivity.
        frequency: where it lacks most, in radians a sample.
        proved: whether the shortage holds at all frequencies, by eigenvalues, or was found on a
            grid of them.
    """

    gain: float
    shortage: float
    frequency: float
    proved: bool


def sampled(
    A: Numbers, B: Numbers, C: Numbers, D: Numbers | None = None, *, step: float
) -> LinearPlant:
    """A plant in continuous time as a computer sees it, with a zero-order hold: exactly.

    Args:
        A: ``(n, n)`` of z' = A z + B u.
        B: ``(n, inputs)``.
        C: ``(outputs, n)`` of y = C z + D u.
        D: ``(outputs, inputs)``; None is 0.
        step: the sampling time.

    Returns:
        The plant in discrete time, in float64.

    Raises:
        HdnnError: shapes do not fit.

    >>> sampled([[0.0]], [[1.0]], [[1.0]], step=0.5).B  # an integrator
    tensor([[0.5000]], dtype=torch.float64)
    """
    plant, h = LinearPlant(*linear_system(A, B, C, D)), finite_number("step", step, positive=True)
    n, inputs = plant.B.shape
    both = torch.zeros(n + inputs, n + inputs, dtype=torch.float64)
    both[:n] = torch.cat([plant.A, plant.B], 1) * h
    both = torch.linalg.matrix_exp(both)
    return plant._replace(A=both[:n, :n], B=both[:n, n:])


def gain_limit(
    A: Numbers,
    B: Numbers,
    C: Numbers,
    D: Numbers | None = None,
    *,
    step: float | None = None,
    points: int = 2048,
) -> GainLimit:
    """The largest gain of passive controllers that keeps every loop with a linear plant stable.

    It is sufficient, not necessary.

    Args:
        A: ``(n, n)`` of the plant, whose port has as many outputs as inputs.
        B: ``(n, ports)``.
        C: ``(ports, n)``.
        D: ``(ports, ports)``; None is 0.
        step: the sampling time of a plant in continuous time; None: it is in discrete time.
        points: frequencies of a grid, between which the worst one is searched.

    Returns:
        The limit, and how it is known.

    Raises:
        HdnnError: the plant is not stable, or has not as many outputs as inputs.

    >>> A, B, C = (
    ...     [[0.0, 1.0], [-1.0, -0.2]],
    ...     [[0.0], [1.0]],
    ...     [[0.0, 1.0]],
    ... )  # mass 1, spring, friction
    >>> limit = gain_limit(A, B, C, step=0.05)
    >>> round(limit.gain, 3), limit.proved  # 2 m / h
    (40.0, True)
    """
    plant = (
        LinearPlant(*linear_system(A, B, C, D)) if step is None else sampled(A, B, C, D, step=step)
    )
    radius = float(torch.linalg.eigvals(plant.A).abs().max())
    if not radius < 1:
        raise HdnnError(
            f"the gain of an unstable or integrating plant has no such limit: its sampled poles "
            f"reach {radius:.6g} in size; stabilize it first, and pass the stabilized plant"
        )
    response = _response(plant)
    found = limit_of_response(response, points=points)
    # Above the worst frequency of the grid there may be a worse one: the Hermitian part of G + nu I
    # is singular somewhere exactly if a pencil has an eigenvalue on the unit circle.
    margin = 1e-6 * max(1.0, abs(found.shortage))
    return found._replace(proved=not _touches(plant, found.shortage + margin))


def limit_of_response(response: Callable[[Tensor], Tensor], *, points: int = 2048) -> GainLimit:
    """The same of a measured frequency response, at the frequencies of a grid and around the worst.

    Args:
        response: G of frequencies ``(F,)`` from 0 to pi, in radians a sample: complex, ``(F, ports,
            ports)``.
        points: frequencies of the grid.

    Returns:
        The limit, which is not proved.

    Raises:
        HdnnError: the response is not square or not finite, or points is no count.

    >>> delay = lambda w: torch.exp(-1j * w)[:, None, None]  # y_t = u_{t - 1}
    >>> limit_of_response(delay).gain
    1.0
    """
    if not is_count(points, least=3):
        raise HdnnError(f"points must be an integer of at least 3, got {points!r:.40}")

    def worst(low: float, high: float) -> tuple[float, float]:
        w = torch.linspace(low, high, points, dtype=torch.float64)
        G = response(w)
        if G.shape != (points, *G.shape[-1:] * 2) or not bool(torch.isfinite(G).all()):
            raise HdnnError(
                f"a frequency response is finite and (F, ports, ports), got {tuple(G.shape)}"
            )
        least = torch.linalg.eigvalsh((G + G.mH) / 2)[:, 0]
        k = int(least.argmin())
        return float(least[k]), float(w[k])

    least, frequency = worst(0.0, math.pi)
    width = math.pi / (points - 1)
    for _ in range(2):
        low, high = max(0.0, frequency - width), min(math.pi, frequency + width)
        least, frequency = min((least, frequency), worst(low, high))
        width *= 2 / (points - 1)
    shortage = max(0.0, -least)
    return GainLimit(1 / shortage if shortage else math.inf, shortage, frequency, False)


def _response(plant: LinearPlant) -> Callable[[Tensor], Tensor]:
    A, B, C, D = (M.to(torch.complex128) for M in plant)
    identity = torch.eye(len(A), dtype=A.dtype)
    if len(C) != B.shape[1]:
        raise HdnnError(
            f"a port has as many outputs as inputs, and this plant has {len(C)} and {B.shape[1]}"
        )

    def response(w: Tensor) -> Tensor:
        z = torch.exp(1j * w)[:, None, None]
        return C @ torch.linalg.solve(z * identity - A, B.expand(len(w), *B.shape)) + D

    return response


def _touches(plant: LinearPlant, shortage: float) -> bool:
    """Whether G + G* + 2 nu I is singular somewhere on the unit circle.

    There (x, p, u) solves z x = A x + B u, p = z (A'p + C'u), C x + B'p + (D + D' + 2 nu I) u = 0:
    a pencil in z, whose eigenvalues a shift turns into ordinary ones.
    """
    A, B, C, D = plant
    n, ports = B.shape
    identity, R = torch.eye(n, dtype=A.dtype), D + D.mT + 2 * shortage * torch.eye(ports)
    once, times_z = torch.zeros(2, 2 * n + ports, 2 * n + ports, dtype=A.dtype)
    once[:n] = torch.cat([A, torch.zeros_like(A), B], 1)
    once[n : 2 * n, n : 2 * n] = identity
    once[2 * n :] = torch.cat([C, B.mT, R], 1)
    times_z[:n, :n] = identity
    times_z[n : 2 * n, n:] = torch.cat([A.mT, C.mT], 1)
    shift = 1.37 + 0.61j  # none of the eigenvalues, but by chance
    pencil = torch.linalg.solve(once - shift * times_z, times_z.to(torch.complex128))
    eigenvalues = torch.linalg.eigvals(pencil)  # 1 / (z - shift), 0 where z is infinite
    z = shift + 1 / eigenvalues[eigenvalues.abs() > 1e-12]
    return bool(((z.abs() - 1).abs() < 1e-8).any())


class Loop(NamedTuple):
    """A simulated loop; the time axis is the first.

    Args:
        plant: states ``(steps + 1, ..., n)``.
        controller: states ``(steps + 1, ..., states)``.
        measured: what the controller saw, ``(steps, ..., ports)``.
        applied: u = -y, ``(steps, ..., ports)``.
    """

    plant: Tensor
    controller: Tensor
    measured: Tensor
    applied: Tensor


def feedback(
    plant: Plant,
    controller: StateSpace | Controller,
    z: Tensor,
    *,
    steps: int,
    x: Tensor | None = None,
    disturbance: Tensor | None = None,
) -> Loop:
    """A plant and a controller in a loop: u = -y, differentiable.

    Args:
        plant: a `LinearPlant`, or anything with `measure` and `advance`.
        controller: a state-space network or its cell, whose inputs are what is measured; or
            anything with `initial` and `step`.
        z: the plant's first states ``([E,] batch, n)``.
        steps: how many sampling times.
        x: the controller's first states; None is 0, or what it learned.
        disturbance: what is added to u, ``(steps, [E,] batch, ports)``; None is nothing.

    Returns:
        All states and signals.

    Raises:
        HdnnError: the plant has D != 0, which makes the loop an algebraic one; or a linear plant,
            its states and the controller have several dtypes.

    >>> import hdnn
    >>> mass = sampled([[0.0, 1.0], [-1.0, -0.2]], [[0.0], [1.0]], [[0.0, 1.0]], step=0.05)
    >>> controller = hdnn.StateSpace(
    ...     inputs=1, states=4, units=8, step=0.05, passive=True, gain=30.0, dtype=torch.float64
    ... )
    >>> loop = feedback(mass, controller, torch.ones(1, 2, dtype=torch.float64), steps=400)
    >>> bool(loop.plant[-1].norm() < loop.plant[0].norm())
    True
    """
    if isinstance(plant, LinearPlant) and bool(plant.D.any()):
        raise HdnnError(
            "with D != 0 the plant's output depends on the input that it is to decide: an "
            "algebraic loop; measure the output a sample later, or take D out of the plant"
        )
    cell = controller.assemble() if isinstance(controller, StateSpace) else controller
    x = cell.initial(z.shape[-2]) if x is None else x
    if isinstance(plant, LinearPlant) and isinstance(x, Tensor):
        types = plant.A.dtype, z.dtype, x.dtype
        if len({*types}) > 1:
            raise HdnnError(
                "a loop has one dtype, and plant, first states and controller have "
                f"{', '.join(map(str, types))}: use .double() on what is not float64"
            )
    states, own = [z], [x]
    measured, applied = list[Tensor](), list[Tensor]()
    for t in range(steps):
        seen = plant.measure(z)
        x, y = cell.step(x, seen)
        u = -y if disturbance is None else disturbance[t] - y
        z = plant.advance(z, u)
        for signal, value in zip((states, own, measured, applied), (z, x, seen, u), strict=True):
            signal.append(value)
    return Loop(*(torch.stack(signal) for signal in (states, own, measured, applied)))
