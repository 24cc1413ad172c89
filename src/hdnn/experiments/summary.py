"""Records against published values: statistics, and the table in several forms."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hdnn.errors import HdnnError
from hdnn.experiments.records import Record
from hdnn.experiments.specs import Cell


@dataclass(frozen=True)
class Row:
    """A cell with what our records say of it; accuracies in per cent."""

    data: str
    architecture: str
    layers: int
    published: float
    mean: float
    deviation: float
    median: float
    minimum: float
    maximum: float
    seeds: int
    seconds: float

    @property
    def difference(self) -> float:
        return self.mean - self.published

    @property
    def reached(self) -> bool:
        """Whether the mean reaches the published value at the paper's rounding to 0.1."""
        return round(self.mean, 1) >= self.published


def summarise(cells: Sequence[Cell], records: Iterable[Record], name: str, split: str) -> list[Row]:
    """A row for every cell that has records under a protocol and split."""
    grouped: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        if (record.protocol, record.split) == (name, split):
            key = record.data, record.architecture, record.layers
            grouped.setdefault(key, []).append(record)
    rows = []
    for cell in cells:
        found = grouped.get((cell.data, cell.architecture, cell.layers))
        if found:
            values = 100 * np.array([record.test_accuracy for record in found])
            spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            rows.append(
                Row(
                    cell.data,
                    cell.architecture,
                    cell.layers,
                    cell.published,
                    float(values.mean()),
                    spread,
                    float(np.median(values)),
                    float(values.min()),
                    float(values.max()),
                    len(values),
                    float(np.mean([record.seconds for record in found])),
                )
            )
    return rows


HEADINGS = (
    "data",
    "network",
    "layers",
    "paper",
    "mean",
    "std",
    "median",
    "min",
    "max",
    "seeds",
    "difference",
    "reached",
)
SPARE = ("median", "seeds", "difference", "max", "min")
"""Those that a narrow terminal can do without, the least important first."""


def cells_of(row: Row) -> list[str]:
    """The texts of a row, in the order of the headings."""
    numbers = [row.published, row.mean, row.deviation, row.median, row.minimum, row.maximum]
    decimals = [1, 2, 2, 2, 2, 2]
    return [
        row.data,
        row.architecture,
        str(row.layers),
        *(f"{value:.{d}f}" for value, d in zip(numbers, decimals, strict=True)),
        str(row.seeds),
        f"{row.difference:+.2f}",
        "yes" if row.reached else "no",
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [" | ".join(HEADINGS), " | ".join("---" for _ in HEADINGS)]
    lines += [" | ".join(cells_of(row)) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def compact(rows: Sequence[Row]) -> str:
    """As the paper prints it: a line a depth, a column a network: published / mean +- std."""
    networks = list(dict.fromkeys(row.architecture for row in rows))
    lines = [f"| data, layers | {' | '.join(networks)} |", f"| --- |{' --- |' * len(networks)}"]
    places = list(dict.fromkeys((row.data, row.layers) for row in rows))
    for data, layers in places:
        texts = []
        for network in networks:
            row = next(
                (r for r in rows if (r.data, r.layers, r.architecture) == (data, layers, network)),
                None,
            )
            if row is None:
                texts.append("-")
                continue
            ours = f"{row.mean:.1f} ± {row.deviation:.1f}"
            texts.append(f"{row.published:.1f} / {f'**{ours}**' if row.reached else ours}")
        lines.append(f"| {data}, {layers} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def comma_separated(rows: Sequence[Row]) -> str:
    """The table as CSV, with all digits."""
    buffer = io.StringIO()
    names = [*asdict(rows[0]), "difference", "reached"] if rows else []
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([*asdict(row).values(), row.difference, row.reached])
    return buffer.getvalue()


def page(rows: Sequence[Row], title: str) -> str:
    """The table as an HTML page."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    body = "".join(
        f"<tr class={'reached' if row.reached else 'short'}>"
        + "".join(f"<td>{html.escape(text)}</td>" for text in cells_of(row))
        + "</tr>\n"
        for row in rows
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222 }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd }}
th:nth-child(-n+2), td:nth-child(-n+2) {{ text-align: left }}
.reached td:last-child {{ color: #1f7a33 }} .short td:last-child {{ color: #c1440e }}
</style></head><body><h1>{html.escape(title)}</h1>
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table></body></html>
"""


def claims(rows: Sequence[Row]) -> str:
    """The claims of section 4.1 as statements with numbers, whichever way they come out."""
    found = {(row.data, row.layers, row.architecture): row.mean for row in rows}
    lines = []
    for data, layers in dict.fromkeys((row.data, row.layers) for row in rows):
        ours = {a: found[data, layers, a] for a in ("H1", "H2") if (data, layers, a) in found}
        theirs = {
            a: found[data, layers, a] for a in ("MS1", "MS2", "MS3") if (data, layers, a) in found
        }
        if len(ours) < 2 or len(theirs) < 3:
            continue
        best = max(theirs, key=lambda name: theirs[name])
        lines.append(
            f"- {data}, {layers} layers: H1 {ours['H1']:.2f} and H2 {ours['H2']:.2f}, the best of "
            f"MS1 to MS3 {theirs[best]:.2f} ({best}), the worst {min(theirs.values()):.2f}; "
            f"H1 and H2 (equal parameter counts) differ by {abs(ours['H1'] - ours['H2']):.2f}."
        )
    return "\n".join(lines) + "\n" if lines else ""


MARKS = ("<!-- table1 -->\n", "<!-- end of table1 -->")


def fill(text: str, table: str) -> str:
    """A page with the table between its marks."""
    start, end = (text.find(mark) for mark in MARKS)
    if start < 0 or end < start:
        raise HdnnError(f"the page has no marks {MARKS[0].strip()} ... {MARKS[1]}")
    return text[: start + len(MARKS[0])] + table + text[end:]
