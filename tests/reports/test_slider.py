"""The slider of a page: its colors, and the networks that it shows."""

from __future__ import annotations

import base64

import numpy as np
import torch

import hdnn
from hdnn.plots.regions import grid
from hdnn.plots.style import color_ramp
from hdnn.reports import slider
from page import Page, text_of


def regression() -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=3, T=1.0)
    model = hdnn.Model(net, 1, hdnn.Padding(2, 4), task="regression")
    torch.nn.init.normal_(model.head.weight)
    return model


def test_colors_of_a_regression_rise_with_the_target() -> None:
    model, X, y = regression(), torch.randn(80, 2), torch.randn(80)
    page = Page(hdnn.report(model, X, y).html)
    scene = page.scene
    bins = np.frombuffer(base64.b64decode(scene["numbers"]), np.uint8)[y.argsort().numpy()]
    np.testing.assert_array_equal(bins, np.arange(80) // 10)  # as many samples in each
    assert scene["colors"] == color_ramp(8)
    (legend,) = page.all("p[@class='legend']")
    assert legend[0].attrib["style"] == (
        f"background:linear-gradient(90deg,{','.join(color_ramp(8))})"
    )
    assert text_of(legend) == f"target from {float(y.min()):.3g} to {float(y.max()):.3g}"


def test_two_networks_of_one_architecture_are_both_shown() -> None:
    nets = [hdnn.network("H1", features=4, layers=layers, T=1.0) for layers in (3, 9)]
    one, two = (hdnn.Model(net, 1, hdnn.Padding(2, 4)) for net in nets)
    for model in (one, two):
        torch.nn.init.normal_(model.head.weight)
    X, y = torch.randn(40, 2), torch.arange(40) % 2
    page = Page(hdnn.report(one, X, y, beside=two).html)
    assert [flow["last"] for flow in page.scene["flows"]] == [3, 9]
    titles = [f"Hamiltonian network (H1), {k}" for k in (1, 2)]
    accuracies = [float((model.predict(X) == y).double().mean()) for model in (one, two)]
    assert page.texts("div[@class='network']/h3") == [
        f"{title}{100 * accuracy:.1f} % correct"
        for title, accuracy in zip(titles, accuracies, strict=True)
    ]
    assert page.texts("output") == ["layer 3 of 3"]
    assert all(f"{title}: " in page.words for title in titles)


def test_regions_are_what_the_head_reads_at_each_depth() -> None:
    """At the last depth, what the model predicts; and runs of equal cells give them back."""
    net = hdnn.network("H1", features=4, layers=3, T=1.0)
    model = hdnn.Model(net, 3, hdnn.Padding(2, 4))
    torch.nn.init.normal_(model.head.weight)
    box = (-1.0, 2.0, -2.0, 1.0)
    regions = slider.regions_by_depth(model, box, [0, 3])
    cells = grid(box, slider.RESOLUTION, model.head.weight.dtype)
    np.testing.assert_array_equal(regions[1].ravel(), model.predict(cells).numpy())
    first = model.head(model.preprocess(cells)).argmax(-1)
    np.testing.assert_array_equal(regions[0].ravel(), first.numpy())
    for area in (*regions, np.zeros((30, 40), np.uint8)):  # 1200 cells in one run
        classes, lengths = slider._run_lengths(area).T
        np.testing.assert_array_equal(np.repeat(classes, lengths), area.ravel())
