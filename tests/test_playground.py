"""The playground: its engine is hdnn (compared by Node), its server serves one folder."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn import schemes
from hdnn.analysis import sensitivities
from hdnn.config import TrainingConfig
from hdnn.data import split
from hdnn.errors import HdnnError
from hdnn.fields import ACTIVATIONS, HamiltonianField
from hdnn.models import Model
from hdnn.playground import FOLDER, make_server
from hdnn.playground.server import HEADERS
from hdnn.training.loops import Batches, CoordinateLoop, JointLoop
from hdnn.zoo import ARCHITECTURES

RUNNER = Path(__file__).with_name("playground_engine.mjs")
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None and "HDNN_CI" not in os.environ, reason="Node 20 or later runs the engine"
)

SPLITTINGS = ["Leapfrog", "Yoshida4", "ForwardEuler"]
PAIRS = [
    *((name, None) for name in ARCHITECTURES),
    *((name, scheme) for name in ("MS1", "MS3", "HS") for scheme in SPLITTINGS),
]


def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(RUNNER), str(FOLDER)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def build(name: str, scheme: str | None = None, layers: int = 12, **options: Any) -> Any:
    row = ARCHITECTURES[name]
    chosen = None
    if scheme is not None:
        kind: Any = schemes.SCHEMES[scheme]
        own = row.scheme
        assert isinstance(own, schemes.Splitting)
        chosen = kind() if scheme == "ForwardEuler" else kind(own.first)
    if row.scheme.uses_step:
        options["T"] = 1.2
    options = {"features": 4, **options}
    generator = torch.Generator().manual_seed(5)
    return hdnn.network(name, layers=layers, scheme=chosen, generator=generator, **options).float()


def spec(net: Any) -> dict[str, Any]:
    weights = net.field.weights
    given = {
        "architecture": net.name,
        "width": net.features,
        "layers": net.layers,
        "step": net.h,
        "activation": net.field.activation.name,
        "timeInvariant": net.time_invariant,
        "theta": weights.theta.flatten().tolist(),
        "beta": weights.beta.flatten().tolist(),
    }
    if isinstance(net.scheme, schemes.Splitting):
        return {**given, "scheme": net.scheme.name, "first": net.scheme.first}
    return {**given, "scheme": type(net.scheme).__name__}


def close(found: Any, expected: Tensor, what: str) -> None:
    """Equal to 1e-5, relative to the largest entry."""
    flat = expected.detach().double().reshape(-1)
    error = (torch.tensor(found, dtype=torch.float64) - flat).abs().max()
    assert error <= 1e-5 * flat.abs().max(), f"{what}: {float(error)} of {float(flat.abs().max())}"


def networks() -> list[tuple[str, Any]]:
    nets = [(f"{name} {scheme}", build(name, scheme)) for name, scheme in PAIRS]
    nets += [(f"{name} shared", build(name, time_invariant=True)) for name in ("H2", "MS1")]
    nets += [(f"H1 {sigma}", build("H1", activation=sigma)) for sigma in ACTIVATIONS]
    nets += [(f"{name} wide", build(name, features=6)) for name in ("MS2", "MS3", "H2")]
    nets += [("HS 10", build("HS", features=10)), ("FCNN 8", build("FCNN", features=8))]
    return nets


@cache
def compared() -> dict[str, tuple[Any, Tensor, Tensor, dict[str, Any]]]:
    """Every network with its batch, its cotangents, and what the engine makes of them."""
    cases = []
    for title, net in networks():
        generator = torch.Generator().manual_seed(len(title))
        y, g = torch.randn(2, 7, net.features, generator=generator).unbind(0)
        cases.append((title, net, y, g))
    found = run(
        [
            {
                "task": "network",
                "network": spec(net),
                "states": y.T.flatten().tolist(),
                "cotangents": g.T.flatten().tolist(),
            }
            for _, net, y, g in cases
        ]
    )
    return {title: (net, y, g, f) for (title, net, y, g), f in zip(cases, found, strict=True)}


TITLES = [title for title, _ in networks()]


@needs_node
@pytest.mark.parametrize("title", TITLES)
def test_the_engine_computes_what_hdnn_computes(title: str) -> None:
    net, y, g, found = compared()[title]
    assert "error" not in found, found
    n = net.features
    wide = net.double()
    states = y.double().requires_grad_()
    out = wide(states)
    out.backward(g.double())
    close(found["out"], out.T, "outputs")
    close(found["theta"], wide.field.weights.theta.grad, "gradient of K")
    close(found["beta"], wide.field.weights.beta.grad, "gradient of b")
    close(found["states"], states.grad.T, "gradient of the states")  # type: ignore[union-attr]
    with torch.no_grad():
        M = sensitivities(wide, y.double())
        close(found["sensitivities"], M, "sensitivities")
        close(found["norms"], torch.linalg.matrix_norm(M[0, :2], 2), "norms")
        velocity = torch.func.jacrev(wide.field.velocity)(y[0].double())
        close(found["jacobian"], velocity, "Jacobian of the field")
        if isinstance(wide.field, HamiltonianField):
            path = wide.trajectory(y.double())
            H = torch.stack(
                [wide.field.energy(path[j], min(j, net.layers - 1)) for j in range(net.layers + 1)]
            )
            close(found["energies"], H, "energies")
    assert len(found["eigenvalues"]) == n
    _same_spectrum(found["eigenvalues"], velocity.numpy())


def _same_spectrum(found: list[list[Any]], matrix: Any, tolerance: float = 1e-6) -> None:
    left = [complex(float(a), float(b)) for a, b in found]
    scale = max(1.0, float(np.abs(matrix).max()))
    for value in np.linalg.eigvals(matrix):
        nearest = min(left, key=lambda candidate: abs(candidate - value))
        assert abs(nearest - value) <= tolerance * scale
        left.remove(nearest)


@needs_node
def test_eigenvalues_are_those_of_lapack() -> None:
    random = np.random.default_rng(0)
    matrices = [random.normal(size=(8, 8)) for _ in range(20)]
    matrices += [np.zeros((8, 8)), np.diag(np.arange(8.0)), matrices[0] - matrices[0].T]
    cases = [{"task": "eigenvalues", "n": 8, "matrices": [m.ravel().tolist() for m in matrices]}]
    for found, matrix in zip(run(cases)[0], matrices, strict=True):  # type: ignore[arg-type]
        _same_spectrum(found, matrix)  # type: ignore[arg-type]


@needs_node
def test_the_catalogues_agree() -> None:
    found = run([{"task": "catalogue"}])[0]
    assert set(found["schemes"]) == set(ARCHITECTURES)
    assert found["activations"] == list(ACTIVATIONS)
    for name, listed in found["schemes"].items():
        own = ARCHITECTURES[name].scheme
        assert listed[0] == (own.name if isinstance(own, schemes.Splitting) else type(own).__name__)
        assert {(name, scheme) for scheme in listed[1:]} <= set(PAIRS)


@needs_node
def test_what_cannot_be_built_is_an_error_for_people() -> None:
    wrong = [
        {"scheme": "Leapfrog"},
        {"architecture": "H3"},
        {"architecture": "MS1", "activation": "relu"},
        {"width": 3},
        {"activation": "__proto__"},
    ]
    base = {"architecture": "H1", "width": 4, "layers": 2, "T": 1.0}
    found = run([{"task": "network", "network": {**base, **given}} for given in wrong])
    assert [result.get("kind") for result in found] == ["PlaygroundError"] * len(wrong)


@needs_node
@pytest.mark.parametrize("problem", ["swiss-roll", "peaks"])
@pytest.mark.parametrize("method", ["coordinate", "joint"])
@pytest.mark.parametrize("name", ["H1", "MS1", "FCNN"])
def test_a_training_follows_the_loss_curve_of_hdnn(name: str, method: str, problem: str) -> None:
    data = split(problem, size=1000)
    outputs = 1 if data.classes == 2 else data.classes
    net = build(name, layers=8)
    given = spec(net)
    model = Model(net, outputs, hdnn.Augmentation(2, 4))
    config = TrainingConfig(method=method, learning_rate=0.02, loop="autograd")
    batches = torch.randperm(500, generator=torch.Generator().manual_seed(1)).split(125) * 5
    weight = torch.ones(500)
    states = Batches(model.stem.prepare(data.X_train).float(), data.y_train, weight)
    loop: Any = (CoordinateLoop if method == "coordinate" else JointLoop)(model, states, config)
    expected = []
    for i, batch in enumerate(batches):
        if method == "coordinate":
            expected.append(loop._step(batch)[:2])
        else:
            expected.append(loop.gradients(batch, 0, i)[:2])
            loop.optimizer.step()
    case = {
        "task": "training",
        "network": given,
        "points": data.X_train.flatten().tolist(),
        "labels": data.y_train.tolist(),
        "classes": data.classes,
        "batches": [batch.tolist() for batch in batches],
        "config": {
            "method": method,
            "learningRate": 0.02,
            "alpha": config.alpha,
            "alphaC": config.alpha_c,
            "batch": 125,
            "augmentation": "append",
        },
    }
    found = run([case])[0]
    for column, key in enumerate(("loss", "penalized")):
        curve = np.array([step[column] for step in expected])
        # Rounding grows with the iterations; a wrong gradient shows in the second of them.
        np.testing.assert_allclose(found[key], curve, rtol=2e-3)
        np.testing.assert_allclose(found[key][:4], curve[:4], rtol=1e-4)
        assert not np.allclose(curve[1:], curve[:-1], rtol=1e-4)


@needs_node
@pytest.mark.parametrize(("name", "scheme"), PAIRS)
def test_files_go_through_the_engine_and_back(
    name: str, scheme: str | None, tmp_path: Path
) -> None:
    net = build(name, scheme, layers=3, time_invariant=name == "H2")
    classes = 3 if name == "HS" else 2
    outputs = classes if classes > 2 else 1
    mode = "spread" if name == "H1" else "append"
    labels = ["a", "\N{GREEK SMALL LETTER BETA}", 'c"'][:classes]
    model = Model(net, outputs, hdnn.Augmentation(2, 4, mode), classes=labels)
    torch.nn.init.normal_(model.head.weight)
    path = tmp_path / "model.safetensors"
    hdnn.save(model, path)
    X = torch.randn(9, 2, dtype=torch.float32)
    case = {
        "task": "file",
        "bytes": base64.b64encode(path.read_bytes()).decode(),
        "points": X.flatten().tolist(),
        "labels": [0] * 9,
    }
    found = run([case])[0]
    assert "error" not in found, found
    close(found["logits"], model(X), "logits")
    path.write_bytes(base64.b64decode(found["bytes"]))
    again = hdnn.load(path)
    assert again.classes == labels
    assert repr(again.network) == repr(net)
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], tensor, rtol=0, atol=0)


@needs_node
def test_hostile_files_are_errors_for_people(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    hdnn.save(build("H1", layers=3), path)
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little")

    def edited(old: bytes, new: bytes) -> bytes:
        changed = good[8 : 8 + header].replace(old, new)
        return len(changed).to_bytes(8, "little") + changed + good[8 + header :]

    bad = [
        good[:40],
        good[:-9],
        b"",
        b"\xff" * 64,
        edited(b"H1", b"H9"),
        edited(b"layers", b"layer5"),
        edited(b"tanh", b"__proto__"),
        edited(b'\\"features\\": 4', b'\\"features\\": 4000000'),
        edited(b"F32", b"I32"),
        edited(b'\\"format\\": 1', b'\\"format\\": 7'),
        edited(b"hdnn", b"hddn"),
        good[: 8 + header] + b"\xff" * (len(good) - 8 - header),
    ]
    cases = [{"task": "file", "bytes": base64.b64encode(b).decode()} for b in bad]
    for number, found in enumerate(run(cases)):
        assert found.get("kind") == "PlaygroundError", (number, found)
        assert len(found["error"]) < 200


@pytest.fixture
def server() -> Iterator[Any]:
    with make_server() as bound:
        thread = threading.Thread(target=bound.serve_forever)
        thread.start()
        yield bound
        bound.shutdown()
        thread.join()


def get(server: Any, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path)  # as it is: no client tidies the address
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_server_serves_the_page_with_a_strict_policy(server: Any) -> None:
    status, headers, body = get(server, "/")
    assert (status, body) == (200, (FOLDER / "index.html").read_bytes())
    assert headers.items() >= HEADERS.items()
    policy = headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.split(";")[0] == "default-src 'none'"
    # Other hosts send no header, so the page says the same itself.
    meta = re.search(rb'Content-Security-Policy" content="([^"]*)"', body)
    assert meta is not None
    assert meta[1].decode() == policy.removesuffix("; frame-ancestors 'none'")
    status, headers, body = get(server, "/js/main.js?v=1")
    assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    status, headers, body = get(server, "/", "HEAD")
    assert (status, body) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/js/../../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "/%2e%2e%2f%2e%2e%2ferrors.py",
        "/..\\server.py",
        "//etc/passwd",
        "/js",
        "/js/",
        "/index.html/",
        "/%00",
        "/missing.js",
    ],
)
def test_nothing_outside_the_folder_is_served(server: Any, path: str) -> None:
    assert get(server, path)[0] == 404


def test_other_methods_are_not_served(server: Any) -> None:
    assert get(server, "/", "POST")[0] == 501


def test_the_server_binds_to_loopback_and_explains_a_taken_port(server: Any) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        with pytest.raises(HdnnError, match="--port 0"):
            make_server(held.getsockname()[1])


def test_the_page_is_small_and_asks_nobody() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path in files:
        links = re.findall(r"https?://[\w./]+", path.read_text())
        assert set(links) <= {"http://www.w3.org/2000/svg"}, path


def test_hdnn_play_prints_its_address_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "hdnn", "play", "--no-open", "--port", "0", "--json"]
    # A shell's background processes ignore SIGINT, and so would this one's children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        text = b""
        while not text.rstrip().endswith(b"}"):
            line = process.stdout.readline()
            assert line, "it ended early"
            text += line
        found = json.loads(text)
        assert found["url"] == f"http://127.0.0.1:{found['port']}/"
        connection = http.client.HTTPConnection("127.0.0.1", found["port"], timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
