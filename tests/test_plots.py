"""Figures: every one is drawn, and a file is a whole figure or the old one."""

from __future__ import annotations

import io
import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import hdnn
from hdnn import plots
from hdnn.analysis import Norms
from hdnn.errors import HdnnError
from hdnn.training import Recording


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
    axes = moving.plane.axes
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-12)


def test_without_a_boundary_the_plane_shows_the_most_variance(points: torch.Tensor) -> None:
    drawn = model(3)
    moving = plots.flow(drawn, points)
    states = drawn.network.trajectory(drawn.preprocess(points)).detach().numpy().reshape(-1, 4)
    variances = np.sort(np.linalg.eigvalsh(np.cov(states.T)))[::-1]
    assert moving.plane.shares == pytest.approx(tuple(variances[:2] / variances.sum()))


@pytest.mark.parametrize("theme", plots.THEMES.values(), ids=plots.THEMES)
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


def test_figures_of_float32_and_many_classes(points: torch.Tensor) -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0, dtype=torch.float32)
    small = hdnn.Model(net, 7, hdnn.Augmentation(2, 4))
    plots.flow_figure({"small": small}, points.float(), torch.arange(40) % 7)


def test_a_model_of_the_plane_is_needed(labels: torch.Tensor) -> None:
    axis = plots.new_figure(3, 3).subplots()
    with pytest.raises(HdnnError, match="plane"):
        plots.decision_regions(axis, model(), torch.randn(40, 3), labels)


def test_learning_curves_are_labeled_at_their_ends() -> None:
    history = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "accuracy": 0.75}]
    axis = plots.learning_curves(plots.new_figure(3, 3).subplots(), history, ["loss", "accuracy"])
    assert [text.get_text() for text in axis.texts] == ["loss", "accuracy"]
    assert axis.texts[1].xy == (2, 0.75)


def test_labels_at_the_ends_of_lines_do_not_overlap() -> None:
    axis = plots.new_figure(4, 3).subplots()
    for name, end in (("b", 1.0), ("d", 1.02), ("a", 0.0), ("c", 1.01)):
        axis.plot([0, 1], [0.5, end], label=name)
    axis.plot([0, 1], [0, 0.5])  # has no label
    plots.label_ends(axis)
    axis.figure.canvas.draw()
    boxes = sorted(
        ((text.get_window_extent(), text.get_text()) for text in axis.texts),
        key=lambda found: found[0].y0,
    )
    assert [name for _, name in boxes] == ["a", "b", "c", "d"]
    assert all(low.y1 <= high.y0 for (low, _), (high, _) in itertools.pairwise(boxes))
    end = axis.transData.transform((1, 0))[1]
    assert boxes[0][0].y0 < end < boxes[0][0].y1  # what is alone stays beside its line


def _contrast(one: str, other: str) -> float:
    """The ratio of luminances, as accessibility guidelines define it."""
    from matplotlib.colors import to_rgb

    def luminance(color: str) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)
        ]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", plots.THEMES.values(), ids=plots.THEMES)
def test_colors_stand_out_from_the_paper(theme: plots.Theme) -> None:
    assert _contrast(theme.ink, theme.paper) > 7
    assert _contrast(theme.muted, theme.paper) > 4.5
    assert all(_contrast(color, theme.paper) > 3 for color in theme.classes)
    assert len(set(theme.classes)) == 10


def test_a_record_is_drawn_by_depth_and_layer_with_its_energy() -> None:
    def record(k: int, energy: torch.Tensor | None) -> Recording:
        column = torch.full((11,), 1.0 + k)
        seen = Norms(tuple(range(11)), 25, *[column] * 5, energy=energy)
        return Recording(1, 2 * k, seen, (math.nan if k == 1 else 0.5,) * 10, 0.5)

    records = [record(k, torch.full((11,), 0.1)) for k in range(3)]
    norms, gradients, energy = plots.record_figure(records, "run").axes
    assert [len(axis.get_lines()) for axis in (norms, gradients, energy)] == [8, 8, 8]
    labels = [line.get_label() for line in norms.get_lines()]
    assert (labels[0], labels[-1]) == ("$\\ell$ = 0", "$\\ell$ = 9")  # layer 10 is the identity
    assert norms.get_lines()[0].get_xydata().tolist() == [[0, 1], [2, 2], [4, 3]]
    assert np.isnan(gradients.get_lines()[0].get_ydata()).tolist() == [False, True, False]
    assert (norms.get_yscale(), energy.get_yscale()) == ("log", "linear")
    assert len(plots.record_figure([record(0, None)], "run").axes) == 2


def test_a_profile_is_drawn_with_the_range_of_its_samples() -> None:
    net = hdnn.network("H1", features=4, layers=5, T=1.0)
    seen = hdnn.analysis.profile(net, torch.randn(7, 4), range(6))
    (axis,) = plots.profile_figure(seen, "run").axes
    mean, of_mean = axis.get_lines()
    np.testing.assert_array_equal(mean.get_ydata(), seen.mean)
    np.testing.assert_array_equal(of_mean.get_ydata(), seen.of_mean)
    assert pixels(axis.figure).std() > 0


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def figure(labels: torch.Tensor) -> Any:
    return plots.flow_figure({"H1": model(layers=2)}, torch.randn(40, 2), labels)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("f.png", b"\x89PNG"),
        ("f.PNG", b"\x89PNG"),
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
        axis.plot([1, 0], color="#440154")  # of no theme, and nearly black
        plots.save_figure(figure, tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    rules = dict(re.findall(r'\[style\*="(\w+: #\w+)"\]\{\w+:(#\w+)!important\}', texts[0]))
    light, dark = plots.LIGHT, plots.DARK
    assert rules[f"stroke: {light.color(0)}"] == dark.color(0)
    assert rules[f"fill: {light.paper}"] == dark.paper
    assert rules[f"fill: {light.ink}"] == rules["stroke: #000000"] == dark.ink
    assert sum(int(rules["stroke: #440154"][k : k + 2], 16) for k in (1, 3, 5)) > 300
    plots.save_figure(plots.new_figure(2.0, 2.0, dark), tmp_path / "dark.svg")
    assert "prefers-color-scheme" not in (tmp_path / "dark.svg").read_text()


def test_an_unknown_ending_is_a_clear_error(figure: Any, tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"(?s)xyz.*png"):
        plots.save_figure(figure, tmp_path / "f.xyz")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_figure_leaves_the_old_file(
    figure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.png"
    path.write_bytes(b"old")

    def fail(target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(HdnnError, match="No space left on device"):
        plots.save_figure(figure, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_does_not_exist_is_named(figure: Any, tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match="nowhere"):
        plots.save_figure(figure, tmp_path / "nowhere" / "f.png")
