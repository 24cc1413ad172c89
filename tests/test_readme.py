"""Every number in the README is that of a committed record."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tabular import page, runs
from tabular.models import HDNN
from tabular.sources import COMPARISON

import hdnn
from hdnn.paper import table1, table2
from hdnn.paper.experiment import KEY
from hdnn.paper.records import Records

ROOT = Path(__file__).parents[1]
README = " ".join((ROOT / "README.md").read_text().split())


def reached(module: object, table: str, protocol: str) -> tuple[int, int]:
    """In how many cells, and of how many, the mean reaches the published value."""
    records = Records(ROOT / "results" / table, KEY).read().values()
    rows = module.summary(module.cells(protocol), records)  # type: ignore[attr-defined]
    return int((rows.reached == "yes").sum()), len(rows)


def test_how_many_cells_of_the_paper_are_reached() -> None:
    (tuned, cells), (paper, _) = (reached(table1, "table1", p) for p in ("tuned", "paper"))
    (tuned2, cells2), (paper2, _) = (reached(table2, "table2", p) for p in ("tuned", "paper"))
    assert (
        f"| Table 1 and 2 of the paper, cells that reach the published value | {tuned} of {cells}, "
        f"{tuned2} of {cells2} with tuned settings | {paper} and {paper2} with the paper's own |"
    ) in README


def test_convolutional_networks() -> None:
    records = pd.read_json(ROOT / "results" / "convolutional" / "records.jsonl", lines=True)
    means = 100 * records.groupby("data").test_accuracy.mean()
    assert (records.parameters < 100_000).all()
    assert (
        "| MNIST, Fashion-MNIST, fewer than 100,000 parameters | "
        f"{means['mnist']:.2f} %, {means['fashion-mnist']:.2f} % |"
    ) in README


def test_public_tables() -> None:
    """Mean accuracy, mean log loss and mean R² on the tables."""
    records = list(Records(ROOT / "results" / "tables", runs.KEY).read().values())
    means = page.table_means(records)
    names = {
        "forest": "random forest",
        "MLP": "MLP",
        "HGB": "gradient boosting",
        "linear": "linear",
    }

    def row(task: str, what: str, size: float, form: str, unit: str) -> str:
        tables = [name for name, source in COMPARISON.items() if source.task == task]
        found = size * means.loc[tables][what].mean()
        others = ", ".join(f"{long} {found[short]:{form}}{unit}" for short, long in names.items())
        return f"{len(tables)}", f"| {found[HDNN]:{form}}{unit} | {others} |"

    count, accuracy = row("classification", "score", 100, ".1f", " %")
    assert f"| {count} public tables, mean accuracy {accuracy}" in README
    _, loss = row("classification", "log_loss", 1, ".2f", "")
    assert f"| the same, mean log loss {loss}" in README
    count, score = row("regression", "score", 1, ".3f", "")
    assert f"| {count} tables with a number to predict, mean R² {score}" in README


def test_robots() -> None:
    records = pd.read_json(ROOT / "results" / "robots" / "trained.jsonl", lines=True)
    costs = records.groupby("controller").cost_10T.median()
    ends = records.groupby("controller").end.median()
    assert (records.controller == "MLP").sum() == 5
    own, plain = costs["state space"], costs["MLP"]
    assert f"they have cost {own:,.0f} and stand within 1 mm" in README
    assert ends["state space"] < 1e-3
    assert f"with the MLP, {plain:,.0f}, and one is {ends['MLP']:.0f} m away" in README
    others = ("MLP", "GRU", "MLP with damping", "MLP, trained on 2T")
    listed = ", ".join(
        f"{name.replace(', trained', ' trained')} {costs[name]:,.0f}" for name in others
    )
    assert f"| twelve robots, cost after 50 s | {own:,.0f} | {listed} |" in README


@pytest.mark.parametrize("data", ["cascaded-tanks", "heat-exchanger", "robot-arm", "silverbox"])
def test_recordings(data: str) -> None:
    """Errors of free runs: the median of the seeds, and the worst."""
    records = pd.read_json(ROOT / "results" / "identification" / "records.jsonl", lines=True)
    own = records[records.data == data].set_index("model")
    linear = own.loc["state space"].test_linear.iloc[0]["nrmse"]
    parts = [f"linear {linear:.3f}"]
    for model in ("LSTM", "GRU"):
        if model in own.index:
            errors = own.loc[[model]].test_network.map(lambda fit: fit["nrmse"])
            parts.append(f"{model} {errors.median():.3f} ({errors.max():.3f})")
    errors = own.loc[["state space"]].test_network.map(lambda fit: fit["nrmse"])
    name = data.replace("-", " ")
    found = f"{errors.median():.3f} ({errors.max():.3f})"
    row = f"| {name}, error of a free run (worst seed) | {found} | {', '.join(parts)} |"
    assert row in README


def test_growth_of_gradients() -> None:
    """The column of the table of guarantees, as the page on ResNets has it."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs" / "why-not-a-resnet.md").read_text().splitlines()
        if line.count("|") == 9
    ]
    growth = {row[0]: row[4] for row in rows}
    for names in ("H1, H2", "MS1", "MS2", "MS3, HS", "ResNet"):
        (line,) = (
            x
            for x in (ROOT / "README.md").read_text().splitlines()
            if x[2:].startswith(f"{names} |")
        )
        assert line.split("|")[-2].strip() == ", ".join(growth[name] for name in names.split(", "))


def test_the_code_runs() -> None:
    """With a plant, data and a module such as readers have."""
    names: dict[str, object] = {
        "hdnn": hdnn,
        "A": [[0, 1], [-1, -0.2]],
        "B": [[0], [1]],
        "C": [[0, 1]],
        "X": np.eye(20, 3),
        "y": np.arange(20) % 2,
        "my_module": hdnn.network("MS3", features=4, layers=2, T=1.0, dtype=torch.float64),
        "x": torch.randn(10, 4, dtype=torch.float64),
    }
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    controller, limit = names["controller"], names["limit"]
    assert isinstance(controller, hdnn.StateSpace)
    assert 39 < limit < 41  # type: ignore[operator]
