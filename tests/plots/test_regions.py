"""Planes: decision regions show what is predicted, flows where the data are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hdnn
from hdnn import plots
from hdnn.errors import HdnnError

LABELS = torch.arange(40) % 2


def model(outputs: int = 1, layers: int = 6) -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=layers, T=1.0)
    made = hdnn.Model(net, outputs, hdnn.Padding(2, 4))
    torch.nn.init.normal_(made.head.weight)
    torch.nn.init.normal_(made.head.bias)
    return made


@pytest.fixture
def points() -> Tensor:
    return torch.randn(40, 2)


@pytest.mark.parametrize("outputs", [1, 3, 7])
def test_decision_regions_show_what_is_predicted(outputs: int, points: Tensor) -> None:
    classifier, axis = model(outputs), plots.new_figure(3, 3).subplots()
    plots.decision_regions(axis, classifier, points, LABELS)
    image = axis.get_images()[0]
    left, right, bottom, top = image.get_extent()
    cells = image.get_array()
    rows, columns = cells.shape
    for i, j in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows // 2, columns // 3)):
        x = left + (right - left) * j / (columns - 1)
        y = bottom + (top - bottom) * i / (rows - 1)
        assert cells[i, j] == int(classifier.predict(torch.tensor([x, y])))
    assert float(points[:, 0].min()) > left
    assert float(points[:, 1].max()) < top
    with pytest.raises(HdnnError, match="plane"):
        plots.decision_regions(axis, classifier, torch.randn(40, 3), LABELS)


@pytest.mark.parametrize("theme", [plots.LIGHT, plots.DARK], ids=["light", "dark"])
def test_the_figure_of_flows(points: Tensor, theme: plots.Theme) -> None:
    models = {"a\n99 %": model(), "b": model(3, layers=1)}
    figure = plots.flow_figure(models, points, LABELS, samples=10, title="So it is.", theme=theme)
    *planes, norms = figure.axes
    assert [axis.get_title() for axis in planes] == [
        *("input", "layer 3", "layer 6", "what it decides"),
        *("input", "layer 1", "what it decides"),
    ]
    assert all(len(axis.collections[0].get_offsets()) == 10 for axis in planes)
    assert [len(line.get_xdata()) for line in norms.get_lines()] == [7, 2]
    assert "So it is." in figure.get_suptitle()


def test_points_that_collapsed_are_ringed() -> None:
    collapsing = hdnn.network("FCNN", features=4, layers=40, scale=0.1)
    moving = plots.flow(hdnn.Model(collapsing, 3, hdnn.Padding(2, 4)), torch.randn(40, 2))
    first, last = plots.new_figure(4, 2).subplots(1, 2)
    plots.layer_states(first, moving, LABELS.numpy(), 0)
    plots.layer_states(last, moving, LABELS.numpy(), 40)
    assert [[text.get_text() for text in axis.texts] for axis in (first, last)] == [
        [],
        ["all 40 points"],
    ]
