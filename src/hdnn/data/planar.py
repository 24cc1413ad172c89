"""The planar classification problems: the paper's two and peaks; and splits.

Numbers are drawn in float64 and then cast to torch's default dtype, so that a seed means the same
points in every precision. The noise is always drawn, even where its amplitude is 0, so that it
does not change which points it is added to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hdnn.data.dataset import Dataset
from hdnn.errors import HdnnError, unknown_name

Sample = tuple[Tensor, Tensor]
"""Points ``(size, 2)`` and integer labels ``(size,)``."""

PEAKS_LEVELS = (-0.3079, 0.0017, 0.1536, 1.3136)
"""The 20, 40, 60 and 80 % quantiles of peaks on [-3, 3]^2 (a midpoint grid of 3000 x 3000)."""


def swiss_roll(
    size: int = 1000, generator: torch.Generator | None = None, noise: float = 0.0
) -> Sample:
    """Two spirals, one inside the other.

        (r cos t, r sin t),   r = t / 4 pi (class 1) and 0.2 + t / 4 pi (class 0),   t in [0, 4 pi)

    Args:
        size: number of points; the classes alternate.
        generator: source of randomness; None is torch's default generator.
        noise: uniform noise in [-noise, noise) on each coordinate.

    Returns:
        Points ``(size, 2)`` and labels ``(size,)``.

    >>> X, labels = swiss_roll(100)
    >>> X.shape, labels.bincount().tolist()
    (torch.Size([100, 2]), [50, 50])
    """
    labels = torch.arange(size) % 2
    t = _uniform(size, generator=generator) * 4 * math.pi
    r = t / (4 * math.pi) + 0.2 * (labels == 0).double()
    return _noisy(r * t.cos(), r * t.sin(), noise, generator), labels


def double_moons(
    size: int = 1000, generator: torch.Generator | None = None, noise: float = 0.15
) -> Sample:
    """Two pairs of interleaved half circles.

        (cos t, sin t) (class 0) and (1 - cos t, 0.5 - sin t) (class 1),   t in [0, pi),
        and both again, moved by 2 to the right

    Args:
        size: number of points; the classes alternate.
        generator: source of randomness; None is torch's default generator.
        noise: uniform noise in [-noise, noise) on each coordinate.

    Returns:
        Points ``(size, 2)`` and labels ``(size,)``.

    >>> X, labels = double_moons(100)
    >>> X.shape, labels.bincount().tolist()
    (torch.Size([100, 2]), [50, 50])
    """
    index = torch.arange(size)
    labels = index % 2
    t = _uniform(size, generator=generator) * math.pi
    upper = labels == 0
    x = torch.where(upper, t.cos(), 1 - t.cos()) + 2.0 * (index // 2 % 2)
    y = torch.where(upper, t.sin(), 0.5 - t.sin())
    return _noisy(x, y, noise, generator), labels


def peaks(size: int = 1000, generator: torch.Generator | None = None, noise: float = 0.0) -> Sample:
    """Five classes: the bands between four level sets of MATLAB's peaks, over a square.

        f(x, y) = 3 (1 - x)^2 exp(-x^2 - (y + 1)^2) - 10 (x / 5 - x^3 - y^5) exp(-x^2 - y^2)
                  - exp(-(x + 1)^2 - y^2) / 3,        x, y uniform in [-3, 3)
        class = how many of `PEAKS_LEVELS` are below f(x, y)

    The levels are constants, chosen so that every class has a fifth of the area: the classes are
    equally likely, not equally many. Noise moves a point after its class is known.

    Args:
        size: number of points.
        generator: source of randomness; None is torch's default generator.
        noise: uniform noise in [-noise, noise) on each coordinate.

    Returns:
        Points ``(size, 2)`` and labels ``(size,)``.

    >>> X, labels = peaks(1000)
    >>> X.shape, labels.unique().tolist()
    (torch.Size([1000, 2]), [0, 1, 2, 3, 4])
    """
    x, y = (6 * _uniform(size, 2, generator=generator) - 3).unbind(1)
    hill = 3 * (1 - x) ** 2 * torch.exp(-(x**2) - (y + 1) ** 2)
    middle = 10 * (x / 5 - x**3 - y**5) * torch.exp(-(x**2) - y**2)
    value = hill - middle - torch.exp(-((x + 1) ** 2) - y**2) / 3
    labels = torch.bucketize(value, torch.tensor(PEAKS_LEVELS, dtype=torch.float64))
    return _noisy(x, y, noise, generator), labels


class Problem(NamedTuple):
    """One planar problem: its function and its defaults.

    Args:
        draw: the function ``(size, generator, noise) -> (X, labels)``.
        classes: number of classes, labeled 0, 1, ...
        noise: the noise of the `paper` split.
        independent_noise: the noise of the `independent` split, where it must not vanish.

    >>> import hdnn
    >>> problem = hdnn.data.PROBLEMS["swiss-roll"]
    >>> problem.classes, problem.noise
    (2, 0.0)
    """

    draw: Callable[[int, torch.Generator | None, float], Sample]
    classes: int
    noise: float
    independent_noise: float


PROBLEMS: dict[str, Problem] = {
    "swiss-roll": Problem(swiss_roll, 2, 0.0, 0.02),
    "double-moons": Problem(double_moons, 2, 0.15, 0.15),
    "peaks": Problem(peaks, 5, 0.0, 0.02),
}
"""Every planar problem, by name."""


def _uniform(*shape: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def _noisy(x: Tensor, y: Tensor, noise: float, generator: torch.Generator | None) -> Tensor:
    """``(size, 2)`` in the default dtype: the points, with noise in [-noise, noise) on each."""
    X = torch.stack([x, y], 1)
    X = X + (2 * _uniform(*X.shape, generator=generator) - 1) * noise
    return X.to(torch.get_default_dtype())


# --- splits ---------------------------------------------------------------------------------------

SPLITS = ("paper", "independent")
"""How training and test points are drawn; see `split`."""


def split(name: str, kind: str = "paper", size: int = 10_000, seed: int = 0) -> Dataset:
    """Training and test points of a planar problem, half of ``size`` each.

        paper:        one sample, shuffled; even positions train, odd positions test
        independent:  two samples, both with noise

    The Swiss roll and peaks have no noise of their own; in the independent split they get uniform
    noise of +-0.02, else two samples of one curve would be all but the same. All random numbers
    come from one generator in float64: a seed means the same points in every precision.

    Args:
        name: a problem of `PROBLEMS`, in any case, with - or _.
        kind: "paper" or "independent".
        size: number of points, even.
        seed: of the generator.

    Returns:
        Both parts, each half of the points.

    Raises:
        HdnnError: an unknown name or kind, or a size that is odd.

    >>> split("swiss-roll")
    Dataset(swiss-roll: 5000 training rows, 5000 test rows, 2 features, 2 classes)
    """
    source = str(name).lower().replace("_", "-")
    if source not in PROBLEMS:
        raise unknown_name("planar problem", name, PROBLEMS)
    if kind not in SPLITS:
        raise unknown_name("kind of split", kind, SPLITS)
    if size < 2 or size % 2:
        raise HdnnError(f"size is an even number of points, half for training, got {size!r}")
    generator, problem = torch.Generator().manual_seed(seed), PROBLEMS[source]
    if kind == "paper":
        X, labels = problem.draw(size, generator, problem.noise)
        order = torch.randperm(size, generator=generator)
        train, test = ((X[part], labels[part]) for part in (order[::2], order[1::2]))
    else:
        noise = problem.independent_noise
        train, test = (problem.draw(size // 2, generator, noise) for _ in range(2))
    classes = tuple(range(problem.classes))
    return Dataset(*train, *test, "classification", "planar", classes, source=source)
