"""The page of an identified system: every number on it is computed here in another way."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import pytest
import torch

import hdnn
from commands import done, fails, write_rows
from hdnn.config import IdentificationConfig, IdentifyConfig, RecordingsConfig
from hdnn.data import Recordings
from hdnn.errors import HdnnError
from hdnn.identification import Fit, SystemIdentifier, identify
from hdnn.identification.runs import IdentificationRun
from hdnn.identification.simulation import simulate, starts
from hdnn.reports import report_of_run, system
from hdnn.reports.system import SystemInputs, headline, inputs_of_run, verdict
from page import Page, text_of

SECTIONS = ["fits", "signals", "residuals", "steps", "poles", "guarantees", "candidates"]
STEP, EVIL = 0.5, "<script>alert('1')</script>\"&$x"
QUICK = IdentificationConfig(states=2, units=2, iterations=2, restarts=1)
INK, NETWORK, LINEAR = "var(--ink)", "var(--c0)", "var(--c1)"


def recording(seed: int, length: int, size: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Of two saturating systems with other gains, offsets and time constants."""
    draw, x = np.random.default_rng(seed), np.zeros(size)
    levels = np.repeat(draw.uniform(-2, 3, (length // 5 + 1, size)), 5, axis=0)[:length]
    u, y = levels * [1.0, 4.0][:size] + [0.0, 10.0][:size], []
    for v in levels:
        y.append(np.array([5.0, -30.0])[:size] + np.array([3.0, 40.0])[:size] * x + 0.3 * x[::-1])
        x = np.array([0.8, 0.6])[:size] * x + [0.2, 0.4][:size] * np.tanh(v + 0.5)
    return u, np.array(y) + 0.02 * draw.standard_normal((length, size))


def write(folder: Path) -> Path:
    """A run on two files."""
    names = ("pump", "valve", "level", EVIL)
    files = []
    for seed, length in ((0, 180), (1, 150)):
        u, y = recording(seed, length)
        columns = dict(zip(names, [*u.T, *y.T], strict=True))
        files.append(str(write_rows(folder / f"data{seed}.csv", **columns)))
    data = RecordingsConfig(files=files, inputs=names[:2], outputs=names[2:], sampling_time=STEP)
    config = IdentifyConfig(data=data, identification=QUICK.replace(test=0.3))
    run = IdentificationRun.create(folder / "run", config)
    with pytest.MonkeyPatch.context() as patch:  # so that all parts are of the same models
        patch.setattr("hdnn.identification.search.LAST_ITERATIONS", 0)
        run.identify()
    return run.folder


class Shown:
    """A page, and what it is about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.html = report_of_run(folder).html
        self.page, self.result = Page(self.html), IdentificationRun.open(folder).load()
        U, Y = zip(recording(0, 180), recording(1, 150), strict=True)
        self.recordings = Recordings(U, Y, STEP)
        self.estimation, self.test = self.recordings.split(0.3)
        self.u = np.concatenate(self.estimation.inputs)

    def charts(self, section: str) -> list[Element]:
        return self.page.all(f"section[@id='{section}']//svg")

    def simulated(self, model: hdnn.StateSpace) -> list[np.ndarray]:
        whole = simulate(model, self.test)
        return [y[k:] for y, k in zip(whole, self.test.skip, strict=True)]

    @property
    def measured(self) -> list[np.ndarray]:
        return [y[k:] for y, k in zip(self.test.outputs, self.test.skip, strict=True)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    found = Shown(write(tmp_path_factory.mktemp("system")))
    assert found.result.units == 2
    return found


# --- charts, read back in the units of their ticks ------------------------------------------------


def _child(element: Element, start: str) -> list[Element]:
    return [e for e in element.iter("g") if e.get("id", "").startswith(start)]


def _scale(svg: Element, axis: str, log: bool = False) -> Callable[[Any], np.ndarray]:
    """From places to values, or to their logarithms, by the labels of the ticks."""
    places, values = [], []
    for tick in _child(svg, f"{axis}tick_"):
        (mark,), labels = list(tick.iter("use")), list(tick.iter("text"))
        if not log or labels:  # the small ticks of a logarithmic axis have none
            (label,) = labels
            places.append(float(mark.attrib[axis]))
            value = float(text_of(label).replace("−", "-"))
            values.append(np.log10(value) if log else value)
    slope, offset = np.polyfit(places, values, 1)
    return lambda place: slope * np.asarray(place) + offset


def _color(style: str) -> str:
    found = re.search(r"stroke: ([^;]*)", style) or re.search(r"fill: ([^;]*)", style)
    assert found is not None
    return found[1]


def drawn(svg: Element, log: bool = False) -> list[tuple[str, np.ndarray]]:
    """Color and points ``(n, 2)`` of all lines, markers and areas."""
    across, down, found = _scale(svg, "x"), _scale(svg, "y", log), []
    (axes,) = _child(svg, "axes_1")
    for group in axes:
        clipped = [e for e in group.iter() if e.get("clip-path")]
        marks = [use for e in clipped for use in e.iter("use")]
        if marks:
            places = [(float(use.attrib["x"]), float(use.attrib["y"])) for use in marks]
            found.append((_color(marks[0].attrib["style"]), places))
        for path in (e for e in clipped if e.tag == "path"):
            numbers = np.array(re.findall(r"-?[\d.]+", path.attrib["d"]), float)
            found.append((_color(path.attrib["style"]), numbers.reshape(-1, 2)))
    return [
        (color, np.stack([across(np.array(p)[:, 0]), down(np.array(p)[:, 1])], 1))
        for color, p in found
        if "axis" not in color
    ]


def curves(svg: Element, log: bool = False) -> list[tuple[str, np.ndarray]]:
    """Of the lines over time, without grid lines."""
    return [(color, points) for color, points in drawn(svg, log) if color in (INK, NETWORK, LINEAR)]


def near(a: Any, b: Any) -> None:
    """To the precision of a chart."""
    b = np.asarray(b)
    np.testing.assert_allclose(a, b, atol=2e-3 * (np.ptp(b) + 1e-9), rtol=0)


# --- tests ----------------------------------------------------------------------------------------


def test_the_page_has_every_section_and_is_self_contained(shown: Shown) -> None:
    assert shown.page.sections == SECTIONS
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)|url\((?!#)|@import", shown.html)
    assert len(shown.html) < 1e6
    assert str(shown.folder.parent) not in shown.html
    assert "data0.csv" in shown.html
    assert all(svg.get("aria-label") for svg in shown.page.all("svg"))
    assert not any("alert" in text for text in shown.page.texts("script"))
    assert "alert('1')" in shown.page.words
    assert "the first 1 of 2 recordings" in shown.page.words
    assert "Shown: the first 54" not in shown.page.words  # all samples of it are


def test_the_headline_is_the_fit_of_the_test_part(shown: Shown) -> None:
    measured, own = np.concatenate(shown.measured), shown.simulated(shown.result.model)
    error = measured - np.concatenate(own)
    spread = measured - measured.mean(0)
    fit = 1 - np.mean(np.linalg.norm(error, axis=0) / np.linalg.norm(spread, axis=0))
    assert shown.page.texts("p[@class='headline']/strong") == [f"{100 * fit:.1f} %"]
    count = sum(map(len, own))
    assert f"on the test part, {count} samples" in shown.page.words


def test_every_fit_stands_in_the_row_of_its_part_and_model(shown: Shown) -> None:
    header, *rows = shown.page.table("section[@id='fits']/div/table")
    assert header[:4] == ["part", "model", "fit", "RMSE of level"]
    train, validation = shown.estimation.split(0.15)
    parts = {"train": train, "validation": validation, "test": shown.test}
    mean = np.concatenate(shown.estimation.outputs).mean(0)
    expected = []
    for part in parts.values():
        measured = np.concatenate([y[k:] for y, k in zip(part.outputs, part.skip, strict=True)])
        for model in (shown.result.model, shown.result.linear, None):
            whole = [0 * y + mean for y in part.outputs] if model is None else simulate(model, part)
            guess = np.concatenate([y[k:] for y, k in zip(whole, part.skip, strict=True)])
            fit = 1 - np.linalg.norm(measured - guess, axis=0) / np.linalg.norm(
                measured - measured.mean(0), axis=0
            )
            expected.append([100 * fit.mean(), *np.sqrt(((measured - guess) ** 2).mean(0))])
    assert [row[0] for row in rows] == [x for part in parts for x in (part, "", "")]
    assert [row[1] for row in rows] == 3 * ["network", "linear model", "mean"]
    found = [[float(cell.removesuffix(" %")) for cell in row[2:]] for row in rows]
    np.testing.assert_allclose(found, expected, rtol=6e-3, atol=0.06)
    assert len({tuple(row) for row in found}) == 9


def test_measured_and_simulated_signals_are_those_of_the_scored_part(shown: Shown) -> None:
    charts, skip = shown.charts("signals"), shown.test.skip[0]
    names = [EVIL if "alert" in t else t for t in shown.page.texts("section[@id='signals']/h3")]
    assert names == ["level", EVIL, "input pump", "input valve"]
    lines = {
        INK: shown.measured[0],
        NETWORK: shown.simulated(shown.result.model)[0],
        LINEAR: shown.simulated(shown.result.linear)[0],
    }
    time = STEP * (skip + np.arange(len(shown.measured[0])))
    for k, svg in enumerate(charts[:2]):
        found = dict(curves(svg))
        assert {*found} == {*lines}
        for color, y in lines.items():
            near(found[color], np.stack([time, y[:, k]], 1))
        labels = {text_of(text): text.attrib["style"] for text in svg.iter("text")}
        for name, color in (("measured", INK), ("network", NETWORK), ("linear model", LINEAR)):
            assert f"fill: {color}" in labels[name]
    for k, svg in enumerate(charts[2:]):
        ((_, points),) = curves(svg)
        near(points, np.stack([time, shown.test.inputs[0][skip:, k]], 1))


def test_residuals_and_their_autocorrelation(shown: Shown) -> None:
    """Measured minus simulated; of both recordings, whose products do not mix; 1 at lag 0."""
    charts, skip = shown.charts("residuals"), shown.test.skip[0]
    own = shown.simulated(shown.result.model)
    residuals = [y - model for y, model in zip(shown.measured, own, strict=True)]
    count, every = sum(map(len, own)), np.concatenate(residuals)
    band, lags = 1.96 / np.sqrt(count), count // 4
    sentences = shown.page.texts("section[@id='residuals']/p")[1:]
    for k in range(2):
        e = residuals[0][:, k]
        ((color, points),) = curves(charts[2 * k])
        assert color == NETWORK
        near(points, np.stack([STEP * (skip + np.arange(len(e))), e], 1))
        centered = [r[:, k] - every[:, k].mean() for r in residuals]
        power = sum((r**2).sum() for r in centered)
        expected = [1.0]
        for lag in range(1, lags + 1):
            products = (r[t] * r[t - lag] for r in centered for t in range(lag, len(r)))
            expected.append(sum(products) / power)
        svg = charts[2 * k + 1]
        marks = [points for color, points in drawn(svg) if len(points) == lags + 1]
        near(marks[-1], np.stack([np.arange(lags + 1), expected], 1))
        area = [p[:, 1] for _, p in drawn(svg) if len(p) >= 4 and np.ptp(p[:, 0]) > lags / 2]
        edges = [(y.min(), y.max()) for y in area if len(y) < lags]
        assert edges == [pytest.approx((-band, band), abs=4e-3)]
        outside = sum(abs(r) > band for r in expected[1:])
        assert f"is {expected[1]:.2f}; {outside} of {lags} lags are outside" in sentences[k]
        assert ("are not white noise" in sentences[k]) == (outside > 0.1 * lags)
        mean = re.search(r"The mean is (-?[\d.]+)", sentences[k])
        assert mean is not None
        assert float(mean[1]) == pytest.approx(every[:, k].mean(), rel=6e-3)


def rest(model: hdnn.StateSpace, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """State and output after very many steps."""
    cell, v = model.assemble(), torch.tensor(u)
    x = torch.zeros(model.states)
    with torch.no_grad():
        for _ in range(500):
            x, y = cell.step(x, v)
    return x.numpy(), y.numpy()


def after_step(model: hdnn.StateSpace, u: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Outputs minus the output at rest for 500 steps."""
    cell, v, (start, before), ys = model.assemble(), torch.tensor(u + change), rest(model, u), []
    x = torch.tensor(start)
    with torch.no_grad():
        for _ in range(500):
            x, y = cell.step(x, v)
            ys.append(y.numpy() - before)
    return np.array(ys)


def test_steps_begin_at_rest_at_the_mean_input(shown: Shown) -> None:
    charts, mean, std = shown.charts("steps"), shown.u.mean(0), shown.u.std(0)
    tables = shown.page.all("section[@id='steps']//table")
    assert len(charts) == 4
    assert len(tables) == 2
    for i in range(2):
        change = np.eye(2)[i] * std[i]
        responses = [
            (LINEAR, 1, after_step(shown.result.linear, mean, change)),
            (LINEAR, -1, after_step(shown.result.linear, mean, -change)),
            (NETWORK, 1, after_step(shown.result.model, mean, change)),
            (NETWORK, -1, after_step(shown.result.model, mean, -change)),
        ]
        header, *rows = [[text_of(cell) for cell in row] for row in tables[i].iter("tr")]
        assert header == ["", "network, up", "network, down", "linear model"]
        for k in range(2):
            found = curves(charts[2 * i + k])
            assert [color for color, _ in found] == [color for color, _, _ in responses]
            for (_, points), (_, _, y) in zip(found, responses, strict=True):
                assert len(points) < 120
                near(points, np.stack([STEP * np.arange(len(points)), y[: len(points), k]], 1))
                assert abs(y[len(points) - 1, k] - y[-1, k]) < 0.02 * np.abs(y[:, k]).max()
            gains = [sign * y[-1, k] / std[i] for _, sign, y in (*responses[2:], responses[0])]
            shown_gains = [float(cell) for cell in rows[k][1:]]
            assert shown_gains == pytest.approx(gains, rel=6e-3, abs=2e-3)
    label = {text_of(text) for text in charts[0].iter("text")}
    assert {"network, up", "network, down", "linear model, up", "linear model, down"} <= label
    words = shown.page.words
    for m, s in zip(mean, std, strict=True):
        assert re.search(rf"from {m:.3g}\d* by ±{s:.3g}", words)


def test_poles_are_those_of_the_linearization_over_the_range(shown: Shown) -> None:
    """The Jacobian of a step, and the slope of outputs at rest, by differences."""
    charts, tables = shown.charts("poles"), shown.page.all("section[@id='poles']//table")

    def linearization(model: hdnn.StateSpace, u: np.ndarray, i: int) -> tuple[Any, ...]:
        cell, (x, y), size = model.assemble(), rest(model, u), 1e-5
        with torch.no_grad():
            ahead = [
                cell.step(torch.tensor(x + size * e), torch.tensor(u))[0].numpy() for e in np.eye(2)
            ]
            behind = [
                cell.step(torch.tensor(x - size * e), torch.tensor(u))[0].numpy() for e in np.eye(2)
            ]
        poles = np.linalg.eigvals((np.array(ahead) - behind).T / (2 * size))
        shift = 1e-4 * np.eye(2)[i]
        gain = (rest(model, u + shift)[1] - rest(model, u - shift)[1]) / 2e-4
        return y, gain, poles, -STEP / np.log(np.abs(poles).max())

    for i in range(2):
        header, *rows = [[text_of(cell) for cell in row] for row in tables[i].iter("tr")]
        names = ["level at rest", f"{EVIL} at rest", "gain of level", f"gain of {EVIL}"]
        assert header == [("pump", "valve")[i], *names, "time constant"]
        low, high = np.quantile(shown.u[:, i], [0.05, 0.95])
        assert len(rows) == 10
        found = [points for color, points in drawn(charts[i]) if len(points) == 2]
        found = [p for p in found if np.abs(p).max() < 1.5 and len(p) == 2][-10:]
        for level, row, points in zip(np.linspace(low, high, 9), rows, found, strict=False):
            u = shown.u.mean(0)
            u[i] = level
            y, gain, poles, constant = linearization(shown.result.model, u, i)
            expected = [level, *y, *gain, constant]
            assert [float(cell) for cell in row] == pytest.approx(expected, rel=6e-3, abs=2e-3)
            order = np.lexsort((points[:, 1], points[:, 0]))
            poles = np.sort_complex(poles)
            np.testing.assert_allclose(
                points[order], np.stack([poles.real, poles.imag], 1), atol=3e-3
            )
        y, gain, poles, constant = linearization(shown.result.linear, shown.u.mean(0), i)
        assert rows[-1][:3] == ["linear model", "", ""]
        assert [float(cell) for cell in rows[-1][3:]] == pytest.approx(
            [*gain, constant], rel=6e-3, abs=2e-3
        )
        near(np.sort(found[-1][:, 0]), np.sort(poles.real))


def test_what_is_proved_has_the_numbers_of_the_model(shown: Shown) -> None:
    _, *rows = shown.page.table("table[@class='checks']")
    assert [row[0] for row in rows] == ["proved"] * 3
    bounds = [bound for (bound,) in shown.result.model.bounds()]
    rate = min(float(own.rho) for own in bounds)
    gain = min(float(own.C * own.drive / (1 - own.rho) + own.D) for own in bounds)
    assert "No bounded input makes the model diverge" in rows[0][1]
    assert rows[1][2] == f"rate ≤ {rate:.6g}"
    constant = re.search(r"every ([\d.,]+),", rows[1][3])
    assert constant is not None
    assert float(constant[1].replace(",", "")) == pytest.approx(-STEP / np.log(rate), rel=6e-3)
    bound = float(rows[2][2].removeprefix("gain ≤ ").replace(",", ""))
    assert bound == pytest.approx(gain, rel=6e-3)


def test_the_energy_of_a_wrong_initial_state_is_below_its_bound(shown: Shown) -> None:
    """Two runs by hand: from where the first outputs say, and off by the spread of the states."""
    (svg,), model = shown.charts("guarantees"), shown.result.model
    (bounds,) = min(model.bounds(), key=lambda layers: float(layers[0].rho))
    u, cell = torch.tensor(shown.test.inputs[0]), model.assemble()
    x, states, expected = starts(model, shown.test)[0], [], []
    with torch.no_grad():
        for v in u:
            states.append(x)
            x = cell.step(x, v)[0]
        x, other = states[0], states[0] + torch.stack(states).std(0, correction=0)
        for v in u:
            expected.append(float((bounds.T @ (x - other)).square().sum()))
            x, other = cell.step(x, v)[0], cell.step(other, v)[0]
    found = dict(curves(svg, log=True))
    assert {*found} == {INK, NETWORK}
    own, bound = found[NETWORK], found[INK]
    count, scale = len(own), np.log10(expected[0])
    assert 5 < count <= len(u)
    time = STEP * np.arange(count)
    near(own[:, 0], time)
    near(own[:, 1], np.log10(expected[:count]) - scale)
    near(bound[:, 1], 2 * np.log10(float(bounds.rho)) * np.arange(count))
    assert (own[1:, 1] < bound[1:, 1]).all()
    assert f"After {count - 1} samples it is" in shown.page.words


def test_without_a_wrong_state_there_is_no_energy(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "energies", lambda *_: np.zeros(0))
    assert not Page(report_of_run(shown.folder).html).all("section[@id='guarantees']//svg")


def test_the_candidate_with_the_least_validation_error_was_chosen(shown: Shown) -> None:
    header, *rows = shown.page.table("section[@id='candidates']/div/table")
    by_name = [dict(zip(header, row, strict=True)) for row in rows]
    assert [row["model"].partition(",")[0] for row in by_name] == ["linear model", "network"]
    errors = [each["validation"] for each in shown.result.candidates]
    found = [float(row["validation error"]) for row in by_name]
    assert found == pytest.approx(errors, rel=6e-3)
    assert ["chosen" in row["model"] for row in by_name] == [e == min(errors) for e in errors]
    assert [row["units"] for row in by_name] == ["0", "2"]
    iterations = [str(each["iterations"]) for each in shown.result.candidates]
    assert [row["iterations"] for row in by_name] == iterations
    assert len({*iterations}) == 2


@pytest.mark.parametrize(
    ("own", "linear", "mean", "begins"),
    [
        (0.88, 0.745, -0.08, "Better than the linear model by 13.5 points: fit 88.0 % against 74"),
        (0.99, 0.98, 0.0, "Better than the linear model by 1.0 points"),
        (0.80, 0.795, 0.0, "No better than the linear model: fit 80.0 % against 79.5 %. Take the"),
        (0.795, 0.80, 0.0, "No better than the linear model: fit 79.5 % against 80.0 %. Take the"),
        (0.70, 0.80, 0.0, "Worse than the linear model: fit 70.0 % against 80.0 %. Take the linea"),
        (-0.1, -0.5, -0.2, "No better than the mean of the outputs"),
        (-0.1, 0.5, -0.2, "Worse than the linear model: fit -10.0 % against 50.0 %"),
    ],
)
def test_the_verdict_is_what_the_fits_say(
    own: float, linear: float, mean: float, begins: str, shown: Shown
) -> None:
    models = ("network", own), ("linear", linear), ("mean", mean)
    fits = {name: Fit(value, (1.0,)) for name, value in models}
    other = {name: Fit(-value, (1.0,)) for name, value in models}
    known: Any = {"recordings": shown.test, "u": shown.u}
    inputs = SystemInputs("", shown.result, {"train": other, "test": fits}, "test", **known)
    assert verdict(inputs).startswith(begins)
    still = {name: replace(fit, constant=True) for name, fit in fits.items()}
    flat = replace(inputs, fits={"test": still})
    assert verdict(flat).startswith("An output is constant")
    assert headline(flat, 9) == (
        "constant",
        "output: there is no fit of a free run on the test part, 9 samples",
    )
    alone = replace(shown.result, model=shown.result.linear)
    assert "the model is the linear one" in verdict(replace(inputs, result=alone))


def small(folder: Path) -> IdentificationRun:
    """A run of one input and one output without a test part, not yet identified."""
    u, y = recording(0, 120, 1)
    path = write_rows(folder / "a.csv", u=u[:, 0], y=y[:, 0])
    data = RecordingsConfig(files=[str(path)], inputs=["u"], outputs=["y"])
    config = IdentifyConfig(data=data, identification=QUICK)
    return IdentificationRun.create(folder / "run", config)


def test_the_command_writes_the_page_to_the_run(tmp_path: Path) -> None:
    """Without a test part, it is about the validation part, and says so."""
    run = small(tmp_path)
    with pytest.raises(HdnnError, match="not finished"):
        report_of_run(run.folder)
    result = run.identify()
    assert "report.html" in done("report", run.folder).stdout
    page = Page((run.folder / "report.html").read_text())
    assert page.sections == SECTIONS
    (notice,) = page.texts("p[@class='notice']")
    assert "no test part" in notice
    assert page.texts("strong") == [f"{100 * result.fits['validation']['network'].fit:.1f} %"]
    fails(2, ("report", run.folder, "--compare"), "hdnn identify")
    IdentificationRun.create(run.folder, run.config, overwrite=True)
    assert not (run.folder / "report.html").exists()  # it was about the old run


def test_recordings_that_have_changed_since_are_noticed(tmp_path: Path) -> None:
    run = small(tmp_path)
    run.identify()
    assert len(inputs_of_run(run.folder).notices) == 1
    u, y = recording(0, 120, 1)
    write_rows(tmp_path / "a.csv", u=u[:, 0], y=y[:, 0] ** 2)
    assert "recordings have changed" in inputs_of_run(run.folder).notices[1]


def test_many_signals_and_samples_are_cut_and_the_page_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "SHOWN", 1)
    u, y = recording(0, 1200)
    page = Page(hdnn.report(identify(Recordings((u,), (y,)), QUICK), u, y).html)
    cut = "Shown: the first 1,000 of 1,150 samples, 1 of 2 inputs, 1 of 2 outputs."
    assert cut in page.words
    for section, count in (("signals", 2), ("residuals", 2), ("steps", 1), ("poles", 1)):
        assert len(page.all(f"section[@id='{section}']//svg")) == count
    assert "RMSE of y2" in page.texts("th")


def test_a_fitted_estimator_has_a_page_on_other_recordings() -> None:
    (u, y), (u2, y2) = recording(0, 150, 1), recording(1, 120, 1)
    fitted = SystemIdentifier(
        2, 2, iterations=2, restarts=1, sampling_time=STEP, random_state=0
    ).fit(u, y)
    page = Page(hdnn.report(fitted, u2, y2, name="tank").html)
    assert page.texts("h1") == ["tank: u → y"]
    assert page.texts("strong") == [f"{100 * fitted.score(u2, y2):.1f} %"]
    assert "fit of a free run on these data, 70 samples" in page.words
    assert page.sections == SECTIONS
    assert "these data" in page.texts("th")
    with pytest.raises(HdnnError, match="2 and 1 columns"):
        hdnn.report(fitted, np.hstack([u2, u2]), y2)
    with pytest.raises(HdnnError, match="beside and lead"):
        hdnn.report(fitted, u2, y2, lead=("a", "b"))
