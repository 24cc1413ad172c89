"""From recordings to a network: a linear model, units added, validation by free run.

config = IdentificationConfig(seed=0)
recordings = read_recordings("data.csv", "u", "y", time="t")
result = identify(recordings, config)
result.save("run")
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import joblib
import numpy as np
import torch
from torch import Tensor

from hdnn import notebooks
from hdnn.config import IdentificationConfig
from hdnn.data.recordings import LEAST, Parts, Recordings
from hdnn.errors import FileFormatError, HdnnError, StorageError, shortened
from hdnn.files import atomic, read_json, read_json_lines, write_json_lines
from hdnn.identification import windows
from hdnn.identification.levenberg import Segments, fit, states_of
from hdnn.identification.linear import realize
from hdnn.identification.network import in_units, with_units
from hdnn.identification.simulation import (
    WARM,
    Fit,
    chosen_trust,
    free_run,
    scored,
    simulate,
    starts,
)
from hdnn.models import load, save
from hdnn.progress import Meter
from hdnn.statespace import Bounds, StateSpace, gain_of
from hdnn.threads import one_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINEAR = ("L", "A", "G", "C", "D", "c")
ALL = ("K", "L", "A", "G", "B", "b", "C", "D", "c")
"""Parameters that are fitted, of linear models and of networks."""
LINEAR_ITERATIONS = 40
AMPLITUDE = 1.0
"""Root mean square of the states of a network at the beginning."""
RIDGE = 0.1
"""Of a network, in units of the mean square error of the linear model that it begins with."""

LAST_ITERATIONS = 20
"""Of the last fit, to all samples."""

SAMPLES_PER_SIZE = 10
"""Samples for every state or unit, at least, where there are more than `LEAST` of these."""

Key = tuple[int, int, int, bool]
Progress = Callable[[float, str], None]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted model, linear (units = 0) or a network, between scaled signals.

    Args:
        states: number of states.
        units: number of units.
        restart: which of the networks of this size.
        validation: root mean square error of the free run on the validation part, scaled.
        iterations: of the fit.
        best: the one whose weights these are.
        seconds: how long it took.
        x0: initial states of the segments, ``(S, n)``.
        parameters: of the model, by name.
        mu: least damping of the model.
        windows: whether it was trained on windows after that.
    """

    states: int
    units: int
    restart: int
    validation: float
    iterations: int
    best: int
    seconds: float
    x0: list[list[float]]
    parameters: dict[str, Any]
    mu: float
    windows: bool = False

    @property
    def key(self) -> Key:
        """What is different in every candidate."""
        return self.states, self.units, self.restart, self.windows

    @property
    def model(self) -> StateSpace:
        """The model."""
        values = {k: torch.tensor(v, dtype=torch.float64) for k, v in self.parameters.items()}
        inputs, outputs = values["weights.0.G"].shape[1], len(values["weights.0.c"])
        sizes: Any = {"inputs": inputs, "outputs": outputs, "states": self.states}
        options: Any = {"units": self.units, "mu": self.mu, "learn_initial": True, "scale": 0.0}
        model = StateSpace(**sizes, **options, dtype=torch.float64)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name].reshape(parameter.shape))
        return model

    @classmethod
    def of(cls, model: StateSpace, restart: int, fitted: Any, seconds: float) -> Candidate:
        """The candidate of a fit."""
        sizes = model.states, model.units, restart, fitted.score, fitted.iterations, fitted.best
        return cls(*sizes, seconds, fitted.x0.tolist(), _parameters_of(model), model.mu)


def _parameters_of(model: StateSpace) -> dict[str, Any]:
    return {name: value.tolist() for name, value in model.named_parameters()}


class _Task:
    """Scaled recordings, and how candidates of them are fitted."""

    def __init__(self, estimation: Recordings, config: IdentificationConfig) -> None:
        self.config, (train, self.whole) = config, estimation.split(config.validation)
        self.train, self.segments = train, Segments.of(train)

    def score(self, model: StateSpace, x0: Tensor) -> float:
        """The error of free runs from the beginning on the validation part."""
        return self._error(model, x0[self.segments.first])

    def score_of_first_outputs(self, model: StateSpace) -> float:
        """The same error, with initial states that follow from the first outputs."""
        return self._error(model, starts(model, self.train))

    def _error(self, model: StateSpace, x0: Iterable[Tensor]) -> float:
        errors = []
        parts = zip(self.whole.inputs, self.whole.outputs, self.whole.skip, x0, strict=True)
        for u, y, skip, x in parts:
            errors.append(np.square(free_run(model, u, x) - y)[skip:])
        return math.sqrt(np.concatenate(errors).mean())

    def linear(self, states: int) -> Candidate:
        """The linear model with so many states."""
        begin = time.perf_counter()
        with one_thread():
            system = realize(self.train, states)
            model = StateSpace.from_linear(*system, learn_initial=True, dtype=torch.float64)
            x0 = torch.zeros(len(self.segments.u), states, dtype=torch.float64)
            done = fit(model, LINEAR, self.segments, x0, LINEAR_ITERATIONS, self.score)
        return Candidate.of(model, 0, done, time.perf_counter() - begin)

    def network(self, start: Candidate, units: int, restart: int) -> Candidate:
        """A network that begins as a linear model."""
        begin = time.perf_counter()
        with one_thread(), torch.no_grad():
            linear, (u, *_) = start.model, self.segments
            x0 = torch.tensor(start.x0, dtype=torch.float64)
            size = float(states_of(linear, u, x0).square().mean().sqrt()) / AMPLITUDE
            e = self.segments.residuals(linear(u, x0)[0])
            seed = self.config.seed + 1000 * restart
            model, rest = with_units(linear, units, size, seed)
            ridge = RIDGE * float(e.square().sum()) / self.segments.samples
            x0, most = x0 / size + rest, self.config.iterations
            done = fit(model, ALL, self.segments, x0, most, self.score, ridge)
        return Candidate.of(model, restart, done, time.perf_counter() - begin)

    def on_all_samples(self, chosen: Candidate) -> StateSpace:
        """The chosen model, fitted some further to the validation part, too.

        Of a short recording, the part that chose has much to teach. Of long ones it does not.
        """
        model, every = chosen.model, Segments.of(self.whole)
        if float(every.weight.sum()) < len(self.whole):
            return model
        with one_thread(), torch.no_grad():
            x0 = torch.tensor(chosen.x0, dtype=torch.float64)
            e = every.residuals(model(every.u, x0)[0])
            ridge = RIDGE * float(e.square().sum()) / every.samples if chosen.units else 0.0
            fit(model, ALL if chosen.units else LINEAR, every, x0, LAST_ITERATIONS, None, ridge)
        return model

    @property
    def is_long(self) -> bool:
        """Whether segments leave out samples, from which there is more to learn."""
        return float(self.segments.weight.sum()) < len(self.train)

    def on_windows(self, start: Candidate) -> Candidate:
        """A network trained on windows of all samples."""
        begin = time.perf_counter()
        with one_thread():
            model, seed = start.model, self.config.seed + start.restart
            best, _ = windows.train(model, self.train, self.score_of_first_outputs, seed)
        parameters, seconds = _parameters_of(model), time.perf_counter() - begin
        return replace(start, windows=True, validation=best, parameters=parameters, seconds=seconds)


@dataclass(frozen=True, eq=False)
class Identification:
    """What was identified, in the units of the data, and how well it simulates.

    Free runs: only inputs, and the first outputs for the initial state. Whatever the input, as long
    as it is bounded, the model cannot diverge: its weights have no influence on that.

    Args:
        model: the network that validation chose; linear if no network was better.
        linear: the best linear model.
        fits: by part ("train", "validation", and "test" where there is one) and by model
            ("network", "linear", "mean"), how near the simulations come; on the first two parts
            those of the models as they were chosen, before the last fit to both.
        sampling_time: between two samples.
        input_names: of the inputs.
        output_names: of the outputs.
        trust: r of predictions, how little measurements correct the state; chosen by validation.
        seconds: of the identification.
        candidates: what was tried: states, units, restart, validation error, seconds.

    >>> from hdnn.data import load_recordings
    >>> config = IdentificationConfig(states=2, iterations=3, test=0.2)
    >>> result = identify(load_recordings("damped-pendulum").test, config)
    >>> sorted(result.fits), result.rate < 1
    (['test', 'train', 'validation'], True)
    """

    model: StateSpace
    linear: StateSpace
    fits: dict[str, dict[str, Fit]]
    sampling_time: float
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    trust: float
    seconds: float
    candidates: tuple[dict[str, Any], ...]

    @property
    def states(self) -> int:
        """Number of states."""
        return self.model.states

    @property
    def units(self) -> int:
        """Number of hidden units; 0 is a linear model."""
        return self.model.units

    @property
    def tried_networks(self) -> bool:
        """Whether there were networks among the candidates; with units=0 there are none."""
        return any(each["units"] for each in self.candidates)

    @cached_property
    def _bounds(self) -> tuple[list[Bounds], list[Bounds]]:
        return self.model.bounds()  # a search of a second

    @property
    def contraction(self) -> Bounds:
        """The bounds with the smallest rate; their T makes the norm |T x| in which it holds."""
        return min((bounds for (bounds,) in self._bounds), key=lambda bounds: float(bounds.rho))

    @property
    def rate(self) -> float:
        """The factor a step by which initial states are forgotten in the end, for all inputs."""
        return float(self.contraction.rho)

    @property
    def time_constant(self) -> float:
        """The time in which a wrong initial state shrinks by e, in the end, in units of time."""
        return -self.sampling_time / math.log(self.rate)

    @property
    def gain(self) -> float:
        """A bound of |dy| / |du|, in the units of the data."""
        return min(float(gain_of(bounds)) for bounds in self._bounds)

    def __str__(self) -> str:
        lines = [
            f"{part}: {', '.join(f'{name} {value}' for name, value in models.items())}"
            for part, models in self.fits.items()
        ]
        size = f"{self.states} states, {self.units} units"
        return "\n".join(
            [
                *lines,
                f"{size}, rate {self.rate:.6g} (time constant {self.time_constant:.4g}), gain at "
                f"most {self.gain:.4g}; cannot diverge for any bounded input",
            ]
        )

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

        >>> from hdnn.data import load_recordings
        >>> recordings = load_recordings("damped-pendulum").test
        >>> config = IdentificationConfig(states=2, iterations=3, restarts=1, test=0.2)
        >>> axis = identify(recordings, config).plot(recordings.inputs[0], recordings.outputs[0])
        >>> [line.get_label() for line in axis.lines]
        ['measured', 'linear model', 'network']
        """
        if not 0 <= output < len(self.output_names):
            names = ", ".join(f"{k} ({name})" for k, name in enumerate(self.output_names))
            raise HdnnError(f"output is one of {names}; got {output!r:.40}")
        plots, recordings = notebooks.plots(), self.as_recordings(U, Y)
        skip, y = recordings.skip[0], recordings.outputs[0]
        models = {"linear model": self.linear, "network": self.model}
        lines = {"measured": y} | {k: simulate(m, recordings)[0] for k, m in models.items()}
        drawn: Axes = plots.signals(
            plots.given_or_new(axis),
            self.sampling_time * np.arange(skip, len(y)),
            {name: values[skip:, output] for name, values in lines.items()},
        )
        drawn.set_ylabel(shortened(self.output_names[output], 40))
        return drawn

    def as_recordings(self, U: Any, Y: Any) -> Recordings:
        """Recordings with the names of this system; the first outputs tell the initial state.

        Args:
            U: inputs ``(time, inputs)``, or a list of such arrays.
            Y: outputs ``(time, outputs)``, or a list of as many.

        Returns:
            What simulations are compared with.

        Raises:
            HdnnError: these are no recordings of the system.
        """
        given = Recordings.of(U, Y, self.sampling_time)
        sizes = given.inputs[0].shape[1], given.outputs[0].shape[1]
        if sizes != (self.model.inputs, self.model.outputs):
            raise HdnnError(
                f"U and Y have {sizes[0]} and {sizes[1]} columns, but the model has "
                f"{self.model.inputs} inputs and {self.model.outputs} outputs"
            )
        skip = tuple(min(WARM, len(u) // 2) for u in given.inputs)
        names = self.input_names, self.output_names
        return Recordings(given.inputs, given.outputs, self.sampling_time, *names, skip)

    def _repr_html_(self) -> str:
        rows = [
            [part, name, fit.percent, *(f"{error:.4g}" for error in fit.rmse)]
            for part, models in self.fits.items()
            for name, fit in models.items()
        ]
        header = ["part", "model", "fit", *(f"RMSE of {name}" for name in self.output_names)]
        inputs, outputs = (", ".join(names) for names in (self.input_names, self.output_names))
        size = f"{self.states} states, {self.units} units" if self.units else "linear"
        proofs = (
            f"a wrong initial state shrinks by e every {self.time_constant:.4g}: proved",
            f"gain at most {self.gain:.4g}: proved",
            "cannot diverge for any bounded input: proved",
        )
        return notebooks.table(f"{inputs} → {outputs}: {size}", header, rows, proofs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model.safetensors, linear.safetensors and identification.json.

        Args:
            folder: made where it is not there.

        Raises:
            StorageError: it cannot be written.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {folder}: {error.strerror or error}") from error
        save(self.linear, folder / "linear.safetensors")
        about = {
            "fits": {p: {k: asdict(v) for k, v in m.items()} for p, m in self.fits.items()},
            "rate": self.rate,
            "time_constant": self.time_constant,
            "gain": self.gain,
            "states": self.states,
            "units": self.units,
            "sampling_time": self.sampling_time,
            "input_names": self.input_names,
            "output_names": self.output_names,
            "trust": self.trust if math.isfinite(self.trust) else None,
            "seconds": self.seconds,
            "candidates": self.candidates,
        }
        with atomic(folder / "identification.json") as temporary:
            temporary.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        save(self.model, folder / "model.safetensors")  # last: it says that all is there

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Args:
            folder: of it.

        Returns:
            The same.

        Raises:
            HdnnError: files are missing or damaged.
        """
        path = Path(folder) / "identification.json"
        about = read_json(path)
        model, linear = (load(Path(folder) / f"{name}.safetensors") for name in FILES)
        try:
            fits = {
                part: {k: Fit(v["fit"], tuple(v["rmse"]), v["constant"]) for k, v in each.items()}
                for part, each in about["fits"].items()
            }
            return cls(
                model,
                linear,
                fits,
                sampling_time=float(about["sampling_time"]),
                input_names=tuple(about["input_names"]),
                output_names=tuple(about["output_names"]),
                trust=math.inf if about["trust"] is None else float(about["trust"]),
                seconds=about["seconds"],
                candidates=tuple(about["candidates"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"{path} is no identification: {error!r:.100}") from error


FILES = ("model", "linear")


def identify(
    recordings: Recordings | Parts,
    config: IdentificationConfig | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Identification:
    """Identify a state-space network from recordings.

    A linear model for every number of states; for every number of units but 0, networks that begin
    as these, fitted by Levenberg-Marquardt; where recordings are longer than that takes, the best
    of them trained on windows by Adam. Of all, the one with the smallest error of free runs on the
    validation part, the last of the estimation part.

    Args:
        recordings: for estimation, the last part held out as ``config.test`` says; or both parts.
        config: what is tried; None: the defaults.
        store: a file of JSON lines for finished candidates; those in it are not fitted again.
        n_jobs: candidates side by side, as joblib has it. The numbers do not depend on it.
        progress: called with the share that is done and a line of text.

    Returns:
        The models and their fits.

    Raises:
        HdnnError: recordings are too short.

    >>> from hdnn.data.recordings import load_recordings
    >>> result = identify(
    ...     load_recordings("two-tanks"), IdentificationConfig(states=2, iterations=5)
    ... )
    >>> result.fits["test"]["network"].fit > result.fits["test"]["linear"].fit
    True
    """
    begin, config = time.perf_counter(), config or IdentificationConfig()
    parts = scored_parts(recordings, config)
    estimation = _parts(recordings, config)[0]
    scaling = estimation.scaling
    task = _Task(estimation.scaled(scaling), config)
    found = _candidates(task, _Store(store, estimation, config), n_jobs, progress)
    chosen = min(found, key=lambda each: each.validation)
    chosen_linear = min((c for c in found if not c.units), key=lambda each: each.validation)

    def in_data_units(name: str, model: StateSpace) -> tuple[str, StateSpace]:
        return name, in_units(model, scaling, estimation.sampling_time)

    pair = {"network": chosen, "linear": chosen_linear}
    before = dict(in_data_units(name, each.model) for name, each in pair.items())
    models = dict(in_data_units(name, task.on_all_samples(each)) for name, each in pair.items())
    fits = {
        name: _fits(models if name == "test" else before, part, scaling.mean_y)
        for name, part in parts.items()
    }
    brief = ("states", "units", "restart", "windows", "validation", "iterations", "seconds")
    return Identification(
        models["network"],
        models["linear"],
        fits,
        estimation.sampling_time,
        estimation.input_names,
        estimation.output_names,
        chosen_trust(models["network"], parts["validation"]),
        time.perf_counter() - begin,
        tuple({name: getattr(each, name) for name in brief} for each in found),
    )


def scored_parts(
    recordings: Recordings | Parts, config: IdentificationConfig
) -> dict[str, Recordings]:
    """The parts on which fits are measured.

    Args:
        recordings: as of `identify`.
        config: how they are split.

    Returns:
        "train", "validation" and, where there is one, "test".

    Raises:
        HdnnError: recordings are too short.
    """
    estimation, test = _parts(recordings, config)
    train, validation = estimation.split(config.validation)
    parts = {"train": train, "validation": validation}
    return parts if test is None else parts | {"test": test}


def _parts(
    recordings: Recordings | Parts, config: IdentificationConfig
) -> tuple[Recordings, Recordings | None]:
    if isinstance(recordings, Parts):
        if config.test:
            raise HdnnError("there is a test part already: leave test out")
        estimation, test = recordings
        if not all(test.skip):
            test = replace(test, skip=tuple(min(WARM, len(u) // 2) for u in test.inputs))
        return estimation, test
    return recordings.split(config.test) if config.test else (recordings, None)


def _fits(
    models: dict[str, StateSpace], part: Recordings, mean: np.ndarray[Any, Any]
) -> dict[str, Fit]:
    fits = {name: scored(part, simulate(model, part)) for name, model in models.items()}
    return fits | {"mean": scored(part, [np.tile(mean, (len(y), 1)) for y in part.outputs])}


def _candidates(
    task: _Task, store: _Store, n_jobs: int | None, progress: Progress | None
) -> list[Candidate]:
    """All candidates: those of the store, and what it lacks."""
    config = task.config
    states, units = (
        (size,) if isinstance(size, int) else size for size in (config.states, config.units)
    )
    most = max(LEAST, len(task.whole) // SAMPLES_PER_SIZE)
    for name, sizes in (("states", states), ("units", units)):
        if max(sizes) > most:
            raise HdnnError(
                f"{name} is {max(sizes)}, too many to learn from {len(task.whole)} samples: choose "
                f"at most {most}, or record more"
            )
    if n_jobs == 0:
        raise HdnnError("jobs is 0: give 1 or more, or -1 for one on every processor")
    networks = [(n, m, k) for n in states for m in units if m for k in range(config.restarts)]
    on_windows = task.is_long and bool(networks)
    keys = [(n, 0, 0, False) for n in states] + [(*size, False) for size in networks]
    total, meter = len(keys) + on_windows, Meter("identifying")

    def run(calls: dict[Key, Any]) -> None:
        todo = [call for key, call in calls.items() if key not in store.found]
        parallel = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
        with closing(parallel(todo)) as results:
            for each in results:
                store.add(each)
                done = len(store.found.keys() & {*keys, each.key})
                kind = "network" if each.units else "linear model"
                text = f"{kind}, {each.states} states: validation error {each.validation:.4g}"
                meter(done, total) if progress is None else progress(done / total, text)

    def of(n: int) -> Candidate:
        return store.found[n, 0, 0, False]

    call = joblib.delayed
    run({(n, 0, 0, False): call(task.linear)(n) for n in states})
    run({(n, m, k, False): call(task.network)(of(n), m, k) for n, m, k in networks})
    if on_windows:  # the best network only, as it takes longer
        best = min((store.found[key] for key in keys if key[1]), key=lambda each: each.validation)
        keys.append((*best.key[:3], True))
        run({keys[-1]: call(task.on_windows)(best)})
    return [store.found[key] for key in keys]


class _Store:
    """Finished candidates by key, in a file where there is one.

    Every line has the digest of recordings and settings; lines of another one are replaced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        recordings: Recordings,
        config: IdentificationConfig,
    ) -> None:
        digest = hashlib.sha256()
        for part in (*recordings.inputs, *recordings.outputs):
            digest.update(f"{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        settings = config.iterations, config.validation, config.seed
        digest.update(repr(settings).encode())
        self.digest, self.path = digest.hexdigest(), None if path is None else Path(path)
        lines = [] if self.path is None else read_json_lines(self.path, self._parse)
        self.found = {each.key: each for each in lines if each is not None}

    def _parse(self, line: dict[str, Any]) -> Candidate | None:
        return Candidate(**line) if line.pop("digest") == self.digest else None

    def add(self, candidate: Candidate) -> None:
        """Keep a candidate, and write all of them."""
        self.found[candidate.key] = candidate
        if self.path is not None:
            write_json_lines(
                self.path, [{"digest": self.digest, **asdict(c)} for c in self.found.values()]
            )
