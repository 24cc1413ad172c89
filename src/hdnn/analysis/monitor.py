"""`watch` during a training: gradient norms by layer, in whatever loop trains the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hdnn.analysis.watch import Watched, watch
from hdnn.errors import HdnnError

Log = Callable[[dict[str, float], int], object]
"""Takes numbers by name and the training step that they belong to."""

STATISTICS = {
    "gradient_norm": "mean",
    "gradient_norm_min": "minimum",
    "gradient_norm_max": "maximum",
}
"""What is logged of every layer, and the name in `Norms` of it."""


@dataclass(frozen=True)
class Measurement:
    """Norms at one step of a training.

    Args:
        step: how many forward passes of the training came before.
        watched: what `watch` has measured.

    >>> import hdnn, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> with hdnn.analysis.monitor(model) as monitor:
    ...     model(torch.randn(5, 3)).sum().backward()
    >>> monitor.measurements[0].step, monitor.measurements[0].watched.names
    (0, ('input', '0', '1', '2'))
    """

    step: int
    watched: Watched

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers by name: "gradient_norm/<layer>", "gradient_norm_min/...", ..._max."""
        norms, names = self.watched.norms, self.watched.names[:-1]  # the last is the identity's
        return {
            f"{title}/{name}": float(getattr(norms, statistic)[place])
            for title, statistic in STATISTICS.items()
            for place, name in enumerate(names)
        }


class Monitor:
    """Measures a module every so many training steps, while it is a context; see `monitor`.

    Args:
        module, layers, every, samples, log, options: as in `monitor`.

    Attributes:
        measurements: all so far.

    Raises:
        HdnnError: ``every`` or ``samples`` is no positive integer.

    >>> import hdnn, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> with hdnn.analysis.monitor(model, every=2) as monitor:
    ...     for _ in range(4):
    ...         model(torch.randn(5, 3)).sum().backward()
    >>> [measurement.step for measurement in monitor.measurements]
    [0, 2]
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[str | nn.Module] | None,
        every: int,
        samples: int,
        log: Log | None,
        options: Mapping[str, Any],
    ) -> None:
        for name, value in (("every", every), ("samples", samples)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HdnnError(f"{name} is a positive integer, got {value!r:.100}")
        self.module, self.every, self.samples, self.log = module, every, samples, log
        self.measurements: list[Measurement] = []
        self._watch = watch(module, layers, **options)
        self._step, self._measuring = 0, False
        self._handle: RemovableHandle | None = None

    def __enter__(self) -> Monitor:
        self._handle = self.module.register_forward_pre_hook(self._before, with_kwargs=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before(self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self._measuring or not module.training or not torch.is_grad_enabled():
            return
        step, self._step = self._step, self._step + 1
        if step % self.every == 0:
            measurement = Measurement(step, self._measure(inputs, options))
            self.measurements.append(measurement)
            if self.log is not None:
                self.log(measurement.metrics, step)

    def _measure(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Watched:
        """A pass of its own, in evaluation mode, so that the training goes on as without it."""
        modes = [(part, part.training) for part in self.module.modules()]
        self._measuring = True
        try:
            self.module.eval()
            with torch.random.fork_rng(devices=[]):
                some = {name: self._some(value) for name, value in options.items()}
                return self._watch(*map(self._some, inputs), **some)
        finally:
            self._measuring = False
            for part, mode in modes:
                part.training = mode

    def _some(self, value: Any) -> Any:
        """The first samples of a tensor."""
        axis = self._watch.axis
        if not isinstance(value, Tensor) or value.ndim <= axis:
            return value
        return value.detach().narrow(axis, 0, min(self.samples, value.shape[axis]))


def monitor(
    module: nn.Module,
    layers: Sequence[str | nn.Module] | None = None,
    *,
    every: int = 100,
    samples: int = 16,
    log: Log | None = None,
    **options: Any,
) -> Monitor:
    """Measure gradient norms by layer while a module is trained, in any loop.

    A hook counts the forward passes in training mode. At every ``every``-th, before it, `watch`
    measures the module in evaluation mode on the first samples of that batch. The training itself
    is the same to the last bit: parameters, their gradients, statistics of batch normalization and
    random numbers are as without it.

    Args:
        module: the model that the loop calls.
        layers: its layers, as in `watch`.
        every: training steps between measurements.
        samples: of a batch that are measured.
        log: called with the numbers by name and the step; it has the signature of
            ``logger.log_metrics`` of Lightning. For Weights & Biases
            ``lambda metrics, step: run.log(metrics, step=step)``.
        **options: of `watch`: ``batch_axis``, ``limit``, ``iterations``, ``tolerance``.

    Returns:
        A context; its ``measurements`` stay after it.

    Raises:
        HdnnError: there are no such layers.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with monitor(model, every=10) as seen:
    ...     for _ in range(25):
    ...         loss = model(torch.randn(8, 2)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    >>> [measurement.step for measurement in seen.measurements]
    [0, 10, 20]
    >>> sorted(seen.measurements[0].metrics)[:3]
    ['gradient_norm/0', 'gradient_norm/1', 'gradient_norm/input']
    """
    return Monitor(module, layers, every, samples, log, options)
