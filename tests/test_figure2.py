"""Figure 2: trainings, records, claims of the committed ones, tables, figures, commands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import hdnn
from hdnn.cli import app
from hdnn.errors import FileFormatError
from hdnn.files import DamagedFileWarning
from hdnn.paper import coupled, figure2, figure2_page, render, robustness
from hdnn.paper.figure2 import LIMIT, Case, GradientRecord
from hdnn.paper.store import Store

COMMITTED = Path(__file__).parents[1] / "results" / "figure2"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure2, "EPOCHS", 1)


def command(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


# --- training -------------------------------------------------------------------------------------


def test_the_settings_are_those_of_the_paper() -> None:
    main = {case.network: case for case in figure2.FIGURE}
    config = main["H1"].config
    assert config.epochs * 5000 // config.batch_size == 960
    assert (config.alpha, config.alpha_c, config.learning_rate) == (5e-3, 1e-4, 0.05)
    assert main["H1"].shown == [1, 11, 21, 31, 41, 51, 61]
    assert (main["FCNN"].layers, main["FCNN"].config.alpha_c) == (32, 2e-4)
    assert {case.layers for case in figure2.CASES} == {32, 64, 128, 256, 1024}
    assert len(set(figure2.CASES)) == len(figure2.CASES)


def test_looks_are_at_the_network_before_its_step_and_leave_no_trace(short: None) -> None:
    case = Case("MS3", 6, every=10)
    (record,), looks = figure2.train(case, [7])
    (other,), _ = figure2.train(replace(case, every=40), [7])
    assert (record.test_accuracy, record.spread) == (other.test_accuracy, other.spread)
    assert (record.looks, other.looks) == (4, 1)
    net = case.build([7])
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1_000_007))[:125]
    M = hdnn.analysis.sensitivities(net, figure2.draw_data([7]).X[:, order])[:6, 0]
    values = torch.linalg.svdvals(M)
    np.testing.assert_allclose(looks.column("low")[0, 0], values[..., 0].amin(1), rtol=1e-9)
    np.testing.assert_allclose(
        looks.column("of_mean")[0, 0], torch.linalg.svdvals(M.mean(1))[:, 0], rtol=1e-9
    )
    assert record.minimum >= 1 - 1e-12
    assert record.maximum == pytest.approx(looks.column("high").max(), rel=1e-4)


def test_the_limit_of_large_alpha_is_the_time_invariant_network(short: None) -> None:
    case = Case("H1", 8, alpha=LIMIT, method="coupled")
    _, limit = figure2.train(case, [3, 4])
    _, invariant = figure2.train(Case("H1 invariant", 8), [3, 4])
    np.testing.assert_allclose(limit.column("mean"), invariant.column("mean"), rtol=1e-7)
    far = figure2.train(replace(case, alpha=5e3), [3])[1]
    near = figure2.train(replace(case, alpha=5e6), [3])[1]
    gaps = [
        np.abs(x.column("mean")[:, 0] / limit.column("mean")[:, 0] - 1).max() for x in (far, near)
    ]
    assert gaps[1] < 0.1 * gaps[0]


def test_cosines_diagonalize_the_penalty() -> None:
    basis, eigenvalues = coupled.cosines(9)
    D = torch.diff(torch.eye(9), dim=0)
    gram, penalty = basis.T @ basis, basis.T @ D.T @ D @ basis
    torch.testing.assert_close(penalty, torch.diag(eigenvalues), atol=1e-12, rtol=0)
    torch.testing.assert_close(
        gram, torch.diag(torch.tensor([9.0, *[1.0] * 8])), atol=1e-12, rtol=0
    )


# --- records --------------------------------------------------------------------------------------


def test_what_is_recorded_is_not_trained_again(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (Case("H1", 12, every=20), Case("FCNN", 12, T=0.0, every=20))
    monkeypatch.setattr(figure2, "FIGURE", cases[:1])
    store = Store(tmp_path, GradientRecord)
    experiment = figure2.figure2(store, 1, cases)
    experiment.sweep([1, 2], store)
    kept, curves = (tmp_path / "records.jsonl").read_text(), (tmp_path / "curves.json").read_text()
    asked: list[tuple[Case, list[int]]] = []
    train = figure2.train

    def spy(case: Case, seeds: list[int]) -> object:
        asked.append((case, list(seeds)))
        return train(case, seeds)

    monkeypatch.setattr(figure2, "train", spy)
    experiment.sweep([1, 2], store)
    assert asked == []
    (tmp_path / "records.jsonl").write_text(kept.splitlines()[0] + "\n" + kept.splitlines()[1][:40])
    experiment.sweep([1, 2], store)
    assert [(case.network, seeds) for case, seeds in asked] == [("H1", [1, 2]), ("FCNN", [2])]
    again = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    first = [json.loads(line) for line in kept.splitlines()]
    for record in (*again, *first):
        record.pop("seconds")
    assert again == first
    assert json.loads(curves)["H1"]["shown"] == [1, 11]
    (tmp_path / "records.jsonl").write_text("{}\n" + kept)
    with pytest.warns(DamagedFileWarning, match="line 1"):
        assert len(store.read()) == 4
    (tmp_path / "curves.json").write_text(curves.replace('"shown": [1', '"shown": ["1"'))
    with pytest.raises(FileFormatError, match=r"curves.json.*shown is .*remove it"):
        figure2.read_curves(store)


def committed() -> list[figure2.Row]:
    return figure2.rows(list(Store(COMMITTED, GradientRecord).read().values()))


def test_all_cases_are_recorded_for_ten_seeds_in_small_files() -> None:
    found = {row.records[0].key[:-1]: row for row in committed()}
    assert set(found) == {case.key for case in figure2.CASES}
    for case in figure2.CASES:
        row = found[case.key]
        assert sorted(row.column("seed")) == list(range(1000, 1010)), case
        assert row.records[0].looks * case.every == 960
    assert all(path.stat().st_size < 2**20 for path in COMMITTED.iterdir())


def test_claims_of_the_committed_records() -> None:
    for row in committed():
        if (
            row.cell.network == "MS3"
        ):  # symplectic: never below 1, at any layer, look, sample and seed
            assert row.column("minimum").min() >= 1 - 1e-12
        if row.cell.network == "FCNN":  # vanished in the early layers, and nothing was learned
            assert row.column("shown_last")[:, 0].max() < 1e-6
            assert np.abs(row.column("test_accuracy") - 0.5).max() < 0.02
    limit, invariant = (
        figure2_page.select(committed(), name, method, **fields)[0]
        for name, method, fields in (
            ("H1", "coupled", {"alpha": LIMIT}),
            ("H1 invariant", "adam", {"layers": 64, "T": 1.2, "every": 8}),
        )
    )
    ratios = limit.column("maximum") / invariant.column("maximum")
    assert abs(math.log(np.median(ratios))) < 0.01


# --- tables, figures, commands --------------------------------------------------------------------


def test_tables_and_figures_of_the_committed_records() -> None:
    pytest.importorskip("matplotlib")
    store = Store(COMMITTED, GradientRecord)
    records = list(store.read().values())
    page = figure2_page.page(records)
    assert page == (COMMITTED / "figure2.md").read_text()
    assert "[1, 17]" in page
    drawn = figure2_page.norms_figure(figure2.read_curves(store))
    assert len(drawn.axes) == 8
    assert len(drawn.axes[0].get_lines()) == 7
    assert len(figure2_page.claims_figure(records).axes) == 3


def test_gradients_and_margins_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = (
        "train",
        "double-moons",
        "--size",
        200,
        "--layers",
        4,
        "--epochs",
        3,
        "--batch-size",
        25,
    )
    run, plain = tmp_path / "run", tmp_path / "plain"
    command(*words, "--record", 2, "--out", run)
    command(*words, "--out", plain)
    assert (run / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    text = command("gradients", run, "--out", tmp_path / "record.png")
    assert "recorded every 2 iterations: 6 recordings" in text
    assert "recorded" not in command("gradients", plain, "--out", tmp_path / "layers.svg")
    assert (tmp_path / "record.png").stat().st_size > 5000
    found = json.loads(command("gradients", run, "--json"))
    assert [entry["iteration"] for entry in found["record"]["recordings"]] == [0, 2, 4, 6, 8, 10]
    assert found["trained"]["layer"] == [0, 1, 2, 3, 4]
    assert found["trained"]["mean"][-1] == pytest.approx(1.0)
    assert json.loads(command("gradients", plain, "--json"))["record"] is None
    margins = json.loads(command("margins", run, "--radius", 0.0, "--radius", 9.0, "--json"))
    accuracy = json.loads(command("evaluate", run, "--json"))["accuracy"]
    assert (margins["random"][0], margins["worst"][0]) == pytest.approx((accuracy, accuracy))
    assert "random" in command("margins", run)
    refused = CliRunner().invoke(app, ["train", "swiss-roll", "--record", "0"])
    assert refused.exit_code == 2
    assert "every is an integer of at least 1" in refused.stderr
    refused = CliRunner().invoke(
        app, ["train", "digits", "--record", "5", "--out", str(tmp_path / "p")]
    )
    assert refused.exit_code == 2
    assert "--record serves tables" in refused.stderr
    assert not (tmp_path / "p").exists()


def test_robustness_of_a_cell_is_measured_and_shown() -> None:
    experiment = robustness.robustness(samples=40)
    assert len(experiment.cells) == 10
    moons = [c for c in experiment.cells if (c.data, c.architecture) == ("double-moons", "H1")]
    rows = experiment.groups(replace(experiment, cells=moons).sweep([1000]))
    (row,) = render.Table(robustness.DATA, rows).data()
    assert row["accuracy"] > 99
    assert row["worst"][0] >= row["worst"][-1]
    assert all(r >= w for r, w in zip(row["random"], row["worst"], strict=True))
    assert row["margins"][2] <= row["room"][2] * 1.5
    assert "double-moons | H1 | 4 | 1 |" in render.Table(robustness.COLUMNS, rows).markdown()
