"""The sections of a report: what their templates show, or None where there is nothing to show.

Numbers come from `measure`, sentences from `words`, charts from `charts`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from hdnn.analysis import Norms
from hdnn.plots.planar import collapsed
from hdnn.report import measure, words
from hdnn.report.charts import NARROW, Series, line_chart, scatter_chart
from hdnn.report.collect import Material
from hdnn.report.measure import EVALUATED
from hdnn.report.scene import Scene, scene
from hdnn.report.still import still
from hdnn.training.recorder import Recording

MATRIX = 12
"""Classes up to which the whole confusion matrix is shown."""
FEW = 3
"""Classes up to which the matrix says it all."""
Section = dict[str, Any] | None


# --- how well it does -----------------------------------------------------------------------------


def results(material: Material) -> Section:
    """Confusion matrix or residuals, measures, and for images the worst mistakes."""
    model = material.model
    if model is None:
        return None
    X, y = material.X[:EVALUATED], material.y[:EVALUATED]
    logits = measure.outputs(model, X)
    found = {
        "samples": len(X),
        "total": len(material.X),
        "metrics": _metrics(material.metrics),
        "residuals": None,
        "confusion": None,
        "confused": [],
        "mistakes": [],
    }
    if model.task == "regression":
        return {**found, "residuals": _residuals(logits, y)}
    found |= _confusion(measure.confusion(model, logits, y))
    if model.stem.takes_images:
        found["mistakes"] = [_mistake(m) for m in measure.mistakes(model, X, logits, y)]
    return found


def _metrics(metrics: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row for every measure, a column for every part of the data."""
    names = dict.fromkeys(name for found in metrics.values() for name in found)

    def text(value: Any) -> str:
        if value is None:
            return ""
        return f"{value:,}" if isinstance(value, int) else words.number(float(value))

    rows = [
        (words.MEASURES.get(name, name), [text(found.get(name)) for found in metrics.values()])
        for name in names
    ]
    return {"parts": [words.PARTS.get(part, part) for part in metrics], "rows": rows}


def _residuals(logits: Tensor, y: Tensor) -> Markup:
    shown = measure.residuals(logits, y)
    return scatter_chart(
        shown.observed,
        shown.predicted,
        title="predicted against observed values; the line marks perfect predictions",
        x_label="observed",
        y_label="predicted",
    )


def _confusion(found: measure.Confusion) -> dict[str, Any]:
    """The whole matrix where it is small; of several classes those most often confused."""
    labels = [words.shortened(label, 20) for label in found.labels]
    counts = found.counts
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    matrix = {"labels": labels, "counts": counts.tolist(), "shares": shares.tolist()}
    off = counts * (1 - np.eye(len(labels), dtype=int))
    worst = (divmod(int(k), len(labels)) for k in np.argsort(off, axis=None)[::-1][:6])
    confused = [
        {"truth": labels[i], "guess": labels[j], "count": int(off[i, j])}
        for i, j in worst
        if off[i, j] and len(labels) > FEW
    ]
    return {"confusion": matrix if len(labels) <= MATRIX else None, "confused": confused}


def _mistake(mistake: measure.Mistake) -> dict[str, str]:
    return {
        "image": _png(mistake.image),
        "truth": words.shortened(mistake.truth, 20),
        "guess": words.shortened(mistake.guess, 20),
        "chance": f"{100 * mistake.chance:.0f} %",
    }


def _png(pixels: np.ndarray) -> str:
    from PIL import Image

    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, format="png")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


# --- how it learned -------------------------------------------------------------------------------


def learning(material: Material) -> Section:
    """Curves of loss and accuracy, of training and validation."""
    history = material.history
    if not history:
        return None
    names = ("loss", "accuracy") if len(history) > 1 else ()  # a point is no curve
    charts = [_curves(history, name) for name in names]
    return {"sentence": words.learning(history), "charts": [c for c in charts if c is not None]}


def _curves(history: list[dict[str, Any]], name: str) -> Markup | None:
    epochs = [entry["epoch"] for entry in history]
    series = []
    for number, label in enumerate(("training", "validation")):
        key = name if number == 0 else f"validation_{name}"
        values = [float("nan") if e.get(key) is None else float(e[key]) for e in history]
        if np.isfinite(values).any():
            series.append(Series(label, epochs, values, color=number))
    if not series:
        return None
    known = np.concatenate([s.y for s in series])
    known = known[np.isfinite(known)]
    log = name == "loss" and known.min() > 0 and known.max() > 5 * known.min()
    title = f"{name} by epoch"
    return line_chart(series, title=title, x_label="epoch", y_label=name, log=log, width=NARROW)


# --- the slider -----------------------------------------------------------------------------------


def flow(material: Material) -> Section:
    """The data layer by layer, beside a plain network where one was trained."""
    model = material.model
    if model is None or not any(net.layers for net in model.networks):
        return None
    shown = scene(material.models, material.X, material.y)
    return {
        "networks": [
            {
                "title": title,
                "score": words.correct(measure.accuracy(model, material.X, material.y)),
            }
            for title, model in material.models.items()
        ],
        "planar": shown.regions[0] is not None,
        "labels": shown.labels[:10]
        if shown.colors
        else list(map(words.class_name, shown.labels[:10])),
        "more": max(0, len(shown.labels) - 10),
        "colors": shown.colors,
        "frames": len(shown.flows[0].depths),
        "last": shown.flows[0].last,
        "sentence": _flow_sentence(shown),
        "caption": words.projection(shown.flows[0], len(shown.numbers), len(material.X)),
        "data": _script_json(shown.data()),
        "still": still(shown),
    }


def _flow_sentence(shown: Scene) -> str:
    text = "Drag the slider, or use the arrow keys, to follow the data through the layers."
    if len(shown.flows) == 1:
        return text
    beside = shown.flows[1]
    left, right, *_ = beside.box()
    text += " Both networks have the same size and were trained on the same data"
    if collapsed(beside.points[-1], right - left):
        return text + "; the plain one collapses all samples to a point and cannot separate them."
    return text + "."


def _script_json(data: Any) -> Markup:
    """JSON that is safe inside a script element."""
    return Markup(json.dumps(data, allow_nan=False).replace("<", "\\u003c"))


# --- gradients ------------------------------------------------------------------------------------


def gradients(material: Material) -> Section:
    """Norms along depth beside a plain network, energy along depth, and norms while training."""
    model = material.model
    block = None if model is None else measure.last_block(model, material.X)
    if block is None and not material.record:
        return None
    found: dict[str, Any] = {"sentence": "", "norms": None, "energy": None, "record": None}
    if model is not None and block is not None:
        seen = measure.depth_norms(block)
        beside, kind = _plain_norms(material, block)
        found["sentence"] = words.gradients(seen, beside, kind)
        lines = [_norm_line(words.network_name(model), seen, 2)]
        lines += [] if beside is None else [_norm_line("plain network", beside, 3)]
        found["norms"] = _norms_chart(lines, found["sentence"])
        found["energy"] = _energy_chart(seen)
    if material.record:
        found["record"] = _record_chart(material.record)
    return found


def _plain_norms(material: Material, block: measure.Block) -> tuple[Norms | None, str]:
    """Norms of a plain network of the same size, and which one it is."""
    kind = "a plain network of the same size"
    if material.plain is not None:
        other = measure.last_block(material.plain, material.X)
        kind += " (trained on the same data)"
    else:
        other = measure.plain_block(block)
        kind += " (untrained)"
    return None if other is None else measure.depth_norms(other), kind


def _norm_line(label: str, seen: Norms, color: int) -> Series:
    return Series(
        label,
        seen.depths,
        seen.mean.numpy(),
        seen.minimum.numpy(),
        seen.maximum.numpy(),
        color,
    )


def _norms_chart(lines: list[Series], title: str) -> Markup:
    return line_chart(
        lines, title=title, x_label="layer ℓ", y_label="gradient norm", log=True, converge=True
    )


def _energy_chart(seen: Norms) -> Markup | None:
    if seen.energy is None:
        return None
    line = Series("", seen.depths, seen.energy.numpy(), color=0)
    return line_chart([line], title="mean energy by layer", x_label="layer ℓ", y_label="energy H")


def _record_chart(entries: Sequence[Recording]) -> Markup:
    """Norms during training at five depths, faint near the output."""
    depths = entries[0].norms.layers
    chosen = sorted({round(k * (len(depths) - 2) / 4) for k in range(5)}) if len(depths) > 1 else []
    entries = entries[:: max(1, len(entries) // 400)]
    steps = [entry.iteration for entry in entries]
    lines = [
        Series(
            f"ℓ = {depths[k]}",
            steps,
            [float(entry.norms.mean[k]) for entry in entries],
            color=2,
            fade=1.0 - 0.15 * place,
        )
        for place, k in enumerate(chosen)
    ]
    title = "mean norm of ∂y_N/∂y_ℓ by iteration"
    return line_chart(lines, title=title, x_label="iteration", y_label="gradient norm", log=True)


# --- theory, and how to repeat it -----------------------------------------------------------------


def certificate(material: Material) -> Section:
    """The certificate of every block, in words and numbers."""
    if material.model is None:
        return None
    found = measure.certificates(material.model, material.X)
    items = [
        {
            "sentence": words.certificate(each),
            "checks": [check for check in each.checks if check.holds is not None],
            "idle": [check for check in each.checks if check.holds is None],
        }
        for each in found
    ]
    return {"items": items} if items else None


def repeat(material: Material) -> Section:
    """The command and the configuration."""
    if material.config is None:
        return None
    return {"command": material.command, "config": material.config}
