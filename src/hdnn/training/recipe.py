"""A recipe: data, model and training as one record that a run can be repeated from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.data import KINDS, PROBLEMS, holdout, problem, read_table, split
from hdnn.data.folders import folder_digest
from hdnn.errors import HdnnError, unknown_name
from hdnn.models import Augmentation, Model, Scaler
from hdnn.training import toml
from hdnn.training.config import TrainingConfig, check_integer, shown
from hdnn.training.optimisers import make_optimiser
from hdnn.training.pictures import (
    DTYPES,
    ImageRecipe,
    build_classifier,
    is_image,
    load_pictures,
    with_preset,
)
from hdnn.training.recorder import RecordConfig
from hdnn.zoo import architecture, network

MOST_POINTS, MOST_LAYERS, MOST_WIDTH, MOST_WEIGHTS = 10**8, 10**6, 10**5, 10**9
"""More than this of a planar problem, of a network, and of weights in all, is a slip of the pen."""


@dataclass(frozen=True)
class DataRecipe:
    """Where the data come from.

    Args:
        source: the name of a planar problem or of a data set of pictures, or the path of a table or
            of a folder of pictures.
        split, size: for a planar problem: "paper" or "independent", and the points of both parts.
        target, drop, task: for a table: the column to predict, columns to leave out, and
            "classification" or "regression" where the guess is wrong.
        test: for a table: the share held out to evaluate.
        pixels: for a folder of pictures: the side to bring them to.
        digest: for a table or a folder: its SHA-256, so that a run notices when the data have
            changed.
        seed: of the draw or of the held-out part.
    """

    source: str = "swiss-roll"
    split: str = "paper"
    size: int = 10_000
    target: str | None = None
    drop: tuple[str, ...] = ()
    task: str | None = None
    test: float = 0.2
    pixels: int | None = None
    digest: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.drop, list):
            object.__setattr__(self, "drop", tuple(self.drop))
        _check_types(self)
        if self.split not in KINDS:
            raise unknown_name("split", self.split, KINDS)
        if not 0 <= self.test < 1:
            raise HdnnError(f"test is a share in [0, 1), got {shown(self.test)}")
        check_integer("size", self.size, 1, MOST_POINTS)
        check_integer("seed", self.seed, 0)
        if self.pixels is not None:
            check_integer("pixels", self.pixels, 1, MOST_WIDTH)

    @property
    def is_table(self) -> bool:
        """Whether the source is a file."""
        return self.source.lower().replace("_", "-") not in PROBLEMS and not self.is_image

    @property
    def is_image(self) -> bool:
        """Whether the source are pictures."""
        return is_image(self.source)

    def pinned(self) -> DataRecipe:
        """The same with an absolute path and the digest of a table or a folder."""
        path = os.path.expanduser(self.source)
        if not (self.is_image and os.path.isdir(path)) and not (
            self.is_table and os.path.isfile(path)
        ):
            return self
        place = Path(path).resolve()
        return replace(self, source=str(place), digest=data_digest(place))


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
    "tuple[str, ...]": (tuple,),
}


def _check_types(record: Any) -> None:
    """Refuse a value that is not of its field's type, as a config file may bring it."""
    for f in fields(record):
        value = getattr(record, f.name)
        parts = str(f.type).split(" | ")
        allowed = tuple(kind for part in parts for kind in _TYPES[part])
        good = isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed)
        if isinstance(value, tuple):
            good = good and all(isinstance(item, str) for item in value)
        if not good:
            words = " or ".join(part for part in parts if part != "None")
            raise HdnnError(f"{f.name} is of the wrong type: {words} is wanted, got {shown(value)}")


def data_digest(path: Path) -> str:
    """The SHA-256 of a table, or of the pictures in a folder."""
    if path.is_dir():
        return folder_digest(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HdnnError(f"cannot read {path}: {error.strerror or error}") from error


@dataclass(frozen=True)
class ModelRecipe:
    """What is trained.

    Args:
        architecture, layers, T, step, activation, time_invariant: of the network.
        width: of the network; None: room for the features and as many zeros, at most 32 of them.
        augmentation: "append" or "spread".
        standardise: scale the columns; None: for tables only.
        dtype: "float32" or "float64".
        seed, scale: of the initial weights.
    """

    architecture: str = "H1"
    layers: int = 16
    T: float | None = None
    step: float | None = None
    width: int | None = None
    augmentation: str = "append"
    activation: str = "tanh"
    time_invariant: bool = False
    standardise: bool | None = None
    dtype: str = "float32"
    seed: int = 0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_types(self)
        object.__setattr__(self, "architecture", architecture(self.architecture).name)
        check_integer("layers", self.layers, 1, MOST_LAYERS)
        check_integer("seed", self.seed, 0)
        if self.width is not None:
            check_integer("width", self.width, 1, MOST_WIDTH)
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        uses_step = architecture(self.architecture).scheme.uses_step
        if uses_step and self.T is None and self.step is None:
            object.__setattr__(self, "T", 1.2)


@dataclass(frozen=True)
class Recipe:
    """Data, model and training, and what is recorded of its gradients, if anything is."""

    data: DataRecipe = field(default_factory=DataRecipe)
    model: ModelRecipe | ImageRecipe = field(default_factory=ModelRecipe)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    record: RecordConfig | None = None

    @property
    def identity(self) -> Recipe:
        """The same without the place of its data, where their digest says what they are."""
        if self.data.digest is None:
            return self
        return replace(self, data=replace(self.data, source=""))

    def to_toml(self) -> str:
        """The recipe as TOML, which `from_toml` reads."""
        tables = {
            "data": asdict(self.data),
            "model": asdict(self.model),
            "training": self.training.to_dict(),
        }
        if self.record is not None:
            tables["record"] = asdict(self.record)
        return toml.dumps(tables)

    @classmethod
    def from_toml(cls, text: str, where: str = "the config") -> Recipe:
        """The recipe of a TOML text; a clear error for anything else."""
        return cls.from_tables(toml.loads(text, where), where)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], where: str = "the config") -> Recipe:
        """The recipe of plain values in tables data, model, training, record."""
        cls.check_names(tables, where)
        try:
            data = _record(DataRecipe, tables.get("data", {}), where)
            pictures = _of_pictures(tables)
            tables = with_preset(tables) if pictures else tables
            kind = ImageRecipe if pictures else ModelRecipe
            return cls(
                data,
                _record(kind, tables.get("model", {}), where),
                _record(TrainingConfig, tables.get("training", {}), where),
                _record(RecordConfig, tables["record"], where) if "record" in tables else None,
            )
        except TypeError as error:
            raise HdnnError(f"{where} has a value of the wrong type: {str(error)[:200]}") from error

    @staticmethod
    def check_names(tables: Mapping[str, Any], where: str) -> None:
        """Refuse unknown tables and settings."""
        pictures = _of_pictures(tables)
        model = ImageRecipe if pictures else ModelRecipe
        known = {
            "data": DataRecipe,
            "model": model,
            "training": TrainingConfig,
            "record": RecordConfig,
        }
        for name, table in tables.items():
            if name not in known:
                raise unknown_name(f"table in {where}", name, known)
            if not isinstance(table, Mapping):
                raise HdnnError(f"{name} in {where} is a table, got {shown(table)}")
            names = [f.name for f in fields(known[name])]
            names += ["preset"] if pictures and name == "model" else []
            for key in table:
                if key not in names:
                    raise unknown_name(f"setting in {where}", key, names)


def _of_pictures(tables: Mapping[str, Any]) -> bool:
    """Whether tables are of a recipe for pictures, even where their folder is gone."""
    data, model = tables.get("data", {}), tables.get("model", {})
    if isinstance(model, Mapping) and "widths" in model:
        return True
    return isinstance(data, Mapping) and is_image(str(data.get("source", "")))


LONGEST = 400
"""Characters of a message about a value, which may be of any length itself."""


def _record(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**values)
    except HdnnError as error:
        message = str(error)
        if len(message) > LONGEST:
            message = f"{message[:LONGEST]}..."
        raise type(error)(f"{where}: {message}") from error


@dataclass(frozen=True)
class Prepared:
    """Data ready for training: tensors, and what the model must know of them."""

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    task: str
    classes: list[Any] | None
    feature_names: list[str] | None
    notes: list[str]


def prepare(recipe: Recipe) -> Prepared:
    """The data of a recipe, split into train and test."""
    data, dtype = recipe.data, DTYPES[recipe.model.dtype]
    _check_pinned(data)
    if data.is_image:
        found = load_pictures(data.source, data.pixels, data.seed)
        return Prepared(
            found.train,
            found.train_labels,
            found.test,
            found.test_labels,
            "classification",
            list(found.classes),
            None,
            [],
        )
    if not data.is_table:
        parts = split(problem(data.source).name, data.split, data.size, data.seed)
        return Prepared(
            parts.X_train.to(dtype),
            parts.y_train,
            parts.X_test.to(dtype),
            parts.y_test,
            "classification",
            list(range(parts.classes)),
            None,
            [],
        )
    if not os.path.exists(data.source):
        raise unknown_name("data set (and there is no such file)", data.source[:200], PROBLEMS)
    if data.target is None:
        raise HdnnError(f"{data.source} is a table: say which column to predict with --target")
    table = read_table(data.source, data.target, task=data.task, drop=data.drop)
    targets = torch.from_numpy(table.targets)
    labels = targets if table.task == "classification" else None
    X = torch.from_numpy(table.X).to(dtype)
    y = targets if labels is not None else targets.to(dtype)
    train, test = torch.arange(len(X)), torch.arange(0)
    if data.test > 0:
        train, test = holdout(len(X), data.test, data.seed, labels)
    assert table.task is not None
    return Prepared(
        X[train],
        y[train],
        X[test],
        y[test],
        table.task,
        None if table.classes is None else list(table.classes),
        list(table.feature_names),
        list(table.notes),
    )


def _check_pinned(data: DataRecipe) -> None:
    """Refuse data that are not there any more, or not those of the digest."""
    if data.digest is None:
        return
    if not (os.path.isfile(data.source) or os.path.isdir(data.source)):
        raise HdnnError(
            f"there is no such file or folder: {data.source[:200]}, the data of this run; say "
            "where they are now: hdnn train --resume RUN --data PATH"
        )
    if data_digest(Path(data.source)) != data.digest:
        raise HdnnError(
            f"{data.source} has changed since the run began; train anew in another --out"
        )


def build(recipe: Recipe, data: Prepared) -> Model:
    """The untrained model of a recipe."""
    if isinstance(recipe.model, ImageRecipe):
        assert data.classes is not None
        _check_pictures(recipe.model)
        return build_classifier(recipe.model, data.X_train, data.classes)
    return _build_model(recipe.model, recipe.data.is_table, data)


def _check_weights(count: int) -> None:
    if count > MOST_WEIGHTS:
        raise HdnnError(
            f"layers and width ask for about {count:.1e} weights; at most {MOST_WEIGHTS:.0e} can "
            "be trained: take fewer layers, or a smaller width"
        )


def _check_pictures(given: ImageRecipe) -> None:
    for layers, width in zip(given.layers, given.widths, strict=True):
        check_integer("layers", layers, 0, MOST_LAYERS)
        check_integer("widths", width, 1, MOST_WIDTH)
    kernel = max(given.kernel, 3) ** 2  # the connectors have kernels of 3
    stages = zip(given.layers, given.widths, strict=True)
    _check_weights(sum((layers + 2) * width**2 * kernel for layers, width in stages))


def _build_model(given: ModelRecipe, is_table: bool, data: Prepared) -> Model:
    features = data.X_train.shape[1]
    width = features + min(features, 32) if given.width is None else given.width
    _check_weights(given.layers * width**2)
    augmentation = Augmentation(features, width, given.augmentation)
    net = network(
        given.architecture,
        features=augmentation.width,
        layers=given.layers,
        T=given.T,
        step=given.step,
        activation=given.activation,
        time_invariant=given.time_invariant,
        dtype=DTYPES[given.dtype],
        generator=torch.Generator().manual_seed(given.seed),
        scale=given.scale,
    )
    standardise = is_table if given.standardise is None else given.standardise
    if not standardise and bool(torch.isnan(data.X_train).any()):
        raise HdnnError("missing values are taken as the mean, which needs --standardise")
    outputs = 1
    if data.task == "classification" and data.classes is not None:
        outputs = 1 if len(data.classes) == 2 else len(data.classes)
    elif data.y_train.ndim > 1:
        outputs = data.y_train.shape[1]
    return Model(
        net,
        outputs,
        augmentation,
        Scaler.fit(data.X_train) if standardise else None,
        task=data.task,
        classes=data.classes,
        feature_names=data.feature_names,
    )


def check(recipe: Recipe) -> Prepared:
    """The data of a recipe, after making sure that it can be trained as it says."""
    data = prepare(recipe)
    make_optimiser(build(recipe, data).parameters(), recipe.training, 0.0)
    return data
