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
from torch import Tensor

from hdnn.analysis.profiles import Snapshots, spread
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.files import atomic
from hdnn.network import HamiltonianNetwork
from hdnn.training.evaluation import finite

FORMAT = 1
DEPTHS, SAMPLES = 9, 8
"""What is recorded by default; with it a recording costs about as much as a training step."""


@dataclass(frozen=True)
class Header:
    """What a recorder records.

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


@dataclass(frozen=True)
class Recording:
    """One look, before the step of an iteration, at the batch of that iteration.

    Args:
        epoch: counted from 1, as in the history.
        iteration: counted from 0 over all epochs: steps taken before.
        mean, minimum, maximum: over samples, of the norm of d y_N / d y_l, one entry for a depth.
        smallest: the smallest singular value of d y_N / d y_l of any sample.
        of_mean: the norm of the mean of d y_N / d y_l over the samples.
        slope: the norm of the gradient of the penalised loss, on the whole batch, with respect to
            the weights of all layers, before clipping; NaN where no sample counts.
        energy: mean over samples of H of layer l at y_l; empty where there is no energy.
        gradient: the part of it that belongs to layer l, at the same depths but N (one entry in all
            where layers share their weights).
    """

    epoch: int
    iteration: int
    slope: float
    mean: tuple[float, ...]
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    smallest: tuple[float, ...]
    of_mean: tuple[float, ...]
    energy: tuple[float, ...]
    gradient: tuple[float, ...]


class GradientLog:
    """The file ``gradients.jsonl`` of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> tuple[Header, list[dict[str, Any]]]:
        """What was recorded, and the recordings; a last line that was cut off is left out."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            header = json.loads(lines[0])
            if header.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            found = Header(**{**header, "depths": tuple(header["depths"])})
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise FileFormatError(f"{self.path} is no record of gradients: {error}") from error
        entries = []
        for line in lines[1:]:
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        return found, entries

    def recorder(self) -> Recorder:
        """A recorder that goes on in the same way."""
        header, _ = self.read()
        return Recorder(header.every, header.depths, header.samples)

    def begin(self, header: Header, epoch: int) -> None:
        """Cut the record back to the end of an epoch, where it is of the same kind."""
        kept: list[dict[str, Any]] = []
        if self.path.exists() and epoch > 0:
            there, entries = self.read()
            if there != header:
                raise HdnnError(
                    f"{self.path} records every {there.every} iterations, at {len(there.depths)} "
                    f"depths of {there.samples} samples; go on with the same, or leave --record out"
                )
            kept = [entry for entry in entries if entry["epoch"] <= epoch]
        with atomic(self.path) as temporary:
            lines = [asdict(header), *kept]
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def append(self, recordings: Sequence[Recording]) -> None:
        """Add the recordings of an epoch."""
        try:
            with open(self.path, "a") as file:
                file.write("".join(map(_line, recordings)))
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error


_LISTS = ("mean", "minimum", "maximum", "smallest", "of_mean", "energy", "gradient")


@functools.lru_cache(maxsize=64)
def _form(lengths: tuple[int, ...]) -> str:
    """How a recording is written: numbers with six digits; lists that are empty are left out."""
    parts = (
        f', "{name}": [{", ".join(["%.6g"] * length)}]'
        for name, length in zip(_LISTS, lengths, strict=True) if length
    )  # fmt: skip
    return '{"epoch": %d, "iteration": %d, "slope": %.6g' + "".join(parts) + "}\n"


def _line(r: Recording) -> str:
    """A recording as JSON, in one go: formatting numbers one by one is slow."""
    lists = (r.mean, r.minimum, r.maximum, r.smallest, r.of_mean, r.energy, r.gradient)
    flat = tuple(itertools.chain.from_iterable(lists))
    if math.isfinite(sum(flat) + r.slope):
        return _form(tuple(map(len, lists))) % (r.epoch, r.iteration, r.slope, *flat)
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
        log: where they are written as well, or None.

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
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HdnnError(f"{name} is an integer of at least 1, got {value!r}")
        self.every, self.depths, self.samples = every, depths, samples
        self.recordings: list[Recording] = []
        self.log: GradientLog | None = None

    def start(self, network: HamiltonianNetwork, states: Tensor, epoch: int = 0) -> None:
        """Watch a network that is trained on ``states``, ``(samples, n)``, after some epochs."""
        if network.features is None:
            raise HdnnError(
                "recording serves networks over features; look at images with hdnn.analysis.watch"
            )
        chosen = (
            spread(network.layers, self.depths) if isinstance(self.depths, int) else self.depths
        )
        self._snapshots, self._states = Snapshots(network, chosen), states.numpy()
        self.header = Header(self.every, tuple(self._snapshots.depths.tolist()), self.samples)
        self.recordings = []
        self._looks: list[int] = []
        self._slopes: list[np.ndarray | None] = []
        self._layers, self._shown = network.layers, self._snapshots.depths
        self._shown = self._shown[self._shown < network.layers]
        if self.log is not None:
            self.log.begin(self.header, epoch)

    def due(self, iteration: int) -> bool:
        """Whether to look at this iteration."""
        return iteration % self.every == 0

    def before(self, iteration: int, chosen: Tensor) -> None:
        """Take a snapshot of the weights and of some samples of the batch."""
        self._looks.append(iteration)
        self._snapshots.take(self._states[chosen.numpy().reshape(-1)[: self.samples]])
        self._slopes.append(None)

    def after(self, slopes: np.ndarray) -> None:
        """Keep the norms of the gradient."""
        self._slopes[-1] = slopes.reshape(-1)

    def saw(
        self, iterations: list[int], chosen: list[np.ndarray], theta: np.ndarray,
        beta: np.ndarray, slopes: np.ndarray,
    ) -> None:  # fmt: skip
        """Keep several looks at once: weights and norms of the gradient are ``(1, looks, ...)``."""
        self._looks += iterations
        self._slopes += list(slopes[0])
        states = [self._states[batch[0, : self.samples]] for batch in chosen]
        self._snapshots.keep(states, theta[0], beta[0])

    def finish(self, epoch: int) -> None:
        """Make the recordings of an epoch that has ended, and write them where there is a log."""
        found: list[Recording] = []
        looks, slopes, self._looks, self._slopes = self._looks, self._slopes, [], []
        for seen in self._snapshots.profiles():
            norms, size = seen.largest, len(found)
            columns = [
                norms.mean(-1), norms.min(-1), norms.max(-1), seen.smallest.min(-1), seen.of_mean,
            ]  # fmt: skip
            if seen.energy is not None:
                columns.append(seen.energy.mean(-1))
            else:
                columns.append(np.empty((len(norms), 0)))
            lists = [map(tuple, column.tolist()) for column in columns]
            steep = self._gradients(slopes[size : size + len(norms)])
            for k, ((slope, layers), *row) in enumerate(zip(steep, *lists, strict=True), size):
                found.append(Recording(epoch, looks[k], slope, *row, layers))  # type: ignore[call-arg]
        self.recordings += found
        if self.log is not None:
            self.log.append(found)

    def _gradients(
        self, slopes: list[np.ndarray | None]
    ) -> Iterator[tuple[float, tuple[float, ...]]]:
        """Norms of the whole gradient and of layers, each time; none where a step was not taken."""
        known = [found for found in slopes if found is not None]
        table = np.stack(known) if known else np.empty((0, 0))
        shown = table if table.shape[1] < self._layers else table[:, self._shown]
        totals = np.sqrt((table * table).sum(1))
        pairs = zip(totals.tolist(), map(tuple, shown.tolist()), strict=True)
        return ((math.nan, ()) if found is None else next(pairs) for found in slopes)
