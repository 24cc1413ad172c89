"""Robustness: how far data are from the decision boundary, and accuracy under perturbation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError

RAYS, RINGS, CANDIDATES, STEPS = 96, 64, 8, 60
"""Directions and radii of the search; crossings of a sample that are refined, in so many steps."""
CHUNK = 2**17
"""Points that go through the model at once."""

Gap = Callable[[Tensor, Tensor], Tensor]
"""(points, class) -> how far the value of a class is above the best other one."""


@dataclass(frozen=True)
class Robustness:
    """Accuracy under perturbation of the input, one entry for every radius.

    Args:
        radii: lengths of the perturbations.
        random: mean accuracy where every sample is moved by that length in a random direction.
        worst: share of samples that are right and stay right under *every* shorter perturbation.
        margins: of the samples; negative where one is classified wrongly to begin with.

    >>> import hdnn, torch
    >>> line = torch.nn.Linear(2, 1, dtype=torch.float64)
    >>> _ = line.weight.data.copy_(torch.tensor([[1.0, 0.0]])), line.bias.data.zero_()
    >>> X, y = torch.tensor([[1.0, 0.0], [-3.0, 0.0]], dtype=torch.float64), torch.tensor([1, 0])
    >>> hdnn.analysis.robustness(line, X, y, radii=(0.5, 2.0)).worst
    (1.0, 0.5)
    """

    radii: tuple[float, ...]
    random: tuple[float, ...]
    worst: tuple[float, ...]
    margins: Tensor


def margins(model: nn.Module, X: Tensor, reach: float | None = None) -> tuple[Tensor, Tensor]:
    """The distance of every sample to the decision boundary of a classifier.

        min ||d||  such that  argmax model(x + d) != argmax model(x)

    Along rays from a sample the first change of its class is found on rings of growing radius; the
    nearest crossings are refined to the nearest point of the boundary by projections on its
    tangent. What is returned is a perturbation that does change the class: in two dimensions the
    smallest one (up to structures finer than the rings: 96 directions, 64 radii), in more
    dimensions an upper bound, with random directions and the direction of the gradient.

    Args:
        model: gives ``(samples, outputs)``: one output for two classes, else one for every class.
        X: ``(samples, features)``.
        reach: radius of the search; None: the diagonal of the box around X.

    Returns:
        Distances ``(samples,)``, infinite where the class does not change within reach, and the
        points ``(samples, features)`` where it changes.

    Raises:
        HdnnError: X is not ``(samples, features)``, has missing values, or reach is not positive.

    >>> line = nn.Linear(2, 1, dtype=torch.float64)
    >>> _ = line.weight.data.copy_(torch.tensor([[3.0, 4.0]])), line.bias.data.zero_()
    >>> distance, point = margins(line, torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    >>> distance
    tensor([0.6000, 4.0000], dtype=torch.float64)
    """
    if X.ndim != 2 or not len(X):
        raise HdnnError(f"margins takes samples (samples, features), got {tuple(X.shape)}")
    if X.isnan().any():
        raise HdnnError("X has missing values, which cannot be moved; fill them in first")
    X = X.detach().double()
    extent = float((X.max(0).values - X.min(0).values).norm())
    reach = (extent or 1.0) if reach is None else float(reach)
    if not reach > 0:
        raise HdnnError(f"reach is a positive number, got {reach!r}")
    wide = _wide(model)
    return _search(_gap(wide), X, _classes(wide, X), reach)


def robustness(
    model: nn.Module, X: Tensor, y: Tensor, radii: Sequence[float], draws: int = 20, seed: int = 0
) -> Robustness:
    """Accuracy of a classifier under random and under the worst perturbations of its input.

    Args:
        model, X: as in `margins`.
        y: class numbers ``(samples,)``.
        radii: lengths of perturbations.
        draws: random directions for every sample.
        seed: of these.

    Returns:
        One accuracy for every radius, and the signed margins ``(samples,)``.

    Raises:
        HdnnError: as `margins`.

    >>> line = nn.Linear(1, 1, dtype=torch.float64)
    >>> _ = line.weight.data.fill_(1.0), line.bias.data.zero_()
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    >>> robustness(line, x, torch.tensor([0, 0, 1, 1]), [0.5, 1.5]).worst
    (1.0, 0.5)
    """
    (distance, _), wide, X = margins(model, X), _wide(model), X.detach().double()
    signed = torch.where(_classes(wide, X) == y, distance, -distance)
    generator = torch.Generator().manual_seed(seed)
    random = []
    for radius in radii:
        right = 0.0
        for _ in range(draws):
            d = torch.randn(X.shape, generator=generator, dtype=torch.float64)
            moved = X + radius * d / d.norm(dim=1, keepdim=True)
            right += float((_classes(wide, moved) == y).double().mean())
        random.append(right / draws)
    worst = [float((signed > radius).double().mean()) for radius in radii]
    return Robustness(tuple(map(float, radii)), tuple(random), tuple(worst), signed)


# --- the search -----------------------------------------------------------------------------------


def _wide(model: nn.Module) -> nn.Module:
    """The model in float64: the boundary of a float32 model is known to rounding only."""
    return copy.deepcopy(model).double().requires_grad_(False).eval()


def _values(model: nn.Module, X: Tensor) -> Tensor:
    """``(samples, classes)``."""
    values: Tensor = model(X)
    if values.ndim != 2:
        raise HdnnError(f"the model must give (samples, outputs), got {tuple(values.shape)}")
    return torch.cat([-values, values], 1) / 2 if values.shape[1] == 1 else values


@torch.no_grad()
def _classes(model: nn.Module, X: Tensor) -> Tensor:
    return torch.cat([_values(model, part).argmax(1) for part in X.split(CHUNK)])


def _gap(model: nn.Module) -> Gap:
    def of_some(X: Tensor, own: Tensor) -> Tensor:
        values = _values(model, X)
        others = values.scatter(1, own[:, None], -math.inf).amax(1)
        return values.gather(1, own[:, None])[:, 0] - others

    def gap(X: Tensor, own: Tensor) -> Tensor:
        shape = X.shape[:-1]
        pairs = zip(
            X.flatten(0, -2).split(CHUNK), own.expand(shape).flatten().split(CHUNK), strict=True
        )
        return torch.cat([of_some(x, c) for x, c in pairs]).reshape(shape)

    return gap


def _gradient(gap: Gap, X: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = X.detach().requires_grad_()
        value = gap(x, own)
        (g,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), g


@torch.no_grad()
def _search(gap: Gap, X: Tensor, classes: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    start, own = X[:, None], classes[:, None]  # (samples, rays, features) and (samples, rays)
    rays = _rays(gap, X, classes)
    inner, outer = (torch.full(rays.shape[:2], end, dtype=X.dtype) for end in (0.0, math.inf))
    for radius in (reach * (torch.arange(1, RINGS + 1) / RINGS).double() ** 2).tolist():
        inside = gap(start + radius * rays, own) > 0
        outer = torch.where(~inside & outer.isinf(), radius, outer)
        inner = torch.where(outer.isinf(), radius, inner)
        if bool((outer.isfinite().sum(1) >= CANDIDATES).all()):  # farther ones are not needed
            break
    # A few bisections rank the crossings; the nearest ones are then found to rounding.
    inner, outer = _bisect(gap, start, own, rays, (inner, outer), 8)
    place = outer.argsort(1)[:, :CANDIDATES]
    rays = rays.take_along_dim(place.unsqueeze(-1), 1)
    ends = inner.take_along_dim(place, 1), outer.take_along_dim(place, 1)
    _, radius = _bisect(gap, start, own, rays, ends, 40)
    distances, points = _project(gap, start, own, rays, radius)
    distance, nearest = distances.min(1)
    point = points[torch.arange(len(X)), nearest]
    return distance, torch.where(distance.isfinite()[:, None], point, X)


def _rays(gap: Gap, X: Tensor, classes: Tensor) -> Tensor:
    """``(samples, rays, features)``, of length 1; the first is down the gradient."""
    d = X.shape[1]
    if d == 2:
        angle = torch.arange(RAYS, dtype=torch.float64) * (2 * math.pi / RAYS)
        fan = torch.stack([angle.cos(), angle.sin()], 1)
    else:
        generator = torch.Generator().manual_seed(0)
        fan = torch.randn(RAYS, d, generator=generator, dtype=torch.float64)
        fan = torch.cat([fan, -fan])
        fan = fan / fan.norm(dim=1, keepdim=True)
    _, g = _gradient(gap, X, classes)
    down = -g / g.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return torch.cat([down[:, None], fan.expand(len(X), -1, -1)], 1)


def _bisect(
    gap: Gap, start: Tensor, own: Tensor, rays: Tensor, ends: tuple[Tensor, Tensor], steps: int
) -> tuple[Tensor, Tensor]:
    """Closer radii between which the class changes along rays; infinite ones stay so."""
    inner, outer = ends
    for _ in range(steps):
        middle = (inner + outer) / 2
        beyond = gap(start + middle.unsqueeze(-1) * rays, own) <= 0
        inner, outer = torch.where(beyond, inner, middle), torch.where(beyond, middle, outer)
    return inner, outer


def _project(
    gap: Gap, start: Tensor, own: Tensor, rays: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor]:
    """Distances and points of the boundary nearest to the start, from crossings along rays."""
    first = radius.unsqueeze(-1)
    x = start + first * rays
    for step in range(STEPS):
        value, g = _gradient(gap, x, own)
        square = (g * g).sum(-1).clamp_min(1e-300)
        target = start + ((((x - start) * g).sum(-1) - value) / square).unsqueeze(-1) * g
        x = x + (1.0 if step < STEPS // 2 else 0.5) * (target - x)
        # Far projections leave the neighborhood of the crossing: stay within its radius.
        length = (x - start).norm(dim=-1, keepdim=True).clamp_min(1e-300)
        x = start + (x - start) * (torch.minimum(length, first) / length)
    distance = (x - start).norm(dim=-1)
    directions = (x - start) / distance.clamp_min(1e-300).unsqueeze(-1)
    edge = distance * (1 + 1e-9) + 1e-12
    better = (gap(start + edge.unsqueeze(-1) * directions, own) <= 0) & (edge < radius)
    rays = torch.where(better.unsqueeze(-1), directions, rays)
    radius = torch.where(better, edge, radius)
    return radius, start + radius.unsqueeze(-1) * rays
