"""Figures: every one is drawn, and a file is a whole figure or the old one."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import hdnn
from hdnn import plots
from hdnn.errors import HdnnError


def model(outputs: int = 1, layers: int = 6) -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=layers, T=1.0)
    made = hdnn.Model(net, outputs, hdnn.Augmentation(2, 4))
    torch.nn.init.normal_(made.head.weight)
    return made


@pytest.fixture
def points() -> torch.Tensor:
    return torch.randn(40, 2)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.arange(40) % 2


def pixels(figure: Any) -> Any:
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=50)
        file.seek(0)
        return imread(file)


@pytest.mark.parametrize("outputs", [1, 3, 7])
def test_decision_regions_show_what_is_predicted(
    outputs: int, points: torch.Tensor, labels: torch.Tensor
) -> None:
    drawn = model(outputs)
    axis = plots.new_figure(3, 3).subplots()
    assert plots.decision_regions(axis, drawn, points, labels) is axis
    image = axis.get_images()[0]
    left, right, bottom, top = image.get_extent()
    cells = image.get_array()
    rows, columns = cells.shape
    for i, j in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows // 2, columns // 3)):
        x = left + (right - left) * j / (columns - 1)
        y = bottom + (top - bottom) * i / (rows - 1)
        assert cells[i, j] == int(drawn.predict(torch.tensor([x, y])))
    assert float(points[:, 0].min()) > left
    assert float(points[:, 1].max()) < top


def test_a_flow_is_the_trajectory_in_one_plane(points: torch.Tensor) -> None:
    """For two classes of the plane, the first coordinate is the distance to the boundary."""
    drawn = model()
    torch.nn.init.normal_(drawn.head.bias)
    moving = plots.flow(drawn, points)
    assert moving.depths == tuple(range(7))
    states = drawn.network.trajectory(drawn.preprocess(points)).detach()
    logits = (drawn.head(states)[..., 0] / drawn.head.weight.norm()).detach().numpy()
    np.testing.assert_allclose(moving.points[..., 0], logits, atol=1e-12)
    left, right, bottom, top = moving.box()
    assert right - left == pytest.approx(top - bottom)
    assert left < moving.points[..., 0].min()
    assert moving.points[..., 1].max() < top


def test_without_a_boundary_the_plane_shows_the_most_variance(points: torch.Tensor) -> None:
    drawn = model(3)
    moving = plots.flow(drawn, points)
    states = drawn.network.trajectory(drawn.preprocess(points)).detach().numpy().reshape(-1, 4)
    variances = np.sort(np.linalg.eigvalsh(np.cov(states.T)))[::-1]
    assert moving.shares == pytest.approx(tuple(variances[:2] / variances.sum()))


@pytest.mark.parametrize("theme", [plots.LIGHT, plots.DARK], ids=["light", "dark"])
def test_the_figure_of_flows(
    points: torch.Tensor, labels: torch.Tensor, theme: plots.Theme
) -> None:
    models = {"a\n99 %": model(), "b": model(3, layers=9)}
    figure = plots.flow_figure(models, points, labels, samples=10, title="So it is.", theme=theme)
    *planes, norms = figure.axes
    titles = [axis.get_title() for axis in planes]
    assert titles[:4] == ["input", "layer 3", "layer 6", "what it decides"]
    for axis in planes:
        assert len(axis.collections[0].get_offsets()) == 10
    assert [len(line.get_xdata()) for line in norms.get_lines()] == [7, 10]
    image = pixels(figure)
    assert image.std() > 0
    assert (image.mean() > 0.5) == (theme is plots.LIGHT)
    assert "So it is." in figure.get_suptitle()


def test_points_that_fell_onto_one_are_ringed(labels: torch.Tensor) -> None:
    collapsing = hdnn.network("FCNN", features=4, layers=40)
    collapsing.field.weights.theta.data.mul_(0.1)
    moving = plots.flow(hdnn.Model(collapsing, 3, hdnn.Augmentation(2, 4)), torch.randn(40, 2))
    first, last = plots.new_figure(4, 2).subplots(1, 2)
    plots.layer_states(first, moving, labels.numpy(), 0)
    plots.layer_states(last, moving, labels.numpy(), 40)
    assert [len(axis.texts) for axis in (first, last)] == [0, 1]
    assert last.texts[0].get_text() == "all 40 points"


def test_a_model_of_the_plane_is_needed(labels: torch.Tensor) -> None:
    axis = plots.new_figure(3, 3).subplots()
    with pytest.raises(HdnnError, match="plane"):
        plots.decision_regions(axis, model(), torch.randn(40, 3), labels)


def test_learning_curves_are_labeled_at_their_ends() -> None:
    history = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "accuracy": 0.75}]
    axis = plots.learning_curves(plots.new_figure(3, 3).subplots(), history, ["loss", "accuracy"])
    assert [text.get_text() for text in axis.texts] == ["loss", "accuracy"]
    assert axis.texts[1].xy == (2, 0.75)


def test_a_record_is_drawn_by_depth() -> None:
    records = [
        {"iteration": 2 * k, "layers": list(range(11)), "mean": [None if k == 1 else 1.0 + k] * 11}
        for k in range(3)
    ]
    axis = plots.record_by_depth(plots.new_figure(4, 3).subplots(), records)
    labels = [line.get_label() for line in axis.get_lines()]
    assert (labels[0], labels[-1]) == ("layer 0", "layer 9")  # layer 10 is the identity
    np.testing.assert_array_equal(axis.get_lines()[0].get_ydata(), [1, np.nan, 3])
    assert axis.get_yscale() == "log"


def test_norms_are_drawn_with_the_range_of_their_samples() -> None:
    net = hdnn.network("H1", features=4, layers=5, T=1.0)
    seen = hdnn.analysis.profile(net, torch.randn(7, 4), range(6))
    axis = plots.norms_by_depth(plots.new_figure(4, 3).subplots(), seen, "H1", "#0072b2")
    (line,) = axis.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), seen.mean)
    low, high = axis.collections[0].get_datalim(axis.transData).intervaly
    assert (low, high) == pytest.approx((float(seen.minimum.min()), float(seen.maximum.max())))


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def figure(labels: torch.Tensor) -> Any:
    return plots.flow_figure({"H1": model(layers=2)}, torch.randn(40, 2), labels)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("f.png", b"\x89PNG"),
        ("f.pdf", b"%PDF"),
        ("f.svg", b"<?xml"),
        ("f", b"\x89PNG"),
    ],
)
def test_the_ending_chooses_the_format(
    name: str, start: bytes, figure: Any, tmp_path: Path
) -> None:
    plots.save_figure(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_light_svg_has_a_dark_side(tmp_path: Path) -> None:
    texts = []
    for name in ("one.svg", "two.svg"):
        figure = plots.new_figure(2.0, 2.0)
        axis = figure.add_subplot()
        axis.plot([0, 1], color=plots.LIGHT.color(0))
        plots.save_figure(figure, tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    rules = dict(re.findall(r'\[style\*="(\w+: #\w+)"\]\{\w+:(#\w+)!important\}', texts[0]))
    light, dark = plots.LIGHT, plots.DARK
    assert rules[f"stroke: {light.color(0)}"] == dark.color(0)
    assert rules[f"fill: {light.paper}"] == dark.paper
    assert rules[f"fill: {light.ink}"] == rules["stroke: #000000"] == dark.ink
    plots.save_figure(plots.new_figure(2.0, 2.0, dark), tmp_path / "dark.svg")
    assert "prefers-color-scheme" not in (tmp_path / "dark.svg").read_text()


def test_a_chart_of_a_page_takes_the_colors_of_the_page() -> None:
    figure = plots.new_figure(2.0, 2.0)
    figure.subplots().plot([0, 1], color=plots.LIGHT.color(0))
    text = plots.inline_svg(figure, "<t>")
    assert "stroke: var(--c0)" in text
    assert not any(color in text for color in plots.LIGHT.classes)
    assert text.startswith('<svg role="img" aria-label="&lt;t&gt;"')


def test_an_unknown_ending_is_a_clear_error(figure: Any, tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"(?s)xyz.*png"):
        plots.save_figure(figure, tmp_path / "f.xyz")
    assert list(tmp_path.iterdir()) == []
