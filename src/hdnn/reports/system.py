"""The report of an identified system: what its page shows.

Numbers come from `hdnn.identification`, charts from `hdnn.plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hdnn import plots
from hdnn.data.recordings import Array, Recordings
from hdnn.errors import shortened
from hdnn.identification.levenberg import states_of
from hdnn.identification.responses import (
    OperatingPoint,
    autocorrelation,
    energies,
    operating_point,
    step_response,
)
from hdnn.identification.runs import IdentificationRun, evaluate, read
from hdnn.identification.search import Identification, scored_parts
from hdnn.identification.simulation import Fit, scored, simulate, starts
from hdnn.reports import words
from hdnn.reports.sections import chart

if TYPE_CHECKING:
    from hdnn.config import IdentifyConfig

SHOWN = 3
"""Inputs and outputs that are shown."""
SAMPLES = 1000
"""Samples that are shown."""
LAGS = 50
"""Of the autocorrelation, at most."""
POINTS = 9
"""Constant inputs between the quantiles `RANGE`, at which the network is linearized."""
RANGE = (0.05, 0.95)
LEVEL = 0.05
"""A model whose error is not smaller by this share is no better."""


@dataclass(frozen=True, eq=False)
class SystemInputs:
    """An identified system, and the recordings on which its page shows it.

    Args:
        name: of the data, for the title.
        result: what was identified.
        fits: by part and model.
        part: which of the parts is shown.
        recordings: of this part; the first samples, `Recordings.skip`, are not shown.
        u: inputs of the identification ``(time, inputs)``: the operating range.
        run: the name of its folder.
        config: of the run.
        notices: what a reader must know first.
    """

    name: str
    result: Identification
    fits: dict[str, dict[str, Fit]]
    part: str
    recordings: Recordings
    u: Array
    run: str | None = None
    config: IdentifyConfig | None = None
    notices: tuple[str, ...] = ()


def inputs_of_run(folder: Path) -> SystemInputs:
    """What a finished run tells; nothing in it says where its files are.

    Args:
        folder: of a run of `hdnn identify`.

    Returns:
        With its test part, or else the validation part.

    Raises:
        HdnnError: the run is not finished, or its recordings are gone.
    """
    run = IdentificationRun.open(folder)
    result, config = run.load(), run.config
    parts = scored_parts(read(config.data), config.identification)
    part = "test" if "test" in result.fits else "validation"
    files = [Path(path).name for path in config.data.files]
    notices: tuple[str, ...] = ()
    if part != "test":
        notices = (
            "There is no test part. The validation part chose the model, so its fit is optimistic.",
        )
    then, shown = result.fits[part], parts[part]
    if part == "test":
        kind, simulated = "network", simulate(result.model, shown)
    else:  # that fit is the network's before it was fitted to this part, too
        mean = np.concatenate(shown.outputs).mean(0)
        kind, simulated = "mean", [np.tile(mean, (len(y), 1)) for y in shown.outputs]
    now = scored(shown, simulated)
    if not np.isclose(now.fit, then[kind].fit, rtol=0, atol=1e-6):
        notices += (
            f"The recordings have changed since the run: on their {part} part, the fit of the "
            f"{kind} is now {now.percent}. The tables show the fits of the run.",
        )
    more = f" and {words.counted(len(files) - 1, 'other')}" if len(files) > 1 else ""
    return SystemInputs(
        Path(files[0]).stem + more,
        result,
        result.fits,
        part,
        parts[part],
        np.concatenate(parts["validation"].inputs),  # all that the model was chosen by
        run=run.folder.resolve().name,
        config=config.replace(data=config.data.replace(files=files)),
        notices=notices,
    )


def inputs_of_arrays(result: Identification, U: Any, Y: Any, name: str) -> SystemInputs:
    """An identified system on other recordings.

    Args:
        result: what was identified.
        U: inputs ``(time, inputs)``, or a list of such arrays.
        Y: outputs ``(time, outputs)``, or a list of as many.
        name: of the recordings, for the title.

    Returns:
        With these recordings, of which the first outputs tell the initial state.

    Raises:
        HdnnError: these are no recordings of the system.
    """
    given = result.as_recordings(U, Y)
    fits = {**result.fits, "these data": evaluate(result, given)}
    return SystemInputs(name, result, fits, "these data", given, np.concatenate(given.inputs))


# --- what the page shows --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Signals:
    """Scored samples of every recording ``(time, outputs)``."""

    measured: list[Array]
    network: list[Array]
    linear: list[Array]

    @classmethod
    def of(cls, inputs: SystemInputs) -> _Signals:
        recordings, result = inputs.recordings, inputs.result
        every = (
            recordings.outputs,
            simulate(result.model, recordings),
            simulate(result.linear, recordings),
        )
        return cls(*([y[k:] for y, k in zip(s, recordings.skip, strict=True)] for s in every))

    @property
    def residuals(self) -> list[Array]:
        """Measured minus simulated."""
        return [y - own for y, own in zip(self.measured, self.network, strict=True)]


def content(inputs: SystemInputs) -> dict[str, Any]:
    """What the template shows.

    Args:
        inputs: the system and its recordings.

    Returns:
        By name.
    """
    result, found = inputs.result, _Signals.of(inputs)
    points = operating_points(inputs)
    samples = sum(map(len, found.measured))
    return {
        "title": title(inputs),
        "headline": headline(inputs, samples),
        "verdict": verdict(inputs),
        "notices": inputs.notices,
        "facts": _facts(inputs),
        "outputs": _names(result.output_names),
        "shown": _shown(result.output_names),
        "several_inputs": len(result.input_names) > 1,
        "fits": inputs.fits,
        "signals": _signals(inputs, found),
        "residuals": _residuals(inputs, found),
        "steps": _steps(inputs),
        "operating": _operating(inputs, points),
        "guarantees": _guarantees(result),
        "energy": _energy(inputs),
        "candidates": result.candidates,
        "chosen": int(np.argmin([each["validation"] for each in result.candidates])),
        "config": None if inputs.config is None else inputs.config.to_toml(),
    }


def title(inputs: SystemInputs) -> str:
    """Which signals of which data."""
    result = inputs.result
    signals = (", ".join(_shown(each)) for each in (result.input_names, result.output_names))
    return f"{shortened(inputs.name)}{': ' if inputs.name else ''}{' → '.join(signals)}"


def headline(inputs: SystemInputs, samples: int) -> tuple[str, str]:
    """The fit of the part that is shown, and what it is."""
    part = inputs.part if inputs.part == "these data" else f"the {inputs.part} part"
    fit = inputs.fits[inputs.part]["network"]
    kind = "output: there is no fit" if fit.constant else "fit"
    return fit.percent, f"{kind} of a free run on {part}, {words.counted(samples, 'sample')}"


def verdict(inputs: SystemInputs) -> str:
    """Whether the network is better than the linear model, in free runs on what is shown."""
    fits = inputs.fits[inputs.part]
    own, linear = fits["network"].fit, fits["linear"].fit
    numbers = f"fit {fits['network'].percent} against {fits['linear'].percent}"
    if not inputs.result.units:
        if not inputs.result.tried_networks:
            return "A linear model: with units = 0, no network was fitted."
        return "No network was better on the validation part: the model is the linear one."
    if fits["network"].constant:
        return "An output is constant on these data, so that only the RMSE compares the models."
    if max(own, linear) <= 0:
        return "No better than the mean of the outputs: the models are of no use on these data."
    if 1 - own < (1 - LEVEL) * (1 - linear):
        points = 100 * (own - linear)
        return f"Better than the linear model by {points:.1f} points: {numbers}."
    start = "Worse" if 1 - linear < (1 - LEVEL) * (1 - own) else "No better"
    return f"{start} than the linear model: {numbers}. Take the linear model, which is simpler."


def _facts(inputs: SystemInputs) -> list[tuple[str, str]]:
    result = inputs.result
    facts = [] if inputs.run is None else [("run", inputs.run)]
    kind = f"{result.states} states, {result.units} units" if result.units else "linear"
    count = sum(parameter.numel() for parameter in result.model.parameters())
    return [
        *facts,
        ("inputs", ", ".join(result.input_names)),
        ("outputs", ", ".join(result.output_names)),
        ("sampling time", words.number(result.sampling_time)),
        ("model", f"{kind}, {words.counted(count, 'parameter')}"),
        ("identification", f"{words.number(result.seconds)} s"),
    ]


def _signals(inputs: SystemInputs, found: _Signals) -> dict[str, Any]:
    """Of the first recording: outputs, measured and simulated, and inputs."""
    result, skip = inputs.result, inputs.recordings.skip[0]
    u = inputs.recordings.inputs[0][skip:][:SAMPLES]
    time = result.sampling_time * (skip + np.arange(len(u)))
    models = {
        "measured": found.measured[0],
        "linear model": found.linear[0],
        "network": found.network[0],
    }
    charts = []
    for k, name in enumerate(_shown(result.output_names)):
        lines = {title: y[:SAMPLES, k] for title, y in models.items()}
        draw = partial(plots.signals, time=time, lines=lines)
        charts.append((name, chart(f"{name}, measured and simulated", draw)))
    for k, name in enumerate(_shown(result.input_names)):
        draw = partial(plots.signals, time=time, lines={"input": u[:, k]})
        charts.append((f"input {name}", chart(f"input {name}", draw, height=1.6)))
    totals = {
        "samples": (len(u), len(found.measured[0])),
        "recordings": (1, len(found.measured)),
        "inputs": (SHOWN, len(result.input_names)),
        "outputs": (SHOWN, len(result.output_names)),
    }
    cut = [f"{most:,} of {n:,} {kind}" for kind, (most, n) in totals.items() if n > most]
    return {"charts": charts, "note": f"Shown: the first {', '.join(cut)}." if cut else ""}


def _residuals(inputs: SystemInputs, found: _Signals) -> list[dict[str, Any]]:
    """Of every output: over time, and their autocorrelation."""
    result, sections, skip = inputs.result, [], inputs.recordings.skip[0]
    count = sum(map(len, found.residuals))
    band = 1.96 / np.sqrt(count)
    for k, name in enumerate(_shown(result.output_names)):
        parts = [e[:, k] for e in found.residuals]
        values, e = autocorrelation(parts, min(LAGS, count // 4)), parts[0][:SAMPLES]
        time = result.sampling_time * (skip + np.arange(len(e)))
        over = partial(plots.signals, time=time, lines={"network": e}, labels=False)
        draw = partial(plots.autocorrelation, values=values, band=band)
        outside, lags = int((np.abs(values[1:]) > band).sum()), len(values) - 1
        sections.append(
            {
                "name": name,
                "time": chart(f"residuals of {name}", over, 4.7),
                "correlation": chart(f"autocorrelation of the residuals of {name}", draw, 4.7),
                "sentence": f"The mean is {words.number(float(np.concatenate(parts).mean()))}, "
                f"the correlation with the sample before is {values[1]:.2f}; {outside} of {lags} "
                f"lags are outside the 95 % band of white noise (±{words.number(band)}), where "
                f"about {max(1, round(0.05 * lags))} would be by chance.",
                "white": outside <= 0.1 * lags,
            }
        )
    return sections


def _steps(inputs: SystemInputs) -> list[dict[str, Any]]:
    """Of every input: responses of the outputs to a step up and down, and static gains."""
    result, mean, std = inputs.result, inputs.u.mean(0), inputs.u.std(0)
    sections = []
    for i, name in enumerate(_shown(result.input_names)):
        change = std[i] * np.eye(len(std))[i]
        found = {
            "linear model, up": step_response(result.linear, mean, change),
            "linear model, down": step_response(result.linear, mean, -change),
            "network, up": step_response(result.model, mean, change),
            "network, down": step_response(result.model, mean, -change),
        }
        steps = {"network, up": std[i], "network, down": -std[i], "linear model, up": std[i]}
        rows, charts = [], []
        for k, output in enumerate(_shown(result.output_names)):
            responses = {title: values[:, k] for title, values in found.items()}
            gains = [responses[title][-1] / size for title, size in steps.items()]
            rows.append((output, gains))
            time = result.sampling_time * np.arange(_settled([*responses.values()]))
            lines = {title: _until(values, len(time)) for title, values in responses.items()}
            draw = partial(plots.signals, time=time, lines=lines)
            charts.append((output, chart(f"{output} after a step of {name}", draw)))
        mean_i, std_i = words.number(float(mean[i])), words.number(float(std[i]))
        sections.append(
            {"name": name, "mean": mean_i, "std": std_i, "rows": rows, "charts": charts}
        )
    return sections


def _settled(responses: Sequence[Array]) -> int:
    """Samples until all responses stay within 2 % of their end, and a third more."""
    last = [
        np.flatnonzero(np.abs(y - y[-1]) > 0.02 * np.abs(y).max(initial=0.0)) for y in responses
    ]
    return 4 * max(int(each[-1]) if len(each) else 0 for each in last) // 3 + 5


def _until(y: Array, count: int) -> Array:
    """So many samples, the last one repeated where there are fewer."""
    return np.pad(y[:count], (0, max(0, count - len(y))), mode="edge")


def operating_points(inputs: SystemInputs) -> list[list[OperatingPoint]]:
    """For every input, the network at rest while it goes through its range, others at their mean.

    Args:
        inputs: the system and its recordings.

    Returns:
        `POINTS` of every input that is shown.
    """
    u, found = inputs.u, []
    for i in range(min(SHOWN, u.shape[1])):
        low, high = np.quantile(u[:, i], RANGE)
        at = np.tile(u.mean(0), (POINTS, 1))
        at[:, i] = np.linspace(low, high, POINTS)
        found.append([operating_point(inputs.result.model, each) for each in at])
    return found


def _operating(inputs: SystemInputs, points: list[list[OperatingPoint]]) -> list[dict[str, Any]]:
    """Of every input: poles, and a table of operating points beside the linear model."""
    result, sections, h = inputs.result, [], inputs.result.sampling_time
    linear = operating_point(result.linear, inputs.u.mean(0))
    for i, (name, own) in enumerate(zip(_shown(result.input_names), points, strict=True)):
        draw = partial(plots.poles, network=[p.poles for p in own], linear=linear.poles)
        rows = [
            (words.number(float(p.u[i])), [*p.y[:SHOWN], *p.gain[:SHOWN, i], p.time_constant(h)])
            for p in own
        ]
        none = [None] * len(_shown(result.output_names))  # its outputs at rest are on a line
        always = [*none, *linear.gain[:SHOWN, i], linear.time_constant(h)]
        sections.append(
            {
                "name": name,
                "chart": chart(f"poles over the range of {name}", draw, 4.2, 4.0),
                "rows": [*rows, ("linear model", always)],
            }
        )
    return sections


def _guarantees(result: Identification) -> list[tuple[str, str, str]]:
    """What is proved of the model, with numbers and what they mean."""
    constant, gain = words.number(result.time_constant), words.number(result.gain)
    return [
        (
            "No bounded input makes the model diverge",
            "",
            "Whatever the input and its length, states and outputs stay bounded.",
        ),
        (
            "A wrong initial state is forgotten",
            f"rate ≤ {result.rate:.6g}",
            f"For every input, in the end by e every {constant}, in the unit of time (the rate is "
            "that of a sample, in the norm that shows it best).",
        ),
        (
            "The gain is bounded",
            f"gain ≤ {gain}",
            f"From the same state, two inputs give outputs that differ at most {gain} times as "
            "much, in the root mean square and in the maximum over time.",
        ),
    ]


def _energy(inputs: SystemInputs) -> dict[str, Any] | None:
    """Of the first recording, how a wrong initial state is forgotten; None if no state moves."""
    result, u = inputs.result, inputs.recordings.inputs[0][:SAMPLES]
    x0 = starts(result.model, inputs.recordings)[0]
    spread = states_of(result.model, torch.tensor(u)[None], x0[None])[0].std(0, correction=0)
    found = energies(result.model, u, x0, x0 + spread, result.contraction.T)
    if len(found) < 2:
        return None
    steps = np.arange(len(found))
    lines = {"network": found / found[0], "proved bound": result.rate ** (2 * steps)}
    last, bound = (words.number(float(values[-1])) for values in lines.values())
    time = result.sampling_time * steps
    draw = partial(plots.signals, time=time, lines=lines, log=True)
    return {
        "chart": chart("energy of the difference of two runs, and its bound", draw),
        "sentence": f"After {words.counted(len(steps) - 1, 'sample')} it is {last} of what it was "
        f"at the beginning; proved is at most {bound}.",
    }


def _shown(names: Sequence[str]) -> list[str]:
    return _names(names)[:SHOWN]


def _names(names: Sequence[str]) -> list[str]:
    return [shortened(name, 40) for name in names]
