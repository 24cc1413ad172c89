"""Tables of records: statistics over seeds, values as texts, Markdown for pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd


def summarize(records: pd.DataFrame, cell: Sequence[str], digits: int) -> pd.DataFrame:
    """Statistics of the test accuracy over the seeds of every cell, in per cent.

    Args:
        records: with ``published`` accuracies in per cent, NaN where the paper has none.
        cell: fields that tell cells apart.
        digits: of the published accuracies: a mean is rounded to them before it is compared.

    Returns:
        A row for every cell, in their order, with the first value of all other fields.
    """
    records = records.assign(
        published=records.published.astype(float), percent=100 * records.test_accuracy
    )
    groups = records.groupby([*cell], sort=False)
    table = groups.first().drop(columns=["seed", "percent"])
    table["train"] = 100 * groups.train_accuracy.mean()
    table[["std", "median", "min", "max"]] = groups.percent.agg(["std", "median", "min", "max"])
    # Of 20 seeds x 5000 samples, many means end in 5. Which way they round is a matter of the last
    # bit, in which pandas' own mean differs from NumPy's.
    table["mean"] = groups.percent.agg(lambda values: values.to_numpy().mean())
    table["seeds"] = groups.size()
    for name in {"seconds", "epoch_seconds"} & {*records}:
        table[name] = groups[name].mean()
    table["difference"] = table["mean"] - table.published
    reached = table["mean"].map(lambda mean: round(mean, digits)) >= table.published
    table["reached"] = reached.map({True: "yes", False: "no"}).where(table.published.notna())
    return table.reset_index()


def texts(frame: pd.DataFrame, formats: Mapping[str, str]) -> pd.DataFrame:
    """Some columns of a frame as texts.

    Args:
        frame: of numbers and texts.
        formats: by column, in the order of the table, how `format` writes its values.

    Returns:
        The columns, named for people; a dash for what is not known.

    >>> texts(pd.DataFrame({"mean": [0.5, None], "n": [1, 2]}), {"mean": ".2f"})["mean"].tolist()
    ['0.50', '-']
    """

    def text(value: Any, form: str) -> str:
        return "-" if pd.isna(value) else format(value, form)

    columns = {name: [text(v, form) for v in frame[name]] for name, form in formats.items()}
    return pd.DataFrame(columns).rename(columns=lambda name: name.replace("_", " "))


def markdown(heads: Iterable[str], rows: Iterable[Sequence[str]], left: int | None = None) -> str:
    """A table in Markdown.

    Args:
        heads: titles of the columns; a frame iterates over its own.
        rows: cells as texts.
        left: how many columns are aligned to the left, the others to the right; None: all.

    >>> print(markdown(["l", "norm"], [["1", "2.5"]], left=1))
    | l | norm |
    | --- | ---: |
    | 1 | 2.5 |
    """
    heads = list(heads)
    rules = ["---" if left is None or k < left else "---:" for k in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))


def fill(text: str, parts: Mapping[str, str]) -> str:
    r"""A page with each part written between ``<!-- its name -->`` and ``<!-- end -->``.

    >>> fill("<!-- a -->\nold\n<!-- end -->", {"a": "new"})
    '<!-- a -->\nnew\n<!-- end -->'
    """
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        own = part.replace("\\", r"\\")
        text = re.sub(pattern, rf"\g<1>{own}\g<2>", text, flags=re.DOTALL)
    return text
