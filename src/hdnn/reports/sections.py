"""The sections of a report: what their macros show, or None if there is nothing to show.

Sentences come from `words`, charts from `hdnn.plots`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from hdnn import plots
from hdnn.analysis import Norms, certify, profile
from hdnn.errors import shortened
from hdnn.models import Model
from hdnn.plots.regions import strip_figure
from hdnn.plots.style import inline_svg
from hdnn.reports import words
from hdnn.reports.slider import slider
from hdnn.training.evaluation import (
    METRICS,
    Array,
    logits_of,
    outputs_of,
    predictions_metrics,
    reference_predictions,
    score,
)
from hdnn.training.inputs import block_states, evenly, examined

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hdnn.data import Dataset
    from hdnn.reports.page import ReportInputs

EXAMINED = 200
"""Samples whose gradients are measured."""
PERMUTED, REPEATS = 2000, 5
"""Rows, and shuffles of every column, by which columns are ranked: a second or two."""
CERTIFIED = 100_000
"""Entries of Jacobians that a certificate looks at, about: a second or two."""
MATRIX = 12
"""Classes up to which the whole confusion matrix is shown."""
Section = dict[str, Any] | None


def chart(
    label: str, draw: Callable[[Axes], object], width: float = 6.4, height: float = 2.9
) -> Markup:
    """What a function draws on an axis, as a part of the page."""
    figure = plots.new_figure(width, height)
    draw(figure.subplots())
    return Markup(inline_svg(figure, label))


# --- how well it does -----------------------------------------------------------------------------


def results(inputs: ReportInputs) -> Section:
    """A verdict; metrics beside the models that any result should beat; the worst mistakes."""
    model, X, y = inputs.model, inputs.X, inputs.y
    if model is None:
        return None
    outputs = outputs_of(model, logits_of(model, model.prepare(X)))
    predictions = {"network": outputs}
    if inputs.data is not None:
        predictions |= reference_predictions(model, inputs.data.X, inputs.data.y, X)
    metrics = {
        name: predictions_metrics(model, each, y.numpy()) for name, each in predictions.items()
    }
    own = metrics["network"]
    columns = {"network": own, "train": inputs.train_metrics, **metrics}
    columns = {name: values for name, values in columns.items() if values}
    table = inputs.data if inputs.data is not None and inputs.data.kind == "table" else None
    return {
        "headline": words.headline(own, len(X), inputs.part),
        "verdict": words.verdict(inputs, predictions, metrics) if inputs.part == "held-out" else "",
        "columns": [words.column(name, model) for name in columns],
        "rows": [
            (title, [column.get(name) for column in columns.values()])
            for name, title in METRICS.items()
            if name in own
        ],
        "classes": own.get("classes", []),
        "targets": own.get("targets", []),
        "residuals": _residuals(outputs, y) if model.task == "regression" else None,
        "confusion": _confusion(model, own) if "confusion" in own else None,
        "mistakes": _mistakes(model, X, outputs, y) if model.stem.takes_images else [],
        "importance": [] if table is None else _importance(table, model, X, y),
    }


def _residuals(outputs: Array, y: Tensor) -> Markup:
    """Predictions against observed values of the first target; the line marks perfect ones."""
    first = torch.from_numpy(outputs[:, 0]), y.reshape(len(y), -1)[:, 0]
    predicted, observed = (evenly(values, 600).double() for values in first)

    def draw(axis: Axes) -> None:
        axis.axline((float(observed[0]),) * 2, slope=1, color=plots.LIGHT.muted, linewidth=1)
        axis.plot(observed, predicted, "o", ms=3, alpha=0.6, mew=0, color=plots.LIGHT.color(0))
        axis.set(xlabel="observed", ylabel="predicted")
        plots.clean(axis)

    return chart("predicted against observed values", draw, 4.2, 3.6)


def _confusion(model: Model, metrics: dict[str, Any]) -> dict[str, Any]:
    """The whole matrix if it is small, and the classes most often confused."""
    counts = np.array(metrics["confusion"])
    labels = [shortened(str(label), 20) for label in model.labels]
    off = counts * (1 - np.eye(len(labels), dtype=int))
    worst = (divmod(int(k), len(labels)) for k in np.argsort(off, axis=None)[::-1][:6])
    confused = [(labels[i], labels[j], int(off[i, j])) for i, j in worst if off[i, j]]
    whole = len(labels) <= MATRIX
    return {
        "labels": labels if whole else [],
        "counts": counts.tolist(),
        "confused": confused if len(labels) > 3 else [],  # of few classes the matrix says it all
    }


def _mistakes(model: Model, X: Tensor, outputs: Array, y: Tensor, most: int = 12) -> list[Any]:
    """The images that are most wrong: the least probability of the truth first."""
    guesses, truth = outputs.argmax(1), y.numpy()
    wrong = np.flatnonzero(guesses != truth)
    order = wrong[outputs[wrong, truth[wrong]].argsort(kind="stable")][:most]
    labels = [shortened(str(label), 20) for label in model.labels]
    return [
        {
            "image": _png(X[k]),
            "truth": labels[truth[k]],
            "guess": labels[guesses[k]],
            "probability": f"{100 * outputs[k].max():.0f} %",
        }
        for k in order.tolist()
    ]


def _png(image: Tensor) -> str:
    from PIL import Image

    if image.dtype != torch.uint8:
        image = (image * 255).clamp(0, 255).to(torch.uint8)
    planes = image.cpu().numpy()
    pixels = planes.transpose(1, 2, 0) if len(planes) == 3 else planes[0]
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, format="png")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _importance(
    data: Dataset, model: Model, X: Tensor, y: Tensor
) -> list[tuple[str, float, float]]:
    """Columns by how much worse predictions get when their cells are shuffled.

    `sklearn.inspection.permutation_importance` does the same for one feature at a time; here the
    features of one category, which come from one column of the table, are shuffled together.

    Returns:
        Name, mean fall of accuracy (or R2), and the same as a fraction of the largest.
    """
    X, y = evenly(X, PERMUTED), evenly(y, PERMUTED)
    names, unshuffled = _source_columns(data), score(model, X, y)
    generator, falls = torch.Generator().manual_seed(0), {}
    for name in dict.fromkeys(names):
        features, scores = [k for k, each in enumerate(names) if each == name], []
        for _ in range(REPEATS):
            shuffled = X.clone()
            shuffled[:, features] = X[torch.randperm(len(X), generator=generator)][:, features]
            scores.append(score(model, shuffled, y))
        falls[name] = unshuffled - float(np.mean(scores))
    largest = max(*falls.values(), 1e-300)
    order = sorted(falls, key=lambda name: -falls[name])
    return [(name, falls[name], max(0.0, falls[name] / largest)) for name in order]


def _source_columns(data: Dataset) -> list[str]:
    """For every feature, the column of the user's table that it comes from."""
    if data.encoder is None:
        return list(data.feature_names or map(str, range(data.X.shape[1])))
    return [column.name for column in data.encoder.columns for _ in column.feature_names]


# --- how it learned -------------------------------------------------------------------------------


def learning(inputs: ReportInputs) -> Section:
    """Curves of loss and accuracy, of training and validation."""
    history = inputs.history
    if not history:
        return None
    names = ("loss", "accuracy") if len(history) > 1 else ()  # a point is no curve
    charts = [
        chart(f"{name} by epoch", partial(plots.learning_curves, history=history, name=name), 4.7)
        for name in names
        if history[-1].get(name) is not None
    ]
    return {"sentence": words.learning(history), "charts": charts}


# --- the slider -----------------------------------------------------------------------------------


def flow(inputs: ReportInputs) -> Section:
    """The data layer by layer, beside another network if there is one."""
    model, models, X, y = inputs.model, inputs.models, inputs.X, inputs.y
    if model is None or not any(net.layers for net in model.networks):
        return None
    shown = slider(list(models.values()), X, y)
    titles = (title.replace(" (", "\n(") for title in models)  # in narrow panels
    figure = strip_figure(dict(zip(titles, shown.flows, strict=True)), shown.numbers)
    scores = [
        f"{words.percent(score(each, X, y))} correct" if each.task == "classification" else ""
        for each in models.values()
    ]
    return {
        "networks": list(zip(models, scores, strict=True)),
        "planar": shown.regions[0] is not None,
        "labels": shown.labels if shown.colors else list(map(words.class_name, shown.labels)),
        "colors": shown.colors,
        "frames": max(len(moving.depths) for moving in shown.flows),
        "last": shown.flows[0].last,
        "sentence": words.flow(shown.flows, compared=inputs.data is not None),
        "caption": words.projection(shown.flows[0], len(shown.numbers), len(X)),
        # A script element ends at the first "</", wherever it stands.
        "data": Markup(json.dumps(shown.data(), allow_nan=False).replace("<", "\\u003c")),
        "still": Markup(inline_svg(figure, "The data at four depths of each network")),
    }


# --- gradients ------------------------------------------------------------------------------------


def gradients(inputs: ReportInputs) -> Section:
    """Norms along depth, beside another network, and during training; energy along depth."""
    norms = {name: depth_norms(model, inputs.X) for name, model in inputs.models.items()}
    lines = {name: each for name, each in norms.items() if each is not None}
    records = inputs.records[:: max(1, len(inputs.records) // 400)]
    if not lines and not records:
        return None

    def draw(axis: Axes) -> None:
        for number, (name, each) in enumerate(lines.items()):
            plots.norms_by_depth(axis, each, name, plots.LIGHT.color(2 + number))

    def draw_energy(axis: Axes) -> None:
        axis.plot(first.depths, np.asarray(first.energy), color=plots.LIGHT.color(0))
        axis.set_xlabel("layer")
        axis.locator_params(axis="x", integer=True)
        plots.clean(axis)

    record = partial(plots.record_by_depth, records=records)
    recorded = chart("the same during training, by iteration", record) if records else None
    section: dict[str, Any] = {"sentence": "", "norms": None, "energy": None, "record": recorded}
    if lines:
        first = next(iter(lines.values()))
        section["sentence"] = words.gradients(lines)
        section["norms"] = chart("reaction of the output to a change at each layer", draw)
        if first.energy is not None:
            section["energy"] = chart("mean energy by layer", draw_energy)
    return section


def depth_norms(model: Model, X: Tensor) -> Norms | None:
    """Norms and energy along the depth of the last block; None without layers."""
    if not model.networks or not model.networks[-1].layers:
        return None
    net, y = block_states(model, X, EXAMINED)[-1]
    # Norms of convolutions are estimated by power iteration, which takes long at every depth.
    return profile(net, y, 9 if net.field.couples_pixels else 65)


# --- theory, and how to repeat it -----------------------------------------------------------------


def theory(inputs: ReportInputs) -> Section:
    """The certificate of every block, in words and numbers."""
    model = inputs.model
    if model is None or not any(net.layers for net in model.networks):
        return None
    # So few samples that their Jacobians have about `CERTIFIED` entries.
    entries = max(net.layers * (net.features or 1) ** 2 for net in model.networks)
    certificate = certify(model, examined(model, inputs.X, min(100, max(2, CERTIFIED // entries))))
    return {"blocks": certificate.blocks, "scope": words.scope(certificate)}


def repeat(inputs: ReportInputs) -> Section:
    """The command and the configuration."""
    return inputs.repeat
