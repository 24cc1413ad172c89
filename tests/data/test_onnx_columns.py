"""The columns of a table in an ONNX file: what it takes is what `hdnn predict` takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hdnn
from commands import done, record
from hdnn.data import ColumnEncoder, read_table
from hdnn.data.encoder import EncodedColumn, as_days

pytest.importorskip("onnx", reason="export needs onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime runs what is exported")
pytest.importorskip("onnxscript", reason="torch.onnx needs onnxscript")


def mixed_table(rows: int) -> pd.DataFrame:
    """Texts, dates, booleans and numbers, with gaps."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": draw.choice(["Rome", "Bern", "São Paulo", "a, b"], rows).astype(object),
            "street": [f"street {k}" for k in draw.integers(0, 50, rows)],  # some of them rare
            "day": np.datetime64("2019-03-01T06:00") + draw.integers(0, 2000, rows) * 37_000,
            "member": draw.random(rows) < 0.5,
            "order": 9e15 + 7.0 * draw.integers(0, 50, rows),  # float32 would lose what differs
            "add": draw.standard_normal(rows),  # also the name of an operator's result
            "probabilities": draw.standard_normal(rows),  # and of the output
        }
    )
    for name in ("city", "day", "add"):
        frame.loc[draw.random(rows) < 0.4, name] = None
    return frame


def entered(column: EncodedColumn, values: Any) -> torch.Tensor:
    """A column as it enters the graph: numbers, days, or codes, written out here once more."""
    if column.kind != "category":
        return torch.tensor(as_days(values) if column.kind == "date" else values)
    codes = {None: -2} | {level: k for k, level in enumerate(column.levels)}
    return torch.tensor([codes.get(v, len(column.levels) if column.rare else -1) for v in values])


def test_features_in_the_graph_are_those_of_the_encoder() -> None:
    from hdnn.data.onnx_columns import ColumnFeatures

    train, fresh = mixed_table(200), mixed_table(300)[200:]
    fresh.loc[210, ["city", "street"]] = "Atlantis"
    table = read_table(train)
    encoder = ColumnEncoder.fit(table.columns, table.types)
    assert {True, False} == {column.rare for column in encoder.columns}
    assert any(column.indicator for column in encoder.columns)
    values = encoder.read_frame(fresh)
    columns = [entered(column, values[column.name]) for column in encoder.columns]
    features = ColumnFeatures(encoder, torch.float64)(*columns)
    np.testing.assert_allclose(features, encoder.transform(values), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_table_with_categories_dates_and_gaps_from_the_command_line(tmp_path: Path) -> None:
    frame = mixed_table(200)
    labels = np.where(frame["member"] ^ (frame["probabilities"] > 0), "yes", "no")
    clf = hdnn.HDNNClassifier(layers=4, max_iter=2, random_state=0)
    with pytest.warns(UserWarning, match="32 most frequent texts.*street"):
        clf.fit(frame, labels)
    hdnn.save(clf.model_, tmp_path / "model")
    out = tmp_path / "model.onnx"
    exported = record("export", tmp_path / "model", "--out", out)
    assert exported["inputs"] == {name: ["batch"] for name in frame}
    # Texts that training did not have, and none at all: what one sends to a server.
    fresh = mixed_table(100)
    fresh.loc[3, ["city", "street"]] = "Atlantis"
    fresh.loc[5, ["city", "day", "add"]] = None
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    feeds = {}
    for name, kind in zip(json.loads(facts["columns"]), json.loads(facts["kinds"]), strict=True):
        if kind == "category":
            feeds[name] = fresh[name].fillna("").to_numpy(object)
        elif kind == "date":
            feeds[name] = ((fresh[name] - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy()
        else:
            feeds[name] = fresh[name].to_numpy(float)
    (result,) = session.run(None, feeds)
    assert json.loads(facts["labels"]) == clf.classes_.tolist()
    assert len(clf.model_.columns[1]["levels"]) == 32
    np.testing.assert_allclose(result, clf.predict_proba(fresh), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_the_program_on_the_docs_page_predicts_as_hdnn_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what pandas would guess wrong: postcodes, spaces, days before months, ? and words."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    codes, plans = draw.choice(["08001", "12345"], 90), draw.choice(["basic", " plus "], 90)
    days = [f"{day:02}.{month:02}.2023" for day, month in draw.integers(1, 13, (90, 2))]
    days[0] = "13.01.2023"
    numbers, words = draw.choice(["1.5", "?", "2"], 90), draw.choice(["true", "false"], 90)
    labels = np.where((codes == "08001") ^ (words == "true"), "yes", "no")
    rows = zip(codes, plans, days, numbers, words, labels, strict=True)
    lines = ["code,plan,day,number,word,label", *map(",".join, rows)]
    Path("train.csv").write_text("\n".join(lines))
    Path("data.csv").write_text("\n".join(line for line in lines if "13.01" not in line))
    for command in (
        "train train.csv --target label --epochs 5 --out run",
        "export run --out model.onnx",
        "predict run data.csv --out predictions.csv",
    ):
        done(*command.split())
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (program,) = re.findall(r"```python\n(import json, onnxruntime, pandas.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    expected = pd.read_csv("predictions.csv")[["p_no", "p_yes"]]
    np.testing.assert_allclose(names["probabilities"], expected, atol=1e-5)
