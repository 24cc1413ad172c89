"""Optimizers of torch by name, the running average of weights, and their state as named tensors."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.config import TrainingConfig
from hdnn.errors import HdnnError, unknown_name

UNFIT = ("Optimizer", "LBFGS", "SparseAdam")
"""Optimizers that need a closure or sparse gradients, and so cannot train a model."""
HALF, FLOAT16_TINY = torch.float16, 2.0**-24
"""The least number above 0 in float16."""


def make_optimizer(
    parameters: Any, config: TrainingConfig, weight_decay: float, fused: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of a config: any class of `torch.optim`, by name; its fused form if asked."""
    known = [
        name
        for name in dir(torch.optim)
        if isinstance(kind := getattr(torch.optim, name), type)
        and issubclass(kind, torch.optim.Optimizer)
        and name not in UNFIT
    ]
    names = {name.lower(): name for name in known}
    if config.optimizer.lower() not in names:
        raise unknown_name("optimizer", config.optimizer, known)
    kind = getattr(torch.optim, names[config.optimizer.lower()])
    accepted = inspect.signature(kind).parameters
    options: dict[str, Any] = {"lr": config.learning_rate}
    if fused and "fused" in accepted:
        options["fused"] = True
    if "betas" in accepted:
        options["betas"] = config.betas
    if "weight_decay" in accepted:
        options["weight_decay"] = weight_decay
    elif weight_decay:
        raise HdnnError(f"{config.optimizer} has no weight decay; use 0, or another optimizer")
    try:
        optimizer: torch.optim.Optimizer = kind(parameters, **options)
    except ValueError as error:
        raise HdnnError(f"{config.optimizer} cannot train this model: {error}") from error
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    eps = optimizer.defaults.get("eps")  # Adafactor has two, which it knows to choose by itself
    if isinstance(eps, float) and eps < FLOAT16_TINY and HALF in {p.dtype for p in weights}:
        raise HdnnError(
            f"{config.optimizer} divides by numbers that are 0 in float16; train in bfloat16 or "
            "float32, or under torch.autocast in a loop of your own"
        )
    return optimizer


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer as named tensors."""
    return flatten_state(optimizer.state_dict())


def flatten_state(saved: dict[str, Any]) -> dict[str, Tensor]:
    """The entries of an optimizer's state dict as named tensors."""
    found = {}
    for number, entries in saved["state"].items():
        for name, value in entries.items():
            if value is not None:
                found[f"{number}.{name}"] = torch.as_tensor(value).clone()
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Put named tensors back."""
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        number, name = key.split(".", 1)
        entries.setdefault(int(number), {})[name] = value.clone()
    whole = optimizer.state_dict()
    whole["state"] = entries
    optimizer.load_state_dict(whole)
    # Numbers such as NAdam's mu_product have a dtype of their own, which torch rounds to that of
    # the parameters.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, own in entries.items():
        held = optimizer.state[parameters[place]]
        held.update({k: v.to(held[k].device) for k, v in own.items() if v.ndim == 0})


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
