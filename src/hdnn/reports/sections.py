"""The sections of a report: what their macros show, or None if there is nothing to show.

Sentences come from `words`, charts from `hdnn.plots`.
"""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from hdnn import plots
from hdnn.analysis import Norms, certify, profile
from hdnn.models import Model
from hdnn.plots.planar import strip_figure
from hdnn.plots.style import inline_svg
from hdnn.reports import words
from hdnn.reports.slider import slider
from hdnn.training.evaluation import (
    METRICS,
    REFERENCES,
    block_states,
    evaluate_fully,
    evenly,
    examined,
    logits_of,
    references,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hdnn.data import Dataset
    from hdnn.reports.build import Material

EVALUATED = 20_000
"""Samples that predictions are made of at most."""
EXAMINED = 200
"""Samples whose gradients are measured."""
PERMUTED, REPEATS = 2000, 5
"""Rows, and shuffles of every column, by which columns are ranked: a second or two."""
CERTIFIED = 100_000
"""Entries of Jacobians that a certificate looks at, about: a second or two."""
MATRIX = 12
"""Classes up to which the whole confusion matrix is shown."""
Section = dict[str, Any] | None


def chart(label: str, width: float = 6.4, height: float = 2.9) -> tuple[Axes, Any]:
    """An axis, and a function that gives what is drawn on it as a part of the page."""
    figure = plots.new_figure(width, height)
    return figure.subplots(), lambda: Markup(inline_svg(figure, label))


# --- how well it does -----------------------------------------------------------------------------


def results(material: Material) -> Section:
    """Metrics beside the models that any result should beat; by class; the worst mistakes."""
    model = material.model
    if model is None:
        return None
    X, y = material.X[:EVALUATED], material.y[:EVALUATED]
    figures = evaluate_fully(model, X, y)
    logits = logits_of(model, model.prepare(X))
    confusion = figures.get("confusion")
    return {
        "samples": len(X),
        "total": len(material.X),
        "metrics": _metrics(material, figures),
        "classes": figures.get("classes", []),
        "targets": figures.get("targets", []) if len(figures.get("targets", [])) > 1 else [],
        "residuals": _residuals(logits, y) if model.task == "regression" else None,
        "confusion": _confusion(model, np.array(confusion)) if confusion else None,
        "mistakes": _mistakes(model, X, logits, y) if model.stem.takes_images else [],
        "columns": _importance(material.data, model) if material.data is not None else [],
    }


def _metrics(material: Material, figures: dict[str, Any]) -> dict[str, Any]:
    """A row for every metric; a column for the network, and for each model to compare with."""
    columns = {"this network": {k: v for k, v in figures.items() if isinstance(v, float)}}
    if "train" in material.metrics and "test" in material.metrics:
        columns["on training data"] = material.metrics["train"]
    if material.data is not None and material.model is not None:
        X, y = material.data.X, material.data.y
        others = references(material.model, X, y, material.X[:EVALUATED], material.y[:EVALUATED])
        columns |= {REFERENCES[name]: others[name] for name in REFERENCES if name in others}
    rows = [
        (title, [column.get(name) for column in columns.values()])
        for name, title in METRICS.items()
        if name in figures
    ]
    return {"columns": list(columns), "rows": rows}


def _residuals(logits: Tensor, y: Tensor) -> Markup:
    """Predictions against observed values of the first target; the line marks perfect ones."""
    axis, drawn = chart("predicted against observed values", 4.2, 3.6)
    observed, predicted = (evenly(v.reshape(len(v), -1)[:, 0], 600).double() for v in (y, logits))
    axis.axline((float(observed[0]),) * 2, slope=1, color=plots.LIGHT.muted, linewidth=1)
    axis.plot(observed, predicted, "o", ms=3, alpha=0.6, mew=0, color=plots.LIGHT.color(0))
    axis.set(xlabel="observed", ylabel="predicted")
    plots.clean(axis)
    return drawn()


def _confusion(model: Model, counts: np.ndarray) -> dict[str, Any]:
    """The whole matrix if it is small, and the classes most often confused."""
    labels = [words.shortened(str(label), 20) for label in model.labels]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    off = counts * (1 - np.eye(len(labels), dtype=int))
    worst = (divmod(int(k), len(labels)) for k in np.argsort(off, axis=None)[::-1][:6])
    confused = [(labels[i], labels[j], int(off[i, j])) for i, j in worst if off[i, j]]
    whole = len(labels) <= MATRIX
    return {
        "labels": labels if whole else [],
        "counts": counts.tolist(),
        "shares": shares.tolist(),
        "confused": confused if len(labels) > 3 else [],  # of few classes the matrix says it all
    }


def _mistakes(model: Model, X: Tensor, logits: Tensor, y: Tensor, most: int = 12) -> list[Any]:
    """The images that are most wrong: the least probability of the truth first."""
    probabilities = logits.softmax(-1)
    guesses = logits.argmax(-1)
    wrong = torch.nonzero(guesses != y).flatten()
    order = wrong[probabilities[wrong, y[wrong]].argsort()][:most].tolist()
    labels = [words.shortened(str(label), 20) for label in model.labels]
    return [
        {
            "image": _png(X[k]),
            "truth": labels[int(y[k])],
            "guess": labels[int(guesses[k])],
            "probability": f"{100 * float(probabilities[k].max()):.0f} %",
        }
        for k in order
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


def _importance(data: Dataset, model: Model) -> list[tuple[str, float, float]]:
    """Columns by how much worse held-out predictions get when their cells are shuffled.

    `sklearn.inspection.permutation_importance` does the same for one feature at a time; here the
    features of one category, which come from one column of the table, are shuffled together.

    Returns:
        Name, mean fall of accuracy (or R2), and the same as a fraction of the largest.
    """
    X, y = (data.X_test, data.y_test) if len(data.X_test) else (data.X, data.y)
    X, y = X[:PERMUTED], y[:PERMUTED]
    metric = "accuracy" if model.task == "classification" else "r2"
    groups: dict[str, list[int]] = {}
    for k, name in enumerate(_source_columns(data)):
        groups.setdefault(name, []).append(k)
    unshuffled = evaluate_fully(model, X, y)[metric]
    generator, falls = torch.Generator().manual_seed(0), {}
    for name, features in groups.items():
        scores = []
        for _ in range(REPEATS):
            shuffled = X.clone()
            shuffled[:, features] = X[torch.randperm(len(X), generator=generator)][:, features]
            scores.append(evaluate_fully(model, shuffled, y)[metric])
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


def learning(material: Material) -> Section:
    """Curves of loss and accuracy, of training and validation."""
    history = material.history
    if not history:
        return None
    names = ("loss", "accuracy") if len(history) > 1 else ()  # a point is no curve
    charts = [_curves(history, name) for name in names if history[-1].get(name) is not None]
    return {"sentence": words.learning(history), "charts": charts}


def _curves(history: list[dict[str, Any]], name: str) -> Markup:
    axis, drawn = chart(f"{name} by epoch", 4.7, 2.7)
    plots.learning_curves(axis, history, name)
    return drawn()


# --- the slider -----------------------------------------------------------------------------------


def flow(material: Material) -> Section:
    """The data layer by layer, beside another network where one was trained."""
    model = material.model
    if model is None or not any(net.layers for net in model.networks):
        return None
    shown = slider(list(material.models.values()), material.X, material.y)
    figure = strip_figure(
        dict(zip(map(words.wrapped, material.models), shown.flows, strict=True)), shown.numbers
    )
    return {
        "networks": [
            (title, _correct(model, material.X[:EVALUATED], material.y[:EVALUATED]))
            for title, model in material.models.items()
        ],
        "planar": shown.regions[0] is not None,
        "labels": shown.labels if shown.colors else list(map(words.class_name, shown.labels)),
        "colors": shown.colors,
        "frames": len(shown.flows[0].depths),
        "last": shown.flows[0].last,
        "sentence": words.flow(shown.flows),
        "caption": words.projection(shown.flows[0], len(shown.numbers), len(material.X)),
        # A script element ends at the first "</", wherever it stands.
        "data": Markup(json.dumps(shown.data(), allow_nan=False).replace("<", "\\u003c")),
        "still": Markup(inline_svg(figure, "The data at four depths of each network")),
    }


def _correct(model: Model, X: Tensor, y: Tensor) -> str:
    """How many samples are classified correctly; nothing of a regression."""
    if model.task == "regression":
        return ""
    return f"{words.percent(float((model.predict(X) == y).double().mean()))} correct"


# --- gradients ------------------------------------------------------------------------------------


def gradients(material: Material) -> Section:
    """Norms along depth, beside another network, and during training."""
    lines = {
        name: norms
        for name, model in material.models.items()
        if (norms := depth_norms(model, material.X)) is not None
    }
    if not lines and not material.records:
        return None
    drawn = None
    if lines:
        axis, draw = chart("reaction of the output to a change at each layer")
        for number, (name, norms) in enumerate(lines.items()):
            plots.norms_by_depth(axis, norms, name, plots.LIGHT.color(2 + number))
        drawn = draw()
    return {
        "sentence": words.gradients(lines) if lines else "",
        "norms": drawn,
        "record": _record(material.records) if material.records else None,
    }


def depth_norms(model: Model, X: Tensor) -> Norms | None:
    """Norms and energy along the depth of the last block; None without layers."""
    if not model.networks or not model.networks[-1].layers:
        return None
    net, y = block_states(model, X, EXAMINED)[-1]
    # Norms of convolutions are estimated by power iteration, which takes long at every depth.
    return profile(net, y, 9 if net.field.couples_pixels else 65)


def _record(records: list[dict[str, Any]]) -> Markup:
    axis, drawn = chart("the same during training, by iteration")
    plots.record_by_depth(axis, records[:: max(1, len(records) // 400)])
    return drawn()


# --- theory, and how to repeat it -----------------------------------------------------------------


def theory(material: Material) -> Section:
    """The certificate of every block, in words and numbers, and the energy along depth."""
    if material.model is None or not any(net.layers for net in material.model.networks):
        return None
    norms = depth_norms(material.model, material.X)
    energy = None
    if norms is not None and norms.energy is not None:
        axis, drawn = chart("mean energy by layer")
        axis.plot(norms.depths, norms.energy, color=plots.LIGHT.color(0))
        axis.set_xlabel("layer")
        axis.locator_params(axis="x", integer=True)
        plots.clean(axis)
        energy = drawn()
    certificate = certify(material.model, _certified(material.model, material.X))
    items: list[dict[str, Any]] = []
    for name, block in certificate.blocks.items():
        applies = [check for check in block.checks if check.holds is not None]
        items.append(
            {
                "name": f"{name}: " if len(certificate.blocks) > 1 else "",
                "sentence": words.certificate(block),
                "checks": sorted(applies, key=lambda check: not check.proved),
                "idle": [c for c in block.checks if c.holds is None and c.consequence],
            }
        )
    return {"items": items, "scope": words.scope(certificate), "energy": energy}


def _certified(model: Model, X: Tensor) -> Tensor:
    """So few samples that their Jacobians have about `CERTIFIED` entries."""
    entries = max(net.layers * (net.features or 1) ** 2 for net in model.networks)
    return examined(model, X, min(100, max(2, CERTIFIED // entries)))


def repeat(material: Material) -> Section:
    """The command and the configuration."""
    if material.config is None:
        return None
    return {"command": material.command, "config": material.config}
