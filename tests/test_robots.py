"""The robots of the demo: stored weights, and what is proved of their loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hdnn import robots

ROOT = Path(__file__).parents[1]


def test_stored_weights_do_what_the_record_says() -> None:
    lines = (ROOT / "results" / "robots" / "trained.jsonl").read_text().splitlines()
    records = {(r["controller"], r["seed"]): r for r in map(json.loads, lines)}
    for name, controller in robots.load_controllers().items():
        drive, known = robots.Drive.of(controller), records[name, 0]
        assert drive.parameters == known["parameters"]
        assert drive.short_cost == pytest.approx(known["cost_T"], rel=1e-4)
        assert drive.long_cost == pytest.approx(known["cost_10T"], rel=1e-4)
        assert drive.distances[-1] <= known["end"]  # which has the momentum, too


def test_the_loop_is_proved_to_be_stable() -> None:
    """2 m / h is the limit of the gain, and the gain of the controller is below it."""
    limit = robots.loop_limit()
    assert limit.proved
    assert limit.gain == pytest.approx(40, abs=0.05)
    controller = robots.StateSpaceController(seed=1, scale=10.0)
    drive = robots.Drive.of(controller)
    assert drive.gain is not None
    assert drive.gain < limit.gain
    assert drive.distances[-1] < 5 < drive.distances[0]


def test_robots_do_not_depend_on_the_default_dtype() -> None:
    expected = [d.short_cost for d in map(robots.Drive.of, robots.load_controllers().values())]
    torch.set_default_dtype(torch.float32)
    try:
        found = [d.short_cost for d in map(robots.Drive.of, robots.load_controllers().values())]
    finally:
        torch.set_default_dtype(torch.float64)
    assert found == expected


def test_weights_are_saved_as_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = robots.load_controllers()
    monkeypatch.setattr(robots, "WEIGHTS", tmp_path / "weights.safetensors")
    robots.save_weights(known)
    for name, controller in robots.load_controllers().items():
        for key, value in controller.state_dict().items():
            assert torch.equal(value, known[name].state_dict()[key])
