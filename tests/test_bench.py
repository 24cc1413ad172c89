"""Benchmarks measure the same computation for all, equally often, and report what they did."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import bench
import numpy as np
import pytest
import report
import torch
from speed import cases, peers
from speed.cases import CASES, SWEEP, Case
from speed.timing import interleave
from torch import Tensor

from hdnn.errors import HdnnError
from twins import Net

TINY = Case("small", "H1", 4, 3, 7, peers=("fused", "reference", "torchdiffeq"))


@pytest.fixture(autouse=True)
def single(strict: None) -> None:
    """Benchmarks run outside of tests, where torch's default is float32."""
    torch.set_default_dtype(torch.float32)


# --- timing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 7), (60.0, 25)])
def test_works_take_turns(seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every round each has a burst, after a call to warm up: noise meets all alike."""
    monkeypatch.setattr("speed.timing.BURST", 0.0)  # bursts of one call
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "abc"}
    found = interleave(works, seconds=seconds, least=7, most=25)
    warm = len(calls) - 6 * rounds
    assert warm % 3 == 0
    assert warm > 0
    assert set(Counter(calls).values()) == {2 * rounds + warm // 3}
    assert calls[warm:] == list("aabbcc") * rounds
    assert list(found) == list("abc")
    for timing in found.values():
        assert timing.rounds == rounds
        assert 0 <= timing.low <= timing.median <= timing.high


def test_a_slower_work_is_seen_to_be_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of our own, that each work moves by what it costs."""
    now = [0.0]
    monkeypatch.setattr("speed.timing.time.perf_counter", lambda: now[0])

    def work(cost: float) -> Any:
        return lambda: now.__setitem__(0, now[0] + cost)

    found = interleave({"fast": work(1.0), "slow": work(3.0)}, seconds=100.0)
    assert found["fast"].median == pytest.approx(1.0)
    assert found["slow"].median == pytest.approx(3.0)
    assert found["slow"].rounds == 13  # rounds of 8 seconds, until 100 have passed


# --- peers ----------------------------------------------------------------------------------------


def work(peer: str, case: Case) -> Any:
    if peer.startswith("jax"):
        pytest.importorskip("jax")
    if peer == "torchdiffeq":
        pytest.importorskip("torchdiffeq")
    torch.manual_seed(3)  # of the weight of the outputs
    return peers.PEERS[peer](case.network(), case.state())()


def exact(case: Case) -> tuple[Tensor, ...]:
    """The gradients of <weight, y_N> by the plainest means."""
    net, y = case.network(), case.state().requires_grad_()
    net.backend = "reference"
    torch.manual_seed(3)
    return torch.autograd.grad(net(y), [y, *net.parameters()], torch.randn_like(y))


def close(found: Any, expected: Tensor) -> None:
    tensor = found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
    torch.testing.assert_close(tensor.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


SHAPES: dict[str, dict[str, Any]] = {
    "rows": {},
    "images": {"pixels": (2, 3)},
    "ensemble": {"ensemble": 2},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["H1", "MS1", "MS3"])
@pytest.mark.parametrize("peer", ["fused", "auto", "reference", "torchdiffeq"])
def test_torch_peers_compute_the_same_gradients(peer: str, name: str, shape: str) -> None:
    case = Case("test", name, 4, 3, 5, **SHAPES[shape])
    if peer == "torchdiffeq" and (name != "H1" or shape == "ensemble"):
        with pytest.raises(HdnnError, match="forward Euler"):
            work(peer, case)
        return
    found, expected = work(peer, case), exact(case)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@pytest.mark.parametrize(
    ("peer", "name", "shape"),
    [
        ("jax", "H1", "rows"),
        ("jax", "MS3", "images"),
        ("jax", "H1", "ensemble"),
        ("jax-checkpoint", "MS3", "rows"),
        ("jax-checkpoint", "H1", "images"),
    ],
)
def test_jax_peers_compute_the_same_gradients(peer: str, name: str, shape: str) -> None:
    """Theirs are of the blocks W and b of every stage, ours of the parameters behind them."""
    case = Case("test", name, 4, 3, 5, **SHAPES[shape])
    state, stages = work(peer, case)
    expected = exact(case)
    close(state, expected[0])
    net: Net = case.network()
    program = net.program().stages
    assert program is not None
    for stage, gradients in zip(program, stages, strict=True):
        for block, ours, theirs in zip((stage.W, stage.b), expected[1:], gradients, strict=True):
            code = torch.from_numpy(block.pattern.code)
            assert bool((code > 0).all())
            close(theirs, ours[..., code - 1])


def test_what_a_peer_cannot_do_is_reported_and_not_hidden() -> None:
    case = Case("small", "MS1", 4, 2, 3, peers=("fused", "torchdiffeq", "reference"))
    record = cases.measure(case, seconds=0.0)
    assert set(record["seconds"]) == {"fused", "reference"}
    assert set(record["missing"]) == {"torchdiffeq"}


def test_the_table_has_every_row_and_every_peer_is_known() -> None:
    assert {"small", "ensemble", "images", "wide", "euler", "compiled"} == {
        case.group for case in CASES
    }
    for case in (*CASES, *SWEEP):
        assert set(case.peers) <= set(peers.PEERS)
        assert case.name
    own = [case.name for case in CASES if case.group not in ("euler", "compiled")]
    assert len(set(own)) == len(own)


# --- command line ---------------------------------------------------------------------------------


def test_the_command_prints_records_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cases, "CASES", (TINY,))
    bench.main(["--group", "small", "--seconds", "0.05", "--json"])
    found = json.loads(capsys.readouterr().out)
    (record,) = found["cases"]
    assert record["case"]["architecture"] == "H1"
    assert set(record["seconds"]) | set(record["missing"]) == set(TINY.peers)
    assert all(timing["median"] > 0 for timing in record["seconds"].values())
    assert {"hdnn", "torch", "threads", "cpu"} <= set(found["machine"])


def test_the_command_shows_a_line_for_every_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cases, "CASES", (TINY,))
    bench.main(["--group", "small", "--seconds", "0.0"])
    lines = capsys.readouterr().out.splitlines()
    for peer in ("fused", "reference"):
        assert any(peer in line and "ms" in line for line in lines)


def test_an_unknown_group_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--group", "smal"])
    assert "small" in capsys.readouterr().err


def test_the_readme_shows_what_was_measured() -> None:
    records, trained = (
        json.loads((report.HERE / name).read_text()) for name in ("results.json", "training.json")
    )
    assert report.readme_table(records, trained) in report.README.read_text()
