"""What results look like in a notebook: tables, escaped, and plots of the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch

import hdnn
from hdnn import plots
from hdnn.analysis import Certificate, certify, norms, profile
from hdnn.analysis.checks import Check
from hdnn.data import load_recordings
from hdnn.errors import HdnnError
from hdnn.identification import Identification, IdentificationConfig, identify
from hdnn.plots.margins import MOST, margin
from page import Page


@pytest.fixture(autouse=True)
def no_screen() -> Iterator[None]:
    from matplotlib import pyplot

    before = mpl.get_backend()
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)


@pytest.fixture(scope="module")
def pendulum() -> Identification:
    config = IdentificationConfig(states=2, iterations=3, restarts=1)
    return identify(load_recordings("damped-pendulum"), config)


def read(result: Any) -> Page:
    """What a notebook shows."""
    return Page(f"<div>{result._repr_html_()}</div>")


def test_norms_are_drawn_and_tabulated() -> None:
    net = hdnn.network("H1", features=4, layers=8, T=2.0)
    record = profile(net, torch.randn(20, 4))
    axis = record.plot(label="H1")
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), record.mean)
    assert axis.figure in map(mpl.pyplot.figure, mpl.pyplot.get_fignums())  # which show() shows
    assert record.plot(axis) is axis
    table = record._repr_html_()
    assert table.count("<tr>") == 10
    assert f"<td>{float(record.mean[3]):.4g}</td>" in table


def test_of_an_ensemble_the_first_network_is_drawn() -> None:
    net = hdnn.network("H1", features=4, layers=4, T=2.0, ensemble=3)
    record = profile(net, torch.randn(1, 20, 4))
    np.testing.assert_array_equal(record.plot().lines[0].get_ydata(), record.mean[0])
    assert "first of 3 networks" in record._repr_html_()


def test_names_of_modules_are_escaped() -> None:
    record = replace(norms(torch.eye(2).expand(2, 3, 2, 2)), layers=("<script>", "b"))
    assert "&lt;script&gt;" in record._repr_html_()
    assert "<script>" not in record._repr_html_()


def check(value: float, tolerance: float, relation: str, holds: bool) -> Check:
    return Check("c", holds, value, tolerance, "s <b>", "means", "section", relation)


@pytest.mark.parametrize(
    ("value", "tolerance", "relation", "holds", "expected"),
    [
        (1.0, 4.0, "<=", True, 4.0),
        (4.0, 1.0, "<=", False, 0.25),
        (4.0, 1.0, ">=", True, 4.0),
        (0.25, 1.0, ">=", False, 0.25),
        (0.0, 1e-15, "<=", True, MOST),
        (1e9, 1.0, "<=", False, 1 / MOST),
        (float("inf"), 1.0, "<=", False, 1 / MOST),
        (1 - 1e-12, 1.0, ">=", True, 1.0),  # up to rounding
    ],
)
def test_a_margin_is_the_factor_by_which_a_statement_holds(
    value: float, tolerance: float, relation: str, holds: bool, expected: float
) -> None:
    assert margin(check(value, tolerance, relation, holds)) == pytest.approx(expected)


def test_certificates_are_drawn_and_tabulated() -> None:
    net = hdnn.network("H1", features=4, layers=6, T=2.0)
    certificate = certify(net, torch.randn(8, 4))
    axis = certificate.plot()
    names = [label.get_text() for label in axis.get_yticklabels()]
    places = {names[round(line.get_ydata()[0])]: line.get_xdata()[0] for line in axis.lines[1:]}
    assert places["scheme-drift"] < 1 <= places["norm-at-least-one"]
    assert all((certificate[name].holds is True) == (x >= 1) for name, x in places.items())
    table = read(certificate)
    assert [*table.texts("th")] == ["verdict", "check", "measured", "statement", "meaning"]
    assert {"scheme-drift", "not met", certificate["scheme-drift"].comparison} <= {
        *table.texts("td")
    }
    assert "everything that is proved holds" in table.texts("p")
    broken = Certificate("net", 1, "float64", (check(2.0, 1.0, "<=", holds=False),))
    assert "what is proved does not hold" in broken._repr_html_()
    assert "s &lt;b&gt;" in broken._repr_html_()


def test_the_certificates_of_a_model_have_the_names_of_its_networks() -> None:
    block = hdnn.network("H1", features=4, layers=2, T=0.5)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), block)
    page = read(certify(model, torch.ones(3, 2)))
    assert [*page.texts("h4")] == ["1"]
    assert any("0 (Linear)" in text for text in page.texts("p"))


def test_systems_are_drawn_measured_and_simulated(pendulum: Identification) -> None:
    test = load_recordings("damped-pendulum").test
    u, y = test.inputs[0], test.outputs[0]
    axis = pendulum.plot(u, y)
    lines = {line.get_label(): line.get_ydata() for line in axis.lines}
    assert [*lines] == ["measured", "linear model", "network"]
    np.testing.assert_array_equal(lines["measured"], y[50:, 0])
    fit = pendulum.fits["test"]["network"].fit
    left = np.linalg.norm(lines["network"] - lines["measured"])
    assert 1 - left / np.linalg.norm(y[50:] - y[50:].mean()) == pytest.approx(fit, abs=1e-6)
    identifier = hdnn.SystemIdentifier()._with(pendulum)
    given = plots.new_figure(4, 3).subplots()
    assert identifier.plot(u, y, given) is given
    with pytest.raises(HdnnError, match="output is one of 0"):
        pendulum.plot(u, y, output=1)
    with pytest.raises(HdnnError, match="2 and 1 columns"):
        pendulum.plot(np.hstack([u, u]), y)


def test_systems_are_tabulated(pendulum: Identification) -> None:
    page = read(replace(pendulum, output_names=("<i>",)))
    assert [*page.texts("th")] == ["part", "model", "fit", "RMSE of <i>"]
    assert pendulum.fits["test"]["network"].percent in page.texts("td")
    assert "cannot diverge for any bounded input: proved" in page.texts("p")
