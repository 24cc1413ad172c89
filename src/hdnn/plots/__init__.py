"""Figures in one style; each draws on an axis and returns it. Matplotlib is loaded when used.

A new plot is a function like those of `gradients` or `planar`, exported here.
"""

import hdnn.application  # noqa: F401
from hdnn.plots.flow import Flow, Plane, flow
from hdnn.plots.gradients import learning_curves, norms_by_depth, profile_figure, record_figure
from hdnn.plots.planar import decision_regions, flow_figure, layer_states, scatter
from hdnn.plots.style import (
    CLASS_COLORS,
    DARK,
    LIGHT,
    THEMES,
    Theme,
    bare,
    check_figure_path,
    clean,
    color_ramp,
    label_ends,
    new_figure,
    plot_band,
    save_figure,
)

__all__ = [
    "CLASS_COLORS",
    "DARK",
    "LIGHT",
    "THEMES",
    "Flow",
    "Plane",
    "Theme",
    "bare",
    "check_figure_path",
    "clean",
    "color_ramp",
    "decision_regions",
    "flow",
    "flow_figure",
    "label_ends",
    "layer_states",
    "learning_curves",
    "new_figure",
    "norms_by_depth",
    "plot_band",
    "profile_figure",
    "record_figure",
    "save_figure",
    "scatter",
]
