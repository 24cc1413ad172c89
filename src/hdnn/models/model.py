"""What one trains and saves: scaler + augmentation + network + output layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.errors import HdnnError, unknown_name
from hdnn.network import HamiltonianNetwork

MODES = ("append", "spread")
TASKS = ("classification", "regression")


class Augmentation(nn.Module):
    """Widen features with zeros, so that the network has room (section 4.1 of the paper).

        append: (x, y) -> (x, y, 0, 0)      the paper's words
        spread: (x, y) -> (x, 0, 0, y)      the paper's code: half the features at either end

    Args:
        features: width of the data.
        width: width of the network (default: twice the features); an odd one is made even.
        mode: "append" or "spread".

    >>> import torch
    >>> Augmentation(2, 4)(torch.tensor([1.0, 2.0]))
    tensor([1., 2., 0., 0.])
    >>> Augmentation(2, 4, mode="spread")(torch.tensor([1.0, 2.0]))
    tensor([1., 0., 0., 2.])
    """

    def __init__(self, features: int, width: int | None = None, mode: str = "append") -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown_name("augmentation", mode, MODES)
        width = 2 * features if width is None else width
        for name, value in (("features", features), ("width", width)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HdnnError(f"{name} is a positive integer, got {value!r}")
        if width < features:
            raise HdnnError(
                f"width={width} is too small for {features} features; use at least {features}"
            )
        self.features, self.width, self.mode = features, width + width % 2, mode

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)`` to ``(..., width)``."""
        if x.ndim < 1 or x.shape[-1] != self.features:
            raise HdnnError(f"expected (..., {self.features}) features, got {tuple(x.shape)}")
        extra = self.width - self.features
        if self.mode == "append":
            return F.pad(x, (0, extra))
        front = (self.features + 1) // 2
        return F.pad(x[..., :front], (0, extra + self.features - front)) + F.pad(
            x[..., front:], (front + extra, 0)
        )

    def extra_repr(self) -> str:
        return f"{self.features} -> {self.width}, {self.mode}"


class Scaler(nn.Module):
    """(x - mean) / scale, column by column; a missing value becomes the mean.

    Args:
        mean, scale: ``(features,)``; a constant column has scale 1.

    >>> Scaler.fit(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))(torch.tensor([2.0, 5.0]))
    tensor([1., 0.])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    @classmethod
    def fit(cls, x: Tensor, weight: Tensor | None = None) -> Scaler:
        """The scaler that standardises ``(samples, features)``, each sample with its weight."""
        wide = x.to(torch.float64)
        w = torch.ones(len(x), dtype=torch.float64) if weight is None else weight.to(torch.float64)
        known = torch.isfinite(wide)
        shares = known * w[:, None]
        total = shares.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
        filled = torch.where(known, wide, 0.0)
        mean = (shares * filled).sum(0) / total
        variance = (shares * (filled - mean).square()).sum(0) / total
        # A column is constant where its spread is only rounding.
        constant = variance <= (1e-12 * mean.abs().clamp_min(1e-150)).square()
        scale = torch.where(constant, 1.0, variance.sqrt())
        return cls(mean.to(x.dtype), scale.to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)``, standardised."""
        return torch.where(torch.isnan(x), 0.0, (x - self.mean) / self.scale)

    def extra_repr(self) -> str:
        return f"{len(self.mean)} features"


class Model(nn.Module):
    """Data to prediction: scaler, augmentation, network, and the output layer W y_N + mu.

    Args:
        network: the Hamiltonian network (or a baseline).
        outputs: outputs of the output layer: 1 for two classes, else one for every class or target.
        augmentation: widens the data to the network's width; None where they agree.
        scaler: standardises the data; None for none.
        task: "classification" or "regression".
        classes: the labels, in the order of the outputs.
        feature_names: the columns of a table that the model takes, in order.

    >>> import hdnn
    >>> model = Model(hdnn.network("H1", features=4, layers=8, T=1.0), 1, Augmentation(2, 4))
    >>> model(torch.zeros(10, 2)).shape
    torch.Size([10, 1])
    """

    def __init__(
        self,
        network: HamiltonianNetwork,
        outputs: int,
        augmentation: Augmentation | None = None,
        scaler: Scaler | None = None,
        *,
        task: str = "classification",
        classes: Sequence[str | int | float | bool] | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        if network.features is None:
            raise HdnnError("a model for tables needs a network over features, not channels")
        if augmentation is not None and augmentation.width != network.features:
            raise HdnnError(
                f"the augmentation gives {augmentation.width} features, but the network takes "
                f"{network.features}"
            )
        if outputs < 1:
            raise HdnnError(f"outputs is a positive integer, got {outputs}")
        if task == "classification" and classes is not None and len(classes) != max(2, outputs):
            raise HdnnError(f"{len(classes)} classes do not fit {outputs} outputs")
        features = network.features if augmentation is None else augmentation.features
        if scaler is not None and (scaler.mean.shape, scaler.scale.shape) != ((features,),) * 2:
            raise HdnnError(f"the scaler has {len(scaler.mean)} features, the data {features}")
        _check_names(feature_names, features)
        check_classes(classes)
        self.network, self.augmentation, self.scaler = network, augmentation, scaler
        dtype = next(network.parameters()).dtype
        self.head = nn.Linear(network.features, outputs, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.task = task
        self.classes = None if classes is None else list(classes)
        self.feature_names = None if feature_names is None else list(feature_names)

    @property
    def features(self) -> int:
        """The number of features of the data."""
        if self.augmentation is not None:
            return self.augmentation.features
        assert self.network.features is not None
        return self.network.features

    @property
    def networks(self) -> tuple[HamiltonianNetwork, ...]:
        """The Hamiltonian blocks, in order: one."""
        return (self.network,)

    def check(self, x: Tensor) -> None:
        """Refuse training data of another shape or type than the model's."""
        if x.ndim != 2 or x.shape[1] != self.features:
            raise HdnnError(
                f"X must have {self.features} features a sample for this model, "
                f"got {tuple(x.shape)}"
            )
        if x.dtype != self.head.weight.dtype:
            raise HdnnError(
                f"X is {x.dtype} but the model is {self.head.weight.dtype}; convert one of them"
            )

    def enter(self, x: Tensor) -> Tensor:
        """y_0: the data, standardised and augmented."""
        x = x if self.scaler is None else self.scaler(x)
        return x if self.augmentation is None else self.augmentation(x)

    def ready(self, x: Tensor) -> Tensor:
        """What can be computed once, before the training: y_0."""
        return self.enter(x)

    def entering(self, states: Tensor) -> list[tuple[HamiltonianNetwork, Tensor]]:
        """Every Hamiltonian block with the state that enters it."""
        return [(self.network, states)]

    def values(self, states: Tensor) -> Tensor:
        """``(..., outputs)``: the values of the output layer, of data that `ready` has seen."""
        out: Tensor = self.head(self.network(states))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """``(..., outputs)``: the values of the output layer (logits, for classification)."""
        return self.values(self.enter(x))

    def probabilities(self, x: Tensor) -> Tensor:
        """``(..., classes)``: logistic for two classes, softmax for more."""
        logits = self(x)
        if logits.shape[-1] > 1:
            return logits.softmax(-1)
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], -1)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class numbers ``(...)`` for classification, values ``(..., outputs)`` for regression."""
        values = self(x)
        if self.task == "regression":
            return values
        return values.argmax(-1) if values.shape[-1] > 1 else (values[..., 0] > 0).long()


def _check_names(names: object, features: int) -> None:
    if names is None:
        return
    good = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not good or len(names) != features:  # type: ignore[arg-type]
        raise HdnnError(f"feature_names are {features} strings, got {names!r:.100}")


def check_classes(classes: object) -> None:
    """Refuse labels that are no strings, numbers or booleans."""
    if classes is None:
        return
    if not isinstance(classes, list | tuple) or not all(
        isinstance(label, str | int | float | bool) for label in classes
    ):
        raise HdnnError(f"classes are strings, numbers or booleans, got {classes!r:.100}")
