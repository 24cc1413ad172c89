"""The depth profile of a network: norms of its Jacobians and its energy, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from hdnn.analysis.norms import Norms, extreme_singular_values, norm_of_mean, spaced_depths
from hdnn.analysis.watch import watch
from hdnn.backends import choose, fused, reference
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Values, times


@torch.no_grad()
def profile(
    net: HamiltonianNetwork,
    y: Tensor,
    depths: int | Sequence[int] | None = None,
    *,
    values: Values | None = None,
) -> Norms:
    """Norms of d y_N / d y_l and the energy along the depth of a network, in one sweep.

    Of networks over channels, every pixel is a sample. Norms of convolutions are estimated, by
    power iteration (see `watch`).

    Args:
        net: a network, or an ensemble of E of them over features.
        y: states ``(samples, n)``, ``(samples, n, *spatial)``, or ``(E or 1, samples, n)``.
        depths: l, increasing in 0 .. N; or how many, evenly spaced; None is all of them.
        values: other numbers for the network's parameters, as `net.values` gives them, such as
            those of another moment of its training.

    Returns:
        One entry for every depth.

    Raises:
        HdnnError: y or the depths do not fit the network.

    >>> import hdnn
    >>> net = hdnn.network("MS3", features=4, layers=64, T=1.0, dtype=torch.float64)
    >>> found = profile(net, torch.zeros(5, 4, dtype=torch.float64), depths=3)
    >>> found.layers, bool((found.minimum > 1 - 1e-12).all())
    ((0, 32, 64), True)
    """
    net.check_state(y)
    y = y.detach()
    chosen = _depths(net.layers, depths)
    if net.kernel > 1:
        return _estimated(net, y, chosen)
    values = net.values() if values is None else values
    M, states = _jacobians(net, y, chosen, values)
    energy = _energy(net, states, chosen, values)
    return Norms.of_samples(chosen, *extreme_singular_values(M), norm_of_mean(M), energy=energy)


def _depths(layers: int, depths: int | Sequence[int] | None) -> list[int]:
    if depths is None or isinstance(depths, int):
        return spaced_depths(layers, layers + 1 if depths is None else depths)
    wanted = list(depths)
    increasing = all(a < b for a, b in pairwise(wanted))
    if not wanted or not increasing or wanted[0] < 0 or wanted[-1] > layers:
        raise HdnnError(f"depths increase from 0 to at most {layers}, got {depths!r:.100}")
    return wanted


def _jacobians(
    net: HamiltonianNetwork, y: Tensor, depths: list[int], values: Values
) -> tuple[Tensor, Tensor]:
    """d y_N / d y_l and y_l: ``([E,] D, samples, n, n)`` and ``([E,] D, samples, n)``."""
    x, _ = net.field.layout.flatten(y)
    compiled = choose(net.program, values, y, net.backend).backend == "fused"
    if compiled and not net.field.layout.channels:
        M, states = fused.jacobians(net.program, values, x, depths)
    else:
        M = reference.sensitivities(net.program, values, x)[depths]
        states = reference.trajectory(net.program, values, x)[depths]
    return (M, states) if net.ensemble is None else (M.movedim(1, 0), states.movedim(1, 0))


def _energy(
    net: HamiltonianNetwork, states: Tensor, depths: list[int], values: Values
) -> Tensor | None:
    """Mean over the samples of H of layer l at y_l ``([E,] D, ...)``; None where there is no H."""
    field, layers = net.field, [min(l, net.layers - 1) for l in depths]
    if not isinstance(field, HamiltonianField | EnergyField) or not net.layers:
        return None
    if isinstance(field, EnergyField) or field.layout.channels:
        t = times(net.h, net.layers)
        H = [field.energy(x, j, t[j]).mean() for j, x in zip(layers, states, strict=True)]
        return torch.stack(H).double().cpu()
    # All depths at once, with the given parameters: H = 1' E(K_l y_l + b_l).
    assert values.theta is not None
    assert values.beta is not None
    shared = values.theta.shape[-2] == 1
    index = torch.tensor([0] * len(layers) if shared else layers, device=values.theta.device)
    K = field.weights.map.assemble(values.theta.index_select(-2, index))
    b = field.weights.bias.assemble(values.beta.index_select(-2, index))
    u = states @ K.mT + b.unsqueeze(-2)
    return field.activation.energy(u).sum(-1).double().mean(-1).cpu()


# --- convolutions ---------------------------------------------------------------------------------


class _Layers(nn.Module):
    """Some layers of a network as a module of their own."""

    def __init__(self, advance: Callable[[int, Tensor], Tensor], first: int, last: int) -> None:
        super().__init__()
        self.advance, self.range = advance, range(first, last)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.range:
            x = self.advance(layer, x)
        return x


def _estimated(net: HamiltonianNetwork, y: Tensor, depths: list[int]) -> Norms:
    """By power iteration between the depths: a Jacobian that couples all pixels is too large."""
    advance = reference.layer_map(net.program, net.values(), y.ndim)
    parts = [_Layers(advance, first, last) for first, last in pairwise(depths)]
    energy = _energy(net, net.trajectory(y)[depths], depths, net.values())
    with torch.enable_grad():
        found = watch(nn.Sequential(*parts), iterations=12, tolerance=0.02)(y)
    return replace(found, layers=tuple(depths), energy=energy)
