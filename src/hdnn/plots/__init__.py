"""Figures in one style; each draws on an axis and returns it. Matplotlib is loaded when used.

A new plot is a function like those of `curves` or `planar`, exported here.
"""

import hdnn.application  # noqa: F401
from hdnn.plots.curves import (
    learning_curves,
    norms_by_depth,
    predicted_against_observed,
    record_by_depth,
)
from hdnn.plots.flow import Flow, flow
from hdnn.plots.planar import decision_regions, flow_figure, layer_states, scatter, strip_figure
from hdnn.plots.style import (
    DARK,
    LIGHT,
    Theme,
    bare,
    check_figure_path,
    clean,
    color_ramp,
    inline_svg,
    label_ends,
    log_axis,
    new_figure,
    plot_band,
    save_figure,
)

__all__ = [
    "DARK",
    "LIGHT",
    "Flow",
    "Theme",
    "bare",
    "check_figure_path",
    "clean",
    "color_ramp",
    "decision_regions",
    "flow",
    "flow_figure",
    "inline_svg",
    "label_ends",
    "layer_states",
    "learning_curves",
    "log_axis",
    "new_figure",
    "norms_by_depth",
    "plot_band",
    "predicted_against_observed",
    "record_by_depth",
    "save_figure",
    "scatter",
    "strip_figure",
]
