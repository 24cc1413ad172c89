"""Commands of the command line as a test gives them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner, Result

from hdnn.cli import app


class Trained(NamedTuple):
    """A table and the run that was trained on it by the command line."""

    table: Path
    run: Path
    result: Result


def command(*words: object) -> Result:
    """Run a command, whatever its exit code."""
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> Result:
    """Run a command that has to succeed."""
    result = command(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def record(*words: object) -> Any:
    """What a command with --json reports: strict JSON and nothing else on standard output."""

    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(done(*words, "--json").stdout, parse_constant=fail)


def fails(code: int, words: tuple[object, ...], *said: str) -> None:
    """A command ends with an exit code and one message, without a traceback or other output."""
    result = command(*words)
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    message = result.stderr.split("error: ", 1)[1]  # notes on the data may come before it
    for words_ in said:
        assert words_ in message


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, **columns: Any) -> Path:
    """Write a CSV file from its columns."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path
