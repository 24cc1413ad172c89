"""Identification from recordings: free-run errors on test parts that nothing was chosen by.

    python benchmarks/identification.py                  # what has no record yet
    python benchmarks/identification.py --only two-tanks --seeds 3
    python benchmarks/identification.py --page           # writes the tables of the README

The published recordings are read from ``identification/`` in the folder that HDNN_DATA names; a
set whose file is not there is left out, with a note. Sizes and stopping are chosen by the free run
on the last 15 % of the estimation part; on test parts the initial state follows from first outputs
that are not scored. One thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import identification_peers as peers
import numpy as np
import pandas as pd
import torch
from pages import fill

import hdnn
from hdnn.data import load_recordings
from hdnn.data.recordings import Parts, Recordings, Scaling
from hdnn.errors import FetchError
from hdnn.files import read_json_lines, write_json_lines
from hdnn.identification import Identification, IdentificationConfig, identify
from hdnn.identification.simulation import WARM, free_run

OUT = Path(__file__).resolve().parent.parent / "results" / "identification"
SETS = (
    *("cascaded-tanks", "heat-exchanger", "robot-arm", "silverbox"),
    *("two-tanks", "damped-pendulum", "two-masses"),
)
SEEDS = 5


def two_masses() -> Parts:
    """A linear system: a force on one of two masses between springs, and where the other one is.

    A network has nothing to add to the linear model of it; does it do harm?
    """
    from scipy import signal

    A = [[0, 0, 1, 0], [0, 0, 0, 1], [-2, 1, -0.2, 0.1], [1, -2, 0.1, -0.2]]
    plant = signal.StateSpace(A, [[0], [0], [1], [0]], [[0, 1, 0, 0]], [[0]]).to_discrete(0.2)
    parts = []
    for seed, skip in ((0, 0), (1, WARM)):
        draw = np.random.default_rng(seed)
        u = np.repeat(draw.standard_normal(128), 8)[:, None]
        _, y, _ = signal.dlsim(plant, u)
        y += 0.02 * y.std() * draw.standard_normal(y.shape)
        parts.append(Recordings((u,), (y,), 0.2, ("force",), ("position",), (skip,)))
    return Parts(*parts)


def load(name: str) -> Parts:
    """Both parts of a set."""
    return two_masses() if name == "two-masses" else load_recordings(name)


def errors(result: Identification, parts: Parts) -> dict[str, Any]:
    """What a record says of an identification."""
    std, size = parts.estimation.scaling.std_y, 3.0
    mean, (u, *_) = parts.test.scaling.mean_u, parts.test.inputs
    larger = free_run(result.model, mean + size * (u - mean))
    longer = free_run(result.model, np.tile(u, (10, 1)))
    fits = {
        f"{part}_{model}": {"fit": fit.fit, "rmse": fit.rmse[0], "nrmse": fit.rmse[0] / std[0]}
        for part, models in result.fits.items()
        for model, fit in models.items()
    }
    return {
        "states": result.states,
        "units": result.units,
        **fits,
        "rate": result.rate,
        "gain": result.gain,
        "largest_of_3_times_the_input": float(np.abs(larger).max()),
        "largest_of_10_times_the_length": float(np.abs(longer).max()),
        "candidates": list(result.candidates),
    }


def state_space(parts: Parts, seed: int) -> dict[str, Any]:
    """hdnn with its defaults."""
    return errors(identify(parts, IdentificationConfig(seed=seed)), parts)


def peer(name: str) -> Callable[[Parts, int], dict[str, Any]]:
    """Another model, on the same parts, its sizes and stopping chosen by the same free runs."""

    def compute(parts: Parts, seed: int) -> dict[str, Any]:
        scaling = parts.estimation.scaling
        (u,), (y,) = (map(torch.tensor, each) for each in signals(parts.estimation, scaling))
        (ut,), (yt,) = (map(torch.tensor, each) for each in signals(parts.test, scaling))
        first = round(len(u) * (1 - IdentificationConfig().validation))
        trained = peers.train(name, u, y, first, seed)
        skip = max(parts.test.skip[0], WARM)
        past = torch.cat([ut, yt], 1)[skip - peers.PAST : skip]
        simulated = trained.simulate(ut[skip:], past)
        nrmse = float((simulated - yt[skip:]).square().mean().sqrt())
        largest = {
            "largest_of_3_times_the_input": trained.simulate(3 * ut, past),
            "largest_of_10_times_the_length": trained.simulate(ut.repeat(10, 1), past),
        }
        mean, std = torch.tensor(scaling.mean_y), torch.tensor(scaling.std_y)
        spread = float((yt[skip:] - yt[skip:].mean(0)).square().mean().sqrt())
        return {
            "states": trained.states,
            "parameters": trained.parameters,
            "validation": trained.validation,
            "test_network": {
                "fit": 1 - nrmse / spread,
                "rmse": nrmse * float(std[0]),
                "nrmse": nrmse,
            },
            **{
                k: float((mean + std * v).abs().nan_to_num(torch.inf).max())
                for k, v in largest.items()
            },
        }

    return compute


def signals(recordings: Recordings, scaling: Scaling) -> tuple[Any, Any]:
    scaled = recordings.scaled(scaling)
    return scaled.inputs, scaled.outputs


MODELS: dict[str, Callable[[Parts, int], dict[str, Any]]] = {
    "state space": state_space,
    **{name: peer(name) for name in peers.PEERS},
}
"""By name, what identifies parts with a seed and gives a record."""


def compute(name: str, model: str, seed: int) -> dict[str, Any]:
    parts, begin = load(name), time.perf_counter()
    record = MODELS[model](parts, seed)
    measured = float(np.abs(np.concatenate(parts.test.outputs)).max())
    seconds = time.perf_counter() - begin
    return record | {
        "largest_measured": measured,
        "seconds": seconds,
        "version": hdnn.__version__,
    }


def table(frame: pd.DataFrame) -> str:
    head = [f"| {' | '.join(map(str, frame.columns))} |", "|" + " --- |" * len(frame.columns)]
    return "\n".join(head + [f"| {' | '.join(map(str, row))} |" for row in frame.itertuples(False)])


def pages(records: list[dict[str, Any]]) -> dict[str, str]:
    """Test errors by data set and model: median and worst seed."""
    rows, ours = [], []
    models = [model for model in MODELS if any(r["model"] == model for r in records)]
    for name in SETS:
        row: dict[str, Any] = {"recording": name}
        for model in models:
            own = [r for r in records if (r["data"], r["model"]) == (name, model)]
            if not own:
                row[model] = "-"
                continue
            nrmse = np.array([r["test_network"]["nrmse"] for r in own])
            row[model] = f"{np.median(nrmse):.3f} / {nrmse.max():.3f}"
            if model != "state space":
                continue
            row["linear"] = f"{own[0]['test_linear']['nrmse']:.3f}"
            rmse = np.array([r["test_network"]["rmse"] for r in own])
            ours.append(
                {
                    "recording": name,
                    "RMSE": f"{np.median(rmse):.4g} / {rmse.max():.4g}",
                    "fit, %": f"{100 * np.median([r['test_network']['fit'] for r in own]):.1f}",
                    "linear RMSE": f"{own[0]['test_linear']['rmse']:.4g}",
                    "states, units": "; ".join(f"{r['states']}, {r['units']}" for r in own),
                    "rate": f"{np.median([r['rate'] for r in own]):.5g}",
                    "seconds": f"{np.median([r['seconds'] for r in own]):.0f}",
                    "seeds": len(own),
                }
            )
        rows.append(row)
    grown = []
    for model in models:
        own = [r for r in records if r["model"] == model]
        if own:
            times = [_growth(r) for r in own]
            grown.append(
                {"model": model, "largest output, times the largest measured": f"{max(times):.3g}"}
            )
    frames = {"peers": rows, "errors": ours, "growth": grown}
    return {name: table(pd.DataFrame(each)) for name, each in frames.items()}


def _growth(record: dict[str, Any]) -> float:
    """The largest output of a hard simulation, as a multiple of the largest measured one."""
    names = "largest_of_3_times_the_input", "largest_of_10_times_the_length"
    return float(max(record[name] for name in names) / record["largest_measured"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=SETS)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--page", action="store_true", help="write the tables of the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "records.jsonl"
    if arguments.page:
        page = OUT / "README.md"
        page.write_text(fill(page.read_text(), pages(read_json_lines(path, dict))))
        return
    for name in SETS if arguments.only is None else (arguments.only,):
        for model in arguments.model or MODELS:
            for seed in range(arguments.seeds):
                key = {"data": name, "model": model, "seed": seed}
                known = read_json_lines(path, dict)
                if any(key.items() <= record.items() for record in known):
                    continue
                try:
                    record = key | compute(name, model, seed)
                except FetchError as error:
                    print(error, file=sys.stderr)
                    break
                write_json_lines(path, [*known, record])
                fit = record["test_network"]
                print(name, model, seed, fit, f"{record['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
