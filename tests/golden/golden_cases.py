"""What the golden file records: networks with fixed numbers, and short trainings.

The lists are written out, not walked from the catalogs: a new scheme or activation has nothing
recorded. Numbers come from numpy's `RandomState`, whose streams never change, seeded by name: they
depend neither on torch's generator nor on the order of parameters.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris
from torch import Tensor

import hdnn
from hdnn.fields import EnergyField, Field, HamiltonianField, Learned, Weights
from hdnn.schemes import (
    SCHEMES,
    ForwardEuler,
    ImplicitMidpoint,
    Leapfrog,
    Scheme,
    Verlet,
    Yoshida4,
)
from hdnn.training import Trainer, TrainingConfig

HERE = Path(__file__).parent
VALUES, TRAININGS = HERE / "values.safetensors", HERE / "trainings.json"

Array = np.ndarray
Options = dict[str, Any]
WIDTH, LAYERS, BATCH, TIME = 4, 5, 3, 0.9


def numbers(name: str, *shape: int) -> Tensor:
    """Standard normal float64 numbers that belong to a name."""
    return torch.from_numpy(np.random.RandomState(zlib.crc32(name.encode())).randn(*shape))


# --- networks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network and a state.

    Args:
        build: the network, for a backend.
        shape: of the state.
        kernels: whether the kernels know its form: stages, constant J, fixed steps, matrices.
        invertible: whether its scheme can be undone.
        scale: of the parameters.
    """

    build: Callable[[str], hdnn.HamiltonianNetwork]
    shape: tuple[int, ...] = (BATCH, WIDTH)
    kernels: bool = False
    invertible: bool = False
    scale: float = 0.7


HAMILTONIAN = ("MS1", "MS2", "MS3", "H1", "H2", "HS")
ARCHITECTURES: dict[str, Options] = {
    **{name: {"name": name} for name in (*HAMILTONIAN, "FCNN", "ResNet")},
    "HS-X": {"name": "HS", "X": numbers("X", WIDTH // 2, WIDTH // 2)},
    "HS-learned-X": {"name": "HS", "X": "learned"},
}
SEPARABLE = ("MS1", "MS3", "HS", "HS-X", "HS-learned-X")
STAGES = ("own", "ForwardEuler", "SemiImplicitEuler", "Verlet", "Leapfrog", "Yoshida4")
ANY_FIELD = ("own", "ForwardEuler", "RK4", "ImplicitMidpoint")
INVERTIBLE = (*STAGES[2:], "ImplicitMidpoint")
ACTIVATIONS = ("tanh", "sigmoid", "relu", "identity", "arctan", "softsign", "sin", "erf")
IN_KERNELS = ("tanh", "sigmoid", "relu", "identity", "softsign")
NOT_ODD = ("sigmoid", "relu")  # the layer equation of MS1 needs sigma(-x) = -sigma(x)
LAYOUTS: dict[str, tuple[Options, tuple[int, ...]]] = {
    "features": ({"features": WIDTH}, (BATCH, WIDTH)),
    "ensemble": ({"features": WIDTH, "ensemble": 2}, (2, BATCH, WIDTH)),
    "channels": ({"channels": WIDTH}, (2, WIDTH, 3, 4)),  # not square: a transposed image shows
    "kernel-3": ({"channels": WIDTH, "kernel": 3}, (2, WIDTH, 3, 4)),
}


def row(name: str, scheme: str = "own", layout: str = "features", **options: Any) -> Case:
    """A network of the catalog; the options of the layout may be replaced."""
    where, shape = LAYOUTS[layout]
    shape = options.pop("shape", shape)
    steps = {} if (name, scheme) == ("FCNN", "own") or "step" in options else {"T": TIME}
    given = {**ARCHITECTURES[name], "layers": LAYERS, **where, **steps, **options}
    known = given.get("activation", "tanh") in IN_KERNELS
    learned = given.get("X") == "learned" or given.get("learn_steps", False)
    return Case(
        lambda backend: hdnn.network(
            **given,
            scheme=None if scheme == "own" else SCHEMES[scheme](),
            dtype=torch.float64,
            backend=backend,
        ),
        shape,
        invertible=scheme in INVERTIBLE or (scheme == "own" and name in SEPARABLE),
        kernels=scheme in STAGES and layout != "kernel-3" and known and not learned,
        scale=0.2 if layout == "kernel-3" else 0.7,
    )


def catalog() -> Iterator[tuple[str, Case]]:
    """Every architecture: its schemes in every layout, its activations, and variations."""
    steps = [0.1, 0.3, 0.2, 0.05, 0.25]
    for name, given in ARCHITECTURES.items():
        for scheme in (*STAGES, *ANY_FIELD[2:]) if name in SEPARABLE else ANY_FIELD:
            for layout in LAYOUTS:
                yield f"{name} {scheme} {layout}", row(name, scheme, layout)
        for activation in ACTIVATIONS[1:]:
            if name != "MS1" or activation not in NOT_ODD:
                yield f"{name} {activation}", row(name, activation=activation)
        yield f"{name} time-invariant", row(name, time_invariant=True)
        yield (
            f"{name} ensemble of channels",
            row(name, layout="channels", ensemble=2, shape=(2, 2, WIDTH, 3, 4)),
        )
        if name != "FCNN":
            yield f"{name} steps", row(name, step=steps)
            yield f"{name} learned steps", row(name, step=steps, learn_steps=True)
        if "X" not in given:  # sizes that fill no vector of a processor
            yield f"{name} width 10", row(name, features=10, shape=(17, 10))
    for name in ("MS2", "H2", "ResNet"):
        yield f"{name} width 7", row(name, features=7, shape=(2, 5, 7))
    yield "H1 one state", row("H1", shape=(WIDTH,))
    yield "H1 one layer", row("H1", layers=1)
    both = [steps, steps[::-1]]
    yield "MS3 ensemble, steps", row("MS3", layout="ensemble", step=both)
    yield "H1 shared batch", row("H1", layout="ensemble", shape=(1, BATCH, WIDTH))


def skew(name: str, *lead: int) -> Tensor:
    A = numbers(name, *lead, WIDTH, WIDTH)
    return A - A.mT


def turning(y: Tensor, t: Tensor | float) -> Tensor:
    """A J(y, t)."""
    factor = 1 + y.square().sum(-1) / 8 + t
    return factor[..., None, None] * skew("J") / 2


def bipartite(*lead: int) -> Tensor:
    """J(t) that couples halves only."""
    J = torch.zeros(*lead, WIDTH, WIDTH, dtype=torch.float64)
    J[..., :2, 2:] = numbers("bipartite", *lead, 2, 2)
    return J - J.mT


def pendulums(x: Tensor, t: Tensor | float) -> Tensor:
    """A separable energy H(y, z)."""
    return x[..., 2:].square().sum(-1) / 2 - x[..., :2].cos().sum(-1)


def coupled(x: Tensor, t: Tensor | float) -> Tensor:
    """An energy that is not separable and changes with time."""
    return (1 + t) * (x.square().sum(-1) / 2 + (x[..., 0] * x[..., 3]).sin())


def own(make: Callable[[], Field], scheme: Scheme, layout: str = "features", **more: Any) -> Case:
    """A field of one's own."""
    return Case(
        lambda backend: hdnn.HamiltonianNetwork(
            make(), scheme, layers=LAYERS, T=TIME, backend=backend
        ),
        LAYOUTS[layout][1],
        **more,
    )


def general(
    J: Any,
    scheme: Scheme,
    K: Any = "dense",
    R: Tensor | None = None,
    layout: str = "features",
    **more: Any,
) -> Case:
    """y' = (J - R) K' tanh(K y + b)."""

    def make() -> Field:
        weights = Weights(K, layers=LAYERS, dtype=torch.float64, **LAYOUTS[layout][0])
        return HamiltonianField(J, weights, dissipation=R)

    return own(make, scheme, layout, **more)


def of_energy(J: Any, H: Callable[..., Tensor], scheme: Scheme, separable: bool = False) -> Case:
    """y' = J dH/dy."""
    options: Options = {"features": WIDTH, "separable": separable, "dtype": torch.float64}
    return own(lambda: EnergyField(J, H, **options), scheme)


def learned(layers: int | None = None) -> Learned:
    return Learned(WIDTH, layers=layers, dtype=torch.float64)


def fields_of_ones_own() -> Iterator[tuple[str, Case]]:
    """Every kind of J, dissipation, other structures of K, and energies."""
    J, J_of_t, halves = skew("J"), skew("J(t)", LAYERS), bipartite(LAYERS)
    root = numbers("R", WIDTH, WIDTH)
    R = root @ root.mT / 8
    graph = numbers("graph", 6, WIDTH).numpy() > -0.3
    euler, both = ForwardEuler(), {"kernels": True, "invertible": True}

    yield "J", general(J, euler, kernels=True)
    yield "J on channels", general(J, euler, layout="channels", kernels=True)
    yield "graph", general("J2", euler, graph, kernels=True)
    yield "skew K", general("J2", euler, "skew", kernels=True)
    for first in ("y", "z"):
        for scheme in (Verlet(first), Leapfrog(first), Yoshida4(first)):
            yield f"{scheme}", general("J1", scheme, "off-diagonal", **both)
    yield "J, fixed-point", general(J, ImplicitMidpoint(solver="fixed-point"), scale=0.3)
    for name in ANY_FIELD[1:]:
        scheme = SCHEMES[name]()
        yield f"J, {name}", general(J, scheme)
        yield f"R, {name}", general(J, scheme, R=R)
        yield f"J(t), {name}", general(J_of_t, scheme)
        yield f"J(y, t), {name}", general(turning, scheme)
        yield f"learned J, {name}", general(learned(), scheme)
        yield f"H(y, t), {name}", of_energy(J, coupled, scheme)
    yield "R on channels", general(J, euler, R=R, layout="channels")
    yield "J(t), Leapfrog", general(halves, Leapfrog(), "block-diagonal")
    yield "learned J(t)", general(learned(LAYERS), euler)
    yield "H = V(y) + U(z)", of_energy("J1", pendulums, Leapfrog(), separable=True)


CASES: dict[str, Case] = {**dict(catalog()), **dict(fields_of_ones_own())}


@torch.no_grad()
def set_parameters(net: hdnn.HamiltonianNetwork, name: str, scale: float) -> None:
    """Give every parameter the numbers of its name; learned steps keep their given values."""
    for parameter, tensor in net.named_parameters():
        if parameter != "log_steps":
            tensor.copy_(scale * numbers(f"{name}: {parameter}", *tensor.shape))


def digest(name: str, tensor: Tensor) -> Array:
    """Its norm, and the dot products with three directions that belong to a name."""
    flat = tensor.detach().reshape(-1)
    return torch.cat([flat.norm()[None], numbers(name, 3, flat.numel()) @ flat]).numpy()


def values(name: str, backend: str) -> dict[str, Array]:
    """y_N whole, and digests of the trajectory, the inverse, first and second derivatives."""
    case = CASES[name]
    net = case.build(backend)
    set_parameters(net, name, case.scale)
    y = numbers(f"{name}: y", *case.shape).requires_grad_()
    inputs = {"y": y, **dict(sorted(net.named_parameters()))}
    out = net(y)
    direction = numbers(f"{name}: direction", *out.shape)
    first = torch.autograd.grad((out * direction).sum(), [*inputs.values()])
    # A second pass: with create_graph, gradients may come another way.
    (slope,) = torch.autograd.grad((net(y) * direction).sum(), y, create_graph=True)
    second = torch.autograd.grad(
        (slope * numbers(f"{name}: second", *y.shape)).sum(),
        [*inputs.values()],
        allow_unused=True,
        materialize_grads=True,
    )
    found = {"y_N": out.detach().numpy(), "trajectory": digest("trajectory", net.trajectory(y))}
    if case.invertible:
        found["inverse"] = digest("inverse", net.inverse(direction))
    for order, gradients in (("d", first), ("dd", second)):
        for key, gradient in zip(inputs, gradients, strict=True):
            found[f"{order} {key}"] = digest(f"{order} {key}", gradient)
    return found


def pack(name: str, found: dict[str, Array]) -> dict[str, Array]:
    """The arrays of a case as they are stored: y_N, and a matrix of the digests."""
    out, *digests = found.values()
    return {f"{name}: y_N": out, f"{name}: digests": np.stack(digests)}


# --- trainings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """A short training.

    Args:
        problem: a name of `PROBLEMS`.
        options: of the estimator, or of the image classifier.
        tolerance: of the losses, relative.
    """

    problem: str
    options: Options
    tolerance: float


# Another order of summation changes losses by rounding errors, which a training amplifies: Adam
# divides by small second moments, and coordinate descent solves an ill-conditioned output layer.
# Measured over kernels and autograd, one and two threads, and data changed by one rounding error (4
# times, planar ones mostly 30 times), the largest relative changes were: float64 5e-14, after 20
# epochs 1e-8 (after 40, FCNN 0.2); float32 joint 2e-6, coordinate 3e-4 (H2; others 4e-6). At most 2
# samples were classified otherwise. The tolerances leave a factor of ten, and float64 more, as
# Newton's method stops at a gradient of 1e-9, which another iteration may pass.
TOLERANCES = {
    ("float64", "joint"): 1e-10,
    ("float64", "coordinate"): 1e-8,
    ("float32", "joint"): 2e-5,
    ("float32", "coordinate"): 3e-3,
}
LONG_TOLERANCE = 1e-6
SAMPLES = 5
"""The most samples that may be classified otherwise."""


def swiss_roll(size: int) -> tuple[Array, Array]:
    """The paper's swiss roll, longhand."""
    label = np.arange(size) % 2
    t = np.random.RandomState(0).uniform(0, 4 * np.pi, size)
    r = t / (4 * np.pi) + 0.2 * (label == 0)
    return np.stack([r * np.cos(t), r * np.sin(t)], 1), label


def digits() -> tuple[Array, Array]:
    X, y = load_digits(return_X_y=True)
    return (X[:800] / 16).reshape(-1, 1, 8, 8).astype(np.float32), y[:800]


PROBLEMS: dict[str, Callable[[], tuple[Array, Array]]] = {
    "swiss-roll": lambda: swiss_roll(2000),
    "iris": lambda: load_iris(return_X_y=True),
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "digits": digits,
}


@cache
def data(problem: str) -> tuple[Array, Array, Array, Array]:
    """X and y to train on, X and y to test on: half of the samples each."""
    X, y = PROBLEMS[problem]()
    train, test = np.array_split(np.random.RandomState(1).permutation(len(X)), 2)
    return X[train], y[train], X[test], y[test]


PLANAR: Options = {
    "layers": 4,
    "width": 4,
    "max_iter": 5,
    "batch_size": 125,
    "learning_rate": 0.05,
    "schedule": "constant",
    "standardize": False,
    "init_scale": 1.0,
    "alpha": 5e-3,
    "alpha_c": 1e-4,
}
IRIS: Options = {"alpha_c": 1e-2}
IMAGES = TrainingConfig(
    method="joint", epochs=3, batch_size=50, learning_rate=0.01, alpha=1e-3, alpha_c=2e-4
)


def trainings() -> Iterator[tuple[str, Training]]:
    """Every architecture on every problem, by both methods."""
    for name in (*HAMILTONIAN, "FCNN", "ResNet"):
        planar = PLANAR | ({} if name == "FCNN" else {"T": 1.2})
        for (dtype, method), tolerance in TOLERANCES.items():
            given = {"architecture": name, "method": method, "dtype": dtype, "max_iter": 5}
            iris = IRIS | ({"T": 3.0} if name == "H1" else {})
            tables = {"iris": iris, "diabetes": {}}
            for problem, options in {"swiss-roll": planar, **tables}.items():
                yield (
                    f"{problem} {name} {method} {dtype}",
                    Training(problem, options | given, tolerance),
                )
            if dtype == "float64":
                yield (
                    f"swiss-roll {name} {method} 20 epochs",
                    Training("swiss-roll", planar | given | {"max_iter": 20}, LONG_TOLERANCE),
                )
        for kernel in (1, 3):
            given = {"architecture": name, "kernel": kernel, "layers": (3,)}
            tolerance = TOLERANCES["float32", "joint"]
            yield f"digits {name} kernel {kernel}", Training("digits", given, tolerance)


TRAINED: dict[str, Training] = dict(trainings())


def train(name: str) -> dict[str, float]:
    """The last epoch's loss with and without penalties, and scores on both parts of the data.

    A score is the share of correct answers, of a regression R^2.
    """
    training = TRAINED[name]
    X, y, X_test, y_test = data(training.problem)
    if training.problem == "digits":
        model = hdnn.image_model(
            channels=1,
            size=(8, 8),
            classes=10,
            **training.options,
            generator=torch.Generator().manual_seed(0),
            dtype=torch.float32,
        )
        last = Trainer(model, IMAGES).fit(hdnn.data.Dataset.from_arrays(X, y))[-1]
        scores = [share_correct(model, X, y), share_correct(model, X_test, y_test)]
    else:
        regression = training.problem == "diabetes"
        estimator = hdnn.HDNNRegressor if regression else hdnn.HDNNClassifier
        fitted = estimator(**training.options, random_state=0).fit(X, y)
        last = fitted.history_[-1]
        scores = [float(fitted.score(X, y)), float(fitted.score(X_test, y_test))]
    figures = (last.loss, last.penalized, *scores)
    return dict(zip(("loss", "penalized", "train", "test"), figures, strict=True))


@torch.no_grad()
def share_correct(model: hdnn.Model, X: Array, y: Array) -> float:
    return float((model(torch.from_numpy(X)).argmax(-1).numpy() == y).mean())
