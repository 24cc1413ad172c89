"""Every setting of a run, defined once: data, model (of tables or of images), training, record.

Name, type, default, range, help and group of a setting stand here. Config files are checked
against it; the flags of ``hdnn train``, the estimators' checks and docs/settings.md come from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le, Lt, MinLen
from pydantic import BeforeValidator

from hdnn.data import BUNDLED, KINDS, PROBLEMS
from hdnn.data.images import IMAGE_SETS
from hdnn.data.labels import TASKS
from hdnn.errors import HdnnError
from hdnn.models.images import BLOCKS, CONNECTORS, HEADS, NORMS, block_step
from hdnn.models.stems import PROJECTIONS
from hdnn.training.devices import DEVICES
from hdnn.training.schema import LISTED, MOST, OneOf, record, setting
from hdnn.zoo import architecture

METHODS = ("coordinate", "joint")
SOLVERS = ("newton", "adam")
SCHEDULES = ("constant", "exponential", "cosine", "one-cycle")
LOOPS = ("auto", "compiled", "autograd")
DTYPES = {"float32": torch.float32, "float64": torch.float64}

MOST_POINTS, MOST_LAYERS, MOST_WIDTH = 10**8, 10**6, 10**5
"""More than this of a planar problem, or of a network, is a slip of the pen."""

DEPTHS, SAMPLES = 9, 8
"""What is recorded by default; with it a recording costs about as much as a training step."""

SHARE = "a share in [0, 1)"
FILE_ONLY: tuple[str, ...] = ()
"""The flags of a setting that only a config file has."""

Dtype = Annotated[str, OneOf(tuple(DTYPES))]
Count = Annotated[int, Ge(0), Le(MOST)]
LISTED_OR_ONE = BeforeValidator(lambda value: (value,) if isinstance(value, int) else value)
Widths = Annotated[
    tuple[Annotated[int, Ge(1), Le(MOST_WIDTH)], ...], MinLen(1), LISTED_OR_ONE, LISTED
]
Depths = Annotated[
    tuple[Annotated[int, Ge(0), Le(MOST_LAYERS)], ...], MinLen(1), LISTED_OR_ONE, LISTED
]
Betas = Annotated[tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]], LISTED]
Targets = Annotated[
    str | Annotated[tuple[str, ...], MinLen(1), LISTED],
    BeforeValidator(lambda given: given[0] if _is_single(given) else given),
]
ClassWeights = Annotated[tuple[Annotated[float, Ge(0)], ...], MinLen(2), LISTED]


def _is_single(given: object) -> bool:
    return isinstance(given, list | tuple) and len(given) == 1


def is_image(source: str) -> bool:
    """Whether a source names a data set of images, or is a folder; ./name is a file or folder."""
    name = source.lower().replace("_", "-")
    if name in IMAGE_SETS:
        return True
    if name in PROBLEMS or name in BUNDLED:
        return False
    try:
        return bool(source) and Path(source).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # no text that a path can have
        return False


@record
class DataConfig:
    """Where the data come from."""

    source: str = setting(
        "swiss-roll",
        "A data set (swiss-roll, mnist, ...), a table, or a folder of images by class.",
        "Data",
        flags=FILE_ONLY,  # it is the argument
    )
    split: Annotated[str, OneOf(KINDS)] = setting(
        "paper", "Planar problems: how train and test are drawn, paper or independent.", "Data"
    )
    size: int = setting(
        10_000, "Planar problems: points of both parts.", "Data", ge=1, le=MOST_POINTS
    )
    target: Targets | None = setting(
        None,
        "Tables: the column to predict; repeats, for a regression of several.",
        "Data",
        allowed="a text, or a list of texts",
    )
    drop: Annotated[tuple[str, ...], LISTED] = setting(
        (), "Tables: a column to leave out; repeats.", "Data", allowed="a list of texts"
    )
    categorical: Annotated[tuple[str, ...], LISTED] = setting(
        (), "Tables: a column of categories; repeats.", "Data", allowed="a list of texts"
    )
    numeric: Annotated[tuple[str, ...], LISTED] = setting(
        (), "Tables: a column of numbers; repeats.", "Data", allowed="a list of texts"
    )
    task: Annotated[str, OneOf(TASKS)] | None = setting(
        None, "Tables: classification or regression, where the guess is wrong.", "Data"
    )
    test: float = setting(
        0.2, "Tables: share held out to evaluate.", "Data", ge=0, lt=1, allowed=SHARE
    )
    pixels: int | None = setting(
        None, "Folders of images: the side to bring them to.", "Data", ge=1, le=MOST_WIDTH
    )
    strict: bool = setting(
        False, "Folders of images: a file that cannot be read is an error.", "Data"
    )
    digest: str | None = setting(
        None,
        "Tables and folders: the SHA-256 by which a run notices that the data have changed.",
        "Data",
        flags=FILE_ONLY,
    )
    seed: int = setting(0, "Seed of data, weights and batches.", "Run", ge=0)

    @property
    def is_table(self) -> bool:
        """Whether the source is a file."""
        return self.source.lower().replace("_", "-") not in PROBLEMS and not self.is_image

    @property
    def is_image(self) -> bool:
        """Whether the source is a data set of images."""
        return is_image(self.source)


@record
class ModelConfig:
    """What is trained on planar problems and tables."""

    architecture: str = setting("H1", "MS1, MS2, MS3, H1, H2, HS, ResNet or FCNN.", "Network")
    layers: int = setting(
        16, "Depth; of every stage for images, as in 4,4,4.", "Network", ge=1, le=MOST_LAYERS
    )
    T: float | None = setting(
        None, "Final time, h = T / layers; 1.2 where step is not given either.", "Network", gt=0
    )
    step: float | None = setting(None, "Step h, instead of T.", "Network", gt=0)
    width: int | None = setting(
        None,
        "Width; by default the features and as many zeros, at most 32 of them.",
        "Network",
        ge=1,
        le=MOST_WIDTH,
    )
    projection: Annotated[str, OneOf(PROJECTIONS)] = setting(
        "auto",
        "A learned linear map to the width: auto (where the features exceed it), on or off.",
        "Network",
    )
    augmentation: str = setting("append", "Where the zeros go: append or spread.", "Network")
    activation: str = setting("tanh", "A name in hdnn.fields.ACTIVATIONS.", "Network")
    time_invariant: bool = setting(False, "All layers share their weights.", "Network")
    standardize: bool | None = setting(
        None, "Scale the columns, or the channels of images; by default not planar data.", "Network"
    )
    dtype: Dtype = setting("float32", "float32 or float64.", "Network")
    seed: int = setting(0, "Seed of data, weights and batches.", "Run", ge=0)
    scale: float = setting(1.0, "Standard deviation of the initial K; of b it is 1.", "Network")

    def __post_init__(self) -> None:
        row = architecture(self.architecture)
        object.__setattr__(self, "architecture", row.name)
        if row.scheme.uses_step and self.T is None and self.step is None:
            object.__setattr__(self, "T", 1.2)


@record
class ImageModelConfig:
    """What is trained on images; the defaults are section 4.2 of the paper."""

    architecture: str = setting("H2", "Of the Hamiltonian blocks, as for tables.", "Network")
    widths: Widths = setting(
        (8,),
        "Channels of every stage, as in 16,32,48.",
        "Images",
        allowed=f"a list of integers from 1 to {MOST_WIDTH}",
    )
    layers: Depths = setting(
        (4,),
        "Depth of every stage; 0 is a stage without a block.",
        "Network",
        allowed=f"a list of integers from 0 to {MOST_LAYERS}",
    )
    step: float | None = setting(
        None, "Step h; by default 0.4 for MS1, 0.05 for the others.", "Network", gt=0
    )
    T: float | None = setting(None, "Final time of every block, instead of step.", "Network", gt=0)
    kernel: int = setting(
        1, "Size of K: 1 mixes channels, 3 is a convolution.", "Images", ge=1, le=MOST_WIDTH
    )
    block: Annotated[str, OneOf(BLOCKS)] = setting(
        "hamiltonian", "hamiltonian, or convolution: plain layers relu(conv(y)).", "Images"
    )
    connector: Annotated[str, OneOf(CONNECTORS)] = setting(
        "pool", "Between stages: pool or stride.", "Images"
    )
    norm: Annotated[str, OneOf(NORMS)] = setting(
        "none", "Normalization between stages: none, batch or group.", "Images"
    )
    head: Annotated[str, OneOf(HEADS)] = setting(
        "linear", "Output layer: linear on all values, or pool (average over pixels).", "Images"
    )
    scale: float = setting(1.0, "Standard deviation of the initial K and b.", "Network", gt=0)
    time_invariant: bool = setting(False, "The layers of a stage share their weights.", "Network")
    standardize: bool = setting(True, "Scale the channels.", "Network")
    dtype: Dtype = setting("float32", "float32 or float64.", "Network")
    seed: int = setting(0, "Seed of data, weights and batches.", "Run", ge=0)

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.layers):
            raise HdnnError(
                f"every stage has a width and a depth, got {len(self.widths)} widths "
                f"{self.widths} and {len(self.layers)} depths {self.layers}"
            )
        if self.kernel % 2 == 0:
            raise HdnnError(f"kernel is an odd positive integer, got {self.kernel}")
        name = architecture(self.architecture).name
        object.__setattr__(self, "architecture", name)
        object.__setattr__(self, "step", block_step(name, self.step, self.T, self.block))

    def options(self) -> dict[str, Any]:
        """The arguments of `hdnn.image_model` that do not depend on the images."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        del own["standardize"], own["seed"]
        return own | {"dtype": DTYPES[self.dtype]}


@record
class TrainingConfig:
    """How a model is trained; the defaults are appendix B.1 of the paper, with Newton.

    Raises:
        HdnnError: a setting is unknown or out of range.

    >>> from dataclasses import replace
    >>> from hdnn.training import TrainingConfig
    >>> config = TrainingConfig(method="joint", epochs=20)
    >>> replace(config, learning_rate=0.01).learning_rate
    0.01
    """

    method: Annotated[str, OneOf(METHODS)] = setting(
        "coordinate",
        "coordinate (solve the output layer in every iteration, then a step on the hidden layers; "
        "appendix B.1) or joint (one optimizer for everything; appendix B.2).",
        "Training",
    )
    epochs: int = setting(50, "Passes over the data.", "Training", ge=0)
    batch_size: int = setting(125, "Samples in an iteration.", "Training", ge=1)
    learning_rate: float = setting(
        0.05,
        "Learning rate of the optimizer.",
        "Training",
        gt=0,
        flags=("--learning-rate", "--lr"),
    )
    betas: Betas = setting(
        (0.9, 0.999), "Of Adam.", "Training", allowed="two numbers in [0, 1)", flags=FILE_ONLY
    )
    schedule: Annotated[str, OneOf(SCHEDULES)] = setting(
        "constant",
        "Learning rate over epochs: constant, exponential (times decay after each), cosine (to 0), "
        "one-cycle (by iteration: up for warmup epochs, then on a cosine to 0).",
        "Training",
    )
    decay: float = setting(1.0, "Factor of the exponential schedule.", "Training", gt=0)
    alpha: float = setting(
        5e-3, "Weight of the smoothness penalty, equation (13).", "Training", ge=0
    )
    alpha_c: float = setting(1e-4, "Weight of the output layer's penalty.", "Training", ge=0)
    solver: Annotated[str, OneOf(SOLVERS)] = setting(
        "newton", "How coordinate solves the output layer: newton or adam.", "Training"
    )
    solver_iterations: int = setting(
        10, "Iterations of the solver.", "Training", ge=1, flags=FILE_ONLY
    )
    optimizer: str = setting("Adam", "A name in torch.optim.", "Training")
    weight_decay: float = setting(
        0.0, "joint: weight decay of the optimizer, on all parameters.", "Training", ge=0
    )
    warmup: float = setting(
        0.0, "Epochs of a linear rise of the learning rate from 0.", "Training", ge=0
    )
    label_smoothing: float = setting(
        0.0, "joint: share of a label that is spread over all classes.", "Training", ge=0, lt=1
    )
    averaging: float = setting(
        0.0,
        "joint: decay of a running average of the weights, which is returned; 0: none.",
        "Training",
        ge=0,
        lt=1,
    )
    shift: int = setting(0, "Random shifts by at most so many pixels.", "Images", ge=0)
    rotate: float = setting(0.0, "Random rotations by at most so many degrees.", "Images", ge=0)
    zoom: float = setting(0.0, "Random sizes, 1 +- this.", "Images", ge=0, lt=1)
    flip: bool = setting(False, "Mirror half of the images.", "Images")
    erase: int = setting(0, "Side of a square set to black.", "Images", ge=0)
    clip: float | None = setting(
        None, "Largest norm of the hidden layers' gradient; by default none.", "Training", gt=0
    )
    class_weight: Annotated[str, OneOf(("balanced",))] | ClassWeights | None = setting(
        None,
        "balanced: the classes count alike; or a weight for every class.",
        "Training",
        allowed="'balanced', or a nonnegative weight for every class",
        flags=("--balanced",),
        constant="balanced",
    )
    validation: float = setting(
        0.0,
        "Share of the training data held out to watch.",
        "Training",
        ge=0,
        lt=1,
        allowed=SHARE,
    )
    early_stopping: int | None = setting(
        None,
        "Stop after so many epochs without a better validation loss, and return to the best.",
        "Training",
        ge=1,
        le=MOST,
    )
    seed: int = setting(0, "Seed of data, weights and batches.", "Run", ge=0)
    loop: Annotated[str, OneOf(LOOPS)] = setting(
        "auto",
        "auto, compiled (whole epochs in compiled code) or autograd.",
        "Training",
        flags=FILE_ONLY,
    )
    device: Annotated[str, OneOf(DEVICES)] = setting(
        "cpu", "Where to train: cpu, cuda, mps, or auto (an accelerator for images).", "Run"
    )

    def __post_init__(self) -> None:
        if self.early_stopping is not None and self.validation == 0:
            raise HdnnError("early_stopping needs a validation part: give validation=0.1")
        if self.warmup > self.epochs:
            raise HdnnError(f"warmup={self.warmup} is longer than the {self.epochs} epochs")

    @property
    def solves_output(self) -> bool:
        """Whether the output layer is the minimizer given the hidden layers."""
        return self.method != "joint"

    @property
    def distorts(self) -> bool:
        """Whether images are changed at random."""
        return bool(self.shift or self.rotate or self.zoom or self.flip or self.erase)

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
        """The settings as plain values, without those that are None.

        Returns:
            Settings by name, for TOML or JSON.
        """
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """The config of plain values; an unknown name raises an error that names the nearest.

        Args:
            values: settings by name.

        Returns:
            The config.
        """
        return cls(**values)


@record
class RecordConfig:
    """What a run records of its gradients."""

    every: int = setting(
        10,
        "Record gradients every so many iterations; see hdnn gradients.",
        "Run",
        ge=1,
        flags=("--record",),
    )
    depths: Count | Annotated[tuple[Count, ...], LISTED] = setting(
        DEPTHS,
        "How many depths, evenly spaced from input to output, or which ones.",
        "Run",
        allowed="an integer or a list of integers of at least 0",
        flags=FILE_ONLY,
    )
    samples: int = setting(SAMPLES, "How many samples of a batch.", "Run", ge=1, flags=FILE_ONLY)
