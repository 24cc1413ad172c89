"""One style of all figures: palette, light and dark, axes, direct labels, files."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hdnn.errors import HdnnError
from hdnn.files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FORMATS = ("png", "svg", "pdf", "jpg")


@dataclass(frozen=True)
class Theme:
    """Colors of a figure.

    Args:
        paper, ink, muted, grid: background, text, secondary text, thin lines.
        classes: of the classes, in order; told apart by people who see fewer colors (Okabe and
            Ito), the first two also in gray.

    >>> from hdnn import plots
    >>> plots.LIGHT.color(0), plots.DARK.paper
    ('#0072b2', '#14161a')
    """

    paper: str
    ink: str
    muted: str
    grid: str
    classes: tuple[str, ...]

    def color(self, number: int) -> str:
        """The color of a class, a line or a network, counted from 0; colors repeat after ten.

        Args:
            number: from 0.

        Returns:
            A color such as "#0072b2".
        """
        return self.classes[number % len(self.classes)]

    def names(self) -> dict[str, str]:
        """All colors by the name that they have as CSS variables: paper, ink, ..., c0 to c9.

        Returns:
            Names and colors.
        """
        named = {name: str(color) for name, color in vars(self).items() if name != "classes"}
        return named | {f"c{k}": color for k, color in enumerate(self.classes)}


def _palette(colors: str) -> tuple[str, ...]:
    return tuple(f"#{color}" for color in colors.split())


LIGHT = Theme(
    paper="#ffffff",
    ink="#1c1e21",
    muted="#5f656d",
    grid="#e3e5e8",
    classes=_palette("0072b2 d55e00 009e73 b5548a b8860b 3a9bd9 6b6f76 7a3e9d 8c510a 4d7c0f"),
)
DARK = Theme(
    paper="#14161a",
    ink="#eceef1",
    muted="#a2a8b1",
    grid="#2e3238",
    classes=_palette("56b4e9 ff8b3d 2fc79a e88fc0 f0c24b 9ad7f7 b4b9c1 c59be8 d6a46a a9d16c"),
)
SMALL, NORMAL, LARGE = 8, 9.5, 12
"""Points of text: ticks, labels, the sentence above a figure."""


def theme_of(artist: Axes | Figure | SubFigure) -> Theme:
    """The theme that suits the background of a figure or of an axis in it, whoever made it."""
    from matplotlib.colors import to_rgba

    figure = artist.get_figure(root=True)
    assert figure is not None
    # Green looks brightest and blue darkest; a transparent figure is on a light page.
    red, green, blue, alpha = to_rgba(figure.get_facecolor())
    return DARK if alpha > 0 and 0.3 * red + 0.6 * green + 0.1 * blue < 0.4 else LIGHT


def new_figure(width: float, height: float, theme: Theme = LIGHT) -> Figure:
    """An empty figure of a size in inches, drawn without a screen.

    Args:
        width: in inches.
        height: in inches.
        theme: `LIGHT` or `DARK`.

    Returns:
        The figure.

    >>> from hdnn import plots
    >>> plots.new_figure(4, 3, plots.DARK).get_size_inches().tolist()
    [4.0, 3.0]
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    return figure


def given_or_new(axis: Axes | None, height: float = 3.2) -> Axes:
    """An axis to draw on; a new one belongs to pyplot, which shows it.

    Args:
        axis: taken as it is; None makes a new one.
        height: of a new one, in inches.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> plots.given_or_new(axis) is axis
    True
    """
    if axis is not None:
        return axis
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(6.4, height), layout="constrained")[1]


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> None:
    """Write a figure, atomically; the ending of the path chooses the format.

    A light SVG is a dark one to readers who prefer dark pages: one file serves both.

    Args:
        figure: what to write.
        path: its ending is png, svg, pdf or jpg.
        dpi: pixels in an inch, for png and jpg, and for the points of a svg.

    Raises:
        HdnnError: the file format is unknown, or the folder does not exist.

    >>> import tempfile, pathlib
    >>> from hdnn import plots
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "empty.png"
    >>> plots.save_figure(plots.new_figure(1, 1), path)
    >>> path.exists()
    True
    """
    check_path(path)
    kind = Path(path).suffix.lstrip(".").lower()
    theme = _ink(figure)
    with atomic(path) as temporary:
        if kind == "svg":
            text = _svg(figure, dpi)
            temporary.write_text(text if theme is DARK else _adaptive(text), encoding="utf-8")
        else:
            figure.savefig(temporary, format=kind, dpi=dpi)


def _ink(figure: Figure) -> Theme:
    """Text that has matplotlib's own black gets the ink of the theme, which is returned."""
    from matplotlib.text import Text

    theme = theme_of(figure)
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_color() == "black":
            text.set_color(theme.ink)
    return theme


def _svg(figure: Figure, dpi: int, fonttype: str = "path") -> str:
    """A figure as SVG, the same bytes every time."""
    from matplotlib import rc_context

    with io.StringIO() as file, rc_context({"svg.hashsalt": "hdnn", "svg.fonttype": fonttype}):
        figure.savefig(file, format="svg", dpi=dpi, metadata={"Date": None})
        text = file.getvalue()
    # Hundredths of a point are enough for places (not for scales), and halve the file.
    return re.sub(
        r' (?:d|x|y)="[^"]*"',
        lambda places: re.sub(r"-?\d+\.\d{3,}", lambda x: f"{float(x[0]):.2f}", places[0]),
        text,
    )


def _adaptive(svg: str) -> str:
    """A light SVG with rules that make it dark where the reader, or the page around it, is.

    Rules by attribute, not CSS variables: programs other than browsers show the light colors.
    """
    dark = dict(zip(LIGHT.names().values(), DARK.names().values(), strict=True))
    dark["#000000"] = DARK.ink
    rules = "".join(
        f'[style*="{name}: {color}"]{{{name}:{dark[color]}!important}}'
        for color in sorted({*re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg)} & dark.keys())
        for name in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    start = svg.index(">", svg.index("<svg")) + 1
    return svg[:start] + style + svg[start:]


def inline_svg(figure: Figure, label: str) -> str:
    """A light figure as an SVG element for a page that defines the theme as CSS variables.

    The page then colors it: --paper, --ink, --muted, --grid and --c0 to --c9.

    Args:
        figure: what to draw.
        label: what it shows, for readers who cannot see it.

    Returns:
        ``<svg ...>``, with text as text.

    >>> from hdnn import plots
    >>> inline_svg(plots.new_figure(1, 1), "nothing")[:30]
    '<svg role="img" aria-label="no'
    """
    figure.patch.set_visible(False)
    _ink(figure)
    svg = _svg(figure, 150, fonttype="none")
    for name, color in LIGHT.names().items():
        svg = svg.replace(f": {color}", f": var(--{name})")
    inside = svg[svg.index("<svg") + len("<svg") :]
    inside = re.sub(r' (width|height)="[^"]*pt"', "", inside, count=2)  # as wide as its place
    return f'<svg role="img" aria-label="{html.escape(label)}"{inside}'


def check_path(
    path: str | os.PathLike[str], formats: Sequence[str] = FORMATS, kind: str = "figure"
) -> None:
    """Raise before the work begins, where its figure or page could not be written.

    Args:
        path: the file to write.
        formats: endings that are allowed.
        kind: what is written, for the message.

    Raises:
        HdnnError: the file format is unknown, or the folder does not exist.

    >>> check_path("figure.xyz")
    Traceback (most recent call last):
    hdnn.errors.HdnnError: 'figure.xyz' is no figure: its name must end in png, svg, pdf, jpg
    """
    if Path(path).suffix.lstrip(".").lower() not in formats:
        raise HdnnError(
            f"{str(path)[-200:]!r} is no {kind}: its name must end in {', '.join(formats)}"
        )
    if not Path(path).parent.is_dir():
        raise HdnnError(f"there is no folder {Path(path).parent} to write {Path(path).name} to")


def color_ramp(count: int) -> list[str]:
    """A sequence of colors, from dark (near the input) to light (near the output).

    All of them stand out from light and from dark paper.

    Args:
        count: how many.

    Returns:
        Colors such as "#0072b2".

    >>> color_ramp(2)[0]
    '#2f6c8e'
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.35 + 0.55 * k / max(count - 1, 1))) for k in range(count)]


def clean(axis: Axes) -> Axes:
    """Small ticks, a light grid, and no frame above and to the right.

    Args:
        axis: the axis to style.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> plots.clean(axis).spines["top"].get_visible()
    False
    """
    theme = theme_of(axis)
    axis.set_facecolor(theme.paper)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(theme.muted)
    axis.tick_params(labelsize=SMALL, color=theme.muted, labelcolor=theme.muted, which="both")
    axis.grid(True, axis="y", color=theme.grid, linewidth=0.6)
    axis.set_axisbelow(True)
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set_color(theme.muted)
        label.set_fontsize(SMALL)
    axis.title.set_color(theme.ink)
    return axis


def log_axis(axis: Axes) -> Axes:
    """A logarithmic y axis whose ticks are plain numbers: 0.1, not 10⁻¹.

    Args:
        axis: the axis to change.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> log_axis(plots.new_figure(4, 3).subplots()).get_yscale()
    'log'
    """
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
    return axis


def bare(axis: Axes) -> Axes:
    """No ticks and a thin frame: a plot of a plane.

    Args:
        axis: the axis to style.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> len(plots.bare(axis).get_xticks())
    0
    """
    theme = theme_of(axis)
    axis.set(facecolor=theme.paper, xticks=[], yticks=[])
    axis.spines[:].set_color(theme.grid)
    axis.title.set_color(theme.ink)
    return axis


def label_ends(axis: Axes) -> Axes:
    """Write the label of every line at its right end, in its color, instead of a legend.

    Labels that would overlap are pushed apart. The limits and scales of the axis must be final.

    Args:
        axis: with labeled lines.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> _ = axis.plot([0, 1], [0, 1], label="loss")
    >>> [text.get_text() for text in plots.label_ends(axis).texts]
    ['loss']
    """
    from sklearn.isotonic import isotonic_regression

    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout decides how far apart two values are
    points = 72 / figure.dpi
    ends = []
    for line in axis.get_lines():
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        known = np.flatnonzero(np.isfinite(y))
        if len(known) and not str(line.get_label()).startswith("_"):
            end = (float(x[known[-1]]), float(y[known[-1]]))
            ends.append((float(axis.transData.transform(end)[1]) * points, end, line))
    ends.sort(key=lambda end: end[0])
    # The heights nearest to those of the ends, in the least-squares sense, at least a line apart.
    wanted, gaps = np.array([end[0] for end in ends]), NORMAL * 1.2 * np.arange(len(ends))
    heights = isotonic_regression(wanted - gaps) + gaps if ends else wanted
    for height, (own, end, line) in zip(heights, ends, strict=True):
        axis.annotate(
            str(line.get_label()),
            end,
            xytext=(5, height - own),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            fontsize=NORMAL,
            annotation_clip=False,
        )
    return axis


def plot_band(
    axis: Axes,
    x: ArrayLike,
    band: ArrayLike,
    color: str,
    label: str | None = None,
    style: str = "o-",
) -> Axes:
    """A line with a band around it.

    Args:
        axis: where to draw.
        x: positions ``(n,)``.
        band: lower end of the band, line, and upper end at every position, ``(3, n)``.
        color: color of the line and the band.
        label: label of the line.
        style: format of the line, as in `matplotlib.axes.Axes.plot`.

    Returns:
        The axis.

    >>> from hdnn import plots
    >>> axis = plots.new_figure(4, 3).subplots()
    >>> _ = plot_band(axis, [0, 1], [[0, 1], [1, 2], [2, 3]], color="#0072b2")
    >>> axis.lines[0].get_ydata().tolist()
    [1, 2]
    """
    x, (low, middle, high) = np.asarray(x), np.asarray(band)
    axis.plot(x, middle, style, ms=3, linewidth=1.6, color=color, label=label)
    axis.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
    return axis
