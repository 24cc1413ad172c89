"""Data for a model, by name, file or folder: what every command reads, labeled or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hdnn
from commands import write_rows
from hdnn.config import Config
from hdnn.data import load
from hdnn.data.loading import bundled_frame
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.inputs import read_features, read_labeled
from hdnn.training.runs import prepare


def untrained(source: str, **data: object) -> Model:
    tables = {"data": {"source": source, **data}, "model": {"layers": 1}}
    return prepare(Config(**tables)).model  # type: ignore[arg-type]


def test_a_bundled_table_by_name_and_as_a_file(tmp_path: Path) -> None:
    model, frame = untrained("iris", drop=["petal width (cm)"]), bundled_frame("iris")[0]
    X, y = read_labeled(model, "Iris")
    assert (X.dtype, tuple(X.shape)) == (model.head.weight.dtype, (150, 3))
    np.testing.assert_allclose(X, frame.iloc[:, :3].to_numpy())
    assert y.tolist() == np.repeat([0, 1, 2], 50).tolist()
    frame[::-1].to_csv(tmp_path / "iris.csv", index=False)
    for target in ("target", ["target"]):
        X_file, y_file = read_labeled(model, tmp_path / "iris.csv", target)
        assert torch.equal(X_file.flip(0), X)
        assert torch.equal(y_file.flip(0), y)
    assert torch.equal(read_features(model, "iris"), X)
    assert torch.equal(read_features(model, tmp_path / "iris.csv").flip(0), X)
    with pytest.raises(HdnnError, match="--target NAME"):
        read_labeled(model, tmp_path / "iris.csv")


def test_a_regression_knows_its_target(tmp_path: Path) -> None:
    a = np.arange(20.0)
    path = write_rows(tmp_path / "t.csv", a=a, y=3 * a)
    model = untrained(str(path), target="y", task="regression")
    assert read_labeled(model, path)[1].tolist() == (3 * a).tolist()


def test_planar_problems_give_their_test_part() -> None:
    model, data = untrained("swiss-roll"), hdnn.data.split("swiss-roll")
    X, y = read_labeled(model, "swiss_roll")
    assert torch.equal(X, data.X_test.to(X.dtype))
    assert torch.equal(y, data.y_test)
    assert torch.equal(read_features(model, "swiss-roll"), X)


def test_images_by_name_and_by_folder(tmp_path: Path) -> None:
    model, digits = untrained("digits"), load(Config(data={"source": "digits"}).data)
    X, y = read_labeled(model, "digits")
    assert torch.equal(X, digits.X_test)
    assert torch.equal(y, digits.y_test)
    for number in (7, 3):  # classes in another order, and fewer
        folder = tmp_path / "test" / str(number)
        folder.mkdir(parents=True)
        Image.fromarray(X[number, 0].numpy()).resize((16, 16)).save(folder / "a.png")
    X, y = read_labeled(model, tmp_path / "test")
    assert (tuple(X.shape), y.tolist()) == ((2, 1, 8, 8), [3, 7])
    assert tuple(read_features(model, tmp_path / "test").shape) == (2, 1, 8, 8)
    (tmp_path / "test" / "3").rename(tmp_path / "test" / "three")
    with pytest.raises(HdnnError, match="has the class 'three', which the model does not know"):
        read_labeled(model, tmp_path / "test")


def test_data_of_another_kind_raise() -> None:
    with pytest.raises(HdnnError, match="takes samples of 4 numbers, swiss-roll has 2"):
        read_features(untrained("iris"), "swiss-roll")
    with pytest.raises(HdnnError, match="takes samples of 2 numbers, digits has 1 x 8 x 8"):
        read_features(untrained("swiss-roll"), "digits")
    with pytest.raises(HdnnError, match="lacks 'age'"):
        read_labeled(untrained("diabetes"), "iris")
