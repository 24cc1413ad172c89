"""The depth profile of a network: norms of its Jacobians and its energy, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from hdnn.analysis.jacobians import jacobians_at, unless_large
from hdnn.analysis.norms import Norms, extreme_singular_values, norm_of_mean, spaced_depths
from hdnn.analysis.watch import watch
from hdnn.backends import reference
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork, without_autocast
from hdnn.program import signed, times


@without_autocast
@torch.no_grad()
def profile(net: HamiltonianNetwork, y: Tensor, depths: int | Sequence[int] | None = None) -> Norms:
    """Norms of d y_N / d y_l and the energy along the depth of a network, in one sweep.

    Of networks over channels, every pixel is a sample. Where K is a convolution, every image is
    one, and norms are estimated by power iteration (see `watch`).

    Args:
        net: a network, or an ensemble of E of them over features.
        y: states ``(samples, n)``, ``(samples, n, *spatial)``, or ``(E or 1, samples, n)``.
        depths: l, increasing in 0 .. N; or how many, evenly spaced; None is all of them.

    Returns:
        One entry for every depth.

    Raises:
        HdnnError: y or the depths do not fit the network.

    >>> import hdnn
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=64, T=1.0, dtype=torch.float64)
    >>> profile(net, torch.randn(5, 4, dtype=torch.float64), depths=3)
    reaction of the output to a change at each layer, 5 samples
    layer       mean    minimum    maximum    of mean     energy
    0          1.397      1.272      1.531      1.199      4.771
    32         1.239      1.136       1.36      1.144      5.024
    64             1          1          1          1      4.441
    """
    net.check_state(y)
    y, depths = y.detach(), _depths(net.layers, depths)
    if net.field.couples_pixels:
        with unless_large(net, y):
            return _estimated(net, y, depths)
    M, states = jacobians_at(net, y, depths)
    if net.ensemble is not None:
        M, states = M.movedim(1, 0), states.movedim(1, 0)
    with unless_large(net, y):
        energy = _energy(net, y, states, depths)
        values = extreme_singular_values(M)
        return Norms.of_samples(depths, *values, norm_of_mean(M), energy=energy)


def _depths(layers: int, depths: int | Sequence[int] | None) -> list[int]:
    if depths is None or isinstance(depths, int):
        return spaced_depths(layers, layers + 1 if depths is None else depths)
    depths = list(depths)
    if not depths or depths != sorted({*depths} & {*range(layers + 1)}):
        raise HdnnError(f"depths increase from 0 to at most {layers}, got {depths!r:.100}")
    return depths


def _energy(
    net: HamiltonianNetwork, y: Tensor, states: Tensor | None, depths: list[int]
) -> Tensor | None:
    """Mean over the samples of H of layer l at y_l, ``([E,] D)``; None where there is no H.

    Args:
        net, y: the network and y_0.
        states: ``([E,] D, samples, n)``, where K is a matrix.
        depths: l.
    """
    field, layers = net.field, [min(l, net.layers - 1) for l in depths]
    if not field.hamiltonian or not net.layers:
        return None
    if not isinstance(field, WeightedField) or states is None:
        path, t = net.trajectory(y), times(net.h, net.layers)
        H = [field.energy(path[l], j, t[j]).mean() for l, j in zip(depths, layers, strict=True)]
        return torch.stack(H).double().cpu()
    # All depths at once, as trainings are recorded: H = s' E(K_l y_l + b_l).
    K, b = field.weights.K[..., layers, :, :], field.weights.b[..., layers, :]
    E = field.activation.energy(states @ K.mT + b.unsqueeze(-2))
    mean = signed(field.signs, E, E.ndim - 1).sum(-1).double().mean(-1)
    pixels = y.shape[net.field.layout.axis + 1 :].numel() if field.layout.channels else 1
    return (mean * pixels).cpu()  # of an image, the energy of all its pixels


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
    energy = _energy(net, y, None, depths)
    # From the first depth to the output, which is one state more, and no layer if it is the last.
    parts = [_Layers(advance, first, last) for first, last in pairwise([*depths, net.layers])]
    start = _Layers(advance, 0, depths[0])(y)
    with torch.enable_grad():
        # Two digits are enough for a curve along depth, and take a quarter of the iterations.
        norms = watch(nn.Sequential(*parts), iterations=12, tolerance=0.02)(start)
    columns = ("mean", "minimum", "maximum", "smallest", "of_mean")
    shown = {name: getattr(norms, name)[:-1] for name in columns}
    return replace(norms, layers=tuple(depths), energy=energy, **shown)
