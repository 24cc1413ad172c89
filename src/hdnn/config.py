"""Every setting of a run, once: name, type, range, default, help and group.

Configs come from the flags of ``hdnn train``, a TOML file or the parameters of an estimator. None
means "not set". The defaults here are the paper's planar protocol (section 4.1, appendix B.1), so
that a config made by hand can be used as it is; `model_fields_set` names the settings that were
set, and `hdnn.training.resolve` chooses the others for tables and images. This module imports no
torch.
"""

from __future__ import annotations

import hdnn.application  # noqa: F401 (first: it names the packages that are missing)

# isort: split
import functools
import json
import math
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic import ValidationInfo as Info

from hdnn.errors import HdnnError, shortened, shown, unknown_name
from hdnn.files import read_bytes

LARGEST_INTEGER = 2**63 - 1
"""The largest integer of TOML and torch, a bound that the documentation does not mention."""
DEPTHS, SAMPLES = 9, 8
"""What is recorded by default: then a recording costs about as much as a training step."""
OPTIMIZERS = (
    *("Adam", "AdamW", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "RAdam", "RMSprop"),
)
"""Those of torch for batches, without a closure, that resume from their state to the same bits."""
KINDS = {"planar": "planar problems", "table": "tables", "images": "images"}
"""The kinds of data, as `hdnn.data.Dataset` has them, and what people call them."""
COLUMNS = ("planar", "table")
"""Those whose samples are rows of numbers."""
PROTOCOLS = {
    "planar": ("tuned", "paper"),
    "table": ("tuned", "paper"),
    "images": ("paper", "convolutional", "convolutional-flipped"),
}
"""By kind of data, names of the defaults for settings that are not set; first the usual one."""


# --- what a setting is ----------------------------------------------------------------------------


def one_of(*names: str) -> AfterValidator:
    """Annotate a text that is one of these names; the error suggests the nearest one."""

    def check(value: str, info: Info) -> str:
        if value not in names:
            raise unknown_name(str(info.field_name), value, names)
        return value

    return AfterValidator(check)


LISTED = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Annotates a tuple that may be passed as a list, as TOML has them."""
SINGLE = BeforeValidator(
    lambda value: value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
)
"""Annotates a value that may be passed as a list of one, as repeatable flags are."""

Count = Annotated[int, Ge(0), Le(LARGEST_INTEGER)]
Positive = Annotated[int, Ge(1), Le(LARGEST_INTEGER)]
Share = Annotated[float, Ge(0), Lt(1)]
Weight = Annotated[float, Ge(0)]
Above = Annotated[float, Gt(0)]
Names = Annotated[tuple[str, ...], LISTED]
Target = Annotated[str | Annotated[tuple[str, ...], MinLen(1)], SINGLE, LISTED]
Stages = Annotated[tuple[Count, ...], MinLen(1)]
Channels = Annotated[tuple[Positive, ...], MinLen(1)]
ClassWeight = Annotated[str, one_of("balanced")] | tuple[Weight, ...]


def setting(
    default: Any,
    flag: str = "",
    depends: str = "",
    data: Collection[str] = tuple(KINDS),
    when: tuple[str, str] | None = None,
) -> Any:
    """Define a setting; the docstring below it is its help, after what it is for.

    Args:
        default: its value where it is not set and the data do not decide.
        flag: of ``hdnn train``; without one, ``--set`` reaches it.
        depends: for a setting that depends on the data: the rule.
        data: the kinds of data it is for.
        when: another setting of its table, and the value with which this one is used.
    """
    extra: Any = {"flag": flag, "depends": depends, "data": tuple(data), "when": when}
    return Field(default, json_schema_extra=extra)


class Settings(BaseModel):
    """A table of settings: frozen, checked, and each knows whether it was set.

    None counts as not set, so that flags and estimators can pass all they have. pydantic's errors
    become an `HdnnError` here and nowhere else.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def __init__(self, **values: Any) -> None:
        values = {name: value for name, value in values.items() if value is not None}
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(error, type(self).model_fields, values) from None

    def replace(self, **values: Any) -> Self:
        """Set some settings, and no others: the rest stays set or not set.

        Args:
            values: by name.

        Returns:
            New settings, checked.
        """
        return type(self)(**{**self.to_dict(), **values})

    def to_dict(self) -> dict[str, Any]:
        """The settings that were set, by name."""
        return {name: value for name, value in self if name in self.model_fields_set}


def _explain(error: ValidationError, names: Collection[str], values: dict[str, Any]) -> HdnnError:
    """Name the setting, what pydantic allows, and the value that was passed."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, HdnnError):
        return cause
    name = str(first["loc"][0]) if first["loc"] else ""
    if name not in names:
        return unknown_name("setting", name, names)
    if first["type"].startswith("model_"):
        return HdnnError(f"{name} is a table of settings, got {shown(values[name])}")
    allowed = first["msg"].removeprefix("Input ").removeprefix("Tuple ").removeprefix("Value ")
    return HdnnError(f"{name} {allowed}, got {shown(values.get(name))}")


# --- the settings ---------------------------------------------------------------------------------


class DataConfig(Settings):
    """Where the data come from."""

    source: str = setting("swiss-roll")
    """A data set (swiss-roll, mnist, ...), a table, or a folder of images."""
    split: Annotated[str, one_of("paper", "independent")] = setting(
        "paper", "--split", data=("planar",)
    )
    """one sample halved (paper), or two (independent)."""
    size: Positive = setting(10_000, "--size", data=("planar",))
    """number of points, train and test together."""
    target: Target | None = setting(None, "--target", data=("table",))
    """the column to predict. Repeat it to predict several numbers."""
    drop: Names = setting((), "--drop", data=("table",))
    """a column to ignore; repeatable."""
    categorical: Names = setting((), "--categorical", data=("table",))
    """a column to treat as categories; repeatable."""
    numeric: Names = setting((), "--numeric", data=("table",))
    """a column to treat as numbers; repeatable."""
    task: Annotated[str, one_of("classification", "regression")] | None = setting(
        None, "--task", data=("table",)
    )
    """override the detected task: classification or regression."""
    test: Share = setting(0.2, "--test", data=("table",))
    """fraction of rows held out for testing."""
    pixels: Positive | None = setting(None, "--pixels", data=("images",))
    """resize those of a folder to this many pixels a side."""
    digest: str | None = setting(None, data=("table", "images"))
    """SHA-256 of the file or folder of a run."""
    seed: Count = setting(0, "--seed")
    """Random seed of data, weights and batches."""


def _architecture(value: Any) -> Any:
    """The name in the catalog, in its case; an architecture of one's own stays as it is."""
    from hdnn.zoo import ARCHITECTURES, architecture

    row = architecture(value)
    return row.name if ARCHITECTURES.get(row.name) is row else value


def _scheme(value: Any) -> Any:
    from hdnn.schemes import named_scheme

    named_scheme(value)
    return value


class ModelConfig(Settings):
    """What is trained, on planar problems, tables and images.

    For images, ``layers`` and ``width`` have an entry for every stage.
    """

    architecture: Annotated[Any, AfterValidator(_architecture)] = setting(
        "H1", "--architecture", depends="H1; images: H2", when=("block", "hamiltonian")
    )
    """MS1, MS2, MS3, H1, H2, HS, ResNet or FCNN."""
    layers: Annotated[Positive | Stages, LISTED] = setting(
        16, "--layers", depends="planar problems: 16; tables: 8; images: 4"
    )
    """Number of layers. Images: of every stage, as in 4,4,4."""
    width: Annotated[Positive | Channels, LISTED] | None = setting(
        None,
        "--width",
        depends="planar problems: 4; tables: 8 to 64, by features and rows; images: 8",
    )
    """Width of the network. Images: channels of every stage, as in 16,32,48."""
    T: Above | None = setting(
        None,
        "--T",
        depends="planar problems: as tuned for Table 1; tables: 2 (H1, classification), else 1.2",
        when=("block", "hamiltonian"),
    )
    """Final time; a layer has the step T / layers."""
    step: Above | None = setting(
        None, "--step", depends="images: 0.4 (MS1), else 0.05", when=("block", "hamiltonian")
    )
    """Step of a layer, instead of T."""
    projection: Annotated[str, one_of("auto", "on", "off")] = setting("auto", data=COLUMNS)
    """learned linear map to the width: auto (where there are more features), on, off."""
    padding: Annotated[str, one_of("append", "spread")] = setting(
        "append",
        depends="planar problems: as tuned for Table 1; else append",
        data=COLUMNS,
        when=("projection", "off"),
    )
    """where zeros are added to the features: append or spread."""
    scheme: Annotated[Any, AfterValidator(_scheme)] = setting(
        None, "--scheme", when=("block", "hamiltonian")
    )
    """Time-stepping scheme in place of the architecture's: a name in hdnn.schemes.SCHEMES."""
    activation: str = setting("tanh", "--activation", when=("block", "hamiltonian"))
    """A name in hdnn.fields.ACTIVATIONS."""
    time_invariant: bool = setting(False, when=("block", "hamiltonian"))
    """All layers share their weights."""
    standardize: bool | None = setting(None, depends="planar problems: no; tables and images: yes")
    """Scale columns, or channels of images, to mean 0 and variance 1."""
    dtype: Annotated[str, one_of("float32", "float64")] = setting(
        "float32",
        depends="tables: float64 up to 1000 rows, or where a mean is over 1000 times the spread",
    )
    """float32 or float64."""
    scale: float = setting(
        1.0, depends="tables: 1 / sqrt(width); else 1", when=("block", "hamiltonian")
    )
    """Standard deviation of the initial K."""
    seed: Count = setting(0, "--seed")
    """Random seed of the initial weights."""
    kernel: Positive = setting(1, data=("images",))
    """size of the convolution K; 1 mixes channels only."""
    block: Annotated[str, one_of("hamiltonian", "convolution")] = setting(
        "hamiltonian", data=("images",)
    )
    """hamiltonian, or convolution: plain layers relu(conv(y))."""
    norm: Annotated[str, one_of("none", "batch")] = setting("none", data=("images",))
    """normalization between stages: none or batch."""


class TrainingConfig(Settings):
    """How a model is trained.

    Raises:
        HdnnError: a setting is unknown or out of range.

    >>> config = TrainingConfig(method="joint", epochs=20)
    >>> config.replace(learning_rate=0.01).to_dict()
    {'method': 'joint', 'epochs': 20, 'learning_rate': 0.01}
    """

    method: Annotated[str, one_of("coordinate", "joint")] = setting(
        "coordinate", "--method", depends="planar problems: coordinate; tables and images: joint"
    )
    """coordinate: solve the output layer in every iteration, then take a step on the hidden
    layers. joint: one optimizer for all weights."""
    epochs: Count = setting(
        50,
        "--epochs",
        depends="50; tables: 35 to 50 to classify, by the logarithm of the rows per feature; "
        "images: 40 (paper)",
    )
    """Passes over the training data."""
    batch_size: Positive = setting(
        125,
        "--batch-size",
        depends="planar problems: 125; tables: all up to 200 rows (coordinate: 500), else 200; "
        "images: 100",
    )
    """Samples in a batch."""
    learning_rate: Above = setting(
        0.05,
        "--lr",
        depends="planar problems: as tuned for Table 1; tables: 0.3 / width (regression: "
        "0.4 / width), two thirds of it with a constant schedule; images: 0.04 (paper)",
    )
    """Learning rate of the optimizer."""
    schedule: Annotated[str, one_of("constant", "exponential", "cosine", "one-cycle")] = setting(
        "constant",
        depends="planar problems: as tuned for Table 1; tables: cosine (coordinate: constant); "
        "images: exponential (paper)",
    )
    """Learning rate over epochs: constant, exponential (times decay after each), cosine (to 0),
    one-cycle (by iteration: up for warmup epochs, then on a cosine to 0)."""
    decay: Above = setting(1.0, when=("schedule", "exponential"))
    """factor after each epoch."""
    alpha: Weight = setting(
        5e-3, "--alpha", depends="planar problems: as tuned for Table 1; tables and images: 0.001"
    )
    """Weight of the smoothness penalty on the hidden layers, equation (13)."""
    alpha_c: Weight = setting(
        1e-4,
        depends="planar problems: as tuned for Table 1; tables: 0.01, to classify features / rows "
        "within 0.01 and 1; images: 0.0002",
    )
    """Weight of the penalty on the output layer."""
    solver: Annotated[str, one_of("newton", "adam")] = setting(
        "newton", when=("method", "coordinate")
    )
    """how the output layer is solved: by ten iterations of newton or adam."""
    optimizer: Annotated[str, one_of(*OPTIMIZERS)] = setting("Adam")
    """A name in torch.optim."""
    weight_decay: Weight = setting(0.0, when=("method", "joint"))
    """weight decay of the optimizer, on all weights."""
    warmup: Weight = setting(0.0, when=("method", "joint"))
    """epochs over which the learning rate rises linearly from 0."""
    averaging: Share = setting(0.0, when=("method", "joint"))
    """decay of a running average of the weights, which is returned; 0 for none."""
    shift: Count = setting(0, data=("images",))
    """random shifts of up to this many pixels."""
    rotate: Weight = setting(0.0, data=("images",))
    """random rotations of up to this many degrees."""
    zoom: Share = setting(0.0, data=("images",))
    """random scaling by 1 plus or minus this."""
    flip: bool = setting(False, data=("images",))
    """mirror half of the images."""
    clip: Above | None = setting(None)
    """Largest norm of the hidden layers' gradient."""
    class_weight: Annotated[ClassWeight, LISTED] | None = setting(None, "--balanced")
    """Weight classes inversely to their frequency."""
    validation: Share = setting(0.0, "--validation")
    """Fraction of the training data held out to monitor training."""
    early_stopping: Positive | None = setting(None, "--early-stopping")
    """Stop after this many epochs without a better validation loss, and return to the best."""
    seed: Count = setting(0, "--seed")
    """Random seed of batches and random changes of images."""
    loop: Annotated[str, one_of("auto", "compiled", "autograd")] = setting("auto")
    """auto, compiled (whole epochs in compiled code) or autograd."""
    device: Annotated[str, one_of("cpu", "cuda", "mps", "auto")] = setting("cpu", "--device")
    """Device to train on: cpu, cuda, mps, or auto (an accelerator for images)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.early_stopping is not None and self.validation == 0:
            raise HdnnError("early_stopping needs a part for validation: --validation 0.1")
        if self.warmup > self.epochs:
            raise HdnnError(f"warmup={self.warmup} is longer than the {self.epochs} epochs")
        return self

    @property
    def augments(self) -> bool:
        """Whether images are changed at random."""
        return bool(self.shift or self.rotate or self.zoom or self.flip)

    def learning_rate_at(self, epoch: float) -> float:
        """The learning rate at an epoch, counted from 0; a fraction is a place within it.

        Args:
            epoch: from 0.

        Returns:
            The learning rate.

        >>> config = TrainingConfig(learning_rate=0.04, schedule="exponential", decay=0.8)
        >>> config.learning_rate_at(1)
        0.032
        """
        if epoch < self.warmup:
            # Not 0 at first: an iteration without a step would be wasted.
            return self.learning_rate * max(epoch, 1e-3) / self.warmup
        whole = math.floor(epoch)
        if self.schedule == "exponential":
            return self.learning_rate * self.decay**whole
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * whole / max(self.epochs, 1))) / 2
        if self.schedule == "one-cycle":
            # The warmup may last for all epochs; then nothing is left to divide by.
            share = (epoch - self.warmup) / max(self.epochs - self.warmup, 1e-9)
            return self.learning_rate * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        return self.learning_rate


class RecordConfig(Settings):
    """What a run records of its gradients."""

    every: Positive = setting(10, "--record")
    """Record gradient norms every this many iterations; see hdnn gradients."""
    depths: Count | Annotated[tuple[Count, ...], LISTED] = setting(DEPTHS)
    """Number of depths, evenly spaced from input to output, or a list of them."""
    samples: Positive = setting(SAMPLES)
    """Number of samples of a batch."""


TABLES: dict[str, type[Settings]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "record": RecordConfig,
}
"""The tables of a config file."""


class Document(Settings):
    """Tables of settings, as a TOML file has them."""

    tables: ClassVar[dict[str, type[Settings]]] = {}

    @classmethod
    def built(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values for the constructor, with tables that are plain, as TOML and flags have them."""
        return {
            name: cls.tables[name](**value)
            if name in cls.tables and isinstance(value, Mapping)
            else value
            for name, value in values.items()
        }

    def to_toml(self) -> str:
        """The settings that were set as TOML, which `from_toml` reads."""
        alone = {k: v for k, v in self.to_dict().items() if k not in self.tables and v is not None}
        blocks = [f"{name} = {_toml(value)}\n" for name, value in alone.items()]
        for name in self.tables:
            values = getattr(self, name)
            if values is not None:
                lines = [f"{key} = {_toml(value)}\n" for key, value in values.to_dict().items()]
                blocks.append("".join([f"[{name}]\n", *lines]))
        return "\n".join(blocks)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a config file.

        Args:
            path: of a TOML file with these tables.

        Returns:
            The config.

        Raises:
            HdnnError: it cannot be read, is not TOML, or has unknown or wrong settings.
        """
        return cls.from_tables(read_toml(path), str(path))

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], where: str) -> Self:
        """A config of plain values; messages begin with where they come from."""
        try:
            return cls(**tables)
        except HdnnError as error:
            raise HdnnError(f"{where}: {error}") from error


class Config(Document):
    """All settings of a run: data, model, training, and what is recorded of its gradients.

    Raises:
        HdnnError: a setting is unknown or out of range.

    >>> config = Config(data={"source": "iris"}, training={"epochs": 5, "learning_rate": None})
    >>> sorted(config.training.model_fields_set)
    ['epochs']
    """

    tables = TABLES

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    record: RecordConfig | None = None
    protocol: Annotated[str, one_of(*dict.fromkeys(sum(PROTOCOLS.values(), ())))] | None = setting(
        None, "--protocol"
    )
    """Defaults for settings you do not pass: tuned (default) or paper; for images paper
    (default), convolutional or convolutional-flipped."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**self.built(values))


class RecordingsConfig(Settings):
    """Which recordings a system is identified from."""

    files: Names = setting(())
    """CSV, TSV or Parquet files, each a recording, or the name of a data set."""
    inputs: Names = setting((), "--input")
    """a column with an input; repeatable."""
    outputs: Names = setting((), "--output")
    """a column with an output; repeatable."""
    time: str | None = setting(None, "--time")
    """the column of times, numbers or dates."""
    sampling_time: Above | None = setting(None, "--sampling-time")
    """time between two rows, where no column tells it (default: 1)."""
    experiment: str | None = setting(None, "--experiment")
    """a column that numbers the recordings of a file."""


class IdentificationConfig(Settings):
    """What `hdnn.identification.identify` tries.

    >>> IdentificationConfig(states=[2, 3]).states
    (2, 3)
    """

    states: Positive | Annotated[tuple[Positive, ...], MinLen(1), LISTED] = setting(
        (2, 4, 6), "--states"
    )
    """Number of states, or several to choose from by validation."""
    units: Count | Annotated[tuple[Count, ...], MinLen(1), LISTED] = setting(12, "--units")
    """Number of hidden units, or several to choose from by validation; 0: linear models only."""
    restarts: Positive = setting(3, "--restarts")
    """Networks of each size, with other random units."""
    iterations: Positive = setting(100)
    """Iterations of a network, at most."""
    validation: Annotated[float, Gt(0), Lt(1)] = setting(0.15)
    """fraction of the samples, the last ones, on which free runs choose sizes and stopping."""
    test: Share = setting(0.0, "--test")
    """fraction of the samples, the last ones, held out for testing."""
    seed: Count = setting(0, "--seed")
    """Random seed of the units."""


class IdentifyConfig(Document):
    """All settings of `hdnn identify`."""

    tables = {"data": RecordingsConfig, "identification": IdentificationConfig}

    data: RecordingsConfig = RecordingsConfig()
    identification: IdentificationConfig = IdentificationConfig()

    def __init__(self, **values: Any) -> None:
        super().__init__(**self.built(values))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; an `HdnnError` that names the file where it is none.

    In the config of a run, which has the digest of its data, their path may begin at the file.
    """
    content = read_bytes(path)
    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise HdnnError(f"{path} is not TOML: {shortened(str(error), 200)}") from error
    match tables:
        case {"data": {"digest": _, "source": str(source)}}:
            tables["data"]["source"] = os.path.normpath(path.parent.resolve() / source)
    return tables


def _toml(value: Any) -> str:
    """A plain value: TOML writes what settings are made of as JSON does, DEL apart."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
    except TypeError:
        raise HdnnError(f"{shown(value)} cannot be written to a config file") from None


# --- the definitions, as flags and documentation read them ----------------------------------------


@dataclass(frozen=True)
class Setting:
    """The definition of a setting; see `setting`."""

    table: str
    name: str
    default: Any
    help: str
    annotation: Any
    flag: str
    depends: str
    data: tuple[str, ...]
    when: tuple[str, str] | None

    def obstacle(self, settings: Settings, data: str) -> str | None:
        """Why it is not used with the others of its table on a kind of data; None if it is."""
        if data not in self.data:
            return f"is for {_joined(self.data)}, not for {KINDS[data]}"
        if self.when is not None and getattr(settings, self.when[0]) != self.when[1]:
            name, value = self.when
            return f"is for {name}={value!r}, not for {getattr(settings, name)!r}"
        return None


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting of every table, in order; the table of `protocol` is ""."""
    settings = []
    kinds: dict[str, type[Settings]] = {**TABLES, "": Config}
    for table, kind in kinds.items():
        for name, info in kind.model_fields.items():
            if table or name == "protocol":
                extra: Any = info.json_schema_extra
                help = " ".join([*_scope(**extra), *(info.description or "").split()])
                row = table, name, info.default, help, info.annotation
                settings.append(Setting(*row, **extra))
    return tuple(settings)


def _scope(data: Collection[str], when: tuple[str, str] | None, **others: Any) -> list[str]:
    """What a setting is for, as its help begins; nothing for all data."""
    if len(data) < len(KINDS):
        return [f"{_joined(data).capitalize()}:"]
    # The block is a setting of images: it would tell the others nothing.
    return [] if when is None or when[0] == "block" else ["{}={}:".format(*when)]


def _joined(data: Collection[str]) -> str:
    return " and ".join(KINDS[kind] for kind in data)


def check_applies(settings: Settings, data: str, names: Collection[str] | None = None) -> None:
    """Raise for a setting that was set and would not be used.

    Args:
        settings: one table of them.
        data: the kind of data, of `KINDS`.
        names: the settings that were set; None: `model_fields_set`.

    Raises:
        HdnnError: there is one.
    """
    for each in _definitions(type(settings)):
        if each.name in (settings.model_fields_set if names is None else names):
            reason = each.obstacle(settings, data)
            if reason is not None:
                flag = f" ({each.flag})" if each.flag else ""
                raise HdnnError(f"{each.name}{flag} {reason}: leave it out")


S = TypeVar("S", bound=Settings)


def complete(settings: S, data: str) -> S:
    """Set everything that applies to a kind of data, and nothing else.

    Args:
        settings: one table of them.
        data: the kind of data, of `KINDS`.

    Returns:
        The same values where they apply, else the defaults, which do not count as set.
    """
    used = [d.name for d in _definitions(type(settings)) if d.obstacle(settings, data) is None]
    return type(settings)(**{name: getattr(settings, name) for name in used})


def _definitions(kind: type[Settings]) -> list[Setting]:
    return [each for each in all_settings() if TABLES.get(each.table) is kind]
