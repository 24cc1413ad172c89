"""The profile of a network along its depth: sensitivities, states' energy, per sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis.sensitivity import sensitivities
from hdnn.backends import choose
from hdnn.backends.compiled_program import CompiledProgram, compile_program
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.weights import Stack
from hdnn.kernels.stage_table import Parameters
from hdnn.networks import HamiltonianNetwork

WIDEST = 32
"""Up to which width the compiled kernel finds singular values faster than `extremes` does."""


@dataclass(frozen=True)
class Profile:
    """What a batch meets along the depth of a network, at depths l = 0 (input) to N (output).

    Args:
        depths: the l that were asked for, ``(D,)``.
        largest, smallest: singular values of d y_N / d y_l by sample, ``([E,] D, samples)``;
            ``largest`` is the spectral norm.
        of_mean: norm of the *mean over the batch* of d y_N / d y_l, ``([E,] D)``: another number,
            which cancellation between samples makes smaller.
        energy: H of layer l at y_l by sample (at l = N with the weights of the last layer),
            ``([E,] D, samples)``; None for a network without an energy.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> profile = hdnn.analysis.profile(net, torch.randn(8, 4), depths=[0, 3, 6])
    >>> profile.largest.shape, profile.of_mean.shape
    ((3, 8), (3,))
    """

    depths: np.ndarray
    largest: np.ndarray
    smallest: np.ndarray
    of_mean: np.ndarray
    energy: np.ndarray | None


def spread(layers: int, most: int) -> list[int]:
    """At most so many depths from 0 to ``layers``, evenly spaced, with both ends.

    >>> spread(64, 5), spread(3, 17)
    ([0, 16, 32, 48, 64], [0, 1, 2, 3])
    """
    count = min(layers + 1, max(2, most))
    return [round(k * layers / (count - 1)) for k in range(count)] if count > 1 else [0]


def profile(
    net: HamiltonianNetwork, y: Tensor, depths: Sequence[int] | None = None, energy: bool = True
) -> Profile:
    """Norms, smallest singular values and energy along the depth of a network, in one sweep.

    Args:
        net: a network over features, or an ensemble of E of them.
        y: ``(samples, n)``; for an ensemble ``(E or 1, samples, n)``.
        depths: increasing, in 0 .. N; None is all of them.
        energy: whether to compute it.

    Returns:
        Arrays ``([E,] D, samples)`` over D depths.

    Raises:
        HdnnError: a network over channels, or depths that do not increase within 0 .. N.

    >>> import hdnn
    >>> net = hdnn.network("MS3", features=4, layers=64, T=1.0, dtype=torch.float64)
    >>> bool((profile(net, torch.zeros(5, 4, dtype=torch.float64)).largest > 1 - 1e-12).all())
    True
    """
    layout = net.field.layout
    if layout.channels:
        raise HdnnError("profile takes networks over features; for images use hdnn.analysis.watch")
    net.check_state(y)
    wanted = _depths(net.layers, depths)
    single = layout.ensemble is None
    x = y.detach().reshape(-1, layout.width)[None] if single else y.detach()
    arrays = (_fused if _is_compiled(net, y) else _reference)(net, x, wanted)
    largest, smallest, of_mean, states = (a[0] if single else a for a in arrays)
    field = net.field
    H = _energy(field, states, wanted) if energy and isinstance(field, HamiltonianField) else None
    return Profile(wanted, largest, smallest, of_mean, H)


def _is_compiled(net: HamiltonianNetwork, y: Tensor) -> bool:
    """Whether the compiled kernel serves; up to `WIDEST` that does not depend on the batch."""
    narrow = net.field.layout.width <= WIDEST
    return narrow and choose(net.program(), y, net.backend).backend == "fused"


def _depths(layers: int, depths: Sequence[int] | None) -> np.ndarray:
    wanted = np.arange(layers + 1) if depths is None else np.array(depths, np.int64)
    good = wanted.ndim == 1 and len(wanted) > 0 and bool((np.diff(wanted) > 0).all())
    if not good or wanted[0] < 0 or wanted[-1] > layers:
        raise HdnnError(f"depths increase from 0 to at most {layers}, got {depths!r}")
    return wanted


Found = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@contextmanager
def other_weights(net: HamiltonianNetwork) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """A function that puts values of theta and beta into a network; in the end it has its own."""
    field = net.field
    assert isinstance(field, WeightedField)
    places = field.weights.theta, field.weights.beta
    own = [place.detach().clone() for place in places]

    @torch.no_grad()
    def put(*values: np.ndarray | Tensor) -> None:
        for place, value in zip(places, values, strict=True):
            place.copy_(torch.as_tensor(value))

    try:
        yield put
    finally:
        put(*own)


class Snapshots:
    """Profiles of one network at several moments of its training.

    Taking a snapshot copies the weights and a few samples; `profiles` does the work for all of them
    in one call, as if they were an ensemble. Where the kernels cannot serve, it is done at once.

    Args:
        net: a single network over features, whose weights change between the snapshots.
        depths: as in `profile`.
    """

    def __init__(self, net: HamiltonianNetwork, depths: Sequence[int] | None = None) -> None:
        if net.ensemble is not None or net.field.layout.channels:
            raise HdnnError("snapshots are taken of a single network over features")
        self.net, self.depths = net, _depths(net.layers, depths)
        self._weights: list[tuple[np.ndarray, ...]] = []
        self._states: list[np.ndarray] = []
        self._done: list[Profile] = []
        self._live: tuple[np.ndarray, ...] | None = None

    def take(self, y: np.ndarray) -> None:
        """Keep what the profile of states ``(samples, n)`` needs; the states are not copied."""
        arrays = self._weights_now(y) if self._live is None else self._live
        if arrays is None:
            self._done.append(profile(self.net, torch.from_numpy(y), self.depths.tolist()))
            return
        self._weights.append(tuple(array.copy() for array in arrays))
        self._states.append(y)

    def keep(self, states: list[np.ndarray], theta: np.ndarray, beta: np.ndarray) -> None:
        """As `take`, several times, of given values of the parameters, which are not copied."""
        arrays = self._weights_now(states[0]) if self._live is None else self._live
        if arrays is None:
            with other_weights(self.net) as put:
                for y, *values in zip(states, theta, beta, strict=True):
                    put(*values)
                    self.take(y)
            return
        self._weights += [(*pair, *arrays[2:]) for pair in zip(theta, beta, strict=True)]
        self._states += states

    def _weights_now(self, y: np.ndarray) -> tuple[np.ndarray, ...] | None:
        """The arrays of the weights, or None where the kernels cannot serve.

        Where they are the parameters themselves, trained in place, they are good for later too.
        """
        program, states = self.net.program(), torch.from_numpy(y)
        if not _is_compiled(self.net, states):
            return None
        compiled = compile_program(program, states.dtype, states.device)
        theta, beta, steps, dense, _ = compiled.parameters()
        arrays = theta[0], beta[0], steps, dense[0]
        if compiled.moving == 2 and program.memo.get("compiled") is compiled:
            self._live = arrays
        return arrays

    def profiles(self) -> list[Profile]:
        """Those of all snapshots since the last call, as ensembles: ``(snapshots, D, ...)``.

        Snapshots of as many samples that follow each other are together.
        """
        done, self._live = [_alone(profile) for profile in self._done], None
        weights, states, self._done, self._weights, self._states = (
            self._weights,
            self._states,
            [],
            [],
            [],
        )
        for _, group in itertools.groupby(range(len(states)), key=lambda k: states[k].shape):
            indices = list(group)
            done.append(self._together([weights[k] for k in indices], [states[k] for k in indices]))
        return done

    def _together(self, weights: list[tuple[np.ndarray, ...]], states: list[np.ndarray]) -> Profile:
        columns = list(zip(*weights, strict=True))
        theta, beta, dense = (np.stack(columns[k]) for k in (0, 1, 3))
        X = np.stack(states)
        dtype = torch.from_numpy(X).dtype
        compiled = compile_program(self.net.program(), dtype, torch.device("cpu"))
        mixing, steps = compiled.parameters().mixing, np.concatenate(columns[2], 1)
        parameters = Parameters(theta, beta, steps, dense, mixing)
        largest, smallest, of_mean, reached = _kernel(compiled, parameters, X, self.depths)
        field, H = self.net.field, None
        if isinstance(field, HamiltonianField):
            H = _energy(field, reached, self.depths, theta, beta)
        return Profile(self.depths, largest, smallest, of_mean, H)


def _alone(profile: Profile) -> Profile:
    """A profile as an ensemble of one."""
    energy = None if profile.energy is None else profile.energy[None]
    return Profile(
        profile.depths, profile.largest[None], profile.smallest[None], profile.of_mean[None], energy
    )


def _fused(net: HamiltonianNetwork, x: Tensor, depths: np.ndarray) -> Found:
    compiled = compile_program(net.program(), x.dtype, x.device)
    return _kernel(compiled, compiled.parameters(), np.ascontiguousarray(x.numpy()), depths)


def _kernel(
    compiled: CompiledProgram, parameters: Parameters, X: np.ndarray, depths: np.ndarray
) -> Found:
    from hdnn.backends import fused  # loads numba

    extremes, states = fused.profile(compiled, parameters, X, depths)
    return *extremes, states


def _reference(net: HamiltonianNetwork, x: Tensor, depths: np.ndarray) -> Found:
    from hdnn.kernels.svd import extremes  # loads numba

    y = x[0] if net.ensemble is None else x.expand(net.ensemble, *x.shape[1:])
    with torch.no_grad():
        states = net.trajectory(y)[depths]
        M = sensitivities(net, y)[depths]
    if net.ensemble is None:
        states, M = states[:, None], M[:, None]
    states, M = (t.movedim(1, 0).cpu() for t in (states, M))
    largest, smallest = extremes(M.numpy())
    of_mean, _ = extremes(M.double().mean(2).numpy())
    return largest, smallest, of_mean, states.numpy()


@torch.no_grad()
def _energy(
    field: HamiltonianField,
    states: np.ndarray,
    depths: np.ndarray,
    theta: np.ndarray | None = None,
    beta: np.ndarray | None = None,
) -> np.ndarray:
    """H = 1' E(K_l y_l + b_l), with other values of the parameters where they are given."""
    layers = torch.from_numpy(np.minimum(depths, field.weights.layers - 1))
    stacks = [field.weights.stack(), field.weights.bias_stack()]
    if theta is not None and beta is not None:
        stacks = [
            Stack(torch.from_numpy(values), stack.pattern, stack.layers, stack.gather)
            for stack, values in zip(stacks, (theta, beta), strict=True)
        ]
    axis = stacks[0].theta.ndim - 2
    K, b = (stack.tensor().cpu().index_select(axis, layers) for stack in stacks)
    u = torch.from_numpy(states) @ K.mT + b.unsqueeze(-2)
    H: np.ndarray = field.activation.energy(u).sum(-1).numpy()
    return H
