"""Depth as a dial, measured: multilevel training, coarsening, second-order training, steps.

One thread. Records go to results/depth, one training a line; what is there is not trained again.
The page and the figure are made from them.

    python benchmarks/depth.py                         # what is missing, then the page
    python benchmarks/depth.py --study swiss-roll      # one study (repeats)
    python benchmarks/depth.py --page                  # the page only
"""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from depth_studies import page
from depth_studies.studies import STUDIES

from hdnn.files import read_json_lines

OUT = Path(__file__).resolve().parent.parent / "results" / "depth"


def key(record: dict[str, Any]) -> str:
    """What makes it the record of one training."""
    names = ("study", "data", "architecture", "layers", "kernel", "way", "seed")
    return json.dumps([record.get(name) for name in names])


def run(names: list[str], path: Path) -> None:
    """Measure what is missing, one record after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {key(record) for record in read(path)}
    for name in names:
        for case in STUDIES[name].cases():
            record = {"study": name, **case}
            if key(record) in known:
                continue
            record |= STUDIES[name].measure(case)
            record["version"] = metadata.version("hdnn")
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The records so far."""
    return read_json_lines(path, dict).objects


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", action="append", choices=list(STUDIES), help="default: all")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = given.out / "records.jsonl"
    if not given.page:
        run(given.study or list(STUDIES), records)
    page.write(read(records), given.out)


if __name__ == "__main__":
    main()
