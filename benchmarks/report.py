r"""Writes the tables and the figure of docs/performance.md, and the README's, from the records.

python benchmarks/bench.py --jax ... --json > benchmarks/results.json
HDNN_ISA=avx2 OMP_NUM_THREADS=1 python benchmarks/bench.py --group crossovers --json \
    > benchmarks/crossovers/avx2-1.json     # and avx512, baseline; one and two threads
OMP_NUM_THREADS=1 python benchmarks/recurrent.py --jax ... --json > benchmarks/recurrent.json
python benchmarks/report.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pages import fill, finish
from speed.cases import Case

from hdnn.paper.summaries import markdown
from hdnn.plots import LIGHT, label_ends, new_figure, save_figure

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
README = HERE.parent / "README.md"
FIGURE = HERE.parent / "docs" / "figures" / "performance.svg"
PEERS = {"loop": "plain PyTorch", "reference": "reference", "compile": "torch.compile"}
"""Columns of the table after those of JAX."""
LINES = {
    "reference": (1, "plain PyTorch"),
    "fused": (0, "hdnn"),
    "lean": (2, "lean memory"),
}
"""Of the figure: numbers in the palette, and labels."""
ISA = {"avx512": "AVX-512", "avx2": "AVX2", "baseline": "baseline"}
README_ROWS = (0, 5, 7, 9, 11, 14)
"""A small network, an ensemble, a shallow one, one sample, images, and a wide network."""


def load(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def speeds(records: dict[str, Any]) -> pd.DataFrame:
    """A row a work: milliseconds of hdnn, and how many times longer each peer takes.

    A peer that was measured apart (torch.compile) is compared with hdnn of its own run.
    """
    rows: dict[str, dict[str, Any]] = {}
    for record in records["cases"]:
        seconds = record["seconds"]
        own = seconds.get("fused") or seconds["auto"]
        low, middle, high = (f"{1e3 * own[key]:.3g}" for key in ("low", "median", "high"))
        row = {"quartiles": f"{middle} ({low} to {high})", "hdnn": f"{middle} ms"}
        row |= {peer: timing["median"] / own["median"] for peer, timing in seconds.items()}
        work = Case(**record["case"]).name
        rows[work] = row | rows.get(work, {})
    return pd.DataFrame.from_dict(rows, orient="index")


def times(ratio: float) -> str:
    """2.6x, or - where it was not measured."""
    return "-" if pd.isna(ratio) else f"{ratio:.1f}x"


def speed_table(records: dict[str, Any]) -> str:
    """hdnn, and how many times longer each peer takes; the fastest JAX first."""
    frame = speeds(records)
    jax = frame.iloc[0].filter(like="jax").sort_values().index
    peers = {peer: peer.replace("jax", "JAX") for peer in jax} | PEERS
    frame[list(peers)] = frame[list(peers)].map(times)
    columns = frame[["quartiles", *peers]].fillna("-")
    heads = ["work", "hdnn, ms (quartiles)", *peers.values()]
    return markdown(heads, [[work, *cells] for work, *cells in columns.itertuples()], left=1)


def readme_table(records: dict[str, Any]) -> str:
    """The few rows that the README shows: the strongest JAX, and plain PyTorch."""
    rows = []
    for work, row in speeds(records).iloc[list(README_ROWS)].iterrows():
        jax = row.filter(like="jax").dropna().astype(float)
        best = f"{times(jax.min())} ({jax.idxmin().removeprefix('jax ')})" if len(jax) else "-"
        rows.append([work, row.hdnn, best, times(row.loop)])
    seconds, epochs = (records["training"][key] for key in ("seconds", "epochs"))
    jax = {name: seconds[name] / seconds["joint"] for name in seconds if name.startswith("jax")}
    best = min(jax, key=lambda name: jax[name])
    whole = f"a whole training of H1, 64 layers, {epochs} epochs"
    peers = f"{times(jax[best])} ({best.removeprefix('jax ')})", "-"
    rows.append([f"{whole}, joint", f"{seconds['joint']:.2g} s", *peers])
    ratio = f"{seconds['eager'] / seconds['single']:.0f}x"
    rows.append([f"{whole}, coordinate", f"{seconds['single']:.2g} s", "-", ratio])
    return markdown(["work", "hdnn", "strongest JAX", "plain PyTorch"], rows, left=1)


def training_table(records: dict[str, Any]) -> str:
    """Whole trainings, by hdnn and by others."""
    seconds = records["training"]["seconds"]
    jax = [name for name in seconds if name.startswith("jax")]
    rows = [["coordinate descent", f"{seconds['single']:.3f} s", *("-" for _ in jax)]]
    rows[0].append(f"{seconds['eager'] / seconds['single']:.0f}x")
    ratios = [times(seconds[name] / seconds["joint"]) for name in jax]
    rows.append(["joint", f"{seconds['joint']:.3f} s", *ratios, "-"])
    heads = ["training", "hdnn", *(name.replace("jax", "JAX") for name in jax), "plain PyTorch"]
    return markdown(heads, rows, left=1)


def crossover_table() -> str:
    """Kernels, networks and sizes down, widths across: reference / fused."""
    frames = []
    places = [(isa, threads) for isa in ISA for threads in ("1", "2")]
    for isa, threads in places:
        path = HERE / "crossovers" / f"{isa}-{threads}.json"
        if not path.exists():
            continue
        frame = pd.json_normalize(json.loads(path.read_text())["cases"])
        frames.append(frame.assign(kernels=f"{ISA[isa]}, {threads} thread{'s'[: threads != '1']}"))
    frame = pd.concat(frames)
    frame["ratio"] = frame["seconds.reference.median"] / frame["seconds.fused.median"]
    place = ["kernels", "case.architecture", "case.batch", "case.layers"]
    wide = frame.pivot_table("ratio", place, "case.width", sort=False).map("{:.2f}".format)
    rows = [
        [kernels, f"{architecture}, {batch} samples, {layers} layers", *ratios]
        for (kernels, architecture, batch, layers), *ratios in wide.itertuples()
    ]
    return markdown(["kernels", "network", *(f"n = {n}" for n in wide)], rows, left=2)


def memory_table(records: dict[str, Any]) -> str:
    """Peak extra memory against depth."""
    frame = pd.DataFrame(records["memory"])
    place = ["backend", "memory", "width", "rows"]
    wide = frame.set_index([*place, "layers"]).megabytes.unstack()
    wide = wide.loc[list(dict.fromkeys(frame[place].itertuples(index=False, name=None)))]
    cells = wide.map(lambda v: "-" if pd.isna(v) else f"{v:.{1 if v < 10 else 0}f} MB")
    return markdown(
        ["backend, memory, n, rows", *(f"{depth} layers" for depth in wide)],
        [[", ".join(map(str, key)), *row] for key, *row in cells.itertuples()],
        left=1,
    )


def recurrent_table(rows: list[dict[str, Any]]) -> str:
    """State-space networks and their peers: from weights, then from the matrices of a step."""
    frame = pd.json_normalize(rows).rename(columns=lambda name: name.removeprefix("seconds."))
    jax = next(name for name in frame if name.startswith("jax"))
    cells = frame[["times", "states", "batch"]].astype(str)
    groups = {"hdnn": ["LSTM", "GRU", "loop"], "kernels": [jax, "loop of matrices"]}
    for own, peers in groups.items():
        cells[own] = (1e3 * frame[own]).map("{:.3g}".format)
        cells[peers] = frame[peers].div(frame[own], axis=0).map(times)
    heads = ["steps", "states", "batch", "hdnn, ms", "LSTM", "GRU", "loop"]
    heads += ["kernels, ms", jax.replace("jax", "JAX"), "loop of matrices"]
    return markdown(heads, cells.to_numpy().tolist(), left=0)


def cell_table(records: dict[str, Any]) -> str:
    """Microseconds of `cell.step`: batches down, states across."""
    steps: dict[str, dict[str, str]] = {}
    for name, seconds in records["steps"].items():
        states, batch = name.split(", ")
        steps.setdefault(batch, {})[states] = f"{1e6 * seconds:.1f}"
    rows = [[batch, *cells.values()] for batch, cells in steps.items()]
    return markdown(["", *next(iter(steps.values()))], rows, left=1)


def recurrent_memory(records: dict[str, Any]) -> str:
    """Peak extra memory of a training step on long sequences."""
    found = records["memory"]["megabytes"]
    return markdown(list(found), [[f"{own:.0f} MB" for own in found.values()]], left=0)


def trajectory_table(records: dict[str, Any]) -> str:
    """All states of networks, by kernels and by the reference."""
    rows = [
        [name, f"{1e3 * own['fused']:.3g}", times(own["reference"] / own["fused"])]
        for name, own in records["trajectories"].items()
    ]
    return markdown(["network", "kernels, ms", "reference"], rows, left=1)


def machine(records: dict[str, Any]) -> str:
    """What it was measured on."""
    return ", ".join(f"{key} {value}" for key, value in records["machine"].items())


def draw(records: dict[str, Any]) -> None:
    """Time against depth and width, memory against depth."""
    figure = new_figure(11.0, 3.4)
    left, middle, right = figure.subplots(1, 3)
    for axis, group, key in ((left, "depth", "layers"), (middle, "width", "width")):
        rows = [r for r in records["sweep"] if r["case"]["group"] == group]
        for peer in ("reference", "fused"):
            milliseconds = [1e3 * r["seconds"][peer]["median"] for r in rows]
            _plot(axis, [r["case"][key] for r in rows], milliseconds, peer)
    memory = pd.DataFrame(records["memory"]).query("width == 8")
    for (backend, kind), part in memory.groupby(["backend", "memory"], sort=False):
        _plot(right, part.layers, part.megabytes, "lean" if kind == "lean" else backend)
    for axis, title, label in (
        (left, "forward + backward, ms", "layers (width 4, batch 125)"),
        (middle, "forward + backward, ms", "width (16 layers, batch 1024)"),
        (right, "peak extra memory, MB", "layers (width 8, 78,400 rows)"),
    ):
        finish(axis, title, label)
        label_ends(axis)
    save_figure(figure, FIGURE)


def _plot(axis: Any, x: Sequence[float], y: Sequence[float], line: str) -> None:
    number, label = LINES[line]
    axis.loglog(x, y, "o-", ms=3, linewidth=1.6, color=LIGHT.color(number), label=label)


def main() -> None:
    """Fill the marked parts of the pages."""
    records, recurrent = load("results"), load("recurrent")
    parts = {
        "recurrent machine": machine(recurrent),
        "recurrent": recurrent_table(recurrent["rows"]),
        "recurrent, two threads": recurrent_table(recurrent["two_threads"]),
        "recurrent memory": recurrent_memory(recurrent),
        "cell": cell_table(recurrent),
        "trajectories": trajectory_table(recurrent),
        "speed": speed_table(records),
        "memory": memory_table(records),
        "machine": machine(records),
        "training": training_table(records),
        "crossovers": crossover_table(),
    }
    PAGE.write_text(fill(PAGE.read_text(), parts))
    README.write_text(fill(README.read_text(), {"speed": readme_table(records)}))
    draw(records)


if __name__ == "__main__":
    main()
