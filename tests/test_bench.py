"""Benchmarks measure the same computation for all, equally often, and report what they did."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import bench
import pytest
import report
import torch
from speed import measure, memory, peers, plain, recurrent
from speed.cases import Case
from speed.timing import interleave, repeat

from hdnn.errors import HdnnError

TINY = Case("small", "H1", 4, 3, 7, peers=("auto", "loop"))


@pytest.fixture(autouse=True)
def single(strict: None) -> None:
    """Benchmarks run outside of tests, where torch's default is float32."""
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 8), (60.0, 24)])
def test_works_take_turns(seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every work has a burst in every round, and every second round goes backward."""
    monkeypatch.setattr("speed.timing.BURST", 0.0)  # bursts of one call
    calls: list[str] = []
    works = {name: repeat(lambda name=name: calls.append(name)) for name in "abc"}
    timings = interleave(works, seconds=seconds, least=8, most=24)
    warm_up = len(calls) - 3 * rounds
    assert len(set(Counter(calls).values())) == 1
    assert calls[warm_up:] == list("abccba") * (rounds // 2)
    assert [timing.rounds for timing in timings.values()] == [rounds] * 3


def test_timings_are_seconds_per_call() -> None:
    timings = interleave({"fast": lambda calls: 1.0 * calls, "slow": lambda calls: 3.0 * calls})
    assert timings["fast"].median == pytest.approx(1.0)
    assert timings["slow"].median == pytest.approx(3.0)


SHAPES: dict[str, dict[str, Any]] = {
    "rows": {},
    "images": {"pixels": (2, 3)},
    "ensemble": {"ensemble": 2},
}
cases = pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, "rows") for name in ("H1", "H2", "MS1", "MS3")),
        ("H1", "images"),
        ("MS1", "ensemble"),
    ],
)


@cases
@pytest.mark.parametrize("peer", ["auto", "lean"])
def test_networks_compute_the_same_gradients(peer: str, name: str, shape: str) -> None:
    case = Case("test", name, 4, 3, 5, **SHAPES[shape])
    try:
        gradients = peers.PEERS[peer](case)()
    except HdnnError as error:
        pytest.skip(str(error))  # no compiler
    torch.testing.assert_close(gradients, peers.PEERS["reference"](case)(), rtol=1e-4, atol=1e-5)


@cases
def test_the_plain_loop_computes_the_network(name: str, shape: str) -> None:
    case = Case("test", name, 4, 3, 5, **SHAPES[shape])
    net, y = case.network(), case.state()
    torch.testing.assert_close(plain.forward(case, y, *plain.parameters(case)), net(y))
    grad_y, _, grad_b = peers.PEERS["loop"](case)()
    expected_y, _, expected_b = peers.PEERS["reference"](case)()
    torch.testing.assert_close(grad_y, expected_y)
    torch.testing.assert_close(grad_b, expected_b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@cases
def test_every_form_in_jax_computes_the_same_gradients(name: str, shape: str) -> None:
    pytest.importorskip("jax", reason="jax is in the extra bench")
    case = Case("test", name, 4, 3, 5, **SHAPES[shape])
    with measure.jax_worker(sys.executable) as worker:
        assert measure.prepare_jax(worker, case)["form"]["product"]
        assert worker.work(1) > 0


def test_peers_of_recurrences_compute_the_same_gradients() -> None:
    steps = recurrent.steps(3, *recurrent.data(2, 5))
    for own, peer in (("hdnn", "loop"), ("kernels", "loop of matrices")):
        torch.testing.assert_close(steps[own](), steps[peer](), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own() -> None:
    setting = {"backend": "reference", "memory": "fast", "width": 8, "rows": 20000, "layers": 16}
    assert memory.megabytes(**setting) > 10


def test_the_command_prints_records_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CASES", (TINY,))
    bench.main(["--group", "small", "--seconds", "0.05", "--json"])
    records = json.loads(capsys.readouterr().out)
    (record,) = records["cases"]
    assert record["case"]["architecture"] == "H1"
    assert set(record["seconds"]) == set(TINY.peers)
    assert {"hdnn", "torch", "threads", "cpu"} <= set(records["machine"])


def test_pages_show_what_was_measured() -> None:
    records = report.load("results")
    page = report.PAGE.read_text()
    assert report.readme_table(records) in report.README.read_text()
    for table in (report.speed_table, report.training_table, report.memory_table):
        assert table(records) in page
    assert report.crossover_table() in page
    records = report.load("recurrent")
    for table in (report.cell_table, report.recurrent_memory, report.trajectory_table):
        assert table(records) in page
    for rows in (records["rows"], records["two_threads"]):
        assert report.recurrent_table(rows) in page
