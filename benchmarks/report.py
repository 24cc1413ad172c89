"""Writes the tables and the figure of docs/performance.md, and the README's, from the records.

python benchmarks/bench.py --jax ... --json > benchmarks/results.json
python benchmarks/bench.py --group crossovers --seconds 0.5 --json > benchmarks/crossovers.json
python benchmarks/training.py --json > benchmarks/training.json
python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import training
from hdnn.plots import LIGHT, clean, label_ends, new_figure, save_figure
from hdnn.plots.style import NORMAL

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
README = HERE.parent / "README.md"
FIGURE = HERE.parent / "docs" / "figures" / "performance.svg"
PEERS = {
    "loop": "plain PyTorch",
    "reference": "reference",
    "compile": "torch.compile",
    "torchdiffeq": "torchdiffeq",
}
"""Columns of the table after those of JAX."""
NAMES = {
    "reference": (1, "plain PyTorch"),
    "fused": (0, "hdnn"),
    "lean": (2, "lean memory"),
}
"""Numbers in the palette, and labels."""
README_WORKS = (("H1", 4, None), ("MS3", 4, 16), ("H2", 8, None), ("H1", 256, None))


def name(case: dict[str, Any]) -> str:
    """The work of a row."""
    size = f"n = {case['width']}, "
    size += f"{case['batch']} images of 28 x 28" if case["pixels"] else f"batch {case['batch']}"
    many = f", {case['ensemble']} networks" if case["ensemble"] else ""
    return f"{case['architecture']}, {size}, {case['layers']} layers{many}"


def own(record: dict[str, Any]) -> float:
    """Seconds of hdnn through autograd."""
    seconds = record["seconds"]
    return float((seconds.get("fused") or seconds["auto"])["median"])


def times(record: dict[str, Any], peer: str) -> str:
    """How many times longer a peer takes."""
    seconds = record["seconds"]
    return f"{seconds[peer]['median'] / own(record):.1f}x" if peer in seconds else "-"


def jax_peers(records: dict[str, Any]) -> list[str]:
    """The versions of JAX, the fastest for the first case first."""
    seconds = records["cases"][0]["seconds"]
    versions = [peer for peer in seconds if peer.startswith("jax")]
    return sorted(versions, key=lambda peer: seconds[peer]["median"])


def speed_table(records: dict[str, Any]) -> str:
    """Milliseconds of hdnn, and how many times longer each peer takes."""
    peers = {peer: peer.replace("jax", "JAX") for peer in jax_peers(records)} | PEERS
    heads = ["work", "hdnn, ms (quartiles)", "`vjp`, ms", *peers.values()]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for record in records["cases"]:
        seconds = record["seconds"]
        ours = seconds.get("fused") or seconds["auto"]
        low, mid, high = (1e3 * ours[key] for key in ("low", "median", "high"))
        direct = f"{1e3 * seconds['vjp']['median']:.3g}" if "vjp" in seconds else "-"
        cells = [f"{mid:.3g} ({low:.3g} to {high:.3g})", direct, *(times(record, p) for p in peers)]
        lines.append(_row([name(record["case"]), *cells]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def readme_table(records: dict[str, Any], trained: dict[str, Any]) -> str:
    """The few rows that the README shows: the strongest JAX, and plain PyTorch."""
    lines = [
        "| work | hdnn | strongest JAX | plain PyTorch |",
        "| --- | --- | --- | --- |",
    ]
    for architecture, width, ensemble in README_WORKS:
        record = next(
            r
            for r in records["cases"]
            if (r["case"]["architecture"], r["case"]["width"], r["case"]["ensemble"])
            == (architecture, width, ensemble)
        )
        peers = [peer for peer in record["seconds"] if peer.startswith("jax")]
        best = min(peers, key=lambda peer: record["seconds"][peer]["median"], default=None)
        jax = f"{times(record, best)} ({best.removeprefix('jax ')})" if best else "-"
        cells = [f"{1e3 * own(record):.3g} ms", jax, times(record, "loop")]
        lines.append(_row([name(record["case"]), *cells]))
    seconds = trained["seconds"]
    whole = f"a whole training of H1, 64 layers, {trained['epochs']} epochs"
    ratio = f"{seconds['eager'] / seconds['single']:.0f}x"
    return "\n".join([*lines, _row([whole, f"{seconds['single']:.2g} s", "-", ratio])])


def crossover_table(records: dict[str, Any]) -> str:
    """Networks down, sizes across: reference / fused, float32 / float64."""
    cells: dict[tuple[str, int], dict[tuple[int, int], list[str]]] = {}
    for record in records["cases"]:
        case = record["case"]
        row = cells.setdefault((case["architecture"], case["width"]), {})
        ratio = f"{_ratio(record, 'reference', 'fused'):.2f}"
        row.setdefault((case["batch"], case["layers"]), []).append(ratio)
    sizes = sorted({size for row in cells.values() for size in row})
    heads = ["network", "n", *(f"{batch} samples, {layers} layers" for batch, layers in sizes)]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for (architecture, width), row in cells.items():
        ratios = [" / ".join(row[size]) if size in row else "-" for size in sizes]
        lines.append(_row([architecture, str(width), *ratios]))
    return "\n".join(lines)


def facts(records: dict[str, Any]) -> str:
    """The single measurements."""
    ratio = _ratio(records["sensitivities"], "batched vjp", "fused")
    flops = records["peak"]["flops"]
    cases = {case["case"]["group"]: case for case in records["cases"]}
    scaling = _ratio(cases["images"], "fused, 1 thread", "fused")
    lean = _ratio(cases["wide"], "lean", "auto")
    return "\n".join(
        [
            "- Sensitivities d y_N / d y_l of all layers (H1, n = 4, batch 125, 64 layers):"
            f" {ratio:.0f}x faster than n batched vector-Jacobian products through one graph.",
            f"- {records['machine']['threads']} threads are {scaling:.2f}x as fast as one"
            " (MS1, images).",
            f"- Share of the machine's sgemm rate ({flops['sgemm'] / 1e9:.0f} GFLOP/s at"
            f" 1024 x 1024), H2, images: forward {flops['forward'] / flops['sgemm']:.0%}, forward"
            f" and backward {flops['both'] / flops['sgemm']:.0%}. Counted are products only:"
            " 2 m (r + w) a stage, layer and sample forward, three times that backward"
            " (recomputation, state, parameters); nothing for tanh.",
            f'- `memory="lean"` at n = 256, 16 layers, batch 4096 takes {lean:.2f}x the time of'
            ' `"fast"`.',
        ]
    )


def _ratio(record: dict[str, Any], slow: str, fast: str) -> float:
    seconds = record["seconds"]
    return float(seconds[slow]["median"] / seconds[fast]["median"])


def memory_table(records: dict[str, Any]) -> str:
    """Peak extra memory against depth."""
    depths = sorted({row["layers"] for row in records["memory"]})
    lines = [
        f"| backend, memory, n, rows | {' | '.join(f'{d} layers' for d in depths)} |",
        f"| --- |{' --- |' * len(depths)}",
    ]
    keys = list(
        dict.fromkeys((r["backend"], r["memory"], r["width"], r["rows"]) for r in records["memory"])
    )
    for key in keys:
        found = {
            r["layers"]: f"{r['megabytes']:.{1 if r['megabytes'] < 10 else 0}f} MB"
            for r in records["memory"]
            if (r["backend"], r["memory"], r["width"], r["rows"]) == key
        }
        cells = " | ".join(found.get(depth, "-") for depth in depths)
        lines.append(f"| {key[0]}, {key[1]}, {key[2]}, {key[3]} | {cells} |")
    return "\n".join(lines)


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
            times = [1e3 * r["seconds"][peer]["median"] for r in rows]
            _plot(axis, [r["case"][key] for r in rows], times, peer)
    for backend, kind in (("reference", "fast"), ("reference", "lean"), ("fused", "fast")):
        key = (backend, kind, 8)
        rows = [r for r in records["memory"] if (r["backend"], r["memory"], r["width"]) == key]
        sizes = [max(r["megabytes"], 0.1) for r in rows]
        _plot(right, [r["layers"] for r in rows], sizes, "lean" if kind == "lean" else backend)
    for axis, title, label in (
        (left, "forward + backward, ms", "layers (width 4, batch 125)"),
        (middle, "forward + backward, ms", "width (16 layers, batch 1024)"),
        (right, "peak extra memory, MB", "layers (width 8, 78,400 rows)"),
    ):
        axis.set_title(title, fontsize=NORMAL, loc="left")
        axis.set_xlabel(label)
        clean(axis)
    for axis in (left, middle, right):
        label_ends(axis)
    FIGURE.parent.mkdir(exist_ok=True)
    save_figure(figure, FIGURE)


def _plot(axis: Any, x: list[float], y: list[float], name: str) -> None:
    number, label = NAMES[name]
    axis.loglog(x, y, "o-", ms=3, linewidth=1.6, color=LIGHT.color(number), label=label)


def fill(page: Path, parts: dict[str, str]) -> None:
    """Write each part between its marks."""
    text = page.read_text()
    for key, part in parts.items():
        pattern = rf"(<!-- {key} -->\n).*?(\n<!-- end -->)"
        text = re.sub(
            pattern, lambda m, part=part: m.group(1) + part + m.group(2), text, flags=re.S
        )
    page.write_text(text)


def main() -> None:
    """Fill the marked parts of the pages."""
    records, trained, crossed = (
        json.loads((HERE / f"{name}.json").read_text())
        for name in ("results", "training", "crossovers")
    )
    parts = {
        "speed": speed_table(records),
        "facts": facts(records),
        "memory": memory_table(records),
        "machine": machine(records),
        "training": training.table(trained),
        "crossovers": crossover_table(crossed),
    }
    fill(PAGE, parts)
    fill(README, {"speed": readme_table(records, trained)})
    draw(records)


if __name__ == "__main__":
    main()
