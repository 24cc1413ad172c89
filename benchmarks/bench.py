r"""Measures speed and memory against peers: medians of one interleaved run.

    python benchmarks/bench.py --json > benchmarks/results.json     the whole table
    python benchmarks/bench.py --group small --seconds 6            some rows of it, longer
    HDNN_ISA=avx2 python benchmarks/bench.py --group crossovers --json \
        > benchmarks/crossovers/avx2-2.json                         instruction set and threads

Peers in JAX run in environments of their own, as the fastest JAX on CPUs is an old one:

    python3 -m venv old-jax && old-jax/bin/pip install jax==0.4.31 jaxlib==0.4.31 'numpy<2.1'
    python benchmarks/bench.py --jax .venv/bin/python --jax old-jax/bin/python
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from speed.cases import CASES, CROSSOVERS, SWEEP
from speed.measure import machine, measure
from speed.memory import measure_memory
from speed.training import measure_training


def main(arguments: Sequence[str] | None = None) -> None:
    """Print lines to stderr, and the records as JSON where asked for."""
    groups = sorted({case.group for case in (*CASES, *SWEEP, *CROSSOVERS)})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case")
    parser.add_argument("--group", action="append", choices=groups, help="only these cases")
    parser.add_argument(
        "--jax", action="append", default=[], metavar="PYTHON", help="an interpreter with JAX"
    )
    options = parser.parse_args(arguments)
    seconds, jax = options.seconds, options.jax
    records = {"machine": machine()}
    if options.group:
        selected = [case for case in (*CASES, *SWEEP, *CROSSOVERS) if case.group in options.group]
        records["cases"] = [measure(case, seconds, jax) for case in selected]
    else:
        records["cases"] = [measure(case, seconds, jax) for case in CASES]
        records["training"] = measure_training(jax)
        records["memory"] = measure_memory()
        records["sweep"] = [measure(case, seconds / 2) for case in SWEEP]
    if options.json:
        print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
