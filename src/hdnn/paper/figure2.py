"""Figure 2: norms of d y_N / d y_l while networks are trained on the double moons.

Every case is trained for 960 iterations as appendix B.1 says, in float64, all seeds side by side;
before an iteration's step all samples of its batch are looked at, at every layer.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hdnn
from hdnn.analysis import profile
from hdnn.analysis.profiles import other_weights
from hdnn.data.reading import reading
from hdnn.networks import HamiltonianNetwork
from hdnn.paper import planar
from hdnn.paper.experiment import Experiment, Say, SeedGroup, group, silent
from hdnn.paper.render import write
from hdnn.paper.store import Key, Store, parser
from hdnn.training import TrainingConfig
from hdnn.training.ensemble import EnsembleLoop
from hdnn.training.loops import Observations
from hdnn.training.trainer import LoopOf

EPOCHS = 24
"""960 iterations of 125 samples."""
T = 1.2
"""Chosen as in Table 1, by `hdnn.paper.tuning` for H1 with 64 layers; not in the paper."""
NETWORKS = {"H1": "H1", "H1 invariant": "H1", "MS3": "MS3", "FCNN": "FCNN"}
"""Architectures by the name of a case; "invariant": all layers share their weights."""


@dataclass(frozen=True)
class Case:
    """Which network is trained how.

    Args:
        network: a name of `NETWORKS`.
        layers, alpha, T: depth, weight of the smoothness penalty, final time (0: has none).
        every: iterations from one look to the next.
        method: "adam" is the paper's; "coupled" treats the penalty exactly, see `coupled`.
    """

    network: str
    layers: int
    alpha: float = 5e-3
    T: float = T
    every: int = 1
    method: str = "adam"

    @property
    def key(self) -> Key:
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
            features=planar.WIDTH,
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


@dataclass(frozen=True)
class GradientRecord:
    """One training.

    Args:
        network, layers, alpha, T, method, seed: which.
        every, looks: iterations between looks, and how many.
        minimum, maximum: of the norm of d y_N / d y_l of *single samples*, over all samples of the
            batches, looks and layers l = 0 .. N - 1.
        of_mean_minimum, of_mean_maximum: the same for the norm of the *mean* of d y_N / d y_l over
            a batch, which the paper's own code plots.
        smallest: the smallest singular value that occurred.
        shown: l = 1, 11, ...; for these, over samples and looks:
        shown_minimum, shown_maximum, shown_of_mean_maximum: the same intervals by l.
        shown_last: largest norm of a sample at the last look, by l.
        gradient: norm of the gradient of the objective, mean over the looks of every epoch.
        train_accuracy, test_accuracy: in the end, fractions.
        spread: how much weights vary over layers, mean_j ||K_j - mean K|| / ||mean K||.
        seconds: wall time a network.
    """

    network: str
    layers: int
    alpha: float
    T: float
    method: str
    seed: int
    every: int
    looks: int
    minimum: float
    maximum: float
    of_mean_minimum: float
    of_mean_maximum: float
    smallest: float
    shown: list[int]
    shown_minimum: list[float]
    shown_maximum: list[float]
    shown_of_mean_maximum: list[float]
    shown_last: list[float]
    gradient: list[float]
    train_accuracy: float
    test_accuracy: float
    spread: float
    seconds: float
    version: str

    def __post_init__(self) -> None:
        by_layer = (
            self.shown_minimum,
            self.shown_maximum,
            self.shown_of_mean_maximum,
            self.shown_last,
        )
        if any(len(values) != len(self.shown) for values in by_layer):
            raise ValueError("there is not one value for every layer that is shown")

    @property
    def key(self) -> Key:
        """What makes it the record of one training."""
        return (self.network, self.method, self.layers, self.T, self.alpha, self.every, self.seed)


# --- training -------------------------------------------------------------------------------------


def draw_data(seeds: Sequence[int]) -> planar.SeedData:
    """The data that every seed draws, 5000 samples for training and for testing."""
    parts = [planar.part("double-moons", "paper", seed) for seed in seeds]
    return planar.SeedData.of(parts, "append", torch.float64)


class NormObserver:
    """What is seen of networks side by side during training; an `Observer` of it.

    Args:
        case: what is trained.
        network: the ensemble.
        X: ``(seeds, samples, WIDTH)``, what the batches are drawn from.
    """

    def __init__(self, case: Case, network: HamiltonianNetwork, X: Tensor) -> None:
        self.case, self.network, self.X = case, network, X
        self._seen: dict[str, list[np.ndarray]] = defaultdict(list)

    def column(self, name: str) -> np.ndarray:
        """All that was seen: ``(looks, seeds, layers)``, or ``(looks, seeds)``.

        Args:
            name: "low", "high" and "mean" are of the norms of the samples, "of_mean" is the norm
                of their mean, "smallest" the smallest singular value, and "gradient" the norm of
                the gradient of the objective.
        """
        return np.array(self._seen[name])

    def observes(self, iteration: int) -> bool:
        return iteration % self.case.every == 0

    def before_step(self, iteration: int, samples: Tensor) -> None:
        batch = torch.stack([x[c] for x, c in zip(self.X, samples, strict=True)])
        seen = profile(self.network, batch, range(self.case.layers), energy=False)
        norms = seen.largest
        for name, values in (
            *(("low", norms.min(2)), ("high", norms.max(2)), ("mean", norms.mean(2))),
            *(("of_mean", seen.of_mean), ("smallest", seen.smallest.min((1, 2)))),
        ):
            self._seen[name].append(values)

    def after_gradients(self, norms: np.ndarray) -> None:
        self._seen["gradient"].append(np.sqrt((norms**2).sum(1)))

    @torch.no_grad()
    def after_compiled_epoch(self, seen: Observations) -> None:
        with other_weights(self.network) as put:
            for k, iteration in enumerate(seen.iterations):
                put(seen.theta[:, k], seen.beta[:, k])
                self.before_step(iteration, torch.from_numpy(seen.batches[k]))
                self.after_gradients(seen.gradient_norms[:, k])


def train(case: Case, seeds: Sequence[int]) -> tuple[list[GradientRecord], NormObserver]:
    """Train a case for every seed; the records, and all that was seen."""
    begin = time.perf_counter()
    data, network = draw_data(seeds), case.build(seeds)
    observer = NormObserver(case, network, data.X)
    loop: LoopOf = EnsembleLoop
    strict = case.method == "adam"
    if case.method == "coupled":
        from hdnn.paper.coupled import CoupledLoop

        shared = replace(case, network="H1 invariant").build(seeds)
        loop = partial(CoupledLoop, case.alpha, shared)
    V = planar.descend(network, data, case.config, observer, strict, loop)
    train, _ = planar.measure(network, V, data.X, data.y)
    test, _ = planar.measure(network, V, data.X_test, data.y_test)
    seconds = round((time.perf_counter() - begin) / len(seeds), 3)
    ends = [
        {"seed": seed, "train_accuracy": train[e], "test_accuracy": test[e], "seconds": seconds}
        for e, seed in enumerate(seeds)
    ]
    return [_record(case, observer, e, end) for e, end in enumerate(ends)], observer


def _record(case: Case, observer: NormObserver, e: int, end: dict[str, Any]) -> GradientRecord:
    """Minima have all digits: whether they reach 1 is a matter of rounding."""
    low, high, of_mean = (observer.column(name)[:, e] for name in ("low", "high", "of_mean"))
    shown, K = case.shown, observer.network.K[e].detach().flatten(1)
    epochs = [part.mean() for part in np.array_split(observer.column("gradient")[:, e], EPOCHS)]
    return GradientRecord(
        **asdict(case),
        **end,
        looks=len(low),
        minimum=float(low.min()),
        maximum=_round(high.max()),
        of_mean_minimum=_round(of_mean.min()),
        of_mean_maximum=_round(of_mean.max()),
        smallest=_round(observer.column("smallest")[:, e].min()),
        shown=shown,
        shown_minimum=low[:, shown].min(0).tolist(),
        shown_maximum=[_round(v) for v in high[:, shown].max(0)],
        shown_of_mean_maximum=[_round(v) for v in of_mean[:, shown].max(0)],
        shown_last=[_round(v) for v in high[-1, shown]],
        gradient=[_round(v) for v in epochs],
        spread=_round(float((K - K.mean(0)).norm(dim=1).mean() / K.mean(0).norm())),
        version=hdnn.__version__,
    )


def _round(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def figure2(
    store: Store[GradientRecord], first_seed: int = 1000, cases: Sequence[Case] = CASES
) -> Experiment[Case, GradientRecord]:
    """The experiment.

    Args:
        store: of the records; the curves of the figure's networks are written beside them.
        first_seed: whose curves are drawn.
        cases: which.
    """

    def lacks_curves(case: Case, seed: int) -> bool:
        if case not in FIGURE or seed != first_seed:
            return False
        curves = read_curves(store).get(case.network)
        return curves is None or curves.seed != seed

    def run(case: Case, seeds: Sequence[int], say: Say = silent) -> Iterator[list[GradientRecord]]:
        records, observer = train(case, seeds)
        if case in FIGURE and first_seed in seeds:
            add_curves(store, observer, first_seed, list(seeds).index(first_seed))
        yield records

    return Experiment(cases, lambda case: case.key, run, together=1000, due=lacks_curves)


Row = SeedGroup[Case, GradientRecord]


def rows(records: Sequence[GradientRecord], cases: Sequence[Case] = CASES) -> list[Row]:
    """The cases that have records, those of a network together, in the order of the figure."""
    order, found = list(NETWORKS), group(cases, lambda case: case.key, records)
    return sorted(found, key=lambda row: order.index(row.cell.network))


# --- curves ---------------------------------------------------------------------------------------


CURVES = "curves.json"


@dataclass(frozen=True)
class Curves:
    """One training of a network, iteration by iteration.

    Args:
        layers, seed: which.
        shown: l = 1, 11, ...
        gradient: norm of the gradient of the objective.
        mean, of_mean: for these l, mean norm of the samples, and norm of their mean.
    """

    layers: int
    seed: int
    shown: list[int]
    gradient: list[float]
    mean: list[list[float]]
    of_mean: list[list[float]]

    def __post_init__(self) -> None:
        if not len(self.shown) == len(self.mean) == len(self.of_mean):
            raise ValueError("there is not one curve for every layer that is shown")


def read_curves(store: Store[GradientRecord]) -> dict[str, Curves]:
    """Curves of the first seed by network.

    Raises:
        FileFormatError: the file is damaged.
    """
    path = store.folder / CURVES
    if not path.exists():
        return {}
    remedy = "remove it, and `hdnn reproduce figure2` will make it again"
    with reading(path, "curves", remedy):
        parse, curves = parser(Curves), json.loads(path.read_bytes())
        return {network: parse(curve) for network, curve in curves.items()}


def add_curves(store: Store[GradientRecord], observer: NormObserver, seed: int, e: int) -> None:
    """Add the curves of a network."""
    shown, norms = observer.case.shown, {}
    for name in ("mean", "of_mean"):
        lines = observer.column(name)[:, e, shown].T
        norms[name] = [[_round(x, 4) for x in line] for line in lines]
    gradient = [_round(x, 4) for x in observer.column("gradient")[:, e]]
    curves = Curves(observer.case.layers, seed, shown, gradient, **norms)
    with store.locked():
        known = read_curves(store) | {observer.case.network: curves}
        text = json.dumps({network: asdict(curve) for network, curve in known.items()})
        write(store.folder / CURVES, text + "\n")
