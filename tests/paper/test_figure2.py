"""Figure 2: recordings against Jacobians computed directly, and claims of the committed records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import hdnn
from hdnn.data import split
from hdnn.models import Padding
from hdnn.paper import ensembles, figure2
from hdnn.paper.experiment import frame
from hdnn.paper.figure2 import KEY, Case
from hdnn.paper.records import Record, Records

COMMITTED = Path(__file__).parents[2] / "results" / "figure2"


def committed() -> list[Record]:
    return list(Records(COMMITTED, KEY).read().values())


def test_recordings_are_the_norms_before_the_step_and_leave_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figure2, "EPOCHS", 1)
    case, seed = Case("MS3", 12, every=10), figure2.DRAWN_SEED
    monkeypatch.setattr(figure2, "DRAWN", (case,))
    monkeypatch.setattr(figure2, "DRAWN_EVERY", 1)
    (record,), recorded = figure2.train(case, [seed])
    (other,), _ = figure2.train(case._replace(every=40), [seed])
    assert (record["test_accuracy"], record["spread"]) == (other["test_accuracy"], other["spread"])
    assert (record["recordings"], other["recordings"]) == (4, 1)

    order = torch.Generator().manual_seed(ensembles.ORDER_SEED + seed)
    rows = torch.randperm(5000, generator=order)[:125]
    X = Padding(2, 4, "append")(split("double-moons", seed=seed).X[rows].double())
    draw = torch.Generator().manual_seed(seed)
    net = hdnn.network("MS3", features=4, layers=12, T=1.2, dtype=torch.float64, generator=draw)
    M = hdnn.analysis.sensitivities(net, X)[:12]
    norms = torch.linalg.matrix_norm(M, 2)
    of_mean = torch.linalg.matrix_norm(M.mean(1), 2)
    np.testing.assert_allclose(recorded.column("low")[0, 0], norms.amin(1), rtol=1e-9)
    np.testing.assert_allclose(recorded.column("of_mean")[0, 0], of_mean, rtol=1e-9)
    assert record["shown"] == [1, 11]
    np.testing.assert_allclose([c[0] for c in record["curves"]], of_mean[[1, 11]], rtol=1e-3)
    assert record["minimum"] >= 1 - 1e-12  # MS3 is symplectic
    assert record["maximum"] == pytest.approx(recorded.column("high").max(), rel=1e-4)


def test_claims_of_section_4_3_in_the_committed_records() -> None:
    rows = frame(figure2.CASES, KEY, committed())
    assert len(rows) == 10 * len(figure2.CASES)
    assert figure2.EPOCHS * 5000 // 125 == 960
    assert (rows.recordings * rows.every == 960).all()
    # MS3 is symplectic: never below 1, for any sample, layer and seed.
    assert rows[rows.network == "MS3"].minimum.min() >= 1 - 1e-12
    # The gradients of a plain network vanish in its early layers, and nothing is learned.
    plain = rows[rows.network == "FCNN"]
    assert max(last[0] for last in plain.shown_last) < 1e-6
    assert (plain.test_accuracy - 0.5).abs().max() < 0.02
    # H1 of the figure stays in an interval of the published size, and learns.
    h1 = rows[(rows.network == "H1") & (rows.layers == 64) & (rows.every == 1)]
    assert h1.of_mean_minimum.min() > 0.9
    assert h1.of_mean_maximum.max() < 17
    assert h1.test_accuracy.min() > 0.99
    # The time-invariant network has one K.
    assert rows[rows.network == "H1 invariant"].spread.max() < 1e-12
    assert math.isfinite(rows.maximum.max())


def test_page_and_figures_of_the_committed_records() -> None:
    records = committed()
    assert figure2.page(records) == (COMMITTED / "figure2.md").read_text()
    norms, claims = figure2.norms_figure(records), figure2.claims_figure(records)
    assert [len(axis.get_lines()) for axis in norms.axes] == [7] * 7 + [0]
    assert {axis.get_yscale() for axis in norms.axes} == {"log"}
    assert [len(axis.get_lines()) for axis in claims.axes] == [4, 2, 6]
    assert all(path.stat().st_size < 2**20 for path in COMMITTED.iterdir())
