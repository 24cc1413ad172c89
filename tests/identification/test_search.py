"""The walk from recordings to a network: what it recovers, what it repeats, what it stores."""

from __future__ import annotations

import json
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch

import hdnn
from hdnn.data import Recordings, load_recordings
from hdnn.data.recordings import Parts
from hdnn.errors import HdnnError
from hdnn.identification import Identification, IdentificationConfig, identify, search
from hdnn.identification.search import _Task
from hdnn.identification.simulation import free_run, scored, simulate

QUICK = IdentificationConfig(states=2, units=4, iterations=4, restarts=1)


def part(data: Recordings, length: int = 300) -> Recordings:
    """The beginning of recordings."""
    cut = (tuple(each[:length] for each in parts) for parts in (data.inputs, data.outputs))
    return Recordings(*cut, data.sampling_time, data.input_names, data.output_names)


TANKS, TEST = load_recordings("two-tanks")
SHORT = part(TANKS)


def linear_data(count: int = 1, length: int = 300) -> Recordings:
    """A damped oscillator with offsets, without noise."""
    draw, A = np.random.default_rng(0), np.array([[0.9, 0.3], [-0.3, 0.9]]) * 0.95
    inputs, outputs = [], []
    for _ in range(count):
        x, u = draw.standard_normal(2), 2 + 5 * draw.standard_normal((length, 1))
        inputs.append(u)
        y = []
        for v in u:
            y.append([30 + 4 * x[0] + 0.5 * v[0]])
            x = A @ x + np.array([1.0, 0.5]) * v
        outputs.append(np.array(y))
    return Recordings(tuple(inputs), tuple(outputs), sampling_time=0.1)


@pytest.mark.parametrize("count", [1, 3])
def test_an_exact_linear_system_is_recovered(count: int) -> None:
    result = identify(linear_data(count), QUICK.replace(test=0.2))
    assert result.fits["test"]["linear"].fit > 1 - 1e-5
    assert result.fits["test"]["network"].fit > 1 - 1e-5
    assert abs(result.fits["test"]["mean"].fit) < 0.2
    poles = torch.linalg.eigvals(result.linear.assemble().layers[0].A[:, :2].detach())
    assert torch.allclose(poles.abs(), torch.tensor(0.95 * np.hypot(0.9, 0.3)), atol=1e-5)
    assert result.time_constant > 0.1 / -np.log(result.rate) * 0.999


def test_the_network_of_a_nonlinear_system_beats_the_linear_model() -> None:
    result = identify(Parts(TANKS, TEST), QUICK.replace(iterations=15))
    test = result.fits["test"]
    assert test["network"].fit > 0.8 > test["linear"].fit + 0.03 > test["mean"].fit + 0.5
    assert (result.states, result.units) == (2, 4)
    assert "cannot diverge" in str(result)


@pytest.mark.parametrize(
    ("units", "tried"),
    [(0, [(1, 0), (2, 0)]), ((0, 2), [(1, 0), (2, 0), (1, 2), (2, 2)])],
)
def test_zero_units_are_linear_models(units: object, tried: list[tuple[int, int]]) -> None:
    config = IdentificationConfig(states=(1, 2), units=units, iterations=2, restarts=1)
    result = identify(linear_data(), config)
    assert [(c["states"], c["units"]) for c in result.candidates] == tried
    assert result.tried_networks == (units != 0)
    assert result.linear.states == 2
    assert result.fits["validation"]["linear"].fit > 1 - 1e-5
    if units == 0:
        assert result.units == 0
        assert result.fits["train"]["network"] == result.fits["train"]["linear"]


def test_windows_need_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long recordings, of which segments leave out samples, have linear models, too."""
    monkeypatch.setattr(_Task, "is_long", True)
    shares: list[float] = []
    result = identify(SHORT, QUICK.replace(units=0), progress=lambda share, _: shares.append(share))
    assert len(result.candidates) == 1
    assert shares == [1.0]


def test_the_same_seed_gives_the_same_numbers_whatever_the_jobs() -> None:
    data, config = SHORT, QUICK.replace(states=(1, 2), restarts=2)
    first = identify(data, config)
    with joblib.parallel_config("threading"):  # processes would import torch, for seconds
        second = identify(data, config, n_jobs=2)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.fits == second.fits
    other = identify(data, config.replace(seed=1))
    assert [c["validation"] for c in other.candidates if c["units"]] != [
        c["validation"] for c in first.candidates if c["units"]
    ]
    linear = [[c["validation"] for c in r.candidates if not c["units"]] for r in (first, other)]
    assert linear[0] == linear[1]


def test_the_default_dtype_changes_nothing() -> None:
    first = identify(SHORT, QUICK)
    torch.set_default_dtype(torch.float32)
    second = identify(SHORT, QUICK)
    assert first.fits == second.fits
    assert second.model.x0.dtype == torch.float64


def test_finished_candidates_are_not_fitted_again(tmp_path: Path) -> None:
    data, store = SHORT, tmp_path / "candidates.jsonl"
    config = QUICK.replace(states=(1, 2))

    class StoppedError(Exception):
        pass

    def stop(share: float, text: str) -> None:
        if share >= 0.75:
            raise StoppedError

    with pytest.raises(StoppedError):
        identify(data, config, store=store, progress=stop)
    assert len(store.read_text().splitlines()) == 3
    shares: list[float] = []
    resumed = identify(data, config, store=store, progress=lambda share, text: shares.append(share))
    assert shares == [1.0]
    whole = identify(data, config)
    assert resumed.fits == whole.fits
    identify(data, config.replace(seed=3), store=store)  # other settings: all anew
    seeds = {json.loads(line)["digest"] for line in store.read_text().splitlines()}
    assert len(seeds) == 1


def test_a_saved_result_is_the_same(tmp_path: Path) -> None:
    result = identify(SHORT, QUICK.replace(test=0.2))
    result.save(tmp_path / "run")
    again = Identification.load(tmp_path / "run")
    u = np.linspace(0, 5, 60)[:, None]
    assert np.array_equal(free_run(again.model, u), free_run(result.model, u))
    assert np.array_equal(free_run(again.linear, u), free_run(result.linear, u))
    names = ("fits", "trust", "sampling_time", "input_names", "output_names", "gain", "rate")
    for name in (*names, "seconds", "candidates", "states", "units", "time_constant"):
        assert getattr(again, name) == getattr(result, name)
    (tmp_path / "run" / "identification.json").write_text("{}")
    with pytest.raises(HdnnError, match="is no identification"):
        Identification.load(tmp_path / "run")


@pytest.mark.parametrize("size", [1e3, 1e9])
def test_no_input_makes_the_model_diverge(size: float) -> None:
    model = identify(SHORT, QUICK).model
    u = size * np.random.default_rng(0).choice([-1.0, 1.0], (20_000, 1))
    y = free_run(model, u)
    at_rest = free_run(model, np.zeros((20_000, 1)))
    assert np.abs(y - at_rest).max() <= model.gain * size


def test_a_test_part_is_held_out_only_once() -> None:
    with pytest.raises(HdnnError, match="leave test out"):
        identify(load_recordings("two-tanks"), QUICK.replace(test=0.2))


def test_a_part_at_rest_is_called_constant(tmp_path: Path) -> None:
    """The test part of a recording that ends at rest has no fit; the file says so, too."""
    data = linear_data(length=400)
    still = Recordings(data.inputs, (data.outputs[0].copy(),))
    still.outputs[0][320:] = 7.0
    identify(still, QUICK.replace(test=0.2, units=0)).save(tmp_path)
    result = Identification.load(tmp_path)
    assert {fit.percent for fit in result.fits["test"].values()} == {"constant"}
    assert "constant" not in {fit.percent for fit in result.fits["train"].values()}
    assert "test: network fit constant, RMSE" in str(result)


def test_the_test_part_changes_no_model() -> None:
    """Neither scaling nor sizes nor stopping look at it."""
    data = linear_data(length=400)
    broken = Recordings(data.inputs, (data.outputs[0].copy(),), data.sampling_time)
    broken.outputs[0][320:] += 1e3
    config = QUICK.replace(test=0.2)
    first, second = identify(data, config), identify(broken, config)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.fits["test"] != second.fits["test"]


def test_the_last_fit_learns_from_the_validation_part_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits on the parts that were left out until then are those of the model that was chosen."""
    parts = Parts(TANKS, TEST)
    after = identify(parts, QUICK)
    monkeypatch.setattr(search, "LAST_ITERATIONS", 0)
    before = identify(parts, QUICK)
    for part in ("train", "validation"):
        assert after.fits[part] == before.fits[part]
    assert after.candidates == tuple(
        old | {"seconds": new["seconds"]}
        for old, new in zip(before.candidates, after.candidates, strict=True)
    )

    def error(model: hdnn.StateSpace) -> float:
        return scored(parts.estimation, simulate(model, parts.estimation)).rmse[0]

    assert error(after.model) < error(before.model)
    assert error(after.linear) <= error(before.linear)
