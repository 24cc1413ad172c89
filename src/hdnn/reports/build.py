"""From a run or a model to a report: one self-contained HTML page."""

from __future__ import annotations

import html
import os
import shlex
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from hdnn.config import Config
from hdnn.data import Dataset, load
from hdnn.errors import FileFormatError, HdnnError
from hdnn.files import atomic, read_json
from hdnn.models import Model
from hdnn.plots.style import DARK, LIGHT, check_path
from hdnn.reports import sections, words
from hdnn.reports.sections import EVALUATED
from hdnn.training.build import build
from hdnn.training.evaluation import evaluate
from hdnn.training.runs import Run, prepare, read_history
from hdnn.training.trainer import Trainer

SECTIONS = ("results", "learning", "flow", "gradients", "theory", "repeat")
LEADING = ("flow", "gradients", "results", "learning", "theory", "repeat")
"""The order of a page with a lead."""
PAGES = ("html", "htm")
"""Endings of the file of a page."""
BUDGET = 3e9
"""Multiplications up to which a ResNet is trained for comparison: a few seconds."""


@dataclass(frozen=True)
class Report:
    """A page that opens from disk, without a network or a server.

    Args:
        html: the page.

    >>> import tempfile, pathlib
    >>> from hdnn.reports import Report
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> _ = Report("<!doctype html><title>a report</title>").save(path)
    >>> path.read_text().startswith("<!doctype html>")
    True
    """

    html: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, atomically.

        Args:
            path: the file to write.

        Returns:
            The path.
        """
        check_path(path, PAGES, "page")
        with atomic(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" title="hdnn report" '
            'style="width:100%;height:720px;border:1px solid #8884"></iframe>'
        )


def report(
    model: Any,
    X: Any,
    y: Any,
    *,
    beside: Model | None = None,
    name: str = "",
    lead: tuple[str, str] | None = None,
) -> Report:
    """A report of a model on data, for a notebook or a file.

    Args:
        model: the trained model, or a fitted estimator.
        X, y: data to show it on, as the model or the estimator takes them; ``y`` holds labels, or
            values.
        beside: another trained model to show next to it.
        name: of the data, for the title.
        lead: a title and a sentence of your own; the page then begins with the slider.

    Returns:
        The page; a notebook shows it, ``.save(path)`` writes it.

    Raises:
        HdnnError: the data do not fit the model.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    >>> page = hdnn.report(model, torch.randn(20, 2), torch.arange(20) % 2)
    >>> page.html.startswith("<!doctype html>")
    True
    """
    if hasattr(model, "model_"):
        X, model = model.inputs(X), model.model_
    inputs = torch.as_tensor(X)
    if not (model.stem.takes_images and inputs.dtype == torch.uint8):
        inputs = inputs.to(model.head.weight.dtype)
    target = _targets(model, y)
    if len(target) != len(inputs) or not len(inputs):
        raise HdnnError(f"X has {len(inputs)} samples and y has {len(target)}: give as many")
    metrics = {"data": evaluate(model, inputs, target)}
    return render(Material(name, model, inputs, target, metrics, beside, lead=lead))


def report_of_run(folder: str | os.PathLike[str]) -> Report:
    """A report of a run folder, finished or not.

    Args:
        folder: with a run of `hdnn train`.

    Returns:
        The report; `Report.save` writes it.

    Raises:
        HdnnError: the folder is not a run, or its data are missing.

    >>> from hdnn.reports import report_of_run
    >>> report_of_run("no-such-folder")
    Traceback (most recent call last):
    hdnn.errors.HdnnError: no-such-folder is not a run: there is no config.toml in it
    """
    return render(material_of_run(Path(folder)))


def _targets(model: Model, y: Any) -> Tensor:
    """Class numbers, also of labels by name; values for a regression."""
    if model.task == "regression":
        return torch.as_tensor(y).to(model.head.weight.dtype)
    values = y.tolist() if hasattr(y, "tolist") else list(y)
    numbers = {label: number for number, label in enumerate(model.labels)}
    unknown = next((value for value in values if value not in numbers), None)
    if unknown is not None:
        raise HdnnError(f"y has the label {unknown!r:.60}, which the model does not know")
    return torch.tensor([numbers[value] for value in values])


# --- what a report is made of ---------------------------------------------------------------------


@dataclass(frozen=True)
class Material:
    """A trained model, its data and what is known of its training.

    Args:
        name: of the data, for the title.
        model: None where a run has none yet.
        X, y: data that the model has not been trained on, if there are such.
        metrics: by part of the data ("train", "test").
        beside: another model, trained on the same data.
        history: records by epoch.
        records: recordings of gradients during training.
        config, command: the run config as TOML, and the command that repeats the run.
        run: its folder.
        notices: what a reader must know first.
        lead: title and sentence of a page that begins with the slider.
        data: of a table, all of it: for the models that any result should beat.
    """

    name: str
    model: Model | None = None
    X: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: Model | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    config: str | None = None
    command: str | None = None
    run: str | None = None
    notices: tuple[str, ...] = ()
    lead: tuple[str, str] | None = None
    data: Dataset | None = None

    @property
    def models(self) -> dict[str, Model]:
        """The networks to show side by side, by title."""
        both = [model for model in (self.model, self.beside) if model is not None]
        return {words.network_name(model): model for model in both}


def material_of_run(folder: str | Path) -> Material:
    """What a run folder tells, finished or not."""
    run = Run.open(folder)
    config, history = run.config, read_history(run.history)
    source, place = (shlex.quote(str(p)) for p in (config.data.source, run.config_file))
    known = Material(
        Path(config.data.source).stem,
        history=history,
        records=run.read_gradients(),
        config=config.to_toml(),
        command=f"hdnn train {source} --config {place} --out again",
        run=str(run.folder),
        notices=() if run.finished else _unfinished(run, len(history), config.training.epochs),
    )
    if run.finished:
        return _of_finished(run, config, known)
    return _of_checkpoint(run, config, known) if run.checkpoint.exists() else known


def _unfinished(run: Run, done: int, total: int) -> tuple[str, ...]:
    if run.failure is not None:  # resuming it would only diverge again
        return (f"This run diverged: {run.failure}.",)
    resume = f"hdnn train --resume {shlex.quote(str(run.folder))}"
    return (f"This run is not finished: {done} of {total} epochs. Continue it with: {resume}",)


def _of_finished(run: Run, config: Config, known: Material) -> Material:
    model, exact = run.load_model(), load(config.data)
    data = exact.to(model.head.weight.dtype)
    metrics = read_json(run.metrics) if run.metrics.exists() else {}
    return replace(
        _with_data(known, model, data),
        metrics=metrics,
        beside=_train_resnet(config, exact, model),
        data=data if data.kind == "table" else None,
    )


def _of_checkpoint(run: Run, config: Config, known: Material) -> Material:
    """What an unfinished run shows: its model as of the last checkpoint."""
    try:
        prepared = prepare(config)
        model = run.load_checkpoint(prepared)
    except FileFormatError as error:
        return replace(known, notices=(*known.notices, str(error)))
    if model is None or not all(p.isfinite().all() for p in model.parameters()):
        return known
    material = _with_data(known, model, prepared.data)
    part = "test" if len(prepared.data.X_test) else "train"
    metrics = {part: evaluate(model, material.X[:EVALUATED], material.y[:EVALUATED])}
    notice = "Everything below describes the model at its last checkpoint."
    return replace(material, metrics=metrics, notices=(*material.notices, notice))


def _with_data(known: Material, model: Model, data: Dataset) -> Material:
    """With a model and what was held out, or else what it was trained on."""
    if len(data.X_test):
        return replace(known, model=model, X=data.X_test, y=data.y_test)
    notice = "No data were held out: everything here was measured on the training data."
    notices = (*known.notices, notice)
    return replace(known, model=model, X=data.X, y=data.y, notices=notices)


def _train_resnet(config: Config, data: Dataset, model: Model) -> Model | None:
    """A ResNet of the same size, trained as the model was, where that takes seconds."""
    network, layers = config.model, config.model.layers
    if data.kind == "images" or network.architecture == "ResNet" or not isinstance(layers, int):
        return None
    work = config.training.epochs * len(data.X) * layers * (model.network.features or 1) ** 2
    if work > BUDGET:
        return None
    # A network without a step has no T of its own: the ResNet gets the usual one.
    timed = network.T is not None or network.step is not None
    other = replace(network, architecture="ResNet", T=network.T if timed else 1.2)
    try:
        resnet = build(other, data)
        Trainer(resnet, config.training).fit(data)
    except HdnnError:  # it diverges
        return None
    return resnet


# --- the page -------------------------------------------------------------------------------------


def render(material: Material) -> Report:
    """The page of what was collected; a new section is a function of `sections` and a macro."""
    environment = Environment(
        loader=PackageLoader("hdnn.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "short": words.shortened,
        "math": words.math,
        "typeset": words.typeset,
        "number": words.number,
    }
    with np.errstate(all="ignore"):  # states of a run that diverged are not finite
        content = {name: getattr(sections, name)(material) for name in SECTIONS}
    title = words.title(material.model, material.name)
    page = environment.get_template("report.html.j2").render(
        title=title if material.lead is None else material.lead[0],
        subtitle=None if material.lead is None else title,
        lead=None if material.lead is None else material.lead[1],
        headline=words.headline(material.metrics),
        notices=material.notices,
        facts=_facts(material),
        order=[name for name in (LEADING if material.lead else SECTIONS) if content[name]],
        themes={"light": LIGHT, "dark": DARK},
        version=version("hdnn"),
        **content,
    )
    return Report(page)


def _facts(material: Material) -> list[tuple[str, str]]:
    facts = [] if material.run is None else [("run", material.run)]
    if material.model is not None:
        shape = material.model.stem.shape
        kind = "image" if len(shape) > 1 else "features"
        facts.append(("input", f"{'×'.join(map(str, shape))} {kind}"))
        facts += [("network", net.extra_repr()) for net in material.model.networks[:4]]
        count = sum(p.numel() for p in material.model.parameters())
        facts.append(("parameters", f"{count:,}"))
    if material.history:
        last = material.history[-1]
        done = "1 epoch" if last["epoch"] == 1 else f"{last['epoch']} epochs"
        if "seconds" in last:
            done += f", {words.number(last['seconds'])} s"
        facts.append(("training", done))
    return facts
