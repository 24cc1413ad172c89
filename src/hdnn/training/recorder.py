"""The recorder: what happens to gradients along the depth of a network while it is trained.

It looks, and leaves no trace: the weights of a training with and without it are the same bits.
In a run folder its recordings are in ``gradients.jsonl``, one line of JSON for each, which
``pandas.read_json(path, lines=True)`` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis.norms import Norms, spaced_depths
from hdnn.analysis.profile import profile
from hdnn.config import DEPTHS, SAMPLES, RecordConfig
from hdnn.errors import HdnnError
from hdnn.files import finite, read_json_lines, rounded
from hdnn.models import Model
from hdnn.networks import HamiltonianNetwork


@dataclass(frozen=True)
class Recording:
    """One measurement, before the step of an iteration, on the batch of that iteration.

    Args:
        epoch: counted from 1, as in the history.
        iteration: counted from 0 over all epochs: steps taken before.
        norms: of d y_N / d y_l at the recorded depths, and the energy.
        gradient: norms of the gradient of the penalized loss, on the whole batch, with respect to
            the weights of layer l, before clipping, at the same depths but N (one entry in all
            where layers share their weights).
        gradient_norm: the same for the weights of all layers together.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=2, T=1.0)
    >>> norms = hdnn.analysis.profile(net, torch.randn(10, 4))
    >>> Recording(1, 0, norms, (0.1, 0.2), 0.3).to_dict()["layers"]
    [0, 1, 2]
    """

    epoch: int
    iteration: int
    norms: Norms
    gradient: tuple[float, ...]
    gradient_norm: float

    def to_dict(self) -> dict[str, Any]:
        """The line of the file: numbers with six digits, None where they are not finite.

        Returns:
            Numbers and lists by name; the columns of `norms` among them.
        """
        columns = {
            "epoch": self.epoch,
            "iteration": self.iteration,
            "gradient_norm": self.gradient_norm,
            "gradient": list(self.gradient),
            **self.norms.to_dict(),
        }
        # Six digits are more than a figure shows, and lines of full precision are twice as long.
        plain: dict[str, Any] = finite({name: rounded(v, 6) for name, v in columns.items()})
        return plain


def read_recordings(path: Path) -> list[dict[str, Any]]:
    """The recordings of a file ``gradients.jsonl``, as `Recording.to_dict` gives them.

    Args:
        path: the file.

    Returns:
        One for every line.

    Raises:
        FileFormatError: a line is no recording.
    """
    return read_json_lines(path, _check_line)


def _check_line(line: dict[str, Any]) -> dict[str, Any]:
    norms = Norms.from_dict(line)
    columns = (norms.mean, norms.minimum, norms.maximum, norms.smallest, norms.of_mean)
    if any(type(line[name]) is not int for name in ("epoch", "iteration")):
        raise ValueError("epoch and iteration are integers")
    # What is no list in the line is no tensor here.
    if any(getattr(column, "shape", None) != (len(norms.layers),) for column in columns):
        raise ValueError(f"there are {len(norms.layers)} layers, but not as many norms")
    return line


class Recorder:
    """Watches a training, every so many iterations; see `hdnn.training.loops.Observer`.

    Args:
        every: iterations from one recording to the next; the first is before the first step.
        depths: how many depths, evenly spaced from input to output, or which ones.
        samples: how many samples of a batch.

    Attributes:
        recordings: all so far, those of an epoch that was interrupted included.

    Raises:
        HdnnError: a count is no positive integer.

    >>> import hdnn
    >>> from hdnn.data import Dataset
    >>> from hdnn.training import Trainer, TrainingConfig
    >>> X = torch.randn(200, 2)
    >>> data = Dataset.from_arrays(X, X[:, 0] > 0)
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Padding(2, 4))
    >>> recorder = Recorder(every=4)
    >>> trainer = Trainer(model, TrainingConfig(epochs=2, batch_size=50), recorder=recorder)
    >>> _ = trainer.fit(data)
    >>> [recording.iteration for recording in recorder.recordings]
    [0, 4]
    """

    def __init__(
        self, every: int = 10, depths: int | Sequence[int] = DEPTHS, samples: int = SAMPLES
    ) -> None:
        if not isinstance(depths, int):
            depths = tuple(depths)
        config = RecordConfig(every=every, depths=depths, samples=samples)  # checks them
        self.every, self.depths, self.samples = config.every, config.depths, config.samples
        self.recordings: list[Recording] = []

    def start(self, model: Model, batches: int) -> None:
        """Watch a model; `Trainer` calls it.

        Args:
            model: what is trained.
            batches: of an epoch.

        Raises:
            HdnnError: it takes images, or is not on the CPU.
        """
        if model.stem.takes_images or model.network.features is None:
            raise HdnnError("recording serves tables; see hdnn.analysis.watch for images")
        if model.head.weight.device.type != "cpu":
            raise HdnnError("recording runs on the CPU: leave out device, or the recording")
        self._stem, self._batches, self.recordings = model.stem, batches, []

    @torch.no_grad()
    def observe(
        self, iteration: int, network: HamiltonianNetwork, states: Tensor, gradients: np.ndarray
    ) -> None:
        """Record an iteration.

        Args:
            iteration: counted from 0 over all epochs.
            network: with the weights before the step.
            states: ``(batch, .)``, of the batch, as the model's stem takes them.
            gradients: ``(layers,)``, norms of the gradient of the objective, before clipping.
        """
        layers = network.layers
        depths = (
            [*self.depths] if isinstance(self.depths, tuple) else spaced_depths(layers, self.depths)
        )
        norms = profile(network, self._stem(states[: self.samples]), depths)
        total, epoch = float(np.linalg.norm(gradients)), iteration // self._batches + 1
        if len(gradients) == layers:  # else layers share their weights, and there is one norm
            gradients = gradients[[depth for depth in depths if depth < layers]]
        self.recordings.append(Recording(epoch, iteration, norms, tuple(gradients.tolist()), total))
