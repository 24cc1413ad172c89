"""Figures in one style; each draws on an axis and returns it. Matplotlib is loaded when used.

A new plot is a function like those of `curves` or `planar`. Those that people call themselves are
exported here.
"""

import hdnn.application  # noqa: F401
from hdnn.plots.curves import learning_curves, norms_by_depth, record_by_depth
from hdnn.plots.flow import Flow, flow
from hdnn.plots.margins import margins
from hdnn.plots.regions import decision_regions, flow_figure, layer_states, scatter
from hdnn.plots.signals import autocorrelation, poles, signals
from hdnn.plots.style import (
    DARK,
    LIGHT,
    Theme,
    bare,
    clean,
    given_or_new,
    label_ends,
    new_figure,
    save_figure,
)

__all__ = [
    "DARK",
    "LIGHT",
    "Flow",
    "Theme",
    "autocorrelation",
    "bare",
    "clean",
    "decision_regions",
    "flow",
    "flow_figure",
    "given_or_new",
    "label_ends",
    "layer_states",
    "learning_curves",
    "margins",
    "new_figure",
    "norms_by_depth",
    "poles",
    "record_by_depth",
    "save_figure",
    "scatter",
    "signals",
]
