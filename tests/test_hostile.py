"""Hostile descriptions: a file made to break the reader is a FileFormatError and costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import hdnn
from catalogue import build
from hdnn.errors import FileFormatError

Tensors = dict[str, torch.Tensor]
HUGE = 10**400


def contents(net: hdnn.HamiltonianNetwork, path: Path) -> tuple[dict[str, Any], Tensors]:
    hdnn.save(net, path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["hdnn"])
        del description["sha256"]  # else every change would be detected by its checksum
        return description, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(description: Any, tensors: Tensors, path: Path) -> Path:
    text = description if isinstance(description, str) else json.dumps(description)
    save_file(tensors, path, metadata={"hdnn": text})
    return path


def edited(description: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    place = description = json.loads(json.dumps(description))
    *parents, last = key.split(".")
    for parent in parents:
        place = place[parent]
    place[last] = value
    return description


HOSTILE: list[tuple[str, list[Any]]] = [
    ("format", [0, 2, 10**9, "1", None, [1]]),
    ("kind", ["cat", None, 3, ["network"]]),
    ("name", [["H1"], 5, {"a": 1}]),
    ("layers", [7, -1, "3", 3.5, HUGE, [3]]),
    ("step", [0, -1, float("nan"), float("inf"), "0.1", HUGE, [0.1], {}, None, "__import__('os')"]),
    ("learn_steps", [True, "no"]),
    ("backend", ["evil", 5, None]),
    (
        "scheme",
        [
            None,
            "RK4",
            [],
            {},
            {"type": "Evil"},
            {"type": ["RK4"]},
            {"type": {}},
            {"type": "ForwardEuler", "order": 3},
            {"type": "os.system", "command": "true"},
            {"type": "Splitting", "coefficients": "ab"},
            {"type": "Splitting", "coefficients": [[1], [1]]},
            {"type": "Splitting", "coefficients": 5},
            {"type": "Splitting", "first": ["y"]},
            {"type": "ImplicitMidpoint", "solver": ["newton"]},
            {"type": "ImplicitMidpoint", "max_iterations": "many"},
            {"type": "ImplicitMidpoint", "tolerance": "small"},
        ],
    ),
    ("field", [None, [], "H1", 3, {}]),
    ("field.type", ["evil", ["hamiltonian"], None, 3]),
    ("field.structure", ["evil", ["dense"], {"a": 1}, None, "custom", "skew"]),
    ("field.activation", ["evil", ["tanh"], None, {"a": 1}]),
    ("field.features", [10**9, HUGE, 0, -4, 4.5, "4", None, True, [4]]),
    ("field.channels", [4]),
    ("field.layers", [10**12, HUGE, -1, "3", None, 2.5]),
    ("field.ensemble", [3, 0, "2", 10**12, HUGE, [2]]),
    ("field.time_invariant", [True, "no", [0]]),
    (
        "field.J",
        [
            None,
            {},
            "J1",
            [],
            {"type": "evil"},
            {"type": ["fixed"]},
            {"type": "learned", "structure": "skew", "layers": None},
            {"type": "learned", "structure": ["skew"], "layers": 10**12},
        ],
    ),
]
CASES = [(key, value) for key, values in HOSTILE for value in values]


@pytest.mark.parametrize(
    ("key", "value"), CASES, ids=[f"{key}={str(value)[:40]}" for key, value in CASES]
)
def test_a_hostile_description_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    description, tensors = contents(build("H1"), tmp_path / "net")
    assert isinstance(hdnn.load(write(description, tensors, tmp_path / "good")), torch.nn.Module)
    bad = edited(description, key, value)
    with pytest.raises(FileFormatError):
        hdnn.load(write(bad, tensors, tmp_path / "bad"))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", "1" * 10_000, "[" * 100_000, '{"a":' * 100_000, "\x00", "NaN"],
    ids=lambda text: repr(text[:8]),
)
def test_a_description_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError):
        hdnn.load(write(text, {"x": torch.ones(2)}, tmp_path / "bad"))


def test_missing_parts_of_a_description_are_refused(tmp_path: Path) -> None:
    description, tensors = contents(build("H1"), tmp_path / "net")
    for key in description:
        part = {k: v for k, v in description.items() if k != key}
        with pytest.raises(FileFormatError):
            hdnn.load(write(part, tensors, tmp_path / "bad"))


WEIGHTS, BIAS, J = "field.weights.theta", "field.weights.beta", "field.interconnection.J"
TENSORS: dict[str, tuple[str, torch.Tensor | None]] = {
    "no weights": (WEIGHTS, None),
    "no bias": (BIAS, None),
    "no J": (J, None),
    "more than there should be": ("field.weights.more", torch.ones(3)),
    "weights of another shape": (WEIGHTS, torch.ones(3, 15)),
    "weights of integers": (WEIGHTS, torch.ones(3, 16, dtype=torch.int64)),
    "weights without axes": (WEIGHTS, torch.tensor(1.0)),
    "bias of another shape": (BIAS, torch.ones(3, 5)),
    "bias pattern of another shape": ("pattern.b", torch.tensor([1, 2, 3])),
    "bias pattern that repeats": ("pattern.b", torch.tensor([1, 1, 1, 1])),
    "J of another width": (J, torch.zeros(6, 6)),
    "J of one number": (J, torch.tensor(0.0)),
    "J that is not skew": (J, torch.ones(4, 4)),
    "J that is not finite": (J, torch.full((4, 4), torch.nan)),
    "R that is not finite": ("field.R", torch.full((4, 4), torch.nan)),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    description, tensors = contents(build("H1"), tmp_path / "net")
    name, tensor = TENSORS[case]
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    with pytest.raises(FileFormatError):
        hdnn.load(write(description, tensors, tmp_path / "bad"))


@pytest.mark.parametrize(
    "code",
    [torch.ones(1, 4, 1, 1), torch.ones(4), torch.full((1, 4), -(2**63))],
    ids=["4 axes", "1 axis", "smallest"],
)
def test_hostile_patterns_are_refused(code: torch.Tensor, tmp_path: Path) -> None:
    graph = hdnn.fields.Weights([[1, 1, 1, 1]], features=4, layers=2)
    net = hdnn.HamiltonianNetwork(hdnn.fields.HamiltonianField("J2", graph), T=1.0)
    description, tensors = contents(net, tmp_path / "net")
    tensors["pattern.K"] = code.to(torch.int64)
    with pytest.raises(FileFormatError):
        hdnn.load(write(description, tensors, tmp_path / "bad"))


MEASURE = """
import resource, sys, hdnn
from hdnn.errors import FileFormatError
resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30,) * 2)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hdnn.load(sys.argv[1])
before = peak()
try:
    hdnn.load(sys.argv[2])
except FileFormatError:
    pass
print((peak() - before) // 1024)
"""


@pytest.mark.parametrize("scheme", ["ForwardEuler", "RK4"])
@pytest.mark.parametrize("learned", [False, True])
def test_a_promise_of_many_layers_allocates_nothing(
    scheme: str, learned: bool, tmp_path: Path
) -> None:
    """Shared weights fit a million layers into a few bytes: opening the file unrolls nothing."""
    net = build("H1", scheme, layers=1, time_invariant=True, learn_steps=learned)
    description, tensors = contents(net, tmp_path / "good")
    bad = edited(edited(description, "layers", 10**6), "field.layers", 10**6)
    if learned:
        bad["step"] = 1e-6
    write(bad, tensors, tmp_path / "bad")
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "good"), str(tmp_path / "bad")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) < 100  # megabytes; unrolled it would be a thousand
