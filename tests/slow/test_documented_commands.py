"""Every command in the README and the documentation works as it is written there.

The commands of a page are executed one after the other in a folder of its own, which holds the
files that a reader would bring. Long ones get options that make them short.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from hdnn.cli import app
from hdnn.data import images as image_sets

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("", "sh", "shell", "bash", "console")
PROGRAMS = ("hdnn", "python", "pip", "make", "torchrun", "git", "docker", "apt", "conda")

NOT_EXECUTED = {
    "git clone ": "needs the network",
    "make ": "sets up an environment of its own",
    "pip install ": "needs the network",
    "hdnn --install-completion": "changes the files of the user's shell",
    "python benchmarks/": "measures for minutes: tests/test_bench.py",
}
"""How commands begin that cannot be executed here, and why."""


class Shown(NamedTuple):
    """A command as a page shows it."""

    page: str
    text: str

    @property
    def skipped(self) -> str | None:
        return next((start for start in NOT_EXECUTED if self.text.startswith(start)), None)


def tokens(page: Path) -> Iterator[Token]:
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def commands(page: Path) -> list[Shown]:
    """All commands of the code blocks of a page; lines after ``$ command`` are its output."""
    found = []
    for token in tokens(page):
        if token.type == "code_block" or (token.type == "fence" and token.info in SHELL):
            lines = token.content.replace("\\\n", " ").splitlines()
            if any(line.startswith("$ ") for line in lines):
                lines = [line[2:] for line in lines if line.startswith("$ ")]
            lines = [line for line in lines if line and not line.startswith("#")]
            if lines and lines[0].split(" ")[0] in PROGRAMS:
                parts = [part for line in lines for part in line.split(" ; ")]
                texts = [shlex.join(shlex.split(part, comments=True)) for part in parts]
                found += [Shown(page.name, text) for text in texts if text]
    return found


def idx(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a reader, with tables and images, a small MNIST, no network and no browser."""
    torch.set_default_dtype(torch.float32)  # as users have it; see conftest.py
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDNN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr("hdnn.playground.server.Server.serve_forever", lambda server: None)
    write_tables(tmp_path)
    write_images(tmp_path / "folder_by_class")
    shutil.copytree(tmp_path / "folder_by_class" / "cat", tmp_path / "folder")
    install_mnist(tmp_path / "data" / "mnist", monkeypatch)
    shutil.copytree(ROOT / "results", tmp_path / "results")  # to which a sweep adds what is missing
    return tmp_path


def write_tables(folder: Path) -> None:
    X = np.random.default_rng(0).normal(size=(80, 3))
    for name, target in (("data", "label"), ("customers", "churned")):
        rows = [f"{a:.3f},{b:.3f},{c:.3f},{'yes' if a > b else 'no'}" for a, b, c in X]
        (folder / f"{name}.csv").write_text("\n".join([f"a,b,c,{target}", *rows]) + "\n")
    (folder / "new.csv").write_text("\n".join(["a,b,c", *(r[: r.rindex(",")] for r in rows)]))
    import pandas

    pandas.read_csv(folder / "customers.csv").to_parquet(folder / "other.parquet")


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for k in range(10):
            pixels = rng.integers(0, 256, (28, 28), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")


def install_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    sums = []
    for name, count in zip(image_sets.IDX_FILES, (200, 200, 50, 50), strict=True):
        images = "images" in name
        content = idx(rng.integers(0, 256, (count, 28, 28)) if images else np.arange(count) % 10)
        (folder / name).write_bytes(content)
        sums.append(hashlib.sha256(content).hexdigest())
    small = replace(image_sets.IMAGE_SETS["mnist"], sha256=tuple(sums))
    monkeypatch.setitem(image_sets.IMAGE_SETS, "mnist", small)


SHORT = {
    "train": "--epochs 2",
    "demo": "--epochs 2",
    "reproduce table1": "--seeds 1 --data swiss-roll --architecture H1 --layers 4",
    "reproduce table2": "--seeds 1 --data digits --architecture H2 --layers 4 --epochs 1",
    "reproduce figure2": "--seeds 1 --quick",
}
"""Options that make commands short, in the place of their own values."""


def shortened(words: list[str]) -> list[str]:
    """A command with the options of `SHORT`; one that extends a run keeps its epochs.

    >>> shortened(["train", "iris", "--epochs", "50", "--lr", "1"])
    ['train', 'iris', '--lr', '1', '--epochs', '2']
    """
    name = next((n for n in SHORT if words[: len(n.split())] == n.split()), None)
    if name is None or "--resume" in words or "--help" in words or "-h" in words:
        return words
    options = shlex.split(SHORT[name])
    kept, skip = [], False
    for word in words:
        if skip or word in options[::2]:
            skip = not skip and word != "--quick"
            continue
        kept.append(word)
    return [*kept, *options]


def execute(text: str) -> None:
    words = shortened(shlex.split(text)[1:])
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{words}: {result.output[-1000:]} {result.exception!r}"


def bring(text: str, place: Path) -> None:
    """Provide what a command takes by name and the page has not made: a run, moved data."""
    words = shlex.split(text)
    named = [word for word in words if word in ("run", "RUN") and not (place / word).exists()]
    if named and words[words.index(named[0]) - 1] != "--out":
        execute(f"hdnn train data.csv --target label --layers 16 --out {named[0]}")
    if "PATH" in words:
        shutil.copy(place / "data.csv", place / "PATH")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_work_in_order(page: Path, reader: Path) -> None:
    for shown in commands(page):
        if shown.skipped is None:
            assert shown.text.startswith("hdnn "), f"{shown.text}: say in NOT_EXECUTED why not"
            bring(shown.text, reader)
            execute(shown.text)
    assert threading.active_count() < 20


def test_no_reason_is_stale() -> None:
    shown = [command for page in PAGES for command in commands(page)]
    assert len(shown) > 40
    assert {command.skipped for command in shown} - {None} == set(NOT_EXECUTED)


def test_commands_in_sentences_exist_with_their_options() -> None:
    """``hdnn train --resume run`` in the text: the command and its options are there."""
    for page in PAGES:
        for token in tokens(page):
            words = token.content.split() if token.type == "code_inline" else []
            if words[:1] == ["hdnn"] and words[1:]:
                check_words(f"{page.name}: {token.content}", words[1:])


def check_words(where: str, words: list[str]) -> None:
    known = get_command(app)
    context = known.make_context("hdnn", [], resilient_parsing=True)
    while words and hasattr(known, "commands") and re.fullmatch(r"[a-z0-9]+", words[0]):
        name, known, rest = known.resolve_command(context, words)
        assert known is not None, f"{where}: there is no command {name}"
        words = rest
    options = {name for param in known.get_params(context) for name in param.opts}
    options |= {name for param in known.get_params(context) for name in param.secondary_opts}
    given = {word.split("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
    assert given <= options, f"{where}: there is no option {given - options}"
