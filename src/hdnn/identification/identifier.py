"""The estimator: identification with the manners of scikit-learn."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from hdnn.config import IdentificationConfig
from hdnn.data.recordings import Array, Recordings, arrays
from hdnn.errors import HdnnError, is_count
from hdnn.identification.levenberg import initial_state
from hdnn.identification.search import Identification, identify
from hdnn.identification.simulation import Fit, free_run, predict
from hdnn.statespace import StateSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Signals = Array | list[Array]


class SystemIdentifier(BaseEstimator):  # type: ignore[misc]
    """A state-space network of a measured system, which forgets and stays bounded by construction.

    A linear model is fitted first, for every number of states; networks begin as these, with units
    added that change nothing for small signals, and are fitted to the whole recordings by
    Levenberg-Marquardt, initial states with them. Sizes and stopping are chosen by the free run on
    the last part of the recordings. Everything is in the units of the data. Whatever the weights,
    no bounded input makes the model diverge (`hdnn.StateSpace`).

    Args:
        states: Number of states, or several to choose from. None: (2, 4, 6).
        units: Number of hidden units, or several to choose from; 0 is linear models only. None: 12.
        sampling_time: Time between two samples; it is the unit of ``result_.time_constant`` only.
        validation: Fraction of the samples, the last ones, that chooses sizes and stopping.
        iterations: Iterations for a network, at most. None: 100.
        restarts: Networks of each size, with other random units. None: 3.
        random_state: An integer for the same result at every call, a `numpy.random.RandomState`, or
            None.
        n_jobs: Candidates side by side, as joblib has it; it changes no number.
        verbose: Whether to print a line for every candidate.

    Attributes:
        model_: The network, an `hdnn.StateSpace` in the units of the data.
        linear_: The best linear model, of the same kind.
        result_: An `hdnn.identification.Identification`: fits, rate, gain, what was tried.

    >>> import hdnn
    >>> recordings, test = hdnn.data.load_recordings("two-tanks")
    >>> tanks = SystemIdentifier(states=2, iterations=10, random_state=0)
    >>> tanks = tanks.fit(recordings.inputs[0], recordings.outputs[0])
    >>> tanks.score(test.inputs[0], test.outputs[0]) > 0.8
    True
    >>> tanks.simulate(test.inputs[0]).shape
    (1024, 1)
    """

    model_: StateSpace
    linear_: StateSpace
    result_: Identification

    def __init__(
        self,
        states: int | Sequence[int] | None = None,
        units: int | Sequence[int] | None = None,
        *,
        sampling_time: float = 1.0,
        validation: float = 0.15,
        iterations: int | None = None,
        restarts: int | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.states = states
        self.units = units
        self.sampling_time = sampling_time
        self.validation = validation
        self.iterations = iterations
        self.restarts = restarts
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, U: Any, Y: Any) -> Self:
        """Identify the system of one or several recordings.

        Args:
            U: inputs ``(time, inputs)``, or a list of such arrays.
            Y: outputs ``(time, outputs)``, or a list of as many.

        Returns:
            The estimator itself.

        Raises:
            HdnnError: these are no recordings, or a parameter cannot be used.
        """
        recordings = Recordings.of(U, Y, self.sampling_time)
        progress = _report if self.verbose else None
        result = identify(recordings, self._config(), n_jobs=self.n_jobs, progress=progress)
        return self._with(result)

    def _config(self) -> IdentificationConfig:
        if isinstance(self.random_state, int | np.integer):
            check_random_state(self.random_state)
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return IdentificationConfig(
            states=_sizes(self.states),
            units=_sizes(self.units),
            iterations=_sizes(self.iterations),
            restarts=_sizes(self.restarts),
            validation=self.validation,
            seed=seed,
        )

    def simulate(self, U: Any, Y0: Any = None) -> Any:
        """Outputs of inputs alone.

        Args:
            U: inputs ``(time, inputs)``, or a list of such arrays.
            Y0: the first outputs ``(some times, outputs)``, or a list; the initial state explains
                them best. None: the system begins at rest, under the mean input of `fit`.

        Returns:
            Outputs ``(time, outputs)``, or a list.

        Raises:
            HdnnError: these are no inputs of the model.
        """
        inputs, starts = self._inputs(U), None if Y0 is None else self._outputs("Y0", Y0)
        if starts is not None and len(starts) != len(inputs):
            raise HdnnError(f"U has {len(inputs)} recordings and Y0 has {len(starts)}")
        found = []
        for k, u in enumerate(inputs):
            x0 = None if starts is None else self._state(u, starts[k])
            found.append(free_run(self.model_, u, x0))
        return found if isinstance(U, list | tuple) else found[0]

    def predict(self, U: Any, Y: Any, steps: int = 1) -> Any:
        """Outputs predicted a number of steps ahead, with the outputs measured until then.

        Every measurement corrects the state, x + C' (C C' + r I)^-1 (y - yhat), which brings no two
        states further apart.

        Args:
            U: inputs ``(time, inputs)``, or a list of such arrays.
            Y: outputs ``(time, outputs)``, or a list of as many.
            steps: how many ahead.

        Returns:
            ``(time, outputs)``, or a list: row t uses outputs up to t - steps.

        Raises:
            HdnnError: these are no recordings of the model.
        """
        if not is_count(steps):
            raise HdnnError(f"steps must be a positive integer, got {steps!r:.40}")
        inputs, outputs = self._pair(U, Y)
        found = [
            predict(self.model_, u, y, steps, self.result_.trust)
            for u, y in zip(inputs, outputs, strict=True)
        ]
        return found if isinstance(U, list | tuple) else found[0]

    def score(self, U: Any, Y: Any, skip: int = 50) -> float:
        """The fit of a free run, 1 - |y - yhat| / |y - mean y|; 1 is exact.

        Args:
            U: inputs ``(time, inputs)``, or a list of such arrays.
            Y: outputs ``(time, outputs)``, or a list of as many.
            skip: so many first outputs tell the initial state, and are not scored; at most half.

        Returns:
            The mean over the outputs.

        Raises:
            HdnnError: these are no recordings of the model.
        """
        inputs, outputs = self._pair(U, Y)
        firsts = [max(1, min(skip, len(y) // 2)) for y in outputs]
        starts = [y[:k] for y, k in zip(outputs, firsts, strict=True)]
        simulated = self.simulate(list(inputs), starts)
        cut: Any = [
            [part[k:] for part, k in zip(parts, firsts, strict=True)]
            for parts in (outputs, simulated)
        ]
        return Fit.of(*cut).fit

    def plot(self, U: Any, Y: Any, axis: Axes | None = None, output: int = 0) -> Axes:
        """Draw an output of recordings, measured and simulated by both models.

        Args:
            U: inputs ``(time, inputs)``, or a list of such arrays, of which the first is drawn.
            Y: outputs ``(time, outputs)``, or a list of as many; the first ones tell the initial
                state, and are not drawn.
            axis: where to draw; None: a new one, of pyplot.
            output: which of the outputs.

        Returns:
            The axis.

        Raises:
            HdnnError: these are no recordings of the system.
        """
        check_is_fitted(self, "model_")
        return self.result_.plot(U, Y, axis, output)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the models and `result_` to a folder, as `hdnn.identification.Identification` does.

        Args:
            folder: made where it is not there.

        Raises:
            NotFittedError: there is nothing to save.
            StorageError: it cannot be written.
        """
        check_is_fitted(self, "model_")
        self.result_.save(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """A fitted estimator of what `save`, or `Identification.save`, wrote.

        Args:
            folder: of it.

        Returns:
            The estimator; its parameters are the defaults, but for the sampling time.

        Raises:
            HdnnError: files are missing or damaged.
        """
        result = Identification.load(folder)
        return cls(sampling_time=result.sampling_time)._with(result)

    def _with(self, result: Identification) -> Self:
        self.result_, self.model_, self.linear_ = result, result.model, result.linear
        self.n_features_in_ = self.model_.inputs
        return self

    def _state(self, u: Array, first: Array) -> torch.Tensor:
        if len(first) > len(u):
            raise HdnnError(f"Y0 has {len(first)} samples, but U has {len(u)}")
        return initial_state(self.model_, torch.tensor(u), torch.tensor(first))

    def _inputs(self, U: Any) -> tuple[Array, ...]:
        check_is_fitted(self, "model_")
        return _with_columns("U", arrays("U", U), self.model_.inputs, "inputs")

    def _outputs(self, name: str, Y: Any) -> tuple[Array, ...]:
        return _with_columns(name, arrays(name, Y), self.model_.outputs, "outputs")

    def _pair(self, U: Any, Y: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        inputs, outputs = self._inputs(U), self._outputs("Y", Y)
        lengths = [len(u) for u in inputs], [len(y) for y in outputs]
        if lengths[0] != lengths[1]:
            raise HdnnError(
                f"U has {lengths[0]} samples and Y has {lengths[1]}; they belong together"
            )
        return inputs, outputs


def _with_columns(name: str, found: tuple[Array, ...], count: int, kind: str) -> tuple[Array, ...]:
    if found[0].shape[1] != count:
        raise HdnnError(
            f"{name} has {found[0].shape[1]} columns, but the model was fitted to {count} {kind}"
        )
    return found


def _sizes(value: Any) -> Any:
    """A number or several of numpy as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(value) if isinstance(value, list) else value


def _report(share: float, text: str) -> None:
    """What ``verbose`` shows, where scikit-learn's estimators show it."""
    sys.stdout.write(f"{100 * share:3.0f} % {text}\n")
