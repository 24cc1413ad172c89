"""A recipe: data, model and training as one record that a run can be repeated from."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdnn.data import KINDS, PROBLEMS, holdout, problem, read_table, split
from hdnn.errors import HdnnError, unknown_name
from hdnn.images import ImageClassifier
from hdnn.model import Augmentation, Model, Scaler
from hdnn.training import toml
from hdnn.training.config import TrainingConfig
from hdnn.training.optimisers import make_optimiser
from hdnn.training.pictures import (
    DTYPES,
    ImageRecipe,
    build_classifier,
    is_image,
    load_pictures,
    with_preset,
)
from hdnn.zoo import architecture, network


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
        digest: for a table: its SHA-256, so that a run notices when the file has changed.
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
            raise HdnnError(f"test is a share in [0, 1), got {self.test!r}")

    @property
    def is_table(self) -> bool:
        """Whether the source is a file."""
        return self.source.lower().replace("_", "-") not in PROBLEMS and not self.is_image

    @property
    def is_image(self) -> bool:
        """Whether the source are pictures."""
        return is_image(self.source)

    def pinned(self) -> DataRecipe:
        """The same with an absolute path and the digest of a table, as a run records it."""
        path = Path(self.source)
        if self.is_image and path.is_dir():
            return replace(self, source=str(path.resolve()))
        if not self.is_table or not path.is_file():
            return self
        return replace(self, source=str(path.resolve()), digest=_digest(path))


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),),
    "tuple[str, ...]": (tuple,),
}  # fmt: skip


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
            raise HdnnError(f"{f.name} is of the wrong type: {words} is wanted, got {value!r}")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        if self.layers < 1:
            raise HdnnError(f"layers is an integer of at least 1, got {self.layers}")
        if self.seed < 0:
            raise HdnnError(f"seed is an integer of at least 0, got {self.seed}")
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        uses_step = architecture(self.architecture).scheme.uses_step
        if uses_step and self.T is None and self.step is None:
            object.__setattr__(self, "T", 1.2)


@dataclass(frozen=True)
class Recipe:
    """Data, model and training."""

    data: DataRecipe = field(default_factory=DataRecipe)
    model: ModelRecipe | ImageRecipe = field(default_factory=ModelRecipe)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def to_toml(self) -> str:
        """The recipe as TOML, which `from_toml` reads."""
        return toml.dumps(
            {"data": asdict(self.data), "model": asdict(self.model),
             "training": self.training.to_dict()}
        )  # fmt: skip

    @classmethod
    def from_toml(cls, text: str, where: str = "the config") -> Recipe:
        """The recipe of a TOML text; a clear error for anything else."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise HdnnError(f"{where} is not TOML: {error}") from error
        return cls.from_tables(tables, where)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], where: str = "the config") -> Recipe:
        """The recipe of plain values in tables data, model, training."""
        cls.check_names(tables, where)
        try:
            data = _record(DataRecipe, tables.get("data", {}), where)
            pictures = _of_pictures(tables)
            tables = with_preset(tables) if pictures else tables
            kind = ImageRecipe if pictures else ModelRecipe
            return cls(
                data,
                _record(kind, tables.get("model", {}), where),
                TrainingConfig.from_dict(tables.get("training", {})),
            )
        except TypeError as error:
            raise HdnnError(f"{where} has a value of the wrong type: {error}") from error

    @staticmethod
    def check_names(tables: Mapping[str, Any], where: str) -> None:
        """Refuse unknown tables and settings."""
        pictures = _of_pictures(tables)
        model = ImageRecipe if pictures else ModelRecipe
        known = {"data": DataRecipe, "model": model, "training": TrainingConfig}
        for name, table in tables.items():
            if name not in ("data", "model", "training"):
                raise unknown_name(f"table in {where}", name, ("data", "model", "training"))
            if not isinstance(table, Mapping):
                raise HdnnError(f"{name} in {where} is a table, got {table!r}")
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


def _record(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**values)
    except HdnnError as error:
        raise type(error)(f"{where}: {error}") from error


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
    if data.is_image:
        found = load_pictures(data.source, data.pixels, data.seed)
        return Prepared(
            found.train, found.train_labels, found.test, found.test_labels, "classification",
            list(found.classes), None, [],
        )  # fmt: skip
    if not data.is_table:
        parts = split(problem(data.source).name, data.split, data.size, data.seed)
        return Prepared(
            parts.X_train.to(dtype), parts.y_train, parts.X_test.to(dtype), parts.y_test,
            "classification", list(range(parts.classes)), None, [],
        )  # fmt: skip
    if not Path(data.source).exists():
        raise unknown_name("data set (and there is no such file)", data.source, PROBLEMS)
    if data.digest is not None and _digest(Path(data.source)) != data.digest:
        raise HdnnError(
            f"{data.source} has changed since the run began; train anew in another --out"
        )
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
        X[train], y[train], X[test], y[test], table.task,
        None if table.classes is None else list(table.classes), list(table.feature_names),
        list(table.notes),
    )  # fmt: skip


def build(recipe: Recipe, data: Prepared) -> Model | ImageClassifier:
    """The untrained model of a recipe."""
    if isinstance(recipe.model, ImageRecipe):
        assert data.classes is not None
        return build_classifier(recipe.model, data.X_train, data.classes)
    return _build_model(recipe.model, recipe.data.is_table, data)


def _build_model(given: ModelRecipe, is_table: bool, data: Prepared) -> Model:
    features = data.X_train.shape[1]
    width = features + min(features, 32) if given.width is None else given.width
    augmentation = Augmentation(features, width, given.augmentation)
    net = network(
        given.architecture, features=augmentation.width, layers=given.layers, T=given.T,
        step=given.step, activation=given.activation, time_invariant=given.time_invariant,
        dtype=DTYPES[given.dtype], generator=torch.Generator().manual_seed(given.seed),
        scale=given.scale,
    )  # fmt: skip
    standardise = is_table if given.standardise is None else given.standardise
    if not standardise and bool(torch.isnan(data.X_train).any()):
        raise HdnnError("missing values are taken as the mean, which needs --standardise")
    outputs = 1
    if data.task == "classification" and data.classes is not None:
        outputs = 1 if len(data.classes) == 2 else len(data.classes)
    elif data.y_train.ndim > 1:
        outputs = data.y_train.shape[1]
    return Model(
        net, outputs, augmentation, Scaler.fit(data.X_train) if standardise else None,
        task=data.task, classes=data.classes, feature_names=data.feature_names,
    )  # fmt: skip


def check(recipe: Recipe) -> Prepared:
    """The data of a recipe, after making sure that it can be trained as it says."""
    data = prepare(recipe)
    make_optimiser(build(recipe, data).parameters(), recipe.training, 0.0)
    return data
