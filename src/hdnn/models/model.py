"""A model, which one trains and saves: a stem, Hamiltonian blocks, and a linear head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.models.stems import Padding, Projection, Scaler, Stem, TableStem
from hdnn.networks import HamiltonianNetwork

TASKS = ("classification", "regression")
Label = str | int | float | bool


class Blocks(nn.Sequential):
    """The body of a model: Hamiltonian networks, and layers between and after them.

    Args:
        modules: the networks and layers, in order.
        features: inputs of the head; None: the width of the last network.

    >>> import hdnn, torch
    >>> block = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> hdnn.models.Blocks(block)(torch.zeros(5, 4)).shape
    torch.Size([5, 4])
    """

    def __init__(self, *modules: nn.Module, features: int | None = None) -> None:
        super().__init__(*modules)
        if features is None and self.networks:
            features = self.networks[-1].features
        self.features = features

    @property
    def networks(self) -> tuple[HamiltonianNetwork, ...]:
        """The Hamiltonian networks, in order."""
        return tuple(block for block in self if isinstance(block, HamiltonianNetwork))

    def inputs(self, y: Tensor) -> list[tuple[HamiltonianNetwork, Tensor]]:
        """Every Hamiltonian network with the state that enters it, given y_0.

        Args:
            y: y_0, ``(..., n)`` or ``(B, channels, H, W)``.

        Returns:
            Pairs of a network and its state.
        """
        pairs: list[tuple[HamiltonianNetwork, Tensor]] = []
        last = self.networks[-1:]
        for block in self:
            if isinstance(block, HamiltonianNetwork):
                pairs.append((block, y))
                if block is last[0]:
                    break  # nobody asks for what it computes
            y = block(y)
        return pairs


class Model(nn.Module):
    """Data to prediction: y_0 = stem(x), y_N = blocks(y_0), and the head W y_N + mu.

    Args:
        network: the Hamiltonian network (or a baseline), or `Blocks` of several.
        outputs: number of outputs: 1 for two classes, else one for every class or target.
        padding: widens the data with zeros to the network's width; None where they agree.
        scaler: standardizes the data; None leaves them as they are.
        projection: a learned linear map to the network's width, instead of padding.
        stem: replaces padding, scaler and projection where the data are no table.
        task: "classification" or "regression".
        classes: the labels, in the order of the outputs.
        feature_names: names of the features, in order.
        target_names: the columns of a table that a regression predicts, in order.
        columns: how the columns of a table become features, as `hdnn.data.ColumnEncoder.to_list`
            gives it; None where the columns are the features.

    Raises:
        HdnnError: the parts do not fit together.

    >>> import hdnn
    >>> model = Model(hdnn.network("H1", features=4, layers=8, T=1.0), 1, Padding(2, 4))
    >>> model(torch.zeros(10, 2)).shape
    torch.Size([10, 1])
    """

    def __init__(
        self,
        network: HamiltonianNetwork | Blocks,
        outputs: int,
        padding: Padding | None = None,
        scaler: Scaler | None = None,
        *,
        projection: Projection | None = None,
        stem: Stem | None = None,
        task: str = "classification",
        classes: Sequence[Label] | None = None,
        feature_names: Sequence[str] | None = None,
        target_names: Sequence[str] | None = None,
        columns: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        features = network.features
        if features is None:
            raise HdnnError("a model for tables needs a network over features, not channels")
        parts = padding, scaler, projection
        if stem is not None and any(part is not None for part in parts):
            raise HdnnError("give a stem, or padding, scaler and projection, not both")
        if outputs < 1:
            raise HdnnError(f"outputs is a positive integer, got {outputs}")
        self.stem = TableStem(features, *parts) if stem is None else stem
        if not isinstance(network, Blocks):
            network = Blocks(network, features=features)
        first = network[0] if len(network) else None
        if (
            isinstance(self.stem, TableStem)
            and isinstance(first, HamiltonianNetwork)
            and self.stem.width != first.features
        ):
            raise HdnnError(
                f"the stem gives {self.stem.width} features, but the network takes {first.features}"
            )
        self.blocks = network
        self.task, self.columns = task, columns
        self.classes = None if classes is None else list(classes)
        self.feature_names = None if feature_names is None else list(feature_names)
        self.target_names = None if target_names is None else list(target_names)
        for what, names, count in (
            ("classes", self.classes, max(2, outputs)),
            ("feature_names", self.feature_names, self.features),
            ("target_names", self.target_names, outputs),
        ):
            if names is not None and len(names) != count:
                raise HdnnError(f"the model has {count} {what}, got {names!r:.100}")
        # Last: a damaged file may name a billion outputs, and has not as many classes.
        dtype = next(chain(self.blocks.parameters(), self.stem.parameters())).dtype
        self.head = nn.Linear(features, outputs, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def features(self) -> int:
        """Number of features, or of pixel values, of a sample."""
        return math.prod(self.stem.shape)

    @property
    def labels(self) -> list[Label]:
        """The classes by name, or by number where they have no names."""
        return self.classes or list(range(max(2, self.head.out_features)))

    @property
    def networks(self) -> tuple[HamiltonianNetwork, ...]:
        """The Hamiltonian networks, in order."""
        return self.blocks.networks

    @property
    def network(self) -> HamiltonianNetwork:
        """The only Hamiltonian network; of several, see `networks`."""
        # A single block is the network whatever its class, so that a wrapped one is one, too.
        networks = tuple(self.blocks) if len(self.blocks) == 1 else self.networks
        if len(networks) != 1:
            raise HdnnError(f"the model has {len(networks)} networks: use model.networks")
        return networks[0]  # type: ignore[return-value]

    @property
    def scaler(self) -> Scaler | None:
        """The scaler of a table's columns, or None."""
        return self.stem.scaler if isinstance(self.stem, TableStem) else None

    # --- from data to prediction ------------------------------------------------------------------

    def prepare(self, x: Tensor) -> Tensor:
        """Compute what needs computing only once, before training: y_0 of a table; images stay.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            What `hidden`, `logits` and `block_inputs` take.

        Raises:
            HdnnError: the data have another shape or dtype than the model's.
        """
        self.stem.check(x, self.head.weight.dtype)
        return self.stem.prepare(x)

    def preprocess(self, x: Tensor) -> Tensor:
        """y_0, the state of the first block.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            ``(..., n)``, or ``(B, n, H, W)`` of images.
        """
        y: Tensor = self.stem(self.prepare(x))
        return y

    def block_inputs(self, prepared: Tensor) -> list[tuple[HamiltonianNetwork, Tensor]]:
        """Every Hamiltonian network with the state that enters it.

        Args:
            prepared: what `prepare` gave.

        Returns:
            Pairs of a network and its state.
        """
        return self.blocks.inputs(self.stem(prepared))

    def hidden(self, prepared: Tensor) -> Tensor:
        """The inputs of the head: y_N of a table.

        Args:
            prepared: what `prepare` gave.

        Returns:
            ``(..., n)``.
        """
        y: Tensor = self.blocks(self.stem(prepared))
        return y

    def logits(self, prepared: Tensor) -> Tensor:
        """The outputs of the head.

        Args:
            prepared: what `prepare` gave.

        Returns:
            ``(..., outputs)``.
        """
        out: Tensor = self.head(self.hidden(prepared))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the head: logits, or the predictions of a regression.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            ``(..., outputs)``.

        Raises:
            HdnnError: the data have another shape or dtype than the model's.
        """
        return self.logits(self.prepare(x))

    def probabilities(self, x: Tensor) -> Tensor:
        """``(..., classes)``: logistic for a single output, softmax for more.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            Numbers in [0, 1] that sum to 1 over the classes.
        """
        logits = self(x)
        if logits.shape[-1] > 1:
            return logits.softmax(-1)
        return torch.cat([-logits, logits], -1).sigmoid()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class numbers ``(...)`` for classification, values ``(..., outputs)`` for regression.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            Numbers of classes, positions in ``model.labels``; or values.
        """
        logits = self(x)
        if self.task == "regression":
            return logits
        return logits.argmax(-1) if logits.shape[-1] > 1 else (logits[..., 0] > 0).long()

    def extra_repr(self) -> str:
        shape = "x".join(map(str, self.stem.shape))
        count = sum(p.numel() for p in self.parameters())
        return f"{shape} -> {self.head.out_features}, {self.task}, {count} parameters"
