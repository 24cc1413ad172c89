"""Sentences of a report: what the numbers say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from hdnn.analysis import Certificate, ModelCertificate, Norms
from hdnn.errors import shortened
from hdnn.models import Model
from hdnn.plots.flow import Flow
from hdnn.plots.regions import collapsed
from hdnn.training.evaluation import METRICS, Array, compare_scores, sample_scores

if TYPE_CHECKING:
    from hdnn.config import TrainingConfig
    from hdnn.reports.page import ReportInputs

VANISHED = 1e-6
"""A gradient norm at the input from which layers there learn nothing any more."""
OVERFIT = 0.05
"""Of accuracy or R², from the training data to held-out data: more is overfitting."""
SIGNS = (
    *(("<=", "≤"), (">=", "≥"), ("||", "‖"), ("^2", "²"), ("d y_N / d y_l", "∂y_N/∂y_ℓ")),
    *(("sigma'", "σ′"), ("kappa", "κ"), ("df/dy", "∂f/∂y"), ("`", "")),
)
"""What the lines of a certificate write in ASCII, and what a page shows."""


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
    """A sentence with the indices of y, and options of commands, set as such.

    >>> math("|∂y_N/∂y_ℓ| < 1"), math("try --lr")
    (Markup('|∂y<sub>N</sub>/∂y<sub>ℓ</sub>| &lt; 1'), Markup('try <code>--lr</code>'))
    """
    text = re.sub(r"y_(\w)", r"y<sub>\1</sub>", str(escape(text)))
    return Markup(re.sub(r"--\w[\w-]*", r"<code>\g<0></code>", text))


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


def counted(count: int, noun: str) -> str:
    """Such as "1 layer" and "2,000 layers"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def network_name(model: Model) -> str:
    """What a network is, for those who do not know the names of the zoo."""
    name = model.networks[0].name if model.networks else ""
    if name == "FCNN":
        return "plain network"
    if not name or name == "ResNet":
        return name or "the network"
    return f"Hamiltonian network ({name})"


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
    return f"{architecture}, {counted(layers, 'layer')}{place}"


def headline(metrics: dict[str, Any], count: int, part: str) -> tuple[str, str]:
    """The number that counts, and what it is."""
    samples = counted(count, f"{part} sample".strip())
    if "accuracy" in metrics:
        return percent(metrics["accuracy"]), f"of {samples} are classified correctly"
    if np.isnan(metrics["r2"]):  # the observed values are all the same
        return number(metrics["rmse"]), f"is the RMSE on {samples}"
    worse = ": worse than predicting their mean" if metrics["r2"] < 0 else ""
    return f"R² = {metrics['r2']:.3f}", f"on {samples}{worse}"


def column(name: str, model: Model) -> str:
    """What the predictions are called that a column of metrics is about."""
    baseline = "most frequent class" if model.task == "classification" else "mean of the targets"
    titles = {"network": "this network", "train": "on training data", "linear": "linear model"}
    return titles.get(name, baseline)


def verdict(
    inputs: ReportInputs, predictions: Mapping[str, Array], metrics: Mapping[str, dict[str, Any]]
) -> str:
    """Whether held-out predictions are better than those of simpler models, and what to try.

    Args:
        inputs: of the report, with a model.
        predictions: of the "network" and of the models of `reference_predictions`.
        metrics: of these predictions.
    """
    model, train = inputs.model, inputs.train_metrics
    assert model is not None
    scores = {name: sample_scores(model, each, inputs.y) for name, each in predictions.items()}
    ours, count = scores["network"], counted(len(inputs.y), "held-out sample")
    # A network that does not even beat the baseline has no use for a comparison with more.
    beaten = compare_scores(ours, scores["baseline"]) > 0
    against = "linear" if beaten and "linear" in scores else "baseline"
    sign, name = compare_scores(ours, scores[against]), f"the {column(against, model)}"
    key, shown = (
        ("accuracy", percent) if model.task == "classification" else ("r2", "{:.3f}".format)
    )
    one, two = (metrics[each][key] for each in ("network", against))
    by = f" by {100 * abs(one - two):.1f} points" if key == "accuracy" else ""
    numbers = f"{METRICS[key]} {shown(one)} against {shown(two)}"
    if sign > 0:
        return f"Better than {name}{by}: {numbers}."
    start = f"No better than {name} on {count}" if sign == 0 else f"Worse than {name}{by}"
    text = f"{start}: {numbers}."
    if against == "baseline":
        return f"{text} Train longer (--epochs), or check the data."
    text += " Take the linear model, which is simpler, or try"
    if not (train.get(key) or 0) - metrics["network"][key] > OVERFIT:
        return f"{text} more epochs (--epochs) or a wider network (--width)."
    if any("validation_loss" in record for record in inputs.history):
        return f"{text} a smaller network (--width, --layers): this one overfits."
    return f"{text} early stopping (--validation 0.1 --early-stopping 10): the network overfits."


def weights(training: TrainingConfig) -> str:
    """Which weights a trained model has, if not just those of the last step."""
    parts = ["averaged over training"] if training.averaging else []
    parts += ["of the epoch with the lowest validation loss"] if training.early_stopping else []
    return ", ".join(parts)


def learning(history: Sequence[dict[str, Any]]) -> str:
    """How the training went."""
    first, last = history[0], history[-1]
    if len(history) == 1:
        return f"The training loss is {number(last['loss'])} after the first epoch."
    change = "fell" if last["loss"] <= first["loss"] else "rose"
    text = f"The training loss {change} from {number(first['loss'])} to {number(last['loss'])}"
    text += f" in {last['epoch']} epochs"
    best = min(history, key=lambda record: record["loss"])
    if best["loss"] < 0.5 * last["loss"]:
        text += f"; it was lowest in epoch {best['epoch']} ({number(best['loss'])})"
    measured = [record for record in history if record.get("validation_loss") is not None]
    if measured:
        best = min(measured, key=lambda record: record["validation_loss"])
        lowest = number(best["validation_loss"])
        text += f". The validation loss was lowest in epoch {best['epoch']} ({lowest})"
    return (
        f"{text}. The training curves are means over the batches of an epoch, each before its "
        "step; the results above are those of the trained model."
    )


def flow(flows: Sequence[Flow], compared: bool) -> str:
    """What the slider shows.

    Args:
        flows: of the networks.
        compared: whether the second one was trained for comparison with the first.
    """
    text = "Drag the slider, or use the arrow keys, to follow the data through the layers."
    if len(flows) == 1:
        return text
    if compared:
        text += " Both networks have the same size and were trained on the same data."
    beside = flows[1]
    left, right, *_ = beside.box()
    if collapsed(beside.points[-1], right - left):
        text += " The second one sends all samples to one place and cannot separate them."
    return text


def gradients(lines: Mapping[str, Norms]) -> str:
    """What happens to gradients along depth."""
    sentences = []
    for name, norms in lines.items():
        low, high = (number(float(value)) for value in (norms.mean.min(), norms.mean.max()))
        how = "" if norms.exact else " (estimated)"
        how += ", the gradient has vanished" if norms.mean[0] < VANISHED else ""
        sentences.append(f"{name}: {low} to {high}{how}")
    return (
        "How much a small change at a layer changes the output of the last one, on average over "
        f"samples (the norm of ∂y_N/∂y_ℓ). {'; '.join(sentences)}. Where it is near 0, layers "
        "before it learn nothing; where it is huge, training is unstable."
    )


def certificate(result: Certificate) -> str:
    """The certificate in a sentence or two: an unmet premise breaks nothing, a theorem would."""
    broken, unmet = (
        ", ".join(check.name for check in result.failed if check.proved is proved)
        for proved in (True, False)
    )
    count = len(result.theorems)
    text = "No theorem about gradients applies to this network."
    if count:
        how = f"checked on {counted(result.samples, 'sample')} in float64"
        text = f"{counted(count, 'theorem')} about gradients apply to this network ({how})."
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
