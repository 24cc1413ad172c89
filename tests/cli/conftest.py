"""Tables that users have, the runs trained on them by the command line, and a folder to work in."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commands import Trained, done, write_rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a user; what commands do to signal handlers is undone."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def numbers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(150, 3))


@pytest.fixture(scope="session")
def mail(home: Path, numbers: np.ndarray) -> Trained:
    """Labels that are words, an odd number of features, missing values, a column to leave out."""
    texts = np.vectorize(lambda x: f"{x:.4f}")(numbers).astype(object)
    texts[5:20, 1], texts[0, 2] = "", "NA"
    length, links, score = texts.T
    table = write_rows(
        home / "mail.csv",
        id=[f"m{k}" for k in range(150)],
        length=length,
        links=links,
        score=score,
        label=np.where(numbers[:, 0] + numbers[:, 1] > 0, "spam", "ham"),
    )
    words = ("--target", "label", "--drop", "id", "--layers", 3, "--epochs", 20)
    return Trained(table, home / "mail", done("train", table, *words, "--out", home / "mail"))


@pytest.fixture(scope="session")
def houses(home: Path, numbers: np.ndarray) -> Trained:
    """A regression."""
    a, b, c = numbers.T
    table = write_rows(home / "houses.csv", a=a, b=b, c=c, price=1000 + 30 * a - 20 * b)
    words = ("--target", "price", "--layers", 3, "--epochs", 40, "--batch-size", 20)
    return Trained(table, home / "houses", done("train", table, *words, "--out", home / "houses"))


@pytest.fixture(scope="session")
def roll(home: Path) -> Path:
    """A planar problem, with recorded gradients."""
    words = ("--size", 200, "--layers", 4, "--epochs", 4, "--batch-size", 25, "--record", 2)
    done("train", "swiss-roll", *words, "--out", home / "roll")
    return home / "roll"


@pytest.fixture(scope="session")
def digits(home: Path) -> Path:
    """Images."""
    words = ("--layers", "1,1", "--width", "4,8", "--epochs", 3, "--lr", 0.02)
    options = ("--protocol", "convolutional", "--set", "model.norm=batch")
    done("train", "digits", *words, *options, "--out", home / "digits")
    return home / "digits"
