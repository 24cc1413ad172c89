"""What one trains and saves: a stem, stages of Hamiltonian blocks, and a linear head."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.data import ColumnEncoder
from hdnn.errors import HdnnError, unknown_name
from hdnn.models.frozen import FrozenModel, frozen, probabilities
from hdnn.models.image_config import ImageConfig
from hdnn.models.projection import Projection
from hdnn.models.stages import Stages, image_stages
from hdnn.models.stems import Augmentation, ImageStem, Scaler, Stem, TableStem
from hdnn.networks import HamiltonianNetwork
from hdnn.notebook import table

TASKS = ("classification", "regression")
Label = str | int | float | bool


class Model(nn.Module):
    """Data to prediction: y_0 = stem(x), y_N = stages(y_0), and the head W y_N + mu.

    Args:
        network: the Hamiltonian network (or a baseline), or `Stages` of several.
        outputs: outputs of the head: 1 for two classes, else one for every class or target.
        augmentation: widens the data to the network's width; None where they agree.
        scaler: standardizes the data; None for none.
        task: "classification" or "regression".
        classes: the labels, in the order of the outputs.
        feature_names: the columns of a table that the model takes, in order.
        encoder: makes these of a table as people have it; None where all columns are numbers.
        target_names: the columns of a table that a regression predicts, in order.
        projection: brings the data to the network's width instead, by a learned linear map.
        stem: instead of augmentation, scaler and projection, where the data are no table.

    Raises:
        HdnnError: the parts do not fit together.

    >>> import hdnn
    >>> model = Model(hdnn.network("H1", features=4, layers=8, T=1.0), 1, Augmentation(2, 4))
    >>> model(torch.zeros(10, 2)).shape
    torch.Size([10, 1])
    """

    _frozen: FrozenModel | None = None

    def __init__(
        self,
        network: HamiltonianNetwork | Stages,
        outputs: int,
        augmentation: Augmentation | None = None,
        scaler: Scaler | None = None,
        *,
        task: str = "classification",
        classes: Sequence[Label] | None = None,
        feature_names: Sequence[str] | None = None,
        encoder: ColumnEncoder | None = None,
        target_names: Sequence[str] | None = None,
        projection: Projection | None = None,
        stem: Stem | None = None,
    ) -> None:
        super().__init__()
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        if network.features is None:
            raise HdnnError("a model for tables needs a network over features, not channels")
        parts = augmentation, scaler, encoder, projection
        if stem is not None and any(part is not None for part in parts):
            raise HdnnError("give a stem, or augmentation, scaler and projection, not both")
        if outputs < 1:
            raise HdnnError(f"outputs is a positive integer, got {outputs}")
        if task == "classification":
            _check_labels(classes, max(2, outputs))
        self.stem = TableStem(network.features, *parts) if stem is None else stem
        if encoder is not None and feature_names is None:
            feature_names = encoder.feature_names
        self.stages = (
            network if isinstance(network, Stages) else Stages([network], features=network.features)
        )
        _check_names("feature_names", feature_names, self.features)
        _check_names("target_names", target_names, outputs)
        _check_classes(classes)
        dtype = next(chain(self.stages.parameters(), self.stem.parameters())).dtype
        self.head = nn.Linear(network.features, outputs, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.task = task
        self.classes = None if classes is None else list(classes)
        self.feature_names = None if feature_names is None else list(feature_names)
        self.target_names = None if target_names is None else list(target_names)
        self.register_state_dict_post_hook(_shorten_names)
        self.register_load_state_dict_pre_hook(_lengthen_names)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def features(self) -> int:
        """How many numbers a sample has."""
        return math.prod(self.stem.shape)

    @property
    def labels(self) -> list[Label]:
        """The classes by name, or by number where they have no names."""
        return self.classes or list(range(max(2, self.head.out_features)))

    @property
    def networks(self) -> tuple[HamiltonianNetwork, ...]:
        """The Hamiltonian blocks, in order."""
        return self.stages.networks

    @property
    def network(self) -> HamiltonianNetwork:
        """The only block; of several, see `networks`."""
        block, *others = self.stages.blocks
        if others:
            raise HdnnError(f"the model has {1 + len(others)} blocks: use model.networks")
        return block  # type: ignore[return-value]

    @property
    def augmentation(self) -> Augmentation | None:
        """What widens the columns of a table, if anything does."""
        return self.stem.augmentation if isinstance(self.stem, TableStem) else None

    @property
    def scaler(self) -> Scaler | None:
        """What standardizes the columns of a table, if anything does."""
        return self.stem.scaler if isinstance(self.stem, TableStem) else None

    @property
    def encoder(self) -> ColumnEncoder | None:
        """What makes numbers of the columns of a table; None where they are numbers."""
        return self.stem.encoder if isinstance(self.stem, TableStem) else None

    @property
    def columns(self) -> ColumnEncoder:
        """The columns of a table that the model takes, and how they become its features."""
        names = self.feature_names or [f"x{k}" for k in range(self.features)]
        return self.encoder or ColumnEncoder.numeric(names)

    @property
    def projection(self) -> Projection | None:
        """What projects the columns of a table, if anything does."""
        return self.stem.projection if isinstance(self.stem, TableStem) else None

    @property
    def config(self) -> ImageConfig | None:
        """The architecture of an image classifier; None for a table."""
        return self.stem.config if isinstance(self.stem, ImageStem) else None

    # --- from data to prediction ------------------------------------------------------------------

    def check(self, x: Tensor) -> None:
        """Raise HdnnError where training data have another shape or type than the model's.

        Args:
            x: the data, ``(samples, features)`` or images ``(B, C, H, W)``.

        Raises:
            HdnnError: they have another shape or type.
        """
        self.stem.check(x, self.head.weight.dtype)

    def prepare(self, x: Tensor) -> Tensor:
        """What can be computed once, before the training: y_0 of a table; images stay uint8.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            What `logits` and `block_inputs` take.
        """
        return self.stem.prepare(x)

    def preprocess(self, x: Tensor) -> Tensor:
        """y_0, the state of the first block.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            ``(..., n)``, or ``(B, n, H, W)`` of images.
        """
        y: Tensor = self.stem(self.stem.prepare(x))
        return y

    def block_inputs(self, states: Tensor) -> list[tuple[HamiltonianNetwork, Tensor]]:
        """Every Hamiltonian block with the state that enters it, of data from `prepare`.

        Args:
            states: what `prepare` gave.

        Returns:
            Pairs of a block and its state.
        """
        return self.stages.block_inputs(self.stem(states))

    def logits(self, states: Tensor) -> Tensor:
        """``(..., outputs)``: the values of the head, of data from `prepare`.

        Args:
            states: what `prepare` gave.

        Returns:
            One number for every sample and output.
        """
        # Looked up here, as `self.head` takes torch a microsecond: 3 of the 35 of a small network.
        parts: dict[str, Any] = self._modules
        if parts["stem"].takes_images and (form := frozen(self, states)) is not None:
            return form.logits(states)
        y = states if parts["stem"].prepares_all else parts["stem"](states)
        out: Tensor = parts["head"](parts["stages"](y))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """``(..., outputs)``: the values of the head (logits, for classification).

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            One number for every sample and output.

        Raises:
            HdnnError: the data have another shape or dtype than the model's.
        """
        form = frozen(self, x)
        if form is not None:
            return form.logits(x)
        stem: Any = self._modules["stem"]  # as in `logits`
        return self.logits(stem.prepare(x))

    def probabilities(self, x: Tensor) -> Tensor:
        """``(..., classes)``: logistic for a single output, softmax for more.

        Args:
            x: ``(..., features)`` or images ``(B, C, H, W)``.

        Returns:
            Numbers in [0, 1] that sum to 1 over the classes.
        """
        form = frozen(self, x)
        return probabilities(self(x)) if form is None else form.probabilities(x)

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

    # --- folders and the Hugging Face Hub ---------------------------------------------------------

    def save_pretrained(self, folder: str | os.PathLike[str], **facts: Any) -> Path:
        """Write the model and a model card to a folder; see `docs/export.md`.

        Args:
            folder: made if need be; files of an earlier model are replaced.
            **facts: for the card, see `hdnn.models.CardFacts`: ``metrics``, ``data``,
                ``certificate``, ``license``, ``name``.

        Returns:
            The folder.

        Raises:
            HdnnError: the model cannot be saved, or not there.
        """
        from hdnn.models import hub  # which loads and saves models

        return hub.save_pretrained(self, folder, hub.CardFacts(**facts))

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], *, revision: str | None = None
    ) -> Model:
        """The model of a folder that `save_pretrained` wrote, or of a repository of the Hub.

        Args:
            source: a folder, or else "owner/name" (which needs `pip install 'hdnn[hub]'`).
            revision: of the repository: a branch, a tag or a commit.

        Returns:
            The model, in evaluation mode; no code of the folder is executed.

        Raises:
            HdnnError: there is no such folder, or no model in it.
        """
        from hdnn.models import hub

        model = hub.from_pretrained(source, revision)
        if not isinstance(model, cls):
            raise HdnnError(f"{source} holds a {type(model).__name__}; use hdnn.load")
        return model

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        token: str | None = None,
        message: str = "Upload a model of hdnn",
        **facts: Any,
    ) -> str:
        """Write the model and its card to a repository of the Hub, made if need be.

        Args:
            repository: "owner/name".
            private: whether a new one is.
            token: by default that of `hf auth login`.
            message: of the commit.
            **facts: for the card, as in `save_pretrained`.

        Returns:
            The address of the commit.

        Raises:
            HdnnError: huggingface_hub is not installed.
        """
        from hdnn.models import hub

        facts_of_card = hub.CardFacts(**facts)
        return hub.push_to_hub(self, repository, facts_of_card, private, token, message)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frozen": None}

    def extra_repr(self) -> str:
        shape = "x".join(map(str, self.stem.shape))
        count = sum(p.numel() for p in self.parameters())
        return f"{shape} -> {self.head.out_features}, {self.task}, {count} parameters"

    def _repr_html_(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        rows: list[tuple[str, object]] = [
            ("input", " x ".join(map(str, self.stem.shape))),
            *(("block", net.extra_repr()) for net in self.networks),
            ("output", f"{self.head.out_features}, {self.task}"),
        ]
        if self.classes is not None:
            rows.append(("classes", ", ".join(map(str, self.classes))))
        return table("Model", [*rows, ("parameters", f"{count:,}")])


def ImageClassifier(  # noqa: N802 (a constructor of Model)
    config: ImageConfig | None = None,
    *,
    classes: Sequence[Label] | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Model:
    """A model for images: opening convolution, stages of Hamiltonian blocks, linear head.

        y_0 = conv(x),   y_N = stages(y_0),   logits = W y_N + mu

    The defaults are the paper's network (section 4.2): a 3x3 convolution to 8 channels (zero
    padding, with a bias), a block that mixes the channels at every pixel, and a linear head on all
    8 x 28 x 28 values. Convolutions and head start as torch starts them.

    Args:
        config: the architecture, and what the images are like.
        classes: the labels, in the order of the outputs.
        generator: draws the initial weights; None is torch's default generator.
        dtype: of the weights.
        backend: of the Hamiltonian blocks, see `hdnn.HamiltonianNetwork`.

    Returns:
        A `Model` that takes images ``(B, C, H, W)``, uint8 (0 to 255) or of its dtype (0 to 1).

    Raises:
        HdnnError: the labels do not fit the config.

    >>> model = ImageClassifier(ImageConfig(architecture="H2", layers=4, step=0.05))
    >>> model(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([5, 10])
    >>> sum(p.numel() for p in model.parameters()) == 80 + 4 * (64 + 8) + 62730
    True
    """
    config = ImageConfig() if config is None else config
    dtype = torch.get_default_dtype() if dtype is None else dtype
    stem = ImageStem(config, dtype)
    stages = image_stages(config, generator, dtype, backend)
    model = Model(stages, config.classes, classes=classes, stem=stem)
    _initialize(model, generator)
    return model


@torch.no_grad()
def _initialize(model: Model, generator: torch.Generator | None) -> None:
    """Torch's own initial values of convolutions and linear maps, from a generator."""
    for part in model.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(part.weight[0].numel())
            assert part.bias is not None
            nn.init.uniform_(part.bias, -bound, bound, generator=generator)


# --- names in state dicts: those of files and checkpoints from before there were stems ------------


def _shorten_names(model: Model, state: dict[str, Any], prefix: str, _: object) -> None:
    _rename(state, prefix, {long: short for short, long in model.stem.names.items()})


def _lengthen_names(model: Model, state: dict[str, Any], prefix: str, *_: object) -> None:
    _rename(state, prefix, model.stem.names)


def _rename(state: dict[str, Any], prefix: str, names: dict[str, str]) -> None:
    items = list(state.items())
    state.clear()
    for key, value in items:
        for old, new in names.items():
            if key.startswith(prefix + old):
                key = prefix + new + key[len(prefix + old) :]
                break
        state[key] = value


# --- checks ---------------------------------------------------------------------------------------


def _check_labels(classes: Sequence[Label] | None, count: int) -> None:
    if classes is not None and len(classes) != count:
        raise HdnnError(f"{len(classes)} labels do not fit {count} classes")


def _check_names(what: str, names: object, count: int) -> None:
    if names is None:
        return
    good = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not good or len(names) != count:  # type: ignore[arg-type]
        raise HdnnError(f"{what} are {count} strings, got {names!r:.100}")


def _check_classes(classes: object) -> None:
    if classes is None:
        return
    if not isinstance(classes, list | tuple) or not all(
        isinstance(label, str | int | float | bool) for label in classes
    ):
        raise HdnnError(f"classes are strings, numbers or booleans, got {classes!r:.100}")
