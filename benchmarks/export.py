"""How a network leaves hdnn: format x architecture x layout, and what depth costs.

Whether it works (or the reason why not), the largest deviation from hdnn relative to the largest
output, the size of the file and the CPU seconds to make it, without the check.

python benchmarks/export.py                                    # all but AOTInductor
python benchmarks/export.py --formats ONNX                     # seconds
python benchmarks/export.py --latency                          # what a call takes
python benchmarks/export.py --formats AOTInductor              # two cells, minutes
"""

from __future__ import annotations

import argparse
import functools
import io
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._inductor
from torch import Tensor

import hdnn
from hdnn.schemes import RK4, ImplicitMidpoint
from hdnn.zoo import ARCHITECTURES

DEPTHS, SHALLOW = (16, 256, 1024), 16
LONGEST = 30.0
"""Seconds that a cell may take; one that would take longer, by the last depth, is left out."""
SAMPLES = 50
LAYOUTS: dict[str, dict[str, Any]] = {
    "features": {"features": 8},
    "channels": {"channels": 8},
    "convolution": {"channels": 8, "kernel": 3},
    "ensemble of 4": {"features": 8, "ensemble": 4},
    "time-invariant": {"features": 8, "time_invariant": True},
}
DEEP = (("H1", "features"), ("MS1", "features"), ("FCNN", "features"), ("H1", "convolution"))
Made = tuple[Callable[[Tensor], Tensor], int | None]
"""What computes the exported network, and the bytes of its file."""


def build(name: str, layers: int, **options: Any) -> hdnn.HamiltonianNetwork:
    scheme = options.get("scheme", ARCHITECTURES[name].scheme)
    step = {"T": 1.0} if scheme.uses_step else {}
    draw = torch.Generator().manual_seed(0)
    return hdnn.network(name, layers=layers, generator=draw, scale=0.5, **step, **options).eval()


def example(net: hdnn.HamiltonianNetwork) -> Tensor:
    layout = net.field.layout
    lead = () if layout.ensemble is None else (layout.ensemble,)
    space = (6, 5) if layout.channels else ()
    return torch.randn(*lead, SAMPLES, layout.width, *space, generator=torch.Generator())


# --- the formats ----------------------------------------------------------------------------------


def onnx(net: hdnn.HamiltonianNetwork, y: Tensor, folder: Path) -> Made:
    import onnxruntime

    written = hdnn.export_onnx(net, folder / "net.onnx", check=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    open_session = functools.cache(
        lambda: onnxruntime.InferenceSession(
            written.path.read_bytes(), options, ["CPUExecutionProvider"]
        )
    )

    def run(y: Tensor) -> Tensor:
        session = open_session()
        return torch.from_numpy(session.run(None, {"state": y.numpy()})[0])

    return run, written.size


def program_of(net: hdnn.HamiltonianNetwork, y: Tensor) -> torch.export.ExportedProgram:
    axis = 0 if net.field.layout.ensemble is None else 1
    batch = torch.export.Dim("batch", min=2)
    return torch.export.export(net, (y,), dynamic_shapes=({axis: batch},))


def exported(net: hdnn.HamiltonianNetwork, y: Tensor, folder: Path) -> Made:
    program, content = program_of(net, y), io.BytesIO()
    torch.export.save(program, content)
    return program.module(), len(content.getvalue())


def traced(net: hdnn.HamiltonianNetwork, y: Tensor, folder: Path) -> Made:
    program = torch.jit.trace(net, (y,), check_trace=False)
    torch.jit.save(program, folder / "net.ts")
    return program, (folder / "net.ts").stat().st_size


def compiled(net: hdnn.HamiltonianNetwork, y: Tensor, folder: Path) -> Made:
    torch.compiler.reset()
    program = torch.compile(net)
    program(y)
    return program, None


def inductor(net: hdnn.HamiltonianNetwork, y: Tensor, folder: Path) -> Made:
    path = str(folder / "net.pt2")
    torch._inductor.aoti_compile_and_package(program_of(net, y), package_path=path)
    return torch._inductor.aoti_load_package(path), Path(path).stat().st_size


FORMATS: dict[str, Callable[[hdnn.HamiltonianNetwork, Tensor, Path], Made]] = {
    "ONNX": onnx,
    "torch.export": exported,
    "torch.jit.trace": traced,
    "torch.compile": compiled,
    "AOTInductor": inductor,
}
DEFAULT = tuple(FORMATS)[:-1]


# --- the tables -----------------------------------------------------------------------------------


def clock() -> float:
    """CPU seconds of this process and of the compilers that it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def in_words(size: int) -> str:
    return f"{size / 1e3:.3g} kB, " if size < 999_500 else f"{size / 1e6:.3g} MB, "


def cell(title: str, net: hdnn.HamiltonianNetwork, folder: Path) -> tuple[str, float]:
    """Deviation, size and seconds in words, or the reason; and the seconds."""
    y, begin = example(net), clock()
    try:
        run, size = FORMATS[title](net, y, folder)
        seconds = clock() - begin
        found = run(y)
    except hdnn.HdnnError as error:
        return f"raises: {str(error).split(';')[0]:.90}", 0.0
    except Exception as error:  # of torch, with a text of its own
        return f"raises {type(error).__name__}: {str(error).splitlines()[0]:.90}", 0.0
    expected = net(y)
    deviation = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    deviates = f"{deviation:.0e}" if deviation else "0"
    return f"{deviates}, {'' if size is None else in_words(size)}{seconds:.2g} s", seconds


def catalogue(title: str, folder: Path) -> None:
    """Architectures by layouts, at 16 layers."""
    layouts = ("features",) if title == "AOTInductor" else tuple(LAYOUTS)
    names = ("H1", "MS1") if title == "AOTInductor" else tuple(ARCHITECTURES)
    print(f"\n### {title}, {SHALLOW} layers\n\n| | {' | '.join(layouts)} |")
    print("| --- " * (1 + len(layouts)) + "|")
    for name in names:
        cells = []
        for layout in layouts:
            # Compilations take long: all architectures over features, and one in every layout.
            if title == "torch.compile" and name != "H1" and layout != "features":
                cells.append("")
                continue
            cells.append(cell(title, build(name, SHALLOW, **LAYOUTS[layout]), folder)[0])
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if title == "ONNX":  # of the others, an implicit layer unrolls its iterations
        for scheme in (RK4(), ImplicitMidpoint()):
            net = build("H1", SHALLOW, scheme=scheme, features=8)
            rest, text = " |" * (len(layouts) - 1), cell(title, net, folder)[0]
            print(f"| H1, {type(scheme).__name__} | {text} |{rest}", flush=True)


def depths(titles: list[str], folder: Path) -> None:
    """What depth costs, in every format."""
    print(f"\n### Depth\n\n| | {' | '.join(f'{depth} layers' for depth in DEPTHS)} |")
    print("| --- " * (1 + len(DEPTHS)) + "|")
    for title in titles:
        if title == "AOTInductor":
            continue
        for name, layout in DEEP:
            cells, last, before = [], 0.0, 1
            for depth in DEPTHS:
                if last * depth / before > LONGEST and title != "ONNX":
                    cells.append(f"over {LONGEST:.0f} s, by the depth before")
                    continue
                text, last = cell(title, build(name, depth, **LAYOUTS[layout]), folder)
                before = depth
                cells.append(text)
            print(f"| {title}: {name}, {layout} | {' | '.join(cells)} |", flush=True)


def latency(titles: list[str], folder: Path, layers: int = 256, repeats: int = 15) -> None:
    """CPU time of a call, medians of interleaved runs, of H1 over 8 features on 50 samples."""
    net = build("H1", layers, features=8).requires_grad_(False)
    y = example(net)
    calls = {"hdnn": net} | {title: FORMATS[title](net, y, folder)[0] for title in titles}
    seconds: dict[str, list[float]] = {title: [] for title in calls}
    for _ in range(repeats):
        for title, call in calls.items():
            begin = time.process_time()
            call(y)
            seconds[title].append(time.process_time() - begin)
    print(f"\n### A call, {layers} layers, {SAMPLES} samples\n\n| {' | '.join(calls)} |")
    print("| --- " * len(calls) + "|")
    print(f"| {' | '.join(f'{1000 * median(s):.2f} ms' for s in seconds.values())} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(DEFAULT))
    parser.add_argument("--no-depth", action="store_true", help="only the tables at 16 layers")
    parser.add_argument("--only-depth", action="store_true", help="only what depth costs")
    parser.add_argument("--latency", action="store_true", help="only what a call takes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._logging.set_logs(all=50)
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1  # else they are compiled by others
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        if given.latency:
            latency(given.formats, folder)
            return
        for title in given.formats:
            cell(title, build("H1", 2, features=8), folder)  # the first one imports much
            if not given.only_depth:
                catalogue(title, folder)
        if not given.no_depth:
            depths(given.formats, folder)


if __name__ == "__main__":
    main()
