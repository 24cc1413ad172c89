"""Tables for people and for programs: Markdown, CSV, HTML, JSON and the terminal."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.plots import DARK, LIGHT, Theme

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table whose rows are of type T.

    Args:
        heading: for people; without one the column is for programs only.
        value: of a row.
        form: how `format` writes the value for people.
        name: in CSV and JSON, where it is not the heading.
        spare: the columns with the largest numbers leave a narrow terminal first; 0 stays.
    """

    heading: str
    value: Callable[[T], Any]
    form: str = ""
    name: str = ""
    spare: int = 0

    def text(self, row: T) -> str:
        """For people; what is not known is a dash."""
        value = self.value(row)
        if value is None:
            return "-"
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        return format(value, self.form)


@dataclass(frozen=True)
class Table(Generic[T]):
    """Columns and rows, in any form.

    Args:
        columns: in order.
        rows: what columns take their values from.
    """

    columns: Sequence[Column[T]]
    rows: Sequence[T]

    @property
    def shown(self) -> list[Column[T]]:
        """The columns for people."""
        return [column for column in self.columns if column.heading]

    def texts(self) -> list[list[str]]:
        """The rows for people."""
        return [[column.text(row) for column in self.shown] for row in self.rows]

    def data(self) -> list[dict[str, Any]]:
        """The rows for programs, with all digits."""
        return [
            {column.name or column.heading: _plain(column.value(row)) for column in self.columns}
            for row in self.rows
        ]

    def markdown(self) -> str:
        """As Markdown."""
        return markdown([column.heading for column in self.shown], self.texts())

    def csv(self) -> str:
        """As CSV, with all digits."""
        buffer = io.StringIO()
        names = [column.name or column.heading for column in self.columns] if self.rows else []
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.data())
        return buffer.getvalue()

    def html(self, title: str) -> str:
        """As a page; rows that end in yes or no are colored."""
        head = "".join(f"<th>{html.escape(column.heading)}</th>" for column in self.shown)
        body = "".join(
            f"<tr class={'reached' if texts[-1] == 'yes' else 'short'}>"
            + "".join(f"<td>{html.escape(text)}</td>" for text in texts)
            + "</tr>\n"
            for texts in self.texts()
        )
        colors = {"light": _colors(LIGHT), "dark": _colors(DARK)}
        return _PAGE.format(title=html.escape(title), head=head, body=body, **colors)

    def terminal(self, title: str, width: int) -> TerminalTable:
        """For a terminal of a width, without as many spare columns as it has no room for."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as TerminalTable

        texts = zip(*self.texts(), strict=True) if self.rows else [()] * len(self.shown)
        columns = dict(zip(self.shown, texts, strict=True)) if self.rows else {}
        widths = {c: max(map(len, (c.heading, *texts))) + 3 for c, texts in columns.items()}
        for column in sorted(columns, key=lambda column: -column.spare):
            if column.spare and sum(widths[c] for c in columns) > width:
                del columns[column]
        table = TerminalTable(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for column in columns:
            left = column.heading in ("data", "network")
            table.add_column(column.heading, justify="left" if left else "right", no_wrap=True)
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*cells, style="yellow" if cells[-1] == "no" else None)
        return table


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python, which JSON and CSV write as everybody expects."""
    return value.item() if isinstance(value, np.generic) else value


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts as Markdown.

    >>> print(markdown(["l", "norm"], [["1", "2.5"]]), end="")
    | l | norm |
    | --- | --- |
    | 1 | 2.5 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill(text: str, name: str, table: str) -> str:
    """A page with a table between the marks of a name.

    Raises:
        HdnnError: the page has no such marks.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    start, stop = text.find(begin), text.find(end)
    if start < 0 or stop < start:
        raise HdnnError(f"the page has no marks {begin.strip()} ... {end}")
    return text[: start + len(begin)] + table + text[stop:]


def write(path: Path, text: str) -> None:
    """Write a page, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text)


def _colors(theme: Theme) -> str:
    return (
        f"--paper:{theme.paper};--ink:{theme.ink};--muted:{theme.muted};--grid:{theme.grid};"
        f"--reached:{theme.color(2)};--short:{theme.color(1)}"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ {light} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 62rem;
  background: var(--paper); color: var(--ink) }}
div {{ overflow-x: auto }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--grid) }}
th {{ color: var(--muted); font-weight: 500 }}
th:nth-child(-n+2), td:nth-child(-n+2) {{ text-align: left }}
.reached td:last-child {{ color: var(--reached) }} .short td:last-child {{ color: var(--short) }}
</style></head><body><h1>{title}</h1>
<div><table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table></div></body></html>
"""
