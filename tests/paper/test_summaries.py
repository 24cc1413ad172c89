"""Statistics of records, and how they are written."""

from __future__ import annotations

import pandas as pd
import pytest

from hdnn.paper.summaries import markdown, summarize, texts


def records(*accuracies: float, published: float | None = 93.6) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "layers": 4,
            "seed": range(len(accuracies)),
            "train_accuracy": 0.5,
            "test_accuracy": accuracies,
            "published": published,
        }
    )


def test_statistics_are_over_the_seeds_in_per_cent() -> None:
    (row,) = summarize(records(0.9, 0.95, 0.98), ["layers"], digits=1).to_dict("records")
    assert row["mean"] == pytest.approx(283 / 3)
    assert row["std"] == pytest.approx(4.0414518843)  # of a sample: divided by n - 1
    assert (row["min"], row["median"], row["max"]) == pytest.approx((90, 95, 98))
    assert (row["train"], row["seeds"]) == (50, 3)
    assert row["difference"] == pytest.approx(283 / 3 - 93.6)


@pytest.mark.parametrize(
    ("accuracy", "digits", "reached"),
    [(0.9356, 1, "yes"), (0.9354, 1, "no"), (0.9356, 2, "no"), (0.9361, 2, "yes")],
)
def test_a_mean_is_compared_at_the_papers_rounding(
    accuracy: float, digits: int, reached: str
) -> None:
    rows = summarize(records(accuracy, accuracy), ["layers"], digits)
    assert rows.reached.tolist() == [reached]


def test_what_the_paper_does_not_have_is_neither_reached_nor_missed() -> None:
    rows = summarize(records(0.9, published=None), ["layers"], digits=1)
    table = texts(rows, {"mean": ".1f", "published": ".1f", "reached": ""})
    assert table.to_numpy().tolist() == [["90.0", "-", "-"]]
    assert markdown(table, table.to_numpy(), left=1).splitlines() == [
        "| mean | published | reached |",
        "| --- | ---: | ---: |",
        "| 90.0 | - | - |",
    ]
