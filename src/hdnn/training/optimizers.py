"""Optimizers of torch by name, and the running average of weights."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.config import TrainingConfig
from hdnn.errors import HdnnError

FLOAT16_TINY = 2.0**-24
"""The least number above 0 in float16."""


def make_optimizer(
    parameters: list[nn.Parameter], config: TrainingConfig, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimizer of a config, by its name in `torch.optim`, in its fused form."""
    kind: Any = getattr(torch.optim, config.optimizer)
    accepted = inspect.signature(kind).parameters
    if weight_decay and "weight_decay" not in accepted:
        raise HdnnError(f"{config.optimizer} has no weight decay; use 0, or another optimizer")
    wanted = {"fused": True, "betas": config.betas, "weight_decay": weight_decay}
    options = {name: value for name, value in wanted.items() if name in accepted}
    optimizer: torch.optim.Optimizer = kind(parameters, lr=config.learning_rate, **options)
    eps = optimizer.defaults.get("eps")  # Adafactor has two, which it knows to choose by itself
    half = torch.float16 in {p.dtype for p in parameters}
    if half and isinstance(eps, float) and eps < FLOAT16_TINY:
        raise HdnnError(
            f"{config.optimizer} divides by numbers that are 0 in float16; train in bfloat16 or "
            "float32, or under torch.autocast in a loop of your own"
        )
    return optimizer


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Put back the entry "state" of an optimizer's `state_dict`."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": copy.deepcopy(state)})
    # Numbers such as NAdam's mu_product have a dtype of their own, which torch rounds to that of
    # the parameters.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in state.items():
        held = optimizer.state[parameters[place]]
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.ndim == 0:
                held[name] = value.to(held[name].device, copy=True)


class Average:
    """avg <- d avg + (1 - d) weights after every iteration, d = min(decay, (1 + t) / (10 + t)).

    The average often generalizes better than the last weights. Early iterations count less, so that
    the initial weights are forgotten soon. Running statistics of normalizations are averaged like
    weights.

    >>> line = nn.Linear(1, 1)
    >>> average = Average(line, 0.9)
    >>> average.update()
    >>> torch.equal(average.weights["weight"], line.weight)
    True
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.count = model, decay, 0
        self.weights = {name: t.detach().clone() for name, t in model.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of now into the average."""
        keep = min(self.decay, (1 + self.count) / (10 + self.count))
        self.count += 1
        now = self.model.state_dict()
        numbers = [name for name, t in now.items() if t.is_floating_point()]
        torch._foreach_lerp_(
            [self.weights[name] for name in numbers], [now[name] for name in numbers], 1 - keep
        )
        for name in now.keys() - set(numbers):
            self.weights[name].copy_(now[name])

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {"count": self.count, "weights": self.weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self.count = int(state["count"])
        for name, tensor in self.weights.items():
            tensor.copy_(state["weights"][name])
