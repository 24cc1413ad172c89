"""Every command in the README and the documentation works as it is written there.

The commands of a page are executed one after the other in a folder of its own, which holds the
files that a reader would bring. Long ones get options that make them short.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.main import get_command

from commands import done
from hdnn.cli import app
from hdnn.data import images as image_sets
from stress import one_thread, write_images

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
SHORT = {
    "train": "--epochs 2",
    "demo": "--epochs 2",
    "identify": "--states 1 --units 1 --restarts 1",
    "reproduce table1": "--seeds 1 --data swiss-roll --architecture H1 --layers 4",
    "reproduce table2": "--seeds 1 --data digits --architecture H2 --layers 4 --epochs 1",
    "reproduce figure2": "--seeds 1 --quick",
}
"""Options that make commands short, in the place of their own values."""


def tokens(page: Path) -> Iterator[Token]:
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def commands(page: Path) -> Iterator[str]:
    """All commands of the code blocks of a page; lines after ``$ command`` are its output."""
    for token in tokens(page):
        if token.type == "code_block" or (token.type == "fence" and token.info in SHELL):
            lines = token.content.replace("\\\n", " ").splitlines()
            if any(line.startswith("$ ") for line in lines):
                lines = [line[2:] for line in lines if line.startswith("$ ")]
            lines = [line for line in lines if line and not line.startswith("#")]
            if lines and lines[0].split(" ")[0] in PROGRAMS:
                for part in (part for line in lines for part in line.split(" ; ")):
                    yield shlex.join(shlex.split(part, comments=True))


def skipped(command: str) -> str | None:
    return next((start for start in NOT_EXECUTED if command.startswith(start)), None)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a reader, with tables and images, a small MNIST, no network and no browser."""
    one_thread()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDNN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr("hdnn.playground.server.Server.serve_forever", lambda server: None)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=list("abc"))
    label = np.where(frame.a > frame.b, "yes", "no")
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.assign(label=label).to_csv(tmp_path / "data.csv", index=False)
    frame.assign(churned=label).to_csv(tmp_path / "customers.csv", index=False)
    frame.assign(churned=label).to_parquet(tmp_path / "other.parquet")
    signals = pd.DataFrame({"t": np.arange(200) / 2, "pump": np.arange(200) // 20 % 2})
    signals["level"] = signals["pump"].ewm(alpha=0.1).mean()
    for name in ("recording", "new_inputs", "another"):
        signals.to_csv(tmp_path / f"{name}.csv", index=False)
    write_images(tmp_path / "folder_by_class")
    shutil.copytree(tmp_path / "folder_by_class" / "dark", tmp_path / "folder")
    install_mnist(tmp_path / "data" / "mnist", monkeypatch)
    shutil.copytree(ROOT / "results", tmp_path / "results")  # to which a sweep adds what is missing
    return tmp_path


def install_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, sums = np.random.default_rng(0), []
    folder.mkdir(parents=True)
    for name, count in zip(image_sets.IDX_FILES, (200, 200, 50, 50), strict=True):
        array = rng.integers(0, 256, (count, 28, 28)) if "images" in name else np.arange(count) % 10
        sizes = np.array(array.shape, dtype=">u4").tobytes()
        content = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
        (folder / name).write_bytes(content)
        sums.append(hashlib.sha256(content).hexdigest())
    small = replace(image_sets.IMAGE_SETS["mnist"], sha256=tuple(sums))
    monkeypatch.setitem(image_sets.IMAGE_SETS, "mnist", small)


def shortened(words: list[str]) -> list[str]:
    """A command with the options of `SHORT`; one that extends a run keeps its epochs.

    >>> shortened(["train", "iris", "--epochs", "50", "--lr", "1"])
    ['train', 'iris', '--lr', '1', '--epochs', '2']
    """
    name = next((n for n in SHORT if words[: len(n.split())] == n.split()), None)
    if name is None or {"--resume", "--help", "-h"}.intersection(words):
        return words
    options = SHORT[name].split()
    text = " ".join(map(shlex.quote, words))
    for option in options[::2]:
        text = re.sub(rf" {option} \S+", "", text)
    return [*shlex.split(text), *options]


def bring(words: list[str], folder: Path) -> None:
    """Provide what a command takes by name and the page has not made: a run, moved data."""
    for place, word in enumerate(words):
        if word in ("run", "RUN") and words[place - 1] != "--out" and not (folder / word).exists():
            options = ("--target", "label", "--layers", 16, "--epochs", 2)
            done("train", "data.csv", *options, "--out", word)
    if "PATH" in words:
        shutil.copy(folder / "data.csv", folder / "PATH")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_work_in_order(page: Path, reader: Path) -> None:
    for command in commands(page):
        if skipped(command) is None:
            program, *words = shlex.split(command)
            assert program == "hdnn", f"{command}: say in NOT_EXECUTED why not"
            bring(words, reader)
            done(*shortened(words))


def test_no_reason_is_stale() -> None:
    shown = [command for page in PAGES for command in commands(page)]
    assert len(shown) > 40
    assert {skipped(command) for command in shown} - {None} == set(NOT_EXECUTED)


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
        name, known, words = known.resolve_command(context, words)
        assert known is not None, f"{where}: there is no command {name}"
    parameters = known.get_params(context)
    options = {name for param in parameters for name in (*param.opts, *param.secondary_opts)}
    written = {word.split("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
    assert written <= options, f"{where}: there is no option {written - options}"
