"""A running average of the weights, which often generalizes better than the last ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Average:
    """avg <- d avg + (1 - d) weights after every iteration, d = min(decay, (1 + t) / (10 + t)).

    Early iterations count less, so that the initial weights are forgotten soon. Running statistics
    of normalizations are averaged like weights.

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

    def state(self) -> dict[str, Tensor]:
        """Everything that the next update depends on."""
        return {
            "count": torch.tensor(self.count),
            **{f"of.{k}": v.clone() for k, v in self.weights.items()},
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        self.count = int(state["count"])
        for name, tensor in self.weights.items():
            tensor.copy_(state[f"of.{name}"])
