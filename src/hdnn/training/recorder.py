"""The recorder: what happens to gradients along the depth of a network while it is trained.

It looks, and leaves no trace: the weights of a training with and without it are the same bits.
In a run folder its recordings are in ``gradients.jsonl``, beside the history: first a line that
says what was recorded (`Header`), then one line for every recording (`Recording`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hdnn.analysis.norms import Norms, spaced_depths
from hdnn.analysis.profile import profile
from hdnn.config import DEPTHS, SAMPLES, RecordConfig
from hdnn.errors import FileFormatError, HdnnError
from hdnn.files import finite, read_json_lines
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Values
from hdnn.training.loops import Observations

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
    """One measurement, before the step of an iteration, on the batch of that iteration.

    Args:
        epoch: counted from 1, as in the history.
        iteration: counted from 0 over all epochs: steps taken before.
        norms: of d y_N / d y_l at the recorded depths, and the energy.
        gradient: norms of the gradient of the penalized loss, on the whole batch, with respect to
            the weights of layer l, before clipping, at the same depths but N (one entry in all
            where layers share their weights); empty where no sample counts.
        gradient_norm: the same for the weights of all layers together; NaN where no sample counts.
    """

    epoch: int
    iteration: int
    norms: Norms
    gradient: tuple[float, ...]
    gradient_norm: float

    def to_dict(self) -> dict[str, Any]:
        """The line of the file: numbers with six digits; lists that are empty are left out."""
        columns = {name: value for name, value in self.norms.to_dict().items() if name in _LISTS}
        lists = {**columns, "gradient": list(self.gradient)}
        numbers = {"gradient_norm": self.gradient_norm, **{k: v for k, v in lists.items() if v}}
        return {"epoch": self.epoch, "iteration": self.iteration, **_rounded(numbers)}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.6g}")


class GradientLog:
    """The file ``gradients.jsonl`` of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

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
        """What was recorded, and the recordings."""
        header = self.header()

        def parse(line: dict[str, Any]) -> dict[str, Any] | None:
            return None if "format" in line else _checked(line, len(header.depths))

        lines = read_json_lines(self.path, parse)
        return header, [line for line in lines if line is not None]


def header_line(header: Header) -> bytes:
    """The first line of the file."""
    return json.dumps(asdict(header)).encode() + b"\n"


def gradient_lines(recordings: Sequence[Recording]) -> list[bytes]:
    """The lines of recordings."""
    return [json.dumps(finite(each.to_dict())).encode() + b"\n" for each in recordings]


_LISTS = ("mean", "minimum", "maximum", "smallest", "of_mean", "energy", "gradient")


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
        RecordConfig(every=every, samples=samples)  # checks them
        self.every, self.depths, self.samples = every, depths, samples
        self.recordings: list[Recording] = []

    def header(self, network: HamiltonianNetwork) -> Header:
        """What is recorded of a network."""
        if network.features is None:
            raise HdnnError(
                "recording serves networks over features; look at images with hdnn.analysis.watch"
            )
        many = isinstance(self.depths, int)
        depths = spaced_depths(network.layers, self.depths) if many else self.depths  # type: ignore[arg-type]
        return Header(self.every, tuple(depths), self.samples)  # type: ignore[arg-type]

    def start(
        self, network: HamiltonianNetwork, states: Tensor, stem: nn.Module | None = None
    ) -> None:
        """Watch a network that is trained on ``states``, of which the stem makes y_0."""
        self._stem = nn.Identity() if stem is None else stem
        self._network, self._states = network, states
        self._depths = self.header(network).depths
        self.recordings = []
        self._pending: list[tuple[int, Norms, np.ndarray | None]] = []

    def observes(self, iteration: int) -> bool:
        """Whether this iteration is recorded."""
        return iteration % self.every == 0

    def before_step(self, iteration: int, samples: Tensor) -> None:
        """Measure the network, with its present weights, on some samples of the batch."""
        self._pending.append((iteration, self._measure(samples.reshape(-1)), None))

    def after_gradients(self, norms: np.ndarray) -> None:
        """Keep the norms of the gradient."""
        iteration, measured, _ = self._pending[-1]
        self._pending[-1] = iteration, measured, norms.reshape(-1)

    def after_compiled_epoch(self, seen: Observations) -> None:
        """Measure the weights that one network had in an epoch, each on its batch."""
        own = self._network.values()
        for k, iteration in enumerate(seen.iterations):
            theta, beta = (torch.from_numpy(part[0][k]) for part in (seen.theta, seen.beta))
            values = own._replace(theta=theta, beta=beta)
            measured = self._measure(torch.from_numpy(seen.batches[k][0]), values)
            self._pending.append((iteration, measured, seen.gradient_norms[0][k]))

    @torch.no_grad()
    def _measure(self, batch: Tensor, values: Values | None = None) -> Norms:
        y = self._stem(self._states[batch[: self.samples]])
        return profile(self._network, y, self._depths, values=values)

    def finish(self, epoch: int) -> list[Recording]:
        """Make the recordings of an epoch that has ended."""
        made = [
            Recording(epoch, iteration, norms, *self._gradient(gradient))
            for iteration, norms, gradient in self._pending
        ]
        self._pending = []
        self.recordings += made
        return made

    def _gradient(self, gradient: np.ndarray | None) -> tuple[tuple[float, ...], float]:
        """Norms of layers and of the whole gradient; none where a step was not taken."""
        if gradient is None:
            return (), math.nan
        layers = self._network.layers
        shown = gradient
        if len(gradient) == layers:
            shown = gradient[[depth for depth in self._depths if depth < layers]]
        return tuple(shown.tolist()), float(np.sqrt((gradient * gradient).sum()))
