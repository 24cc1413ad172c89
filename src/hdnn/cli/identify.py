"""`hdnn identify` and `hdnn simulate`: from recordings to a model, and its free runs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdnn.cli.base import INTERRUPTED, USE, Json, app, emit, say, show_table, warn
from hdnn.cli.predict import check_out
from hdnn.config import IdentifyConfig
from hdnn.errors import HdnnError, shown

if TYPE_CHECKING:
    from hdnn.identification import Fit, Identification

HELD_OUT = 0.2
"""Of the samples of files, for testing, if --test does not say otherwise."""


def _option(flag: str, help: str, panel: str = "Recording", metavar: str | None = None) -> Any:
    return typer.Option(flag, help=help, rich_help_panel=panel, metavar=metavar)


@app.command(rich_help_panel=USE)
def identify(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recordings: CSV, TSV or Parquet files, or a data set (two-tanks, ...)."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None, _option("--input", "A column with an input; repeatable.")
    ] = None,
    outputs: Annotated[
        list[str] | None, _option("--output", "A column with an output; repeatable.")
    ] = None,
    time: Annotated[str | None, _option("--time", "The column of times: numbers or dates.")] = None,
    sampling_time: Annotated[
        float | None,
        _option("--sampling-time", "Time between two rows, if no column tells it (default: 1)."),
    ] = None,
    experiment: Annotated[
        str | None, _option("--experiment", "A column that numbers the recordings of a file.")
    ] = None,
    test: Annotated[
        float | None,
        _option("--test", "Fraction of the samples, the last ones, held out (default: 0.2)."),
    ] = None,
    states: Annotated[
        str | None,
        _option(
            "--states",
            "Number of states, or several to choose from by validation (default: 2,4,6).",
            "Model",
            "<int>",
        ),
    ] = None,
    units: Annotated[
        str | None,
        _option(
            "--units",
            "Number of hidden units, or several (default: 12); 0: linear models only.",
            "Model",
            "<int>",
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        _option(
            "--restarts", "Networks of each size, with other random units (default: 3).", "Model"
        ),
    ] = None,
    seed: Annotated[int | None, _option("--seed", "Random seed of the units.", "Model")] = None,
    jobs: Annotated[
        int | None, _option("--jobs", "Candidates that are fitted side by side.", "Run")
    ] = None,
    out: Annotated[Path | None, _option("--out", "Run folder to write.", "Run")] = None,
    resume: Annotated[Path | None, _option("--resume", "Continue a run.", "Run")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --out.", rich_help_panel="Run")
    ] = False,
    as_json: Json = False,
) -> None:
    """Identify a system from recordings of its inputs and outputs.

    The result is a network that no bounded input makes diverge.
    """
    from hdnn.identification.runs import IdentificationRun, check

    data: dict[str, Any] = {
        "files": files,
        "inputs": inputs,
        "outputs": outputs,
        "time": time,
        "sampling_time": sampling_time,
        "experiment": experiment,
    }
    given: dict[str, Any] = {
        "states": _sizes("--states", states),
        "units": _sizes("--units", units),
        "restarts": restarts,
        "seed": seed,
        "test": test,
    }
    if resume is not None:
        if out or overwrite or any(v not in (None, []) for v in (*data.values(), *given.values())):
            raise HdnnError("--resume takes no other settings than --jobs: the run has them")
        run = IdentificationRun.open(resume)
    else:
        if not files:
            raise HdnnError(
                "say what to identify from: hdnn identify recording.csv --input u --output y, or "
                "hdnn identify two-tanks"
            )
        config = check(IdentifyConfig(data=data, identification=given), HELD_OUT)
        default = Path("runs") / f"{Path(files[0]).stem}-{seed or 0}"
        run = IdentificationRun.create(out or default, config, overwrite)
    if run.finished:
        if not as_json:
            say(f"{run.folder} is finished; nothing to do")
        result = run.load()
    else:
        try:
            result = run.identify(jobs)
        except KeyboardInterrupt as error:
            again = f"hdnn identify --resume {shlex.quote(str(run.folder))}"
            warn(f"interrupted; resume it with: {again}")
            raise typer.Exit(INTERRUPTED) from error
    if as_json:
        emit({"run": str(run.folder), **summary(result)})
        return
    show_identification(result)
    folder = shlex.quote(str(run.folder))
    say(f"saved in {run.folder}. Next:")
    say(f"  hdnn report {folder}                             # a page about it")
    say(f"  hdnn simulate {folder} INPUTS --out outputs.csv  # the answer to other inputs")
    say(f"  hdnn export {folder} --out model.onnx            # or model.c, for a controller")


@app.command(rich_help_panel=USE)
def simulate(
    run: Annotated[Path, typer.Argument(help="A finished run of hdnn identify.")],
    data: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with the inputs.")],
    out: Annotated[
        Path, typer.Option(help="CSV or Parquet file to write: the table with the outputs added.")
    ],
) -> None:
    """Simulate an identified system.

    Measured outputs in the first rows give the initial state; else it begins at rest.
    """
    import pandas as pd

    from hdnn.files import atomic
    from hdnn.identification.runs import IdentificationRun, simulate_table

    check_out(out, [data])
    frame, names, measured = simulate_table(IdentificationRun.open(run), data)
    with atomic(out) as temporary:
        if out.suffix.lower() == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            pd.DataFrame(frame).to_parquet(temporary, index=False)
    start = f"from {measured} measured outputs" if measured else "at rest, under the mean input"
    say(f"{len(frame)} rows with {', '.join(names)}; it begins {start}: {out}")


def _sizes(flag: str, text: str | None) -> int | list[int] | None:
    """A number, or several as in 2,4,6."""
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise HdnnError(f"{flag} takes integers, as in 4 or 2,4,6; got {shown(text)}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def evaluate_system(
    run: Path, recording: str | None, target: list[str] | None, as_json: bool
) -> None:
    """Fits of an identified system: those of its own parts, or on another recording."""
    from hdnn.data.recordings import Parts
    from hdnn.identification.runs import IdentificationRun, read
    from hdnn.identification.runs import evaluate as fits_of

    if target:
        raise HdnnError("--target is for tables: a run of hdnn identify knows its outputs")
    opened = IdentificationRun.open(run)
    result = opened.load()
    fits = result.fits
    if recording is not None:
        found = read(opened.config.data.replace(files=[recording]))
        fits = {recording: fits_of(result, found.test if isinstance(found, Parts) else found)}
    if as_json:
        emit({part: {k: asdict(v) for k, v in each.items()} for part, each in fits.items()})
        return
    show_fits(fits, result.output_names)


# --- what people see ------------------------------------------------------------------------------


def summary(result: Identification) -> dict[str, Any]:
    """What --json prints of an identification."""
    fits = {part: {k: asdict(v) for k, v in each.items()} for part, each in result.fits.items()}
    names = ("states", "units", "rate", "time_constant", "gain", "seconds", "candidates")
    return {"fits": fits, **{name: getattr(result, name) for name in names}}


def show_identification(result: Identification) -> None:
    """The fits of all parts, then what is proved."""
    show_fits(result.fits, result.output_names)
    tried = len(result.candidates)
    kind = f"{result.states} states, {result.units} units" if result.units else "linear"
    say(f"{kind}: the best of {tried} models in free runs on the validation part")
    if not result.units and result.tried_networks:
        say("No network was better than the linear model, which is therefore the result.")
    say(
        f"a wrong initial state shrinks by e every {result.time_constant:.4g} (in the unit of the "
        f"sampling time; rate {result.rate:.6g} a sample), whatever the input: proved"
    )
    say(f"gain at most {result.gain:.4g}: proved")
    say("cannot diverge for any bounded input: proved")


def show_fits(fits: dict[str, dict[str, Fit]], outputs: tuple[str, ...]) -> None:
    """A table of fits and errors, by part and model."""
    rows = [
        [part, model, fit.percent, *(f"{error:.4g}" for error in fit.rmse)]
        for part, models in fits.items()
        for model, fit in models.items()
    ]
    show_table(["part", "model", "fit", *(f"RMSE of {name}" for name in outputs)], rows, names=2)
