"""`hdnn predict`: rows with predictions, in whatever order the columns come; files that stay."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Trained, done, fails, read_rows, record, write_rows
from hdnn.data.images import load
from hdnn.training.runs import Run


def test_predictions_are_appended(mail: Trained) -> None:
    result = done("predict", mail.run, mail.table, "--out", "p.csv")
    assert "150 rows" in result.stdout
    found, given = read_rows(Path("p.csv")), read_rows(mail.table)
    assert list(found[0]) == [*given[0], "prediction", "p_ham", "p_spam"]
    assert [{k: row[k] for k in given[0]} for row in found] == given
    model = Run.open(mail.run).load_model()
    cells = [[row[name] for name in ("length", "links", "score")] for row in given]
    values = [[float(c) if c not in ("", "NA") else float("nan") for c in row] for row in cells]
    with torch.no_grad():
        chances = model.probabilities(torch.tensor(values, dtype=model.head.weight.dtype))
    shown = [[float(row["p_ham"]), float(row["p_spam"])] for row in found]
    assert shown == pytest.approx(chances.numpy(), rel=1e-5, abs=1e-12)
    best = chances.argmax(1).tolist()
    assert [row["prediction"] for row in found] == [("ham", "spam")[k] for k in best]
    assert [path.name for path in Path().iterdir()] == ["p.csv"]


def test_columns_are_found_by_name_and_earlier_predictions_are_replaced(mail: Trained) -> None:
    done("predict", mail.run, mail.table, "--out", "p.csv")
    rows = read_rows(Path("p.csv"))
    names = ["score", "prediction", "length", "links", "p_ham"]
    write_rows(Path("other.csv"), **{name: [row[name] for row in rows] for name in names})
    done("predict", mail.run, "other.csv", "--out", "q.csv")
    again = read_rows(Path("q.csv"))
    assert [row["p_ham"] for row in rows] == [row["p_ham"] for row in again]
    assert list(again[0]) == ["score", "length", "links", "prediction", "p_ham", "p_spam"]


def test_standard_output_json_and_parquet(houses: Trained) -> None:
    pandas = pytest.importorskip("pandas")
    lines = done("predict", houses.run, houses.table).stdout.splitlines()
    assert (lines[0], len(lines)) == ("a,b,c,price,prediction", 151)
    found = record("predict", houses.run, houses.table, "--out", "p.parquet")
    assert found == {"rows": 150, "out": "p.parquet", "columns": ["prediction"]}
    frame = pandas.read_parquet("p.parquet")
    assert (frame.prediction - frame.price.astype(float)).abs().mean() < 8
    assert frame.prediction.tolist() == [float(line.split(",")[-1]) for line in lines[1:]]
    fails(2, ("predict", houses.run, houses.table, "--json"), "--json", "give --out")


def test_points_of_a_planar_problem(roll: Path) -> None:
    write_rows(Path("points.csv"), x1=[0.1, 0.5], x0=[0.2, -0.5])
    done("predict", roll, "points.csv", "--out", "p.csv")
    model = Run.open(roll).load_model()
    points = torch.tensor([[0.2, 0.1], [-0.5, 0.5]], dtype=model.head.weight.dtype)
    assert [int(r["prediction"]) for r in read_rows(Path("p.csv"))] == model.predict(
        points
    ).tolist()


def test_images_of_an_idx_file(digits: Path) -> None:
    test = load("digits").X_test
    file = Path("images-idx3-ubyte")
    file.write_bytes(struct.pack(">I3I", 0x803, len(test), 8, 8) + test.numpy().tobytes())
    done("predict", digits, file, "--out", "out.csv")
    rows = read_rows(Path("out.csv"))
    model = Run.open(digits).load_model()
    assert [row["prediction"] for row in rows] == [str(k) for k in model.predict(test).tolist()]
    assert sum(float(rows[0][f"p_{k}"]) for k in range(10)) == pytest.approx(1, abs=1e-4)


def test_a_folder_of_images_by_class() -> None:
    from PIL import Image

    found = load("digits")
    for number in range(60):
        folder = Path("data") / ("yes" if found.y[number] > 4 else "no")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(found.X[number, 0].numpy()).save(folder / f"{number}.png")
    done("train", "data", "--layers", 1, "--epochs", 1, "--out", "run")
    assert record("evaluate", "run", "data")["samples"] == 60
    done("predict", "run", "data", "--out", "out.csv")
    rows = read_rows(Path("out.csv"))
    assert len(rows) == 60
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    assert rows[0]["image"].startswith("no/")
    assert len(done("predict", "run", "data/*/1?.png", "data/no").stdout.splitlines()) > 10
    fails(2, ("predict", "run", "data/*.gif"), "holds no images")
    fails(2, ("predict", "run", "nowhere", "--out", "out.csv"), "no folder or file nowhere")


def test_data_and_other_formats_are_not_overwritten(mail: Trained) -> None:
    before = mail.table.read_bytes()
    fails(2, ("predict", mail.run, mail.table, "--out", mail.table), "would overwrite the data")
    assert mail.table.read_bytes() == before
    fails(2, ("predict", mail.run, mail.table, "--out", "p.xlsx"), ".csv, .parquet")
    fails(2, ("predict", mail.run, mail.table, mail.table), "one table")


def test_errors_leave_the_old_file(mail: Trained) -> None:
    out, good = Path("p.csv"), ["1", "2", "3", "4", "5"]
    out.write_text("old")
    write_rows(Path("narrow.csv"), length=good, score=good)
    write_rows(Path("text.csv"), length=good, score=good, links=[*good[:4], "many"])
    Path("ragged.csv").write_text("length,score,links\n1,2,3\n1,2,3\n1,2,3\n1,2,3,4\n")
    for name, code, said in (
        ("narrow.csv", 2, "'links'"),
        ("text.csv", 2, "'many'"),
        ("ragged.csv", 1, "ragged.csv"),
        ("none.csv", 2, "No such file"),
        ("t.npz", 2, "unknown kind of file"),
    ):
        fails(code, ("predict", mail.run, name, "--out", out), said)
        assert out.read_text() == "old"
    assert len(list(Path().iterdir())) == 4
    fails(1, ("predict", mail.run, mail.table, "--out", "no/p.csv"), "no/p.csv")
    fails(2, ("predict", "none", mail.table, "--out", out), "none is neither a run")


def test_many_rows(houses: Trained) -> None:
    values = np.round(np.random.default_rng(1).normal(size=(3, 20_001)), 3)
    write_rows(Path("large.csv"), **dict(zip("abc", values, strict=True)))
    assert record("predict", houses.run, "large.csv", "--out", "p.csv")["rows"] == 20_001
    assert len(Path("p.csv").read_text().splitlines()) == 20_002
