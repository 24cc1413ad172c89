"""Margins of the networks of Figure 1."""

from __future__ import annotations

from dataclasses import replace

from hdnn.paper import robustness


def test_margins_of_a_cell() -> None:
    experiment = robustness.robustness(samples=40)
    assert len(experiment.cells) == 10
    moons = [c for c in experiment.cells if (c.data, c.architecture) == ("double-moons", "H1")]
    records = replace(experiment, cells=moons).sweep([1000])
    (record,) = records
    assert record["accuracy"] > 0.99
    assert record["worst"] == sorted(record["worst"], reverse=True)
    assert all(r >= w for r, w in zip(record["random"], record["worst"], strict=True))
    assert record["margins"][2] <= record["room"][2] * 1.5
    (row,) = robustness.summary(records).to_dict("records")
    assert (row["architecture"], row["layers"], row["seeds"]) == ("H1", "4", "1")
