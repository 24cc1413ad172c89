"""Sentences of a report: what the numbers say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from hdnn.analysis import Certificate
from hdnn.models import Model
from hdnn.plots.flow import Flow
from hdnn.report.measure import DepthNorms

LONGEST = 48
"""Characters of a name that are shown."""
PARTS = {"train": "training", "test": "held-out", "data": "given"}
"""What the parts of the data are called."""
MEASURES = {"r2": "R²", "rmse": "RMSE", "mae": "MAE"}
"""What measures are called whose key is no word."""


def shortened(text: str, most: int = LONGEST) -> str:
    """A name of any length, cut in the middle."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def number(value: float) -> str:
    """Three digits; powers of ten for the very small and large, as people write them."""
    if value != value:
        return "not a number"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{power}"


def math(text: str) -> Markup:
    """A sentence with the indices of y set as such.

    >>> math("|∂y_N/∂y_ℓ| < 1")
    Markup('|∂y<sub>N</sub>/∂y<sub>ℓ</sub>| &lt; 1')
    """
    return Markup(re.sub(r"y_(\w)", r"y<sub>\1</sub>", str(escape(text))))


def network_name(model: Model) -> str:
    """What a network is, for those who do not know the names of the zoo."""
    name = model.networks[0].name
    if name == "FCNN":
        return "plain network"
    if not name or name == "ResNet":
        return name or "the network"
    return f"Hamiltonian network ({name})"


def title(model: Model | None, name: str) -> str:
    """What was trained on what."""
    if model is None or not model.networks:
        return shortened(name)
    layers = sum(net.layers for net in model.networks)
    architecture = model.networks[0].name or "A network"
    return f"{architecture}, {layers} layer{'s' if layers != 1 else ''}, on {shortened(name)}"


def headline(metrics: dict[str, dict[str, Any]]) -> tuple[str, str] | None:
    """The number that counts, and what it is."""
    part = next((p for p in ("test", "data", "train") if p in metrics), None)
    if part is None:
        return None
    found = metrics[part]
    samples = f"{found['samples']:,} {PARTS[part]} samples"
    if found.get("accuracy") is not None:
        return f"{100 * found['accuracy']:.1f} %", f"of {samples} are classified correctly"
    if found.get("r2") is not None:
        if found["r2"] < 0:
            return f"R² {found['r2']:.2f}", f"on {samples}: worse than their mean"
        return f"{100 * found['r2']:.1f} %", f"of the variance of {samples} is explained (R²)"
    return (number(found["loss"]), f"is the loss on {samples}") if found.get("loss") else None


def learning(history: Sequence[dict[str, Any]]) -> str:
    """How the training went."""
    first, last = history[0], history[-1]
    if len(history) == 1:
        return f"The loss is {number(last['loss'])} after the first epoch."
    text = f"The loss went from {number(first['loss'])} to {number(last['loss'])}"
    text += f" in {last['epoch']} epochs"
    best = min(history, key=lambda entry: entry["loss"])
    if best["loss"] < 0.5 * last["loss"]:
        text += f"; it was lowest in epoch {best['epoch']} ({number(best['loss'])})"
    return text + "."


def gradients(seen: DepthNorms, beside: DepthNorms | None, plain: str) -> str:
    """What happens to gradients along depth."""
    last = int(seen.depths[-1])
    text = (
        f"Across {last} layers the mean norm of ∂y_N/∂y_ℓ stays between "
        f"{number(float(seen.mean.min()))} and {number(float(seen.mean.max()))}"
    )
    text += f" ({seen.note})." if seen.note else "."
    if beside is not None:
        text += f" In {plain} it is {number(float(beside.mean[0]))} at the input."
    return text


def certificate(found: Certificate) -> str:
    """The certificate in a sentence."""
    applies = [check for check in found.checks if check.holds is not None]
    failed = len(found.failed)
    if not failed:
        return f"All {len(applies)} statements of the theory that apply hold."
    return (
        f"{len(applies) - failed} of {len(applies)} statements that apply hold; "
        f"{failed} {'does' if failed == 1 else 'do'} not."
    )


def projection(moving: Flow, shown: int, total: int) -> str:
    """What the axes of the slider's plane are."""
    one, two = (100 * share for share in moving.plane.shares)
    if moving.plane.boundary:
        text = (
            "Horizontal: signed distance of the state to the plane that separates the classes. "
            "Vertical: the direction along that plane in which the states of all layers vary most. "
        )
    else:
        text = (
            "Two principal components of the states of all layers together, so the axes never "
            "change. "
        )
    text += f"They show {one:.0f} % and {two:.0f} % of the variance. "
    return text + (
        f"{shown:,} of {total:,} samples are drawn, evenly chosen."
        if shown < total
        else f"All {total:,} samples are drawn."
    )
