"""From a run or a model to a report: one self-contained HTML page."""

from __future__ import annotations

import html
import json
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
from hdnn.data.labels import encode
from hdnn.errors import FileFormatError, HdnnError, shortened
from hdnn.files import atomic, read_json
from hdnn.models import Model
from hdnn.plots.style import DARK, LIGHT, check_path
from hdnn.progress import Meter, track
from hdnn.reports import sections, words
from hdnn.training.build import build
from hdnn.training.evaluation import metric_text
from hdnn.training.runs import Run, prepare, read_history
from hdnn.training.trainer import Trainer

SECTIONS = ("results", "learning", "flow", "gradients", "theory", "repeat")
LEADING = ("flow", "gradients", "results", "learning", "theory", "repeat")
"""The order of a page with a lead."""
PAGES = ("html", "htm")
"""Endings of the file of a page."""


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
    >>> Report("<!doctype html><title>a report</title>")
    Report(0 kB; .save(path) writes it)
    """

    html: str

    def __repr__(self) -> str:
        return f"Report({len(self.html) // 1000} kB; .save(path) writes it)"

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
        model: the trained model, or a fitted estimator; also an identified system.
        X, y: data to show it on, as the model or the estimator takes them; ``y`` holds labels, or
            values. Of a system, its inputs and outputs, as `hdnn.SystemIdentifier` takes them.
        beside: another trained model to show next to it.
        name: of the data, for the title.
        lead: a title and a sentence of your own; the page then begins with the slider.

    Returns:
        The page; a notebook shows it, ``.save(path)`` writes it.

    Raises:
        HdnnError: the data do not fit the model.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Padding(2, 4))
    >>> page = hdnn.report(model, torch.randn(20, 2), torch.arange(20) % 2)
    >>> page.html.startswith("<!doctype html>")
    True
    """
    identified = getattr(model, "result_", model)
    if hasattr(identified, "sampling_time"):
        from hdnn.reports import system

        if beside is not None or lead is not None:
            raise HdnnError("beside and lead are for models of tables and images: leave them out")
        return fill(
            "system.html.j2",
            **system.content(system.inputs_of_arrays(identified, X, y, name)),
        )
    if hasattr(model, "model_"):
        X, model = model.inputs(X), model.model_
    inputs = torch.as_tensor(X)
    if not (model.stem.takes_images and inputs.dtype == torch.uint8):
        inputs = inputs.to(model.head.weight.dtype)
    if model.task == "regression":
        target = torch.as_tensor(y).to(model.head.weight.dtype)
    else:
        target = torch.from_numpy(encode(np.asarray(y), model.labels))
    if len(target) != len(inputs) or not len(inputs):
        raise HdnnError(f"X has {len(inputs)} samples and y has {len(target)}: give as many")
    return render(ReportInputs(name, model, inputs, target, beside=beside, lead=lead))


def report_of_run(folder: str | os.PathLike[str], compare: bool = False) -> Report:
    """A report of a run folder, finished or not.

    Args:
        folder: with a run of `hdnn train`, or a finished one of `hdnn identify`.
        compare: train a ResNet of the same size, in the same way, and show it beside the model.

    Returns:
        The report; `Report.save` writes it.

    Raises:
        HdnnError: the folder is not a run, its data are missing, or there is nothing to compare.

    >>> from hdnn.reports import report_of_run
    >>> report_of_run("no-such-folder")
    Traceback (most recent call last):
    hdnn.errors.HdnnError: no-such-folder is not a run: there is no config.toml in it
    """
    if (Path(folder) / "identify.toml").is_file():
        from hdnn.reports import system

        if compare:
            raise HdnnError(f"{folder} is a run of hdnn identify: its report always compares")
        return fill("system.html.j2", **system.content(system.inputs_of_run(Path(folder))))
    return render(inputs_of_run(Path(folder), compare))


# --- what a report is made of ---------------------------------------------------------------------


@dataclass(frozen=True)
class ReportInputs:
    """A trained model, its data and what is known of its training.

    Args:
        name: of the data, for the title.
        model: None where a run has none yet.
        X, y: what the model is measured on: held-out data, if there are such.
        part: what X is called: "held-out", "training", or nothing.
        data: all data of a run: for the models that any result should beat.
        train_metrics: of the model on the training data, if X is held out.
        beside: another model, trained on the same data.
        history: records by epoch.
        records: recordings of gradients during training.
        repeat: the "config" of a run as TOML, and the "command" that repeats it.
        run: the name of its folder.
        weights: which ones the model has, if not just those of the last step.
        notices: what a reader must know first.
        lead: title and sentence of a page that begins with the slider.
    """

    name: str
    model: Model | None = None
    X: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    part: str = ""
    data: Dataset | None = None
    train_metrics: dict[str, Any] = field(default_factory=dict)
    beside: Model | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    repeat: dict[str, str] | None = None
    run: str | None = None
    weights: str = ""
    notices: tuple[str, ...] = ()
    lead: tuple[str, str] | None = None

    @property
    def models(self) -> dict[str, Model]:
        """The networks to show side by side, by title; two of one kind are numbered."""
        both = [model for model in (self.model, self.beside) if model is not None]
        titles = [words.network_name(model) for model in both]
        if len({*titles}) < len(both):
            titles = [f"{title}, {number}" for number, title in enumerate(titles, 1)]
        return dict(zip(titles, both, strict=True))


def inputs_of_run(folder: str | Path, compare: bool = False) -> ReportInputs:
    """What a run folder tells, finished or not; nothing in it says where the folder is."""
    run = Run.open(folder)
    config, history, name = run.config, read_history(run.history), run.folder.resolve().name
    source = Path(config.data.source)
    # The config knows where a table is, which is nobody's business but the user's.
    start = "hdnn train" if source.is_absolute() else f"hdnn train {shlex.quote(str(source))}"
    path, short = (json.dumps(text, ensure_ascii=False) for text in (str(source), source.name))
    known = ReportInputs(
        source.stem,
        history=history,
        records=run.read_gradients(),
        repeat={
            "config": config.to_toml().replace(path, short),
            "command": f"{start} --config {shlex.quote(name)}/config.toml --out again",
        },
        run=name,
    )
    if run.finished:
        model, data = run.load_model(), load(config.data)
        metrics = read_json(run.metrics) if run.metrics.exists() else {}
        train_metrics = metrics["train"] if "test" in metrics else {}
        beside = _train_resnet(config, data) if compare else None
        weights = words.weights(config.training)
        known = replace(known, beside=beside, train_metrics=train_metrics, weights=weights)
        return _with_data(known, model, data.to(model.head.weight.dtype))
    if compare:
        raise HdnnError(f"{folder} is not finished: there is no model to compare with a ResNet")
    known = replace(known, notices=_unfinished(run, name, len(history), config.training.epochs))
    return _of_checkpoint(run, config, known) if run.checkpoint.exists() else known


def _unfinished(run: Run, name: str, done: int, total: int) -> tuple[str, ...]:
    if run.failure is not None:  # resuming it would only diverge again
        return (f"This run diverged: {run.failure}.",)
    resume = f"hdnn train --resume {shlex.quote(name)}"
    return (f"This run is not finished: {done} of {total} epochs. Continue it with: {resume}",)


def _of_checkpoint(run: Run, config: Config, known: ReportInputs) -> ReportInputs:
    """What an unfinished run shows: its model as of the last checkpoint."""
    try:
        prepared = prepare(config)
        model = run.load_checkpoint(prepared)
    except FileFormatError as error:
        message = str(error).replace(str(run.folder), str(known.run))
        return replace(known, notices=(*known.notices, message))
    if model is None or not all(p.isfinite().all() for p in model.parameters()):
        return known
    notice = "Everything below describes the model at its last checkpoint."
    weights = "of the last step, not averaged" if config.training.averaging else ""
    known = replace(known, notices=(*known.notices, notice), weights=weights)
    return _with_data(known, model, prepared.data)


def _with_data(known: ReportInputs, model: Model, data: Dataset) -> ReportInputs:
    """With a model and what was held out, or else what it was trained on."""
    known = replace(known, model=model, data=data)
    if len(data.X_test):
        return replace(known, X=data.X_test, y=data.y_test, part="held-out")
    notice = "No data were held out: everything here was measured on the training data."
    notices = (*known.notices, notice)
    return replace(known, X=data.X, y=data.y, part="training", notices=notices)


def _train_resnet(config: Config, data: Dataset) -> Model:
    """A ResNet of the same size, trained as the model of a run was."""
    network = config.model
    if data.kind == "images" or network.architecture == "ResNet":
        raise HdnnError("--compare is for Hamiltonian and plain networks on tables or in the plane")
    # A network without a step has no T of its own: the ResNet gets the usual one.
    timed = network.T is not None or network.step is not None
    resnet = build(network.replace(architecture="ResNet", T=network.T if timed else 1.2), data)
    meter, epochs = Meter("training the ResNet"), config.training.epochs
    callbacks = [lambda trainer, record: meter(record.epoch, epochs)]
    Trainer(resnet, config.training, callbacks).fit(data)
    return resnet


# --- the page -------------------------------------------------------------------------------------


def render(inputs: ReportInputs) -> Report:
    """The page of what was collected; a new section is a function of `sections` and a macro."""
    with np.errstate(all="ignore"):  # states of a run that diverged are not finite
        parts = track(SECTIONS, "making the report, sections")
        content = {name: getattr(sections, name)(inputs) for name in parts}
    return fill(
        "report.html.j2",
        title=words.title(inputs.model, inputs.name),
        lead=inputs.lead,
        notices=inputs.notices,
        facts=_facts(inputs),
        order=[name for name in (LEADING if inputs.lead else SECTIONS) if content[name]],
        **content,
    )


def fill(template: str, **values: Any) -> Report:
    """The page of a template.

    Args:
        template: its file.
        **values: what it shows.

    Returns:
        The page.
    """
    environment = Environment(
        loader=PackageLoader("hdnn.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("math", "typeset", "number", "percent", "certificate"):
        environment.filters[name] = getattr(words, name)
    environment.filters |= {"shortened": shortened, "metric": metric_text}
    themes = {"light": LIGHT, "dark": DARK}
    page = environment.get_template(template).render(
        themes=themes, version=version("hdnn"), **values
    )
    return Report(page)


def _facts(inputs: ReportInputs) -> list[tuple[str, str]]:
    facts = [] if inputs.run is None else [("run", inputs.run)]
    if inputs.model is not None:
        shape = inputs.model.stem.shape
        kind = "image" if len(shape) > 1 else "features"
        facts.append(("input", f"{'×'.join(map(str, shape))} {kind}"))
        facts += [("network", net.extra_repr()) for net in inputs.model.networks[:4]]
        count = sum(p.numel() for p in inputs.model.parameters())
        facts.append(("parameters", f"{count:,}"))
    if inputs.history:
        last = inputs.history[-1]
        seconds = f", {words.number(last['seconds'])} s" if "seconds" in last else ""
        facts.append(("training", words.counted(last["epoch"], "epoch") + seconds))
    if inputs.weights:
        facts.append(("weights", inputs.weights))
    return facts
