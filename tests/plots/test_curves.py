"""Curves show the numbers that they are given, labeled at their ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hdnn
from hdnn import plots


def test_learning_curves_are_labeled_at_their_ends() -> None:
    history = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.05, "validation_loss": 0.75}]
    axis = plots.learning_curves(plots.new_figure(3, 3).subplots(), history)
    assert [text.get_text() for text in axis.texts] == ["training loss", "validation loss"]
    assert axis.texts[1].xy == (2, 0.75)
    assert axis.get_yscale() == "log"


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
    norms = hdnn.analysis.profile(net, torch.randn(7, 4))
    axis = plots.new_figure(4, 3).subplots()
    for name in ("H1", "again"):
        plots.norms_by_depth(axis, norms, name, "#0072b2")
    line, _ = axis.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), norms.mean)
    low, high = axis.collections[0].get_datalim(axis.transData).intervaly
    assert (low, high) == pytest.approx((float(norms.minimum.min()), float(norms.maximum.max())))
    assert axis.texts[0].xy != axis.texts[1].xy  # two labels do not overlap
