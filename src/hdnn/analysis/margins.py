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
CHUNK = 2**17
"""Points that go through the model at once."""


@dataclass(frozen=True)
class Margins:
    """The smallest perturbation of every sample that changes its class.

    Args:
        distance: ``(samples,)``, its length; infinite where none was found within ``reach``.
        point: ``(samples, features)``, where the class changes.
        reach: the radius of the search.

    >>> import hdnn, torch
    >>> line = torch.nn.Linear(2, 1, dtype=torch.float64)
    >>> _ = line.weight.data.copy_(torch.tensor([[3.0, 4.0]])), line.bias.data.zero_()
    >>> found = hdnn.analysis.margins(line, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    >>> round(found.distance.item(), 3), found.point.shape
    (0.6, torch.Size([1, 2]))
    """

    distance: Tensor
    point: Tensor
    reach: float


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


Gap = Callable[[Tensor, Tensor], Tensor]
"""(points, class) -> how far the value of a class is above the best other one."""


def margins(model: nn.Module, X: Tensor, reach: float | None = None) -> Margins:
    """The distance of every sample to the decision boundary of a classifier.

        min ||d||  such that  argmax model(x + d) != argmax model(x)

    Rings of growing radius are searched until one crosses the boundary; its crossings are refined
    to the nearest point of the boundary by projections on its tangent, and the nearest of them is
    taken. What is returned is a perturbation that does change the class: in two dimensions the
    smallest one (up to structures finer than the rings: 96 directions, 64 radii), in more
    dimensions an upper bound, with random directions and the direction of the gradient.

    Args:
        model: gives ``(samples, outputs)``: one output for two classes, else one for every class.
        X: ``(samples, features)``.
        reach: radius of the search; None: the diagonal of the box around X.

    Returns:
        Distances ``(samples,)`` and the points where the class changes.

    Raises:
        HdnnError: X is not ``(samples, features)``, has missing values, or reach is not positive.

    >>> line = nn.Linear(2, 1, dtype=torch.float64)
    >>> _ = line.weight.data.copy_(torch.tensor([[3.0, 4.0]])), line.bias.data.zero_()
    >>> margins(line, torch.tensor([[1.0, 0.0], [0.0, 5.0]], dtype=torch.float64)).distance
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
    gap, classes = _gap(model), _classes(model, X)
    directions = _directions(gap, X, classes)
    radii = reach * (torch.arange(1, RINGS + 1, dtype=torch.float64) / RINGS) ** 2
    hits = _rings(gap, X, classes, directions, radii)
    best, point = X.new_full((len(X),), math.inf), X.clone()
    if len(hits[0]):
        sample, nearest, radius = _refined(gap, X, classes, directions, *hits)
        order = radius.argsort(descending=True)  # of several, the last one written is the nearest
        best[sample[order]] = radius[order]
        point[sample[order]] = nearest[order]
    return Margins(best, point, reach)


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
    search = margins(model, X, reach=None)
    wide, classes = X.detach().double(), _classes(model, X.detach().double())
    signed = torch.where(classes == y, search.distance, -search.distance)
    generator = torch.Generator().manual_seed(seed)
    random = []
    for radius in radii:
        right = 0.0
        for _ in range(draws):
            d = torch.randn(wide.shape, generator=generator, dtype=torch.float64)
            moved = wide + radius * d / d.norm(dim=1, keepdim=True)
            right += float((_classes(model, moved) == y).double().mean())
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
    wide = _wide(model)
    return torch.cat([_values(wide, part).argmax(1) for part in X.split(CHUNK)])


def _gap(model: nn.Module) -> Gap:
    wide = _wide(model)

    def gap(X: Tensor, classes: Tensor) -> Tensor:
        parts = []
        for x, c in zip(X.split(CHUNK), classes.split(CHUNK), strict=True):
            values = _values(wide, x)
            own = values.gather(1, c[:, None])[:, 0]
            others = values.scatter(1, c[:, None], -math.inf).amax(1)
            parts.append(own - others)
        return torch.cat(parts)

    return gap


def _slope(gap: Gap, X: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = X.detach().requires_grad_()
        value = gap(x, classes)
        (g,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), g


def _directions(gap: Gap, X: Tensor, classes: Tensor) -> Tensor:
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
    _, g = _slope(gap, X, classes)
    down = -g / g.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return torch.cat([down[:, None], fan.expand(len(X), -1, -1)], 1)


Hits = tuple[Tensor, Tensor, Tensor, Tensor]


@torch.no_grad()
def _rings(gap: Gap, X: Tensor, classes: Tensor, directions: Tensor, radii: Tensor) -> Hits:
    """Sample, ray, inner and outer radius of crossings: of the first ring with any, and the next.

    The next one as well: between rays, the nearest point of the boundary may lie on another piece.
    """
    left = torch.full((len(X),), 2)
    inside = torch.ones(directions.shape[:2], dtype=torch.bool)
    parts: list[Hits] = []
    before = 0.0
    for radius in radii.tolist():
        active = (left > 0).nonzero()[:, 0]
        if not len(active):
            break
        points = X[active, None] + radius * directions[active]
        rays = directions.shape[1]
        values = gap(points.flatten(0, 1), classes[active].repeat_interleave(rays))
        crossed = (values.reshape(-1, rays) <= 0) & inside[active]
        row, ray = crossed.nonzero(as_tuple=True)
        sample = active[row]
        inside[sample, ray] = False
        ends = torch.tensor([before, radius], dtype=torch.float64).expand(len(sample), 2)
        parts.append((sample, ray, ends[:, 0], ends[:, 1]))
        began = (left[active] < 2) | crossed.any(1)
        left[active] -= began.long()
        before = radius
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def _refined(
    gap: Gap,
    X: Tensor,
    classes: Tensor,
    directions: Tensor,
    sample: Tensor,
    ray: Tensor,
    inner: Tensor,
    outer: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest boundary points that a few best crossings of every sample lead to."""
    p, c, u = X[sample], classes[sample], directions[sample, ray]
    radius = _bisect(gap, p, c, u, inner, outer)
    keep = _best(sample, radius, len(X))
    sample, p, c, u, radius = sample[keep], p[keep], c[keep], u[keep], radius[keep]
    x = p + radius[:, None] * u
    for step in range(STEPS):
        value, g = _slope(gap, x, c)
        square = (g * g).sum(1).clamp_min(1e-300)
        target = p + ((((x - p) * g).sum(1) - value) / square)[:, None] * g
        x = x + (1.0 if step < STEPS // 2 else 0.5) * (target - x)
        # Far projections leave the neighborhood of the crossing: stay within its radius.
        length = (x - p).norm(dim=1).clamp_min(1e-300)
        x = p + (x - p) * (torch.minimum(length, radius) / length)[:, None]
    distance = (x - p).norm(dim=1)
    v = (x - p) / distance.clamp_min(1e-300)[:, None]
    edge = distance * (1 + 1e-9) + 1e-12
    with torch.no_grad():
        flips = gap(p + edge[:, None] * v, c) <= 0
    better = flips & (edge < radius)
    u, radius = torch.where(better[:, None], v, u), torch.where(better, edge, radius)
    return sample, p + radius[:, None] * u, radius


@torch.no_grad()
def _bisect(gap: Gap, p: Tensor, c: Tensor, u: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """The radius at which the class changes along every ray; the class is another one there."""
    for _ in range(48):
        middle = (inner + outer) / 2
        beyond = gap(p + middle[:, None] * u, c) <= 0
        inner, outer = torch.where(beyond, inner, middle), torch.where(beyond, middle, outer)
    return outer


def _best(sample: Tensor, radius: Tensor, samples: int) -> Tensor:
    """Positions of the nearest few crossings of every sample."""
    order = radius.argsort(stable=True)
    order = order[sample[order].argsort(stable=True)]
    counts = torch.bincount(sample, minlength=samples)
    first = torch.cumsum(counts, 0) - counts
    rank = torch.arange(len(order)) - first[sample[order]]
    return order[rank < CANDIDATES]
