"""How deep is deep enough: the error of a network's discretization, on given data.

A network of N layers approximates the flow of its ODE. Refined, with the same weights as functions
of time, it comes closer, with the order p of its scheme; two refinements tell how far it is:

    p_N - p  =  (p_N - p_2N) / (1 - 2^-p) + ...
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.refinement import refine

TOLERANCE = 0.01
"""A change of probabilities (of values: relative to their spread) that hardly matters."""
MOST_LAYERS = 10**9
"""The largest number of layers that is told."""


@dataclass(frozen=True)
class DepthError:
    """The a posteriori error of a discretization, measured by the model's predictions.

    Args:
        layers: the depth; of several networks that of the deepest.
        changes: mean over the samples of |p_N - p_2N| and of |p_2N - p_4N|; of probabilities the
            largest of the classes, of values relative to their standard deviation.
        differ: share of the samples whose class is another with 2 N layers; None for regression.
        order: of the scheme.
        observed_order: log2 of the ratio of the changes; far from the order where the step is too
            long for the error to be told from it.
        error: the estimate of the mean of |p_N - p|, p those of the ODE.
        tolerance: what hardly matters.
        enough: the depth at which the error falls below the tolerance, by its order.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> model = hdnn.Model(net, 1)
    >>> found = hdnn.analysis.depth_error(model, torch.randn(20, 4))
    >>> found.layers, found.order
    (8, 1)
    """

    layers: int
    changes: tuple[float, float]
    differ: float | None
    order: int
    observed_order: float
    error: float
    tolerance: float
    enough: int

    @property
    def reliable(self) -> bool:
        """Whether the changes decrease about as the order says."""
        return self.error == 0 or abs(self.observed_order - self.order) < 0.5

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON.

        Returns:
            Numbers and lists of numbers only.
        """
        return {**asdict(self), "changes": list(self.changes), "reliable": self.reliable}

    def __str__(self) -> str:
        other = "" if self.differ is None else f", another class for {self.differ:.2%}"
        orders = f"order {self.observed_order:.2f} observed, {self.order} expected"
        how = "" if self.reliable else "; the step is too long to tell: take it as a lower bound"
        lines = [
            f"twice the layers    change predictions by {self.changes[0]:.3g} on average{other}",
            f"discretization      error about {self.error:.3g}, {orders}",
            f"deep enough         {self.enough} layers for an error of {self.tolerance:g}{how}",
        ]
        return "\n".join(lines)


@torch.no_grad()
def depth_error(model: Model, X: Tensor, tolerance: float = TOLERANCE) -> DepthError:
    """How far a model's predictions are from those of the ODE that it discretizes.

    Args:
        model: of any kind; its Hamiltonian networks are refined together.
        X: ``(samples, features)``, or images ``(samples, C, H, W)``.
        tolerance: what hardly matters, of probabilities or relative to the values' spread.

    Returns:
        The change of the predictions under refinement, and what follows from it.

    Raises:
        HdnnError: there is no ODE behind the model, no sample, or no positive tolerance.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("H1", features=4, layers=64, T=1.0, dtype=torch.float64)
    >>> model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    >>> _ = torch.nn.init.normal_(model.head.weight)
    >>> round(depth_error(model, torch.randn(50, 2, dtype=torch.float64)).observed_order)
    1
    """
    if not len(X) or not tolerance > 0:
        raise HdnnError(f"give samples and a positive tolerance, got {len(X)} and {tolerance}")
    depths = [net.layers for net in model.networks]
    if not depths:
        raise HdnnError("the model has no Hamiltonian block, so no depth to change")
    finer = [refine(model, [k * n for n in depths]) for k in (2, 4)]
    one, two, four = (_predictions(each, X) for each in (model, *finer))
    order = min(net.scheme.order for net in model.networks)
    first, second = _change(model, one, two), _change(model, two, four)
    observed = math.log2(first / second) if first > 0 and second > 0 else math.nan
    error = first / (1 - 2.0**-order)
    ratio = (error / tolerance) ** (1 / order)
    enough = max(1, math.ceil(min(max(depths) * ratio, MOST_LAYERS) - 1e-9))
    differ = None
    if model.task == "classification":
        differ = float((one.argmax(-1) != two.argmax(-1)).double().mean())
    changes = (first, second)
    return DepthError(max(depths), changes, differ, order, observed, error, tolerance, enough)


def _predictions(model: Model, X: Tensor) -> Tensor:
    before = model.training
    model.eval()
    found = model.probabilities(X) if model.task == "classification" else model(X)
    model.train(before)
    return found.double()


def _change(model: Model, one: Tensor, other: Tensor) -> float:
    difference = (one - other).abs()
    if model.task == "regression":
        difference = difference / one.std(0, correction=0).clamp_min(1e-300)
    return float(difference.amax(-1).mean())
