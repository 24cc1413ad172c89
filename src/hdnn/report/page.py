"""The page of a report: sections in order, each with its sentence, from a Jinja2 template.

A new section is one more here: its numbers come from `measure`, its sentence from `words`, its
chart from `charts`.
"""

from __future__ import annotations

import base64
import io
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hdnn.plots import DARK, LIGHT
from hdnn.plots.planar import collapsed, frames_figure
from hdnn.report import measure, words
from hdnn.report.charts import NARROW, Series, line_chart, scatter_chart
from hdnn.report.collect import Material
from hdnn.report.measure import DepthNorms
from hdnn.report.scene import Scene, scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MATRIX = 12
"""Classes up to which the whole confusion matrix is shown."""
EVALUATED = 20_000
"""Samples that predictions are made of at most."""


def render(material: Material) -> str:
    """The page of what was collected."""
    environment = Environment(
        loader=PackageLoader("hdnn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = words.number
    environment.filters["short"] = words.shortened
    model = material.model
    return environment.get_template("report.html.j2").render(
        title=words.title(model, material.name),
        headline=words.headline(material.metrics),
        notices=material.notices,
        facts=_facts(material),
        metrics=_metrics(material.metrics),
        results=_results(material),
        learning=_learning(material),
        flow=_flow(material),
        gradients=_gradients(material),
        certificates=_certificates(material),
        config=material.config,
        command=material.command,
        themes={"light": LIGHT, "dark": DARK},
        version=version("hdnn"),
    )


def _facts(material: Material) -> list[tuple[str, str]]:
    model = material.model
    facts = [] if material.run is None else [("run", material.run)]
    if model is not None:
        inputs = "×".join(map(str, model.stem.shape))
        facts.append(("input", f"{inputs} {'image' if len(model.stem.shape) > 1 else 'features'}"))
        facts += [("network", net.extra_repr()) for net in model.networks[:4]]
        facts.append(("parameters", f"{sum(p.numel() for p in model.parameters()):,}"))
        names = model.feature_names
        if names:
            shown = ", ".join(words.shortened(name, 24) for name in names[:8])
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            facts.append(("columns", shown + more))
    if material.history:
        last = material.history[-1]
        done = "1 epoch" if last["epoch"] == 1 else f"{last['epoch']} epochs"
        if "seconds" in last:
            done += f", {words.number(last['seconds'])} s"
        facts.append(("training", done))
    return facts


def _metrics(metrics: dict[str, dict[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (
            part,
            [
                (name, f"{value:,}" if isinstance(value, int) else words.number(float(value)))
                for name, value in found.items()
                if value is not None
            ],
        )
        for part, found in metrics.items()
    ]


def _results(material: Material) -> dict[str, Any] | None:
    """Confusion matrix or residuals, and for images the worst mistakes."""
    model = material.model
    if model is None:
        return None
    X, y = material.X[:EVALUATED], material.y[:EVALUATED]
    logits = measure.outputs(model, X)
    found: dict[str, Any] = {"samples": len(X), "total": len(material.X)}
    if model.task == "regression":
        shown = measure.residuals(logits, y)
        found["residuals"] = scatter_chart(
            shown.observed,
            shown.predicted,
            title="predicted against observed values; on the line they agree",
            x_label="observed",
            y_label="predicted",
        )
        return found
    confusion = measure.confusion(model, logits, y)
    labels = [words.shortened(label, 20) for label in confusion.labels]
    counts = confusion.counts
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if len(labels) <= MATRIX:
        found["confusion"] = {
            "labels": labels,
            "counts": counts.tolist(),
            "shares": shares.tolist(),
        }
    off = counts * (1 - np.eye(len(labels), dtype=int))
    worst = np.argsort(off, axis=None)[::-1][:6]
    pairs = [divmod(int(k), len(labels)) for k in worst]
    found["confused"] = [
        {"truth": labels[i], "guess": labels[j], "count": int(off[i, j])}
        for i, j in pairs
        if off[i, j]
    ]
    if model.stem.takes_images:
        found["mistakes"] = [
            {
                "image": _png_of_pixels(mistake.image),
                "truth": words.shortened(mistake.truth, 20),
                "guess": words.shortened(mistake.guess, 20),
                "chance": f"{100 * mistake.chance:.0f} %",
            }
            for mistake in measure.mistakes(model, X, logits, y)
        ]
    return found


def _learning(material: Material) -> dict[str, Any] | None:
    history = material.history
    if not history:
        return None
    epochs = [entry["epoch"] for entry in history]

    def curve(name: str, label: str, color: int) -> Series | None:
        values = [float("nan") if e.get(name) is None else float(e[name]) for e in history]
        return Series(label, epochs, values, color=color) if np.isfinite(values).any() else None

    charts = []
    for title, names in (
        ("loss", (("loss", "training", 0), ("validation_loss", "validation", 1))),
        ("accuracy", (("accuracy", "training", 0), ("validation_accuracy", "validation", 1))),
    ):
        series = [found for found in (curve(*name) for name in names) if found is not None]
        if series:
            log = title == "loss" and min(min(s.y) for s in series) > 0
            chart = line_chart(
                series,
                title=f"{title} by epoch",
                x_label="epoch",
                y_label=title,
                log=log,
                width=NARROW,
            )
            charts.append((title, chart))
    return {"sentence": words.learning(history), "charts": charts}


def _flow(material: Material) -> dict[str, Any] | None:
    model, plain = material.model, material.plain
    if model is None or not model.networks or not any(net.layers for net in model.networks):
        return None
    models = {_name(material): model}
    if plain is not None and material.plain_trained:
        models[_plain_name(material)] = plain
    shown = scene(models, material.X, material.y)
    figure = frames_figure(
        dict(zip(shown.titles, shown.flows, strict=True)), shown.numbers, shown.colors
    )
    return {
        "titles": shown.titles,
        "planar": shown.box is not None and shown.regions[0] is not None,
        "labels": shown.labels[:10],
        "more": max(0, len(shown.labels) - 10),
        "colors": shown.colors,
        "frames": len(shown.flows[0].depths),
        "last": shown.flows[0].last,
        "sentence": _flow_sentence(shown),
        "caption": words.projection(shown.flows[0], len(shown.numbers), len(material.X)),
        "data": _script_json(shown.data()),
        "still": _png(figure),
    }


def _flow_sentence(shown: Scene) -> str:
    text = "Move the slider, or press an arrow key on it, to follow the data through the layers."
    if len(shown.flows) > 1:
        beside = shown.flows[1]
        left, right, *_ = beside.box()
        text += " The Hamiltonian network carries them along a flow; "
        if collapsed(beside.points[-1], right - left):
            text += "the plain one, below, crushes all of them to a point."
        else:
            text += "below it is a plain network of the same size."
    return text


def _name(material: Material) -> str:
    assert material.model is not None
    return material.model.networks[0].name or "the network"


def _plain_name(material: Material) -> str:
    how = "trained alike" if material.plain_trained else "untrained"
    return f"plain network, {how}"


def _gradients(material: Material) -> dict[str, Any] | None:
    model = material.model
    seen = None if model is None else measure.depth_norms(model, material.X)
    if seen is None and material.record is None:
        return None
    found: dict[str, Any] = {"sentence": "", "norms": None, "energy": None, "record": None}
    if seen is not None:
        plain = material.plain
        beside = None if plain is None else measure.depth_norms(plain, material.X)
        lines = [_norm_line(_name(material), seen, 2)]
        if beside is not None:
            lines.append(_norm_line("plain network", beside, 3))
        how = "trained alike" if material.plain_trained else "untrained"
        kind = f"a plain network of the same size ({how})"
        found["sentence"] = words.gradients(seen, beside, kind)
        found["norms"] = line_chart(
            lines,
            title=found["sentence"],
            x_label="layer ℓ",
            y_label="norm of ∂y_N/∂y_ℓ",
            log=True,
            converge=True,
        )
        if seen.energy is not None:
            found["energy"] = line_chart(
                [Series("", seen.depths, seen.energy, color=0)],
                title="mean energy by layer",
                x_label="layer ℓ",
                y_label="energy H",
            )
    if material.record is not None:
        found["record"] = _record_chart(*material.record)
    return found


def _norm_line(label: str, seen: DepthNorms, color: int) -> Series:
    return Series(label, seen.depths, seen.mean, seen.low, seen.high, color)


def _record_chart(depths: tuple[int, ...], entries: list[dict[str, Any]]) -> Markup:
    """Norms during training at five depths, faint near the output."""
    chosen = sorted({round(k * (len(depths) - 2) / 4) for k in range(5)}) if len(depths) > 1 else []
    stride = max(1, len(entries) // 400)
    entries = entries[::stride]
    steps = [entry["iteration"] for entry in entries]
    lines = [
        Series(
            f"ℓ = {depths[k]}",
            steps,
            [float("nan") if e["mean"][k] is None else e["mean"][k] for e in entries],
            color=2,
            fade=1.0 - 0.15 * place,
        )
        for place, k in enumerate(chosen)
    ]
    title = "mean norm of ∂y_N/∂y_ℓ by iteration"
    return line_chart(
        lines, title=title, x_label="iteration", y_label="norm of ∂y_N/∂y_ℓ", log=True
    )


def _certificates(material: Material) -> list[dict[str, Any]]:
    if material.model is None:
        return []
    return [
        {"sentence": words.certificate(found), "found": found}
        for found in measure.certificates(material.model, material.X)
    ]


# --- images and scripts ---------------------------------------------------------------------------


def _script_json(data: Any) -> Markup:
    """JSON that is safe inside a script element."""
    return Markup(json.dumps(data, allow_nan=False).replace("<", "\\u003c"))


def _png(figure: Figure) -> str:
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=90)
        return _data_url(file.getvalue())


def _png_of_pixels(pixels: np.ndarray) -> str:
    from PIL import Image

    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, format="png")
        return _data_url(file.getvalue())


def _data_url(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
