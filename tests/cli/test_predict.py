"""`hdnn predict`: rows with predictions appended, for tables and images; files that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from commands import Trained, done, fails, read_rows, record, write_rows
from hdnn.data.images import load
from hdnn.training.runs import Run


def test_predictions_are_appended(mail: Trained) -> None:
    assert "150 rows" in done("predict", mail.run, mail.table, "--out", "p.csv").stdout
    rows, table = read_rows(Path("p.csv")), read_rows(mail.table)
    assert list(rows[0]) == [*table[0], "prediction", "p_ham", "p_spam"]
    assert [{k: row[k] for k in table[0]} for row in rows] == table
    model = Run.open(mail.run).load_model()
    cells = [[row[name] for name in ("length", "links", "score")] for row in table]
    values = [[float(c) if c not in ("", "NA") else float("nan") for c in row] for row in cells]
    with torch.no_grad():
        expected = model.probabilities(torch.tensor(values, dtype=model.head.weight.dtype))
    shown = [[float(row["p_ham"]), float(row["p_spam"])] for row in rows]
    assert shown == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-12)
    best = expected.argmax(1).tolist()
    assert [row["prediction"] for row in rows] == [("ham", "spam")[k] for k in best]


def test_columns_go_by_name_and_earlier_predictions_are_replaced(mail: Trained) -> None:
    done("predict", mail.run, mail.table, "--out", "p.csv")
    rows = read_rows(Path("p.csv"))
    names = ["score", "prediction", "length", "links", "p_ham"]
    write_rows(Path("other.csv"), **{name: [row[name] for row in rows] for name in names})
    done("predict", mail.run, "other.csv", "--out", "q.csv")
    again = read_rows(Path("q.csv"))
    assert [row["p_ham"] for row in rows] == [row["p_ham"] for row in again]
    assert list(again[0]) == ["score", "length", "links", "prediction", "p_ham", "p_spam"]


def test_standard_output_and_parquet_agree(houses: Trained) -> None:
    pandas = pytest.importorskip("pandas")
    lines = done("predict", houses.run, houses.table).stdout.splitlines()
    assert (lines[0], len(lines)) == ("a,b,c,price,prediction", 151)
    done("predict", houses.run, houses.table, "--out", "p.parquet")
    frame = pandas.read_parquet("p.parquet")
    assert (frame.prediction - frame.price.astype(float)).abs().mean() < 8
    assert frame.prediction.tolist() == [float(line.split(",")[-1]) for line in lines[1:]]


def test_cells_are_repeated_as_they_were(mail: Trained) -> None:
    text = "note;length;links;score\n1,10;0,5;1;2\n3,0;-1,25;;4,0\n"
    Path("t.csv").write_text(text)
    Path("points.csv").write_text(text.replace(",", "."))
    rows, points = (
        [line.split(",") for line in done("predict", mail.run, name).stdout.splitlines()]
        for name in ("t.csv", "points.csv")
    )
    assert [row[-3:] for row in rows] == [row[-3:] for row in points]
    done("predict", mail.run, "t.csv", "--out", "p.csv")
    cells = [[row[name] for name in ("note", "length")] for row in read_rows(Path("p.csv"))]
    assert cells == [["1,10", "0,5"], ["3,0", "-1,25"]]


def test_a_folder_of_images_by_class() -> None:
    from PIL import Image

    digits = load("digits")
    for number in range(60):
        folder = Path("data") / ("yes" if digits.y[number] > 4 else "no")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.X[number, 0].numpy()).save(folder / f"{number}.png")
    done("train", "data", "--layers", 1, "--epochs", 1, "--out", "run")
    evaluation = record("evaluate", "run", "data")
    done("predict", "run", "data", "--out", "out.csv")
    rows = read_rows(Path("out.csv"))
    assert len(rows) == evaluation["samples"] == 60
    assert float(rows[0]["p_no"]) + float(rows[0]["p_yes"]) == pytest.approx(1, abs=1e-4)
    correct = [row["image"].startswith(f"{row['prediction']}/") for row in rows]
    assert sum(correct) / 60 == pytest.approx(evaluation["accuracy"])
    fails(2, ("predict", "run", "nowhere", "--out", "out.csv"), "no folder or file nowhere")


def test_errors_leave_files_as_they_are(mail: Trained) -> None:
    before, out, good = mail.table.read_bytes(), Path("p.csv"), ["1", "2", "3", "4", "5"]
    fails(2, ("predict", mail.run, mail.table, "--out", mail.table), "would overwrite the data")
    assert mail.table.read_bytes() == before
    fails(2, ("predict", mail.run, mail.table, "--out", "p.xlsx"), ".csv, .parquet")
    fails(2, ("predict", mail.run, mail.table, mail.table), "one table")
    out.write_text("old")
    write_rows(Path("narrow.csv"), length=good, score=good)
    Path("ragged.csv").write_text("length,score,links\n1,2,3\n1,2,3\n1,2,3\n1,2,3,4\n")
    for name, code, message in (
        ("narrow.csv", 2, "'links'"),
        ("ragged.csv", 1, "ragged.csv"),
    ):
        fails(code, ("predict", mail.run, name, "--out", out), message)
        assert out.read_text() == "old"
    assert len(list(Path().iterdir())) == 3
    fails(1, ("predict", mail.run, mail.table, "--out", "no/p.csv"), "no/p.csv")
