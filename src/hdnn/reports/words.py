"""Sentences of a report: what the numbers say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from hdnn.analysis import Certificate, ModelCertificate, Norms
from hdnn.models import Model
from hdnn.plots.flow import Flow
from hdnn.plots.planar import collapsed

LONGEST = 48
"""Characters of a name that are shown."""
PARTS = {"train": "training", "test": "held-out", "data": "data"}
"""What the parts of the data are called."""
VANISHED = 1e-6
"""A gradient norm at the input from which layers there learn nothing any more."""
SIGNS = (
    *(("<=", "≤"), (">=", "≥"), ("||", "‖"), ("^2", "²"), ("d y_N / d y_l", "∂y_N/∂y_ℓ")),
    *(("sigma'", "σ′"), ("kappa", "κ"), ("df/dy", "∂f/∂y"), ("`", "")),
)
"""What the lines of a certificate write in ASCII, and what a page shows."""


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
    if abs(value) == float("inf"):
        return "infinite"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{power}"


def percent(share: float) -> str:
    """A share of samples; it is 100 % only where all are meant.

    >>> percent(1.0), percent(0.99999), percent(0.5)
    ('100 %', '99.9 %', '50.0 %')
    """
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.1f} %"


def math(text: str) -> Markup:
    """A sentence with the indices of y set as such.

    >>> math("|∂y_N/∂y_ℓ| < 1")
    Markup('|∂y<sub>N</sub>/∂y<sub>ℓ</sub>| &lt; 1')
    """
    return Markup(re.sub(r"y_(\w)", r"y<sub>\1</sub>", str(escape(text))))


def typeset(text: str) -> str:
    """A line of a certificate with the signs that its ASCII stands for.

    >>> typeset("||M J M' - J||^2: 1.5e-09 <= 2.1e+03")
    "‖M J M' - J‖²: 1.5·10⁻⁹ ≤ 2,100"
    """
    text = re.sub(r"\b\d+(?:\.\d+)?e[+-]\d+\b", lambda match: number(float(match[0])), text)
    text = re.sub(r"\binf\b", "∞", re.sub(r"; see `\w+`", "", text))
    for ascii_form, sign in SIGNS:
        text = text.replace(ascii_form, sign)
    return text


def network_name(model: Model) -> str:
    """What a network is, for those who do not know the names of the zoo."""
    name = model.networks[0].name if model.networks else ""
    if name == "FCNN":
        return "plain network"
    if not name or name == "ResNet":
        return name or "the network"
    return f"Hamiltonian network ({name})"


def wrapped(name: str) -> str:
    """A name on two lines, for narrow places."""
    return name.replace(" (", "\n(")


def class_name(label: str) -> str:
    """What a class is called; a number alone says nothing.

    >>> class_name("3"), class_name("iron")
    ('class 3', 'iron')
    """
    return f"class {label}" if re.fullmatch(r"[-+.\d]+", label) else label


def title(model: Model | None, name: str) -> str:
    """What was trained on what."""
    if model is None or not model.networks:
        return shortened(name)
    layers = sum(net.layers for net in model.networks)
    architecture = model.networks[0].name or "A network"
    place = f", on {shortened(name)}" if name else ""
    return f"{architecture}, {_layers(layers)}{place}"


def headline(metrics: dict[str, dict[str, Any]]) -> tuple[str, str] | None:
    """The number that counts, and what it is."""
    part = next((p for p in ("test", "data", "train") if p in metrics), None)
    if part is None:
        return None
    figures = metrics[part]
    kind = "samples" if part == "data" else f"{PARTS[part]} samples"
    samples = f"{figures['samples']:,} {kind}"
    if figures.get("accuracy") is not None:
        return percent(figures["accuracy"]), f"of {samples} are classified correctly"
    if figures.get("r2") is not None:
        if figures["r2"] < 0:
            return f"R² = {figures['r2']:.2f}", f"on {samples}: worse than predicting their mean"
        return f"R² = {figures['r2']:.3f}", f"on {samples}"
    return (number(figures["loss"]), f"is the loss on {samples}") if figures.get("loss") else None


def learning(history: Sequence[dict[str, Any]]) -> str:
    """How the training went."""
    first, last = history[0], history[-1]
    if len(history) == 1:
        return f"The training loss is {number(last['loss'])} after the first epoch."
    text = f"The training loss fell from {number(first['loss'])} to {number(last['loss'])}"
    if not last["loss"] <= first["loss"]:
        text = f"The training loss rose from {number(first['loss'])} to {number(last['loss'])}"
    text += f" in {last['epoch']} epochs"
    best = min(history, key=lambda entry: entry["loss"])
    if best["loss"] < 0.5 * last["loss"]:
        text += f"; it was lowest in epoch {best['epoch']} ({number(best['loss'])})"
    return text + "."


def flow(flows: Sequence[Flow]) -> str:
    """What the slider shows."""
    text = "Drag the slider, or use the arrow keys, to follow the data through the layers."
    if len(flows) == 1:
        return text
    text += " Both networks have the same size and were trained on the same data"
    beside = flows[1]
    left, right, *_ = beside.box()
    if collapsed(beside.points[-1], right - left):
        return text + "; the second one sends all samples to one place and cannot separate them."
    return text + "."


def gradients(lines: Mapping[str, Norms]) -> str:
    """What happens to gradients along depth."""
    sentences = []
    for name, norms in lines.items():
        low, high = (number(float(value)) for value in (norms.mean.min(), norms.mean.max()))
        text = f"{name}: {low} to {high}"
        text += "" if norms.exact else " (estimated)"
        text += ", the gradient has vanished" if norms.mean[0] < VANISHED else ""
        sentences.append(text)
    first = next(iter(lines.values()))
    return (
        f"How much a small change at one of the {first.layers[-1]} layers changes the output, on "
        f"average over samples (the norm of ∂y_N/∂y_ℓ). {'; '.join(sentences)}. Where it is near "
        "0, layers before it learn nothing; where it is huge, training is unstable."
    )


def _layers(count: int) -> str:
    return f"{count:,} layer{'s' if count != 1 else ''}"


def certificate(result: Certificate) -> str:
    """The certificate in a sentence or two: an unmet premise breaks nothing, a theorem would."""
    broken, unmet = (
        ", ".join(check.name for check in result.failed if check.proved is proved)
        for proved in (True, False)
    )
    count = len(result.theorems)
    text = f"{count} theorem{'s' if count != 1 else ''} about gradients apply to this network"
    text = text if count else "No theorem about gradients applies to this network"
    how = f"checked on {result.samples:,} sample{'s' if result.samples > 1 else ''} in float64"
    text += f" ({how})." if count else "."
    text += f" Violated: {broken}." if broken else ""
    return text + (f" Not met, and not guaranteed by a theorem: {unmet}." if unmet else "")


def scope(certificate: ModelCertificate) -> str:
    """What nothing is proved about."""
    return f"{certificate.scope[0].upper()}{certificate.scope[1:]}."


def projection(moving: Flow, shown: int, total: int) -> str:
    """What the axes of the slider's plane are."""
    one, two = (100 * share for share in moving.shares)
    if moving.boundary:
        text = (
            "Horizontal: signed distance of the state to the separating plane. Vertical: the "
            "direction within that plane along which the states of all layers vary most. "
        )
    else:
        text = (
            "The first two principal components of the states of all layers together, so the "
            "axes are the same at every layer. "
        )
    text += f"They show {one:.0f} % and {two:.0f} % of the variance. "
    return text + (
        f"{shown:,} of {total:,} samples are shown, evenly spaced."
        if shown < total
        else f"All {total:,} samples are shown."
    )
