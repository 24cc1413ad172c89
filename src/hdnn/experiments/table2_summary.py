"""Records of Table 2 against the published values, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hdnn.experiments.table2 import PROTOCOLS, ImageCell, ImageRecord, table2


@dataclass(frozen=True)
class ImageRow:
    """A cell with what the records say of it; accuracies in per cent."""

    architecture: str
    layers: int
    published_train: float | None
    published_test: float | None
    train: float
    test: float
    deviation: float
    minimum: float
    maximum: float
    seeds: int
    epochs: int
    epoch_seconds: float
    parameters: int

    @property
    def reached(self) -> bool | None:
        """Whether the mean reaches the published test accuracy at the paper's rounding to 0.01."""
        if self.published_test is None:
            return None
        return round(self.test, 2) >= self.published_test


def summarise(
    cells: Sequence[ImageCell], records: Iterable[ImageRecord], protocol: str
) -> list[ImageRow]:
    """A row for every cell that has records on MNIST under a protocol."""
    rows, records = [], list(records)
    for cell in cells:
        found = [
            r
            for r in records
            if (r.data, r.architecture, r.layers, r.protocol)
            == ("mnist", cell.architecture, cell.layers, protocol)
        ]
        if not found:
            continue
        test = 100 * np.array([record.test_accuracy for record in found])
        rows.append(
            ImageRow(
                cell.architecture,
                cell.layers,
                cell.train,
                cell.test,
                100 * float(np.mean([record.train_accuracy for record in found])),
                float(test.mean()),
                float(test.std(ddof=1)) if len(test) > 1 else 0.0,
                float(test.min()),
                float(test.max()),
                len(test),
                max(r.epochs for r in found),
                float(np.mean([record.epoch_seconds for record in found])),
                found[0].parameters,
            )
        )
    return rows


HEADINGS = (
    "network",
    "layers",
    "parameters",
    "train, paper",
    "train",
    "test, paper",
    "test",
    "std",
    "seeds",
    "s an epoch",
    "reached",
)
SPARE = ("parameters", "train, paper", "s an epoch", "train")
"""Those that a narrow terminal can do without, the least important first."""


def cells_of(row: ImageRow) -> list[str]:
    """The texts of a row, in the order of the headings."""

    def number(value: float | None, decimals: int) -> str:
        return "-" if value is None else f"{value:.{decimals}f}"

    reached = {None: "-", True: "yes", False: "no"}[row.reached]
    return [
        row.architecture,
        str(row.layers),
        str(row.parameters),
        number(row.published_train, 3),
        number(row.train, 3),
        number(row.published_test, 2),
        number(row.test, 2),
        number(row.deviation, 2) if row.seeds > 1 else "-",
        str(row.seeds),
        number(row.epoch_seconds, 1),
        reached,
    ]


def markdown(rows: Sequence[ImageRow]) -> str:
    """The table as Markdown."""
    lines = [" | ".join(HEADINGS), " | ".join("---" for _ in HEADINGS)]
    lines += [" | ".join(cells_of(row)) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def page(records: Iterable[ImageRecord]) -> str:
    """The page beside the records: every protocol that has any, with its command."""
    records = list(records)
    versions = ", ".join(sorted({record.version for record in records}))
    parts = [
        "# Table 2: records\n",
        "`records.jsonl` holds one training a line: MNIST, 60,000 training and 10,000 test "
        "pictures, accuracies\nof the final epoch (never the best on the test set), mean over "
        f"seeds. hdnn {versions}. This page is written by the commands below;\nwhat they mean is "
        "in [docs/images.md](../../docs/images.md). Seconds an epoch are wall time of one thread "
        "beside whatever else\nthe machine did.\n",
    ]
    for name, protocol in PROTOCOLS.items():
        rows = summarise(table2(), records, name)
        if not rows:
            continue
        judged = [row for row in rows if row.reached is not None]
        seeds = max(row.seeds for row in rows)
        extra = " --architecture convolution" if len(judged) < len(rows) else ""
        lines = [f"## `{name}`: {protocol.summary}\n", "```"]
        lines.append(
            f"hdnn reproduce table2 --protocol {name} --seeds {seeds} --out results/table2"
        )
        if extra:
            lines.append(f"{lines[-1]}{extra}")
        lines += [
            "```\n",
            f"The mean reaches the published test accuracy in "
            f"{sum(bool(row.reached) for row in judged)} of {len(judged)} cells.\n",
            markdown(rows),
        ]
        parts.append("\n".join(lines))
    return "\n".join(parts)
