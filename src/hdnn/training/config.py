"""How a model is trained: one frozen record of every setting, checked when it is made."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeGuard

from hdnn.errors import HdnnError, unknown_name

METHODS = ("coordinate", "joint")
SOLVERS = ("newton", "adam")
SCHEDULES = ("constant", "exponential", "cosine", "one-cycle")
LOOPS = ("auto", "direct", "autograd")
MOST, MOST_FLOAT = 2**63 - 1, sys.float_info.max
"""The largest integer and the largest number that a setting may be."""
MOST_SHOWN = 80
"""Characters of a value in a message."""


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training; the defaults are appendix B.1 of the paper, with Newton.

    Args:
        method: "coordinate" (output layer solved in every iteration, then one step on the hidden
            layers; appendix B.1) or "joint" (one optimiser for everything; appendix B.2).
        epochs, batch_size: passes over the data, samples in an iteration.
        learning_rate, betas: of Adam on the hidden layers.
        schedule, decay: learning rate over epochs: "constant", "exponential" (times ``decay`` after
            each), "cosine" (to 0), or "one-cycle": for every iteration, up for ``warmup`` epochs,
            then on a cosine to 0.
        warmup: epochs of a linear rise from 0, by iteration, in front of any schedule.
        alpha: weight of the smoothness penalty, equation (13).
        alpha_c: weight of ||W||^2 + |mu|^2, output layer only.
        solver, solver_iterations: how the output layer is solved: "newton" or "adam".
        optimiser: for "joint", or to leave Adam: a name in `torch.optim`.
        weight_decay: for "joint": on all parameters, as torch's optimisers do it (decoupled with
            "AdamW").
        label_smoothing: share of a label that is spread over all classes.
        averaging: for "joint": 0, or the decay of a running average of the weights, which is what
            the training returns (and validates).
        shift, rotate, zoom, flip, erase: for pictures: random shifts by at most this many pixels,
            rotations by at most this many degrees, sizes 1 +- zoom, mirror images, and squares of
            this side set to black; see `hdnn.training.distortion`.
        clip: largest norm of the hidden layers' gradient, or None.
        class_weight: None, "balanced", or a weight for every class number.
        validation: share of the training data held out to watch.
        early_stopping: stop after this many epochs without a better validation loss, and return to
            the best; None: never.
        seed: of the order of batches and the held-out part.
        loop: "auto", "direct" (compiled epochs) or "autograd".
    """

    method: str = "coordinate"
    epochs: int = 50
    batch_size: int = 125
    learning_rate: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "constant"
    decay: float = 1.0
    alpha: float = 5e-3
    alpha_c: float = 1e-4
    solver: str = "newton"
    solver_iterations: int = 10
    optimiser: str = "Adam"
    weight_decay: float = 0.0
    warmup: float = 0.0
    label_smoothing: float = 0.0
    averaging: float = 0.0
    shift: int = 0
    rotate: float = 0.0
    zoom: float = 0.0
    flip: bool = False
    erase: int = 0
    clip: float | None = None
    class_weight: str | tuple[float, ...] | None = None
    validation: float = 0.0
    early_stopping: int | None = None
    seed: int = 0
    loop: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (
            ("method", METHODS),
            ("solver", SOLVERS),
            ("schedule", SCHEDULES),
            ("loop", LOOPS),
        ):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in ("epochs", "batch_size", "solver_iterations"):
            check_integer(name, getattr(self, name), 0 if name == "epochs" else 1)
        for name in ("learning_rate", "decay"):
            _check(name, getattr(self, name), low=0.0, strict=True)
        for name in ("alpha", "alpha_c", "weight_decay", "warmup", "rotate"):
            _check(name, getattr(self, name), low=0.0)
        self._check_pictures()
        if isinstance(self.betas, list):
            object.__setattr__(self, "betas", tuple(self.betas))
        if not (_numbers(self.betas) and len(self.betas) == 2 and all(b < 1 for b in self.betas)):
            raise HdnnError(f"betas are two numbers in [0, 1), got {shown(self.betas)}")
        if not isinstance(self.optimiser, str):
            raise HdnnError(f"optimiser is a name in torch.optim, got {shown(self.optimiser)}")
        if self.clip is not None:
            _check("clip", self.clip, low=0.0, strict=True)
        _check("validation", self.validation, low=0.0)
        if self.validation >= 1:
            raise HdnnError(f"validation is a share in [0, 1), got {self.validation!r}")
        if self.early_stopping is not None:
            check_integer("early_stopping", self.early_stopping, 1)
            if self.validation == 0:
                raise HdnnError("early_stopping needs a validation part: give validation=0.1")
        check_integer("seed", self.seed, 0)
        if isinstance(self.class_weight, list):
            object.__setattr__(self, "class_weight", tuple(self.class_weight))
        if self.class_weight not in (None, "balanced") and not (
            _numbers(self.class_weight) and len(self.class_weight) > 1
        ):
            raise HdnnError(
                "class_weight is 'balanced', a nonnegative weight for every class, or None, "
                f"got {shown(self.class_weight)}"
            )

    def _check_pictures(self) -> None:
        for name in ("shift", "erase"):
            check_integer(name, getattr(self, name), 0)
        for name in ("label_smoothing", "averaging", "zoom"):
            _check(name, getattr(self, name), low=0.0)
            if getattr(self, name) >= 1:
                raise HdnnError(f"{name} is a number in [0, 1), got {getattr(self, name)!r}")
        if not isinstance(self.flip, bool):
            raise HdnnError(f"flip is true or false, got {self.flip!r}")
        if self.warmup > self.epochs:
            raise HdnnError(f"warmup={self.warmup} is longer than the {self.epochs} epochs")

    @property
    def distorts(self) -> bool:
        """Whether pictures are changed at random."""
        return bool(self.shift or self.rotate or self.zoom or self.flip or self.erase)

    def rate(self, epoch: float) -> float:
        """The learning rate at an epoch, counted from 0; a fraction is a place within it.

        >>> TrainingConfig(learning_rate=0.04, schedule="exponential", decay=0.8).rate(1)
        0.032
        """
        if epoch < self.warmup:
            return self.learning_rate * max(epoch, 1e-3) / self.warmup
        whole = math.floor(epoch)
        if self.schedule == "exponential":
            return self.learning_rate * self.decay**whole
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * whole / max(self.epochs, 1))) / 2
        if self.schedule == "one-cycle":
            share = (epoch - self.warmup) / max(self.epochs - self.warmup, 1e-9)
            return self.learning_rate * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        return self.learning_rate

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, without those that are None."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """The config of plain values; an unknown name is an error that names the nearest."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_name("training setting", name, known)
        return cls(**values)


def _numbers(values: object) -> TypeGuard[tuple[float, ...]]:
    """Whether it is a tuple of finite numbers, none below 0."""
    return isinstance(values, tuple) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf for v in values
    )


def shown(value: object) -> str:
    """A value as it stands in a message: the whole, or its beginning.

    >>> shown("short"), shown(10**5000)
    ("'short'", 'a number of thousands of digits')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no such integers
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def check_integer(name: str, value: object, low: int, high: int = MOST) -> None:
    """Refuse what is no integer from ``low`` to ``high``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise HdnnError(f"{name} is an integer of at least {low}, got {shown(value)}")
    if value > high:
        raise HdnnError(f"{name} is an integer of at most {high}, got {shown(value)}")


def _check(name: str, value: object, low: float, strict: bool = False) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not low <= value <= MOST_FLOAT or (strict and value == low):  # type: ignore[operator]
        bound = "above" if strict else "of at least"
        raise HdnnError(f"{name} is a number {bound} {low:g}, got {shown(value)}")
