"""Writes the tables and the figure of docs/performance.md, and the README's, from the records.

python benchmarks/bench.py --json > benchmarks/results.json
python benchmarks/training.py --json > benchmarks/training.json
python benchmarks/crossovers.py --json > benchmarks/crossovers.json
python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import crossovers

from hdnn.plots import LIGHT, clean, label_ends, new_figure, save_figure
from hdnn.plots.style import NORMAL

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
README = HERE.parent / "README.md"
FIGURE = HERE.parent / "docs" / "figures" / "performance.svg"
PEERS = ("reference", "compile", "jax", "jax-checkpoint", "torchdiffeq")
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


def speed_table(records: dict[str, Any]) -> str:
    """Milliseconds of hdnn, and how many times longer each peer takes."""
    lines = [
        "| work | hdnn, ms (quartiles) | reference | torch.compile | JAX scan | JAX checkpoint |"
        " torchdiffeq |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for record in records["cases"]:
        seconds = record["seconds"]
        ours = seconds.get("fused") or seconds["auto"]
        low, mid, high = (1e3 * ours[key] for key in ("low", "median", "high"))
        cells = [
            f"{seconds[peer]['median'] / ours['median']:.1f}x" if peer in seconds else "-"
            for peer in PEERS
        ]
        time = f"{mid:.3g} ({low:.3g} to {high:.3g})"
        lines.append(f"| {name(record['case'])} | {time} | {' | '.join(cells)} |")
    return "\n".join(lines)


def readme_table(records: dict[str, Any], trained: dict[str, Any]) -> str:
    """The few rows that the README shows: plain PyTorch and the faster of the two JAX programs."""
    lines = ["| work | hdnn | plain PyTorch | JAX |", "| --- | --- | --- | --- |"]
    for architecture, width, ensemble in README_WORKS:
        record = next(
            r
            for r in records["cases"]
            if (r["case"]["architecture"], r["case"]["width"], r["case"]["ensemble"] or None)
            == (architecture, width, ensemble)
        )
        seconds = record["seconds"]
        ours = (seconds.get("fused") or seconds["auto"])["median"]
        jax = [seconds[peer]["median"] for peer in ("jax", "jax-checkpoint") if peer in seconds]
        lines.append(
            f"| {name(record['case'])} | {1e3 * ours:.3g} ms |"
            f" {seconds['reference']['median'] / ours:.1f}x |"
            f" {f'{min(jax) / ours:.1f}x' if jax else '-'} |"
        )
    training = trained["training"]
    return "\n".join(
        [
            *lines,
            "| a whole training of H1, 64 layers, 50 epochs |"
            f" {training['seconds']['newton']:.2g} s | {training['ratios']['newton']:.0f}x | - |",
        ]
    )


def facts(records: dict[str, Any]) -> str:
    """The single measurements."""
    ratio = _ratio(records["sensitivities"], "batched vjp", "fused")
    flops = records["peak"]["flops"]
    counts = sorted(records["threads"]["seconds"], key=int)
    scaling = _ratio(records["threads"], counts[0], counts[-1])
    lean = _ratio(records["lean"], "lean", "fast")
    first = records["first_call"]["seconds"]
    return "\n".join(
        [
            "- Sensitivities d y_N / d y_l of all layers (H1, n = 4, batch 125, 64 layers):"
            f" {ratio:.0f}x faster than n batched vector-Jacobian products through one graph.",
            f"- {counts[-1]} threads are {scaling:.2f}x as fast as one (H2, images).",
            f"- Share of the machine's sgemm rate ({flops['sgemm'] / 1e9:.0f} GFLOP/s at"
            f" 1024 x 1024), H2, images: forward {flops['forward'] / flops['sgemm']:.0%}, forward"
            f" and backward {flops['both'] / flops['sgemm']:.0%}. Counted are products only:"
            " 2 m (r + w) a stage, layer and sample forward, three times that backward"
            " (recomputation, state, parameters); nothing for tanh.",
            f'- `memory="lean"` at n = 256, 16 layers, batch 1024 takes {lean:.2f}x the time of'
            ' `"fast"`.',
            f"- The first forward and backward of a process with cached kernels: {first:.2f} s.",
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


def training_table(found: dict[str, Any]) -> str:
    """The floors of training."""
    eager, iteration = found["eager"], found["iteration"]["ratios"]["newton"]
    one, many = (found[key]["ratios"]["newton"] for key in ("training", "ensemble"))
    seconds = found["training"]["seconds"]["newton"]
    return "\n".join(
        [
            f"{found['work']}; the peer is `benchmarks/eager.py`: the same protocol in plain eager"
            f" PyTorch ({eager['epochs measured']} epochs measured, scaled to 50:"
            f" {eager['seconds']:.1f} s).",
            "",
            "| | measured | floor |",
            "| --- | --- | --- |",
            "| an iteration of coordinate descent / fused forward and backward through autograd |"
            f" {iteration:.2f} | at most 1.8 |",
            f"| eager / one full training ({seconds:.2f} s) | {one:.0f} | at least 60 |",
            f"| eager / one network of an ensemble of {found['ensemble']['members']} | {many:.0f} |"
            " at least 120 |",
        ]
    )


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
        "training": training_table(trained),
        "crossovers": crossovers.table(crossed),
    }
    fill(PAGE, parts)
    fill(README, {"speed": readme_table(records, trained)})
    draw(records)


if __name__ == "__main__":
    main()
