"""The recorder: what happens to gradients along the depth of a network while it is trained.

It looks, and leaves no trace: the weights of a training with and without it are the same bits.
In a run folder its recordings are in ``gradients.jsonl``, beside the history: first a line that
says what was recorded (`Header`), then one line for every recording (`Recording`).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.analysis.profiles import Snapshots, spread
from hdnn.errors import FileFormatError, HdnnError
from hdnn.files import finite, read_json_lines, write_json_lines
from hdnn.networks import HamiltonianNetwork
from hdnn.training.epochlog import EpochLog
from hdnn.training.loops import Observations
from hdnn.training.schema import check_value
from hdnn.training.settings import DEPTHS, SAMPLES, RecordConfig

FORMAT = 1


@dataclass(frozen=True)
class Header:
    """The first line of a record: what is recorded.

    Args:
        every: iterations from one recording to the next.
        depths: l of the recorded d y_N / d y_l, from 0 (input) to N (output).
        samples: of every batch, the first so many are looked at.
        format: of the file.
    """

    every: int
    depths: tuple[int, ...]
    samples: int
    format: int = FORMAT

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Header:
        """The header of a line of the file."""
        if values.get("format") != FORMAT:
            raise ValueError("it is of another format")
        return cls(**{**values, "depths": tuple(values["depths"])})


@dataclass(frozen=True)
class Recording:
    """One look, before the step of an iteration, at the batch of that iteration.

    Args:
        epoch: counted from 1, as in the history.
        iteration: counted from 0 over all epochs: steps taken before.
        mean, minimum, maximum: over samples, of the norm of d y_N / d y_l, one entry for a depth.
        smallest: the smallest singular value of d y_N / d y_l of any sample.
        of_mean: the norm of the mean of d y_N / d y_l over the samples.
        gradient_norm: the norm of the gradient of the penalized loss, on the whole batch, with
            respect to the weights of all layers, before clipping; NaN where no sample counts.
        energy: mean over samples of H of layer l at y_l; empty where there is no energy.
        gradient: the part of it that belongs to layer l, at the same depths but N (one entry in all
            where layers share their weights).
    """

    epoch: int
    iteration: int
    gradient_norm: float
    mean: tuple[float, ...]
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    smallest: tuple[float, ...]
    of_mean: tuple[float, ...]
    energy: tuple[float, ...]
    gradient: tuple[float, ...]


class GradientLog(EpochLog):
    """The file ``gradients.jsonl`` of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(Path(path))

    def header(self) -> Header:
        """What was recorded.

        Raises:
            FileFormatError: the file does not begin with a header.
        """
        try:
            with open(self.path, "rb") as file:
                return Header.from_dict(json.loads(file.readline()))
        except Exception as error:  # whatever a reader of any bytes may meet
            raise FileFormatError(
                f"{self.path} is no record of gradients: {str(error)[:200]}"
            ) from error

    def read(self) -> tuple[Header, list[dict[str, Any]]]:
        """What was recorded, and the recordings; damaged ones are reported and left out."""
        header = self.header()

        def parse(line: dict[str, Any]) -> dict[str, Any] | None:
            return None if "format" in line else _checked(line, len(header.depths))

        lines = read_json_lines(self.path, parse).objects
        return header, [line for line in lines if line is not None]

    def begin(self, header: Header, epoch: int) -> None:
        """Cut the record back to the end of an epoch; a header that is another is set aside.

        Args:
            header: what will be recorded.
            epoch: the last that is kept.
        """
        first = json.loads(json.dumps(asdict(header)))  # lists, as they come from the file
        if epoch == 0 or not self.path.exists():
            write_json_lines(self.path, [first])
        self.cut(epoch, first)

    def append(self, epoch: int, recordings: Sequence[Recording]) -> None:
        """Add the recordings of an epoch, unless they are there already."""
        self.extend(epoch, "".join(map(_line, recordings)))


_LISTS = ("mean", "minimum", "maximum", "smallest", "of_mean", "energy", "gradient")


@functools.lru_cache(maxsize=64)
def _form(lengths: tuple[int, ...]) -> str:
    """How a recording is written: numbers with six digits; lists that are empty are left out."""
    parts = (
        f', "{name}": [{", ".join(["%.6g"] * length)}]'
        for name, length in zip(_LISTS, lengths, strict=True)
        if length
    )
    return '{"epoch": %d, "iteration": %d, "gradient_norm": %.6g' + "".join(parts) + "}\n"


def _checked(line: dict[str, Any], depths: int) -> dict[str, Any]:
    """A recording as it is in the file, if it has what every recording has."""
    for name in ("epoch", "iteration"):
        if type(line[name]) is not int:
            raise ValueError(f"{name} is an integer")
    _check_number("gradient_norm", line["gradient_norm"])
    for name in _LISTS:
        values = line.get(name, []) if name in ("energy", "gradient") else line[name]
        for value in values:
            _check_number(name, value)
        if name in _LISTS[:5] and len(values) != depths:
            raise ValueError(f"{name} has {len(values)} entries for {depths} depths")
    return line


def _check_number(name: str, value: object) -> None:
    if value is not None and type(value) not in (int, float):
        raise ValueError(f"{name} is made of numbers")


def _line(r: Recording) -> str:
    """A recording as JSON, in one go: formatting numbers one by one is slow."""
    lists = (r.mean, r.minimum, r.maximum, r.smallest, r.of_mean, r.energy, r.gradient)
    flat = tuple(itertools.chain.from_iterable(lists))
    if math.isfinite(sum(flat) + r.gradient_norm):
        return _form(tuple(map(len, lists))) % (r.epoch, r.iteration, r.gradient_norm, *flat)
    given = {name: value for name, value in asdict(r).items() if value != ()}
    return json.dumps(finite(given)) + "\n"


class Recorder:
    """Watches a training, every so many iterations.

    Args:
        every: iterations from one recording to the next; the first is before the first step.
        depths: how many depths, evenly spaced from input to output, or which ones.
        samples: how many samples of a batch.

    Attributes:
        recordings: of all whole epochs so far.

    >>> import hdnn
    >>> from hdnn.data import split
    >>> from hdnn.training import Trainer, TrainingConfig
    >>> data = split("double-moons", size=400)
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    >>> recorder = Recorder(every=4)
    >>> trainer = Trainer(model, TrainingConfig(epochs=2, batch_size=50), recorder=recorder)
    >>> _ = trainer.fit(data.X_train, data.y_train)
    >>> [recording.iteration for recording in recorder.recordings]
    [0, 4]
    """

    def __init__(
        self, every: int = 10, depths: int | Sequence[int] = DEPTHS, samples: int = SAMPLES
    ) -> None:
        for name, value in (("every", every), ("samples", samples)):
            check_value(RecordConfig, name, value)
        self.every, self.depths, self.samples = every, depths, samples
        self.recordings: list[Recording] = []

    def header(self, network: HamiltonianNetwork) -> Header:
        """What is recorded of a network."""
        if network.features is None:
            raise HdnnError(
                "recording serves networks over features; look at images with hdnn.analysis.watch"
            )
        many = isinstance(self.depths, int)
        depths = spread(network.layers, self.depths) if many else self.depths  # type: ignore[arg-type]
        return Header(self.every, tuple(depths), self.samples)  # type: ignore[arg-type]

    def start(
        self, network: HamiltonianNetwork, states: Tensor, stem: nn.Module | None = None
    ) -> None:
        """Watch a network that is trained on ``states``, of which the stem makes y_0."""
        self._stem = nn.Identity() if stem is None else stem
        self._snapshots = Snapshots(network, self.header(network).depths)
        self._states = states
        self.recordings = []
        self._iterations: list[int] = []
        self._gradient_norms: list[np.ndarray | None] = []
        self._layers, self._shown = network.layers, self._snapshots.depths
        self._shown = self._shown[self._shown < network.layers]

    def observes(self, iteration: int) -> bool:
        """Whether this iteration is recorded."""
        return iteration % self.every == 0

    def before_step(self, iteration: int, samples: Tensor) -> None:
        """Take a snapshot of the weights and of some samples of the batch."""
        self._iterations.append(iteration)
        self._snapshots.take(self._entering(samples.reshape(-1)))
        self._gradient_norms.append(None)

    def after_gradients(self, norms: np.ndarray) -> None:
        """Keep the norms of the gradient."""
        self._gradient_norms[-1] = norms.reshape(-1)

    def after_compiled_epoch(self, seen: Observations) -> None:
        """Keep the weights, batches and norms of the gradient of an epoch of one network."""
        self._iterations += seen.iterations
        self._gradient_norms += list(seen.gradient_norms[0])
        states = [self._entering(torch.from_numpy(batch[0])) for batch in seen.batches]
        self._snapshots.keep(states, seen.theta[0], seen.beta[0])

    @torch.no_grad()
    def _entering(self, chosen: Tensor) -> np.ndarray:
        """y_0 of some samples of a batch."""
        found: np.ndarray = self._stem(self._states[chosen[: self.samples]]).numpy()
        return found

    def finish(self, epoch: int) -> list[Recording]:
        """Make the recordings of an epoch that has ended."""
        found: list[Recording] = []
        iterations, self._iterations = self._iterations, []
        gradients, self._gradient_norms = self._gradient_norms, []
        for profiles in self._snapshots.profiles():
            norms, size = profiles.largest, len(found)
            columns = [
                norms.mean(-1),
                norms.min(-1),
                norms.max(-1),
                profiles.smallest.min(-1),
                profiles.of_mean,
            ]
            if profiles.energy is not None:
                columns.append(profiles.energy.mean(-1))
            else:
                columns.append(np.empty((len(norms), 0)))
            lists = [map(tuple, column.tolist()) for column in columns]
            steep = self._gradients(gradients[size : size + len(norms)])
            for k, ((gradient_norm, layers), *row) in enumerate(
                zip(steep, *lists, strict=True), size
            ):
                found.append(Recording(epoch, iterations[k], gradient_norm, *row, layers))  # type: ignore[call-arg]
        self.recordings += found
        return found

    def _gradients(
        self, gradients: list[np.ndarray | None]
    ) -> Iterator[tuple[float, tuple[float, ...]]]:
        """Norms of the whole gradient and of layers, each time; none where a step was not taken."""
        known = [found for found in gradients if found is not None]
        table = np.stack(known) if known else np.empty((0, 0))
        shown = table if table.shape[1] < self._layers else table[:, self._shown]
        totals = np.sqrt((table * table).sum(1))
        pairs = zip(totals.tolist(), map(tuple, shown.tolist()), strict=True)
        return ((math.nan, ()) if found is None else next(pairs) for found in gradients)
