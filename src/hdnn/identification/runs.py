"""Run folders of `hdnn identify`: config, finished candidates, models.

A folder holds identify.toml, candidates.jsonl while it is identified, and at the end
identification.json, linear.safetensors and model.safetensors, in this order: the last one says that
all is there. A killed process loses the candidates that it was fitting, no others.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from hdnn.config import IdentifyConfig, RecordingsConfig
from hdnn.data.readers import read_raw
from hdnn.data.recordings import (
    UNEVEN,
    Parts,
    Recordings,
    experiments,
    load_recordings,
    numbers,
    read_recordings,
    step_of,
)
from hdnn.errors import HdnnError, StorageError, shown
from hdnn.files import atomic
from hdnn.identification.levenberg import initial_state
from hdnn.identification.search import Identification, Progress, identify
from hdnn.identification.simulation import WARM, Fit, free_run, scored, simulate
from hdnn.training.runs import locked, storage


def check(config: IdentifyConfig, test: float) -> IdentifyConfig:
    """A config with the test part that is held out, if its settings go together.

    Args:
        config: as given; of files and columns, or of one data set by name.
        test: the share of files that is held out where the config does not say so.

    Returns:
        The config, with absolute paths.

    Raises:
        HdnnError: columns are not named, or are, of a data set by name.
    """
    data, own = config.data, config.identification
    if _is_name(data):
        given = sorted(data.to_dict().keys() - {"files"})
        if given or "test" in own.model_fields_set:
            raise HdnnError(
                f"{', '.join(given) or 'test'}: for files; the columns and parts of "
                f"{shown(data.files[0])} are known: leave it out"
            )
        return config
    for name, columns in (("input", data.inputs), ("output", data.outputs)):
        if not columns:
            raise HdnnError(f"name the columns of {name}s: --{name} NAME; it can be repeated")
    data = data.replace(files=[str(Path(path).resolve()) for path in data.files])
    return config.replace(
        data=data, identification=own if "test" in own.model_fields_set else own.replace(test=test)
    )


def _is_name(data: RecordingsConfig) -> bool:
    """Whether it is a data set: one word that is no file."""
    path = Path(data.files[0])
    return len(data.files) == 1 and not path.suffix and not path.exists() and len(path.parts) == 1


def read(data: RecordingsConfig) -> Recordings | Parts:
    """The recordings of a config: files, or a data set by name with its own test part.

    Args:
        data: which recordings, and their columns.

    Returns:
        The recordings.

    Raises:
        HdnnError: they cannot be read.
    """
    if _is_name(data):
        return load_recordings(data.files[0])
    return read_recordings(
        data.files,
        data.inputs,
        data.outputs,
        time=data.time,
        sampling_time=data.sampling_time,
        experiment=data.experiment,
    )


class IdentificationRun:
    """A run folder of an identification.

    Args:
        folder: where it is, or will be.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.config_file = self.folder / "identify.toml"
        self.candidates = self.folder / "candidates.jsonl"
        self.model_file = self.folder / "model.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the identified model is there."""
        return self.model_file.exists()

    @property
    def config(self) -> IdentifyConfig:
        """The settings."""
        return IdentifyConfig.from_toml(self.config_file)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> IdentificationRun:
        """An existing run.

        Args:
            folder: of it.

        Returns:
            The run.

        Raises:
            HdnnError: there is none.
        """
        run = cls(folder)
        if not run.config_file.is_file():
            raise HdnnError(f"{folder} is no run of hdnn identify: there is no identify.toml in it")
        return run

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], config: IdentifyConfig, overwrite: bool = False
    ) -> IdentificationRun:
        """A new run, or an unfinished one of the same config to be continued.

        Args:
            folder: a new or empty one, or that of a run.
            config: what to identify.
            overwrite: whether to replace a run that is there.

        Returns:
            The run.

        Raises:
            HdnnError: something else is there, or the folder cannot be written to.
        """
        run = cls(folder)
        with storage(folder):
            if run.config_file.is_file() and not overwrite:
                if run.config != config:
                    raise HdnnError(
                        f"{folder} holds a run of another config; choose another folder, or pass "
                        "--overwrite to replace it"
                    )
                if run.finished:
                    raise HdnnError(f"{folder} holds a finished run; --overwrite replaces it")
                return run
            if run.config_file.is_file():
                with locked(run.folder):
                    (run.folder / "report.html").unlink(missing_ok=True)  # of the old run
                    for path in (run.model_file, run.candidates, run.config_file):
                        path.unlink(missing_ok=True)
            elif run.folder.exists() and any(p.name[0] != "." for p in run.folder.iterdir()):
                raise HdnnError(f"{folder} exists and is no run; choose an empty or new folder")
            run.folder.mkdir(parents=True, exist_ok=True)
            with atomic(run.config_file) as temporary:
                temporary.write_text(config.to_toml(), encoding="utf-8")
        return run

    def identify(
        self, n_jobs: int | None = None, progress: Progress | None = None
    ) -> Identification:
        """Identify, going on from the candidates that are there.

        Args:
            n_jobs: candidates side by side, as joblib has it.
            progress: as of `identify`.

        Returns:
            The result, which is saved.

        Raises:
            HdnnError: recordings cannot be used, or another process works here.
        """
        with storage(self.folder, StorageError), locked(self.folder):
            config = self.config
            recordings = read(config.data)
            result = identify(
                recordings,
                config.identification,
                store=self.candidates,
                n_jobs=n_jobs,
                progress=progress,
            )
            result.save(self.folder)
        return result

    def load(self) -> Identification:
        """What was identified.

        Returns:
            The result.

        Raises:
            HdnnError: the run is not finished, or its files are damaged.
        """
        if not self.finished:
            raise HdnnError(
                f"{self.folder} is not finished; continue it: hdnn identify --resume {self.folder}"
            )
        return Identification.load(self.folder)


def evaluate(result: Identification, recordings: Recordings) -> dict[str, Fit]:
    """How near free runs of an identified system come to other recordings.

    Args:
        result: what was identified.
        recordings: in its units; the first `WARM` outputs of each give its initial state.

    Returns:
        The fits of the network and of the linear model on the rest.
    """
    skip = tuple(min(WARM, len(u) // 2) for u in recordings.inputs)
    recordings = replace(recordings, skip=skip)
    models = {"network": result.model, "linear": result.linear}
    return {k: scored(recordings, simulate(model, recordings)) for k, model in models.items()}


def simulate_table(run: IdentificationRun, path: Path) -> tuple[pd.DataFrame, list[str], int]:
    """A table with the simulated outputs appended.

    Args:
        run: finished.
        path: CSV, TSV or Parquet with the columns of the inputs; the outputs, as far as the first
            rows have them, give the initial state.

    Returns:
        The table, the names of the new columns, and how many measured outputs were used.

    Raises:
        HdnnError: a column is missing or has gaps, or the rows are sampled otherwise.
    """
    result, data, used = run.load(), run.config.data, 0
    inputs, outputs = result.input_names, result.output_names
    names = [f"{name}_simulated" for name in outputs]
    raw = read_raw(path)
    raw = replace(raw, frame=raw.frame.drop(columns=names, errors="ignore"))
    by = data.experiment if data.experiment in raw.names else None
    parts = []
    for part in experiments(raw, by):
        if data.time in raw.names:
            step = step_of(part, str(data.time))
            if abs(step - result.sampling_time) > UNEVEN * result.sampling_time:
                raise HdnnError(
                    f"{part.where} has the sampling time {step:g}, the model "
                    f"{result.sampling_time:g}: resample the inputs"
                )
        u, x0 = np.stack([numbers(part, name) for name in inputs], 1), None
        if set(outputs) <= set(raw.names):
            y = np.stack([numbers(part, name, gaps=True) for name in outputs], 1)
            first = int(np.isnan(y).any(1).argmax()) if np.isnan(y).any() else len(y)
            if first := min(first, WARM):
                x0 = initial_state(result.model, torch.tensor(u), torch.tensor(y[:first]))
                used += first
        simulated = free_run(result.model, u, x0)
        parts.append(part.frame.assign(**dict(zip(names, simulated.T, strict=True))))
    return pd.concat(parts).sort_index(), names, used
