"""Figure 2 of the paper: norms of d y_N / d y_l while networks are trained on the double moons.

Every case is trained for 960 iterations as appendix B.1 says, in float64, all seeds side by side;
before an iteration's step all samples of its batch are looked at, at every layer.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hdnn
from hdnn.analysis import profile
from hdnn.analysis.profiles import other_weights
from hdnn.data import split
from hdnn.errors import HdnnError
from hdnn.experiments.cells import ORDER_SEED, WIDTH, final_output, measure
from hdnn.experiments.figure2_records import GradientRecord, Records
from hdnn.models import Augmentation
from hdnn.network import HamiltonianNetwork
from hdnn.training import DirectEnsemble, TrainingConfig
from hdnn.training.ensemble import Epoch

EPOCHS = 24
"""960 iterations of 125 samples."""
T = 1.2
"""Chosen as in Table 1, by `hdnn.experiments.tuning` for H1 with 64 layers; not in the paper."""
NETWORKS = {"H1": "H1", "H1 invariant": "H1", "MS3": "MS3", "FCNN": "FCNN"}
"""Architectures by the name of a case; "invariant": all layers share their weights."""


@dataclass(frozen=True)
class Case:
    """Which network is trained how.

    Args:
        network: a name of `NETWORKS`.
        layers, alpha, T: depth, weight of the smoothness penalty, final time (0: has none).
        every: iterations from one look to the next.
        method: "adam" is the paper's; "coupled" treats the penalty exactly, see `figure2_coupled`.
    """

    network: str
    layers: int
    alpha: float = 5e-3
    T: float = T
    every: int = 1
    method: str = "adam"

    @property
    def key(self) -> tuple[str, str, int, float, float, int]:
        """What its records have in common."""
        return self.network, self.method, self.layers, self.T, self.alpha, self.every

    @property
    def config(self) -> TrainingConfig:
        """Appendix B.1; the FCNN with the weight decay of appendix B.3."""
        decay = 2e-4 if self.network == "FCNN" else 1e-4
        alpha = self.alpha if self.method == "adam" else 0.0
        return TrainingConfig(epochs=EPOCHS, alpha=alpha, alpha_c=decay)

    @property
    def shown(self) -> list[int]:
        """l = 1, 11, 21, ..."""
        return list(range(1, self.layers, 10))

    def build(self, seeds: Sequence[int]) -> HamiltonianNetwork:
        """The untrained networks of all seeds."""
        return hdnn.network(
            NETWORKS[self.network],
            features=WIDTH,
            layers=self.layers,
            T=self.T or None,
            time_invariant=self.network.endswith("invariant"),
            ensemble=len(seeds),
            dtype=torch.float64,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        )


LIMIT = 1e99
"""Stands for infinity, which JSON does not have."""
HAMILTONIAN = ("H1", "H1 invariant", "MS3")
FIGURE = (*(Case(name, 64) for name in HAMILTONIAN), Case("FCNN", 32, T=0.0))
TIMES = tuple(Case(name, 64, T=t, every=8) for t in (0.3, 0.6, 1.2, 2.4) for name in HAMILTONIAN)
ALPHAS = tuple(Case("H1", 64, alpha=alpha, every=8) for alpha in (0.0, 5e-2, 5e-1, 5.0, 50.0))
COUPLED = tuple(
    Case("H1", 64, alpha=alpha, every=8, method="coupled")
    for alpha in (5e-3, 5e1, 5e3, 5e4, 5e5, 5e6, 5e7, LIMIT)
)
DEPTHS = tuple(Case(name, n, every=40) for n in (64, 128, 256, 1024) for name in HAMILTONIAN)
CASES = FIGURE + TIMES + ALPHAS + COUPLED + DEPTHS


@dataclass
class Data:
    """Augmented data of all seeds: ``(seeds, 5000, 4)`` and ``(seeds, 5000)``."""

    seeds: Sequence[int]
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor

    @classmethod
    def of(cls, seeds: Sequence[int]) -> Data:
        """The data that every seed draws, 5000 samples for training and for testing."""
        parts = [split("double-moons", "paper", seed=seed) for seed in seeds]
        augment = Augmentation(2, WIDTH, "append")
        X, X_test = (
            torch.stack([augment(x.double()) for x in xs])
            for xs in ([p.X_train for p in parts], [p.X_test for p in parts])
        )
        y, y_test = ([p.y_train for p in parts], [p.y_test for p in parts])
        return cls(seeds, X, torch.stack(y), X_test, torch.stack(y_test))


@dataclass
class Looks:
    """What is seen of networks side by side: arrays ``(seeds, layers or shown)`` by look."""

    case: Case
    network: HamiltonianNetwork
    X: Tensor
    low: list[np.ndarray] = field(default_factory=list)
    high: list[np.ndarray] = field(default_factory=list)
    mean: list[np.ndarray] = field(default_factory=list)
    of_mean: list[np.ndarray] = field(default_factory=list)
    smallest: list[np.ndarray] = field(default_factory=list)
    slope: list[np.ndarray] = field(default_factory=list)

    def due(self, iteration: int) -> bool:
        return iteration % self.case.every == 0

    def before(self, iteration: int, chosen: Tensor) -> None:
        batch = torch.stack([x[c] for x, c in zip(self.X, chosen, strict=True)])
        seen = profile(self.network, batch, range(self.case.layers), energy=False)
        self.low.append(seen.largest.min(2))
        self.high.append(seen.largest.max(2))
        self.mean.append(seen.largest.mean(2))
        self.of_mean.append(seen.of_mean)
        self.smallest.append(seen.smallest.min((1, 2)))

    def after(self, slopes: np.ndarray) -> None:
        self.slope.append(np.sqrt((slopes**2).sum(1)))

    @torch.no_grad()
    def saw(
        self,
        iterations: list[int],
        chosen: list[np.ndarray],
        theta: np.ndarray,
        beta: np.ndarray,
        slopes: np.ndarray,
    ) -> None:
        with other_weights(self.network) as put:
            for k, iteration in enumerate(iterations):
                put(theta[:, k], beta[:, k])
                self.before(iteration, torch.from_numpy(chosen[k]))
                self.after(slopes[:, k])


Descend = Callable[[Case, HamiltonianNetwork, Data, Looks, list[torch.Generator]], np.ndarray]


def descend(
    case: Case, network: HamiltonianNetwork, data: Data, looks: Looks, orders: list[torch.Generator]
) -> np.ndarray:
    """Coordinate descent as in appendix B.1; the output layers ``(seeds, 1, n + 1)``."""
    ensemble = DirectEnsemble(
        network,
        data.X,
        data.y.unsqueeze(-1),
        torch.ones(data.y.shape),
        case.config,
        outputs=1,
        loss="logistic",
    )
    for number in range(case.config.epochs):
        order = torch.stack([torch.randperm(data.y.shape[1], generator=g) for g in orders])
        found: list[Epoch] = ensemble.epoch(order, number, looks)
        if not all(math.isfinite(epoch.loss) for epoch in found):
            raise HdnnError(f"{case} diverged in epoch {number + 1}")
    return ensemble.V


def run(case: Case, seeds: Sequence[int]) -> tuple[list[GradientRecord], Looks]:
    """Train a case for every seed; the records, and all that was seen."""
    begin = time.perf_counter()
    data, network = Data.of(seeds), case.build(seeds)
    looks = Looks(case, network, data.X)
    orders = [torch.Generator().manual_seed(ORDER_SEED + seed) for seed in seeds]
    method = descend
    if case.method == "coupled":
        from hdnn.experiments.figure2_coupled import descend as method
    V = final_output(
        network, method(case, network, data, looks, orders), data.X, data.y, case.config
    )
    accuracies = [
        measure(network, V, *part)[0] for part in ((data.X, data.y), (data.X_test, data.y_test))
    ]
    seconds = (time.perf_counter() - begin) / len(seeds)
    return [
        _record(case, looks, e, seed, accuracies[0][e], accuracies[1][e], seconds)
        for e, seed in enumerate(seeds)
    ], looks


def _record(
    case: Case, looks: Looks, e: int, seed: int, train: float, test: float, seconds: float
) -> GradientRecord:
    low, high, of_mean = (np.array(part)[:, e] for part in (looks.low, looks.high, looks.of_mean))
    shown, K = case.shown, looks.network.K[e].detach().flatten(1)
    slope = np.array(looks.slope)[:, e]
    epochs = [part.mean() for part in np.array_split(slope, EPOCHS)]
    spread = float((K - K.mean(0)).norm(dim=1).mean() / K.mean(0).norm())
    return GradientRecord(
        case.network,
        case.layers,
        case.alpha,
        case.T,
        case.method,
        seed,
        case.every,
        len(low),
        _exact(low.min()),
        _short(high.max()),
        _short(of_mean.min()),
        _short(of_mean.max()),
        _short(np.array(looks.smallest)[:, e].min()),
        shown,
        [_exact(v) for v in low[:, shown].min(0)],
        [_short(v) for v in high[:, shown].max(0)],
        [_short(v) for v in of_mean[:, shown].max(0)],
        [_short(v) for v in high[-1, shown]],
        [_short(v) for v in epochs],
        train,
        test,
        _short(spread),
        round(seconds, 3),
        hdnn.__version__,
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _exact(value: float) -> float:
    """Minima with all digits: whether they reach 1 is a matter of rounding."""
    return float(value)


def reproduce(
    folder: str | os.PathLike[str],
    seeds: Sequence[int],
    cases: Sequence[Case] = CASES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[tuple[Any, ...], GradientRecord]:
    """Do what is missing, case by case; all records of the folder."""
    store = Records(folder)
    total = len(cases) * len(seeds)
    for place, case in enumerate(cases):
        progress(place * len(seeds), total)
        done, curves = store.read(), store.read_curves()
        lacking = [seed for seed in seeds if (*case.key, seed) not in done]
        drawn = case in FIGURE
        if drawn and curves.get(case.network, {}).get("seed") != seeds[0]:
            lacking = sorted({seeds[0], *lacking}, key=list(seeds).index)
        if not lacking:
            continue
        found, looks = run(case, lacking)
        store.add(found)
        if drawn and lacking[0] == seeds[0]:
            norms = {"mean": np.array(looks.mean)[:, 0], "of_mean": np.array(looks.of_mean)[:, 0]}
            slopes = np.array(looks.slope)[:, 0]
            store.add_curves(case.network, case.layers, seeds[0], case.shown, norms, slopes)
    progress(total, total)
    return store.read()
