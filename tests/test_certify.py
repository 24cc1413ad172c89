"""Certificates: what they say where the theory holds, and where one of its premises fails."""

from __future__ import annotations

import copy
import json
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import hdnn
from catalogue import HAMILTONIAN, build, every_pair
from hdnn.analysis import advise, certify, norms, sensitivities
from hdnn.cli import app
from hdnn.errors import HdnnError
from hdnn.fields import ACTIVATIONS, EnergyField, HamiltonianField, Weights
from hdnn.schemes import ForwardEuler, ImplicitMidpoint, SemiImplicitEuler
from hdnn.training.settings import TrainingConfig
from hdnn.training.trainer import DivergenceError, Trainer

CONTINUOUS = ("interconnection", "imaginary-spectrum", "gradient-dynamics")
ROOT = Path(hdnn.__file__).parents[2]


def failing(net: hdnn.HamiltonianNetwork, y: Tensor) -> set[str]:
    return {check.name for check in certify(net, y).failed}


def given_weights(net: hdnn.HamiltonianNetwork, K: Tensor, b: Tensor) -> hdnn.HamiltonianNetwork:
    """Put K and b of dense weights into every layer."""
    with torch.no_grad():
        net.field.weights.theta.copy_(K.reshape(1, -1).expand_as(net.field.weights.theta))
        net.field.weights.beta.copy_(b.expand_as(net.field.weights.beta))
    return net


# --- what holds -----------------------------------------------------------------------------------


@every_pair()
def test_every_network_of_the_catalogue(name: str, scheme: str) -> None:
    step = {} if (name, scheme) == ("FCNN", "own") else {"T": 0.1}
    net = build(name, scheme, layers=2, time_invariant=True, scale=0.7, **step)
    found = certify(net, torch.randn(4, 4))
    if name in HAMILTONIAN:
        assert found.ok, str(found)
        assert all(found[check].holds for check in CONTINUOUS)
        assert found["structure"].holds is (True if net.scheme.structure_preserving else None)
    else:
        assert found["interconnection"].holds is False
        assert found["structure"].holds is None
    bounded = found["upper-bound"]
    assert bounded.holds is (None if net.program().stages is None else True)


def test_the_drift_of_a_scheme_has_its_order() -> None:
    """The deviation from the ODE at h and h/2 shows the order; the factors tend to 1."""
    for name, scheme, order in (("H1", "ForwardEuler", 1), ("MS3", "Leapfrog", 2)):
        net = build(name, scheme, layers=8, T=0.4, scale=0.7)
        detail = certify(net, torch.randn(5, 4))["scheme-drift"].detail
        assert detail["order"] == pytest.approx(order, abs=0.3)
        assert 1 <= detail["h/4"] <= detail["h/2"] <= detail["h"]


def test_float32_is_examined_in_float64_and_left_alone() -> None:
    net = build("MS3", layers=30, T=1.0, dtype=torch.float32)
    before = copy.deepcopy(net.state_dict())
    y = torch.randn(6, 4, dtype=torch.float32)
    found = certify(net, y)
    assert found.dtype == "float32"
    assert found["structure"].value < 1e-13  # in float32 it would be 1e-6
    assert found["norm-at-least-one"].holds
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert next(net.parameters()).requires_grad


def test_pixels_are_samples() -> None:
    net, images = build("H2", T=0.3), build("H2", channels=4, T=0.3)
    images.load_state_dict(net.state_dict())
    y = torch.randn(2, 4, 3)
    rows, pixels = certify(net, y.movedim(1, -1)), certify(images, y)
    assert pixels.samples == rows.samples == 6
    for mine, theirs in zip(pixels.checks, rows.checks, strict=True):
        assert mine.holds is theirs.holds
        if mine.name not in ("gradient-dynamics", "scheme-drift"):  # on fewer samples
            assert mine.value == pytest.approx(theirs.value, rel=1e-6, abs=1e-12, nan_ok=True)


# --- premises that fail ---------------------------------------------------------------------------


def test_a_singular_K_with_J1_is_nilpotent_and_said_to_be() -> None:
    """K'DK = diag(1, 0): y' = z-part only, so d y_N / d y_0 grows linearly with T."""
    net = hdnn.network("H1", features=2, layers=4, T=2.0, time_invariant=True)
    given_weights(net, torch.diag(torch.tensor([1.0, 0.0])), torch.zeros(2))
    found = certify(net, torch.zeros(3, 2))
    assert found["imaginary-spectrum"].holds
    assert found["full-rank"].holds is False
    assert found["diagonalisable"].holds is False
    assert found["diagonalisable"].value == float("inf")
    assert "linearly" in found["diagonalisable"].consequence
    assert float(norms(sensitivities(net, torch.zeros(1, 2))).maximum[0]) > 2.0  # 1 + T, sheared


def test_a_singular_K_can_be_diagonalisable_all_the_same() -> None:
    net = hdnn.network("H1", features=4, layers=2, T=0.2, time_invariant=True)
    given_weights(net, torch.diag(torch.tensor([1.0, 0.0, 1.0, 0.0])), torch.zeros(4))
    found = certify(net, torch.randn(3, 4))
    assert found["full-rank"].holds is False
    assert found["diagonalisable"].holds


def test_saturated_units_are_seen() -> None:
    net = hdnn.network("H1", features=2, layers=2, T=0.5, time_invariant=True)
    given_weights(net, torch.eye(2), torch.tensor([40.0, 0.0]))
    found = certify(net, torch.randn(3, 2))
    assert found["unsaturated"].holds is False
    assert found["unsaturated"].value == 0.0
    assert found["diagonalisable"].holds is False
    assert found["full-rank"].holds
    odd = certify(build("MS2", features=3, T=0.3), torch.randn(3, 3))  # K singular, D K is fine
    assert odd["full-rank"].holds is None
    assert odd["diagonalisable"].holds


def test_a_J_that_is_not_skew() -> None:
    def J(y: Tensor, t: Any) -> Tensor:
        return (torch.tensor([[0.3, 1.0], [-1.0, 0.3]]) + 0 * y[..., :1, None]).expand(
            *y.shape[:-1], 2, 2
        )

    field = HamiltonianField(J, Weights("dense", features=2, layers=3))
    found = certify(hdnn.HamiltonianNetwork(field, step=0.05), torch.randn(4, 2))
    assert found["interconnection"].holds is False
    assert found["interconnection"].value == pytest.approx(0.6 / (1.09) ** 0.5)
    assert found["imaginary-spectrum"].holds is False
    assert found["structure"].holds is None


def test_dissipation_is_not_marginal_stability() -> None:
    weights = Weights("dense", features=4, layers=3)
    field = HamiltonianField("J1", weights, dissipation=0.5 * torch.eye(4))
    net = hdnn.HamiltonianNetwork(field, ImplicitMidpoint(), step=0.02)
    assert {"interconnection", "imaginary-spectrum"} <= failing(net, torch.randn(4, 4))
    assert certify(net, torch.randn(4, 4))["structure"].holds is None


def test_an_energy_that_is_not_convex() -> None:
    """The inverted pendulum: a saddle, with real eigenvalues."""
    field = EnergyField("J1", lambda x, t: x[..., 1] ** 2 / 2 - x[..., 0].cos(), features=2)
    net = hdnn.HamiltonianNetwork(field, ImplicitMidpoint(), layers=3, step=0.1)
    up, down = torch.tensor([[3.1, 0.0]]), torch.tensor([[0.1, 0.0]])
    assert {"full-rank", "imaginary-spectrum"} <= failing(net, up)
    assert certify(net, down)["full-rank"].holds
    assert certify(net, down)["imaginary-spectrum"].holds
    assert certify(net, up)["structure"].holds  # symplectic in any case


def test_a_step_that_is_too_large() -> None:
    y = torch.randn(6, 4)
    net = build("H1", layers=16, T=1.0)
    for step, fails in ((1e-4, False), (0.3, True), (50.0, True)):
        large = build("H1", layers=16, step=step)
        large.load_state_dict(net.state_dict())
        assert ("scheme-drift" in failing(large, y)) is fails
    bounded = build("H1", layers=40, step=0.5, time_invariant=True)
    assert "bounded-states" in failing(bounded, y)
    overflow = build("H1", layers=80, step=1e5, activation="relu")
    found = certify(overflow, y)
    assert [check.name for check in found.checks] == ["finite"]
    assert not found.ok
    assert found["finite"].detail["layer"] > 0


def test_rough_weights_are_said_to_be() -> None:
    y = torch.randn(5, 4)
    assert "smooth-weights" in failing(build("H1", layers=24, T=0.5), y)
    smooth = build("H1", layers=24, T=0.5)
    with torch.no_grad():
        for p in smooth.parameters():
            p.copy_(p[:1] + 1e-3 * torch.linspace(0, 1, 24)[:, None] * p[1:2])
    assert "smooth-weights" not in failing(smooth, y)


def test_what_is_not_proved_may_be_unmet() -> None:
    """Rough weights and a large step leave theorems as they are; a baseline has none of them."""
    y = torch.randn(5, 4)
    found = certify(build("H1", layers=24, T=8.0), y)
    assert {"smooth-weights", "scheme-drift"} <= {check.name for check in found.failed}
    assert {check.verdict for check in found.failed} == {"not met"}
    assert found.ok
    assert "everything that is proved holds; what is not met" in str(found)
    baseline = certify(build("ResNet", T=1.0), y)
    assert baseline["interconnection"].verdict == "FAILS"
    assert not baseline.ok


def test_broken_promises_are_found() -> None:
    @dataclass(frozen=True)
    class Boastful(ForwardEuler):
        structure_preserving: ClassVar[bool] = True

    y = torch.randn(5, 4)
    boast = hdnn.network("H1", features=4, layers=4, T=1.0, scheme=Boastful())
    assert "structure" in failing(boast, y)
    flat = replace(ACTIVATIONS["tanh"], slope=0.01)
    assert "upper-bound" in failing(
        build("H1", T=2.0, activation=flat), torch.zeros(1, 4) + 0.01 * y
    )


def test_slow_states_with_growing_gradients() -> None:
    """y' = eps J tanh(y): Lemmas 2 and 3 hold everywhere, yet gradients grow with eps T."""
    example = runpy.run_path(str(ROOT / "examples" / "slow_state.py"))
    early, late, slow = (example["examine"](*v) for v in ((1.0, 0.5), (1.0, 20.0), (1e-3, 20.0)))
    assert early.ok
    for found in (late, slow):
        assert [check.name for check in found.failed] == ["marginal-growth"]
        assert found["imaginary-spectrum"].holds
        assert found["diagonalisable"].holds
        assert found["structure"].holds
    assert late["marginal-growth"].detail["largest"] > 5
    assert slow["marginal-growth"].value == pytest.approx(late["marginal-growth"].value, rel=1e-6)


# --- the record -----------------------------------------------------------------------------------


def test_the_record() -> None:
    found = certify(build("MS3", T=0.2, time_invariant=True), torch.randn(5, 4))
    assert json.loads(json.dumps(found.to_dict()))["ok"] is True
    assert {check["name"] for check in found.to_dict()["checks"]} == {c.name for c in found.checks}
    text = str(found)
    assert all(check.name in text for check in found.checks)
    assert "everything that applies holds" in text
    with pytest.raises(HdnnError, match="did you mean 'structure'"):
        found["strukture"]
    strict = certify(build("MS3", T=0.2), torch.randn(5, 4), tolerance=0.0)
    assert strict["structure"].holds is False
    assert strict["structure"].tolerance == 0.0
    assert strict["imaginary-spectrum"].holds is False  # of all matrices, not of the exact ones


@pytest.mark.parametrize("look", [certify, advise])
def test_what_cannot_be_examined(look: Any) -> None:
    for net, y, words in (
        (build("H1", ensemble=2), torch.randn(1, 3, 4), "ensemble"),
        (build("H1", layers=0), torch.randn(3, 4), "nothing"),
        (build("H1"), torch.randn(0, 4), "nothing"),
        (build("H1"), torch.randn(3, 5), "shape"),
        (build("H1", channels=4, kernel=3), torch.randn(2, 4, 5, 5), "convolution"),
    ):
        with pytest.raises(HdnnError, match=words):
            look(net, y)
    with pytest.raises(HdnnError, match="tolerance"):
        certify(build("H1"), torch.randn(3, 4), tolerance=-1.0)


# --- advice ---------------------------------------------------------------------------------------


def test_advice_that_is_followed_helps() -> None:
    y = torch.randn(40, 4)
    for name in ("H1", "H2", "MS3"):
        net = build(name, layers=16, T=30.0)
        found = advise(net, y)
        assert not found.ok
        assert found.T_range is not None
        assert found.layers is not None
        assert found.layers > 16
        better = build(name, layers=16, T=found.T_range[1])
        better.load_state_dict(net.state_dict())
        again = advise(better, y)
        assert again.added < found.added
        assert again.T_range is not None
        assert again.T_range[0] <= again.T_range[1]
        assert float(again.cumulative.max()) < float(found.cumulative.max())


def test_the_factor_of_forward_euler_is_its_amplification() -> None:
    """A linear rotation of frequency 1: |1 + i h| in every step, and 1 in splitting schemes."""
    for scheme, factor in ((ForwardEuler(), (1 + 0.1**2) ** 10), (SemiImplicitEuler(), 1.0)):
        weights = Weights("block-diagonal", features=2, layers=20)
        field = HamiltonianField("J1", weights, activation="identity")
        net = hdnn.HamiltonianNetwork(field, scheme, step=0.1)
        with torch.no_grad():
            weights.theta.fill_(1.0)
        found = advise(net, torch.randn(3, 2))
        assert found.added == pytest.approx(factor, rel=1e-2)
        assert found.turns.tolist() == pytest.approx([0.1] * 20)
        assert found.ok
        assert found.T_range is not None
        assert found.T_range[0] == pytest.approx(1.0)
        if factor > 1:  # 2 = (1 + h^2)^10
            assert found.T_range[1] == pytest.approx(20 * (2**0.1 - 1) ** 0.5, rel=1e-2)
        else:
            assert found.T_range[1] == pytest.approx(40.0, rel=1e-2)


def test_which_layer_breaks() -> None:
    net = build("H1", layers=6, step=0.1)
    with torch.no_grad():
        net.field.weights.theta[3].mul_(100.0)
        net.field.weights.theta[:3] *= 0.1
        net.field.weights.beta.zero_()
    found = advise(net, 1e-3 * torch.randn(5, 4))
    assert (found.worst, found.breaks) == (3, 3)
    assert "explode" in str(found)
    with torch.no_grad():
        net.field.weights.theta[2] = torch.nan
    broken = advise(net, torch.randn(5, 4))
    assert broken.breaks == 2
    assert "not finite" in broken.remedy
    vanishing = advise(build("FCNN", layers=60, scale=0.3), torch.randn(5, 4))
    assert vanishing.T_range is None
    assert "vanish" in vanishing.remedy
    assert json.dumps(vanishing.to_dict())


def test_a_training_that_diverges_is_advised() -> None:
    net = build("H1", features=4, layers=3, T=1e39, dtype=torch.float32)
    X, target = torch.randn(64, 4, dtype=torch.float32), torch.arange(64) % 2
    with pytest.raises(DivergenceError, match=r"layer 0 breaks first.*use T <= [0-9.]+ \(h <= "):
        Trainer(hdnn.Model(net, 1), TrainingConfig(epochs=1)).fit(X, target)


# --- the command line -----------------------------------------------------------------------------


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("good", ("--time-invariant",)), ("bad", ("--dtype", "float64"))):
        architecture = "MS3" if name == "good" else "ResNet"
        result = command(
            "train",
            "swiss-roll",
            "--architecture",
            architecture,
            "--layers",
            2,
            "--T",
            0.1,
            "--size",
            200,
            "--epochs",
            1,
            "--batch-size",
            50,
            "--out",
            folder / name,
            *more,
        )
        assert result.exit_code == 0, result.output
    return folder


def test_certify_a_run(runs: Path) -> None:
    good, bad = (command("certify", runs / name, "--samples", 20) for name in ("good", "bad"))
    assert good.exit_code == 0, good.output
    assert "everything that applies holds" in good.output
    assert "norm-at-least-one" in good.output
    assert bad.exit_code == 1
    assert "FAILS" in bad.output
    found = command("certify", runs / "bad", "--json", "--samples", 20)
    assert found.exit_code == 1
    assert json.loads(found.output)["ok"] is False
    assert json.loads(found.output)["samples"] == 20


def test_the_default_run_of_the_swiss_roll_keeps_what_is_proved(tmp_path: Path) -> None:
    assert command("train", "swiss-roll", "--out", tmp_path / "run").exit_code == 0
    result = command("certify", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "not met  smooth-weights" in result.output  # a fact about what was trained


def test_certify_files(runs: Path, tmp_path: Path) -> None:
    assert command("certify", runs / "good" / "model.safetensors").exit_code == 0
    model = hdnn.load(runs / "good" / "model.safetensors")
    hdnn.save(model, tmp_path / "alone.safetensors")
    assert command("certify", tmp_path / "alone.safetensors").exit_code == 2  # which data?
    words = ("certify", tmp_path / "alone.safetensors", "--data")
    assert command(*words, "swiss-roll", "--samples", 10).exit_code == 0
    (tmp_path / "data.csv").write_text("x0,x1\n0.1,0.2\n-0.3,0.4\n")
    assert command(*words, tmp_path / "data.csv").exit_code == 0
    hdnn.save(model.network, tmp_path / "network.safetensors")
    assert command("certify", tmp_path / "network.safetensors").exit_code == 0
    for missing in (tmp_path, tmp_path / "nothing"):
        assert command("certify", missing).exit_code == 2
    assert command("certify", runs / "good", "--samples", 0).exit_code == 2


def test_advise_on_the_command_line() -> None:
    words = ("advise", "--architecture", "H1", "--layers", 8, "--T", 30, "swiss-roll")
    text, record = command(*words), command(*words, "--json")
    assert text.exit_code == record.exit_code == 0
    assert "layers at this T" in text.output
    found = json.loads(record.output)
    assert found["ok"] is False
    assert len(found["growth"]) == 8
    assert found["remedy"] in text.output.replace("\n", " ")
    assert command("advise", "no-such-data").exit_code == 2


def test_advise_looks_at_the_network_that_train_builds(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    rows = "".join(f"{a:.3f},{b:.3f},{c:.3f},{a > b}\n" for a, b, c in X)
    (tmp_path / "data.csv").write_text("a,b,c,label\n" + rows)
    table = tmp_path / "data.csv", "--target", "label"
    advised = json.loads(command("advise", *table, "--json").output)
    trained = command("train", *table, "--epochs", 1, "--out", tmp_path / "run", "--json")
    assert trained.exit_code == 0
    spec = repr(hdnn.load(tmp_path / "run" / "model.safetensors").network).splitlines()[1].strip()
    assert advised["network"] == spec
