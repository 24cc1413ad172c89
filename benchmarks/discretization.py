"""Discretization error and gradient norms against the number of layers, at fixed T.

    python benchmarks/discretization.py                # prints the tables of docs/depth.md
    python benchmarks/discretization.py --figure docs/figures/discretization.svg

The network is HS (K block-diagonal, J1), on which every scheme of the catalogue applies; its ODE is
integrated finely for comparison, by RK4 with four times as many layers.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import hdnn
from hdnn.analysis import norms, sensitivities
from hdnn.analysis.context import ode_program
from hdnn.backends import reference
from hdnn.schemes import SCHEMES

T, FEATURES, SAMPLES, SEED = 5.0, 4, 30, 0
DEPTHS = (8, 16, 32, 64, 128, 256, 512)
SHOWN = ("ForwardEuler", "SemiImplicitEuler", "Leapfrog", "ImplicitMidpoint", "Yoshida4", "RK4")


@dataclass(frozen=True)
class Row:
    """A scheme at a depth: errors against the ODE and the range of norms of d y_N / d y_l."""

    layers: int
    state: float
    gradient: float
    largest: float
    smallest: float


def network(scheme: str, layers: int) -> hdnn.HamiltonianNetwork:
    return hdnn.network(
        "HS",
        features=FEATURES,
        layers=layers,
        T=T,
        scheme=SCHEMES[scheme](),
        time_invariant=True,
        generator=torch.Generator().manual_seed(SEED),
        dtype=torch.float64,
    )


def states() -> Tensor:
    draw = torch.Generator().manual_seed(SEED + 1)
    return torch.randn(SAMPLES, FEATURES, generator=draw, dtype=torch.float64)


def exact() -> tuple[Tensor, Tensor]:
    """y(T) and d y(T) / d y(t) on the finest grid of times."""
    fine, y = network("RK4", 4 * DEPTHS[-1]), states()  # its weights do not vary: any depth does
    return fine(y), sensitivities(fine, y)[::4]


@torch.no_grad()
def study(scheme: str, end: Tensor, flow: Tensor) -> list[Row]:
    rows, y = [], states()
    for layers in DEPTHS:
        net = network(scheme, layers)
        M, phi = sensitivities(net, y), flow[:: DEPTHS[-1] // layers]
        found = norms(M[:-1])  # the last is the identity
        deviation = torch.linalg.matrix_norm(M - phi, 2) / torch.linalg.matrix_norm(phi, 2)
        rows.append(
            Row(
                layers,
                float((net(y) - end).norm(dim=-1).max()),
                float(deviation.max()),
                float(found.maximum.max()),
                float(found.minimum.min()),
            )
        )
    return rows


def order(values: list[float]) -> float:
    """The slope over the last two doublings that are above rounding."""
    useful = [v for v in values if v > 1e-10][-3:]
    return math.log2(useful[0] / useful[-1]) / (len(useful) - 1)


# --- weights that vary with time ------------------------------------------------------------------


def moving(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smooth K(t) and b(t): the two blocks of HS turn and breathe."""
    draw = np.random.default_rng(SEED)
    first, second = draw.standard_normal((2, 2 * (FEATURES // 2) ** 2))
    bias = draw.standard_normal((2, FEATURES))
    c, s = np.cos(t)[:, None], np.sin(2 * t)[:, None]
    return c * first + s * second, c * bias[0] + s * bias[1]


def sampled(scheme: str, layers: int) -> hdnn.HamiltonianNetwork:
    """A network whose layer j has the weights of time t_j."""
    net = hdnn.network(
        "HS", features=FEATURES, layers=layers, T=T, scheme=SCHEMES[scheme](), dtype=torch.float64
    )
    K, b = moving(np.arange(layers) * T / layers)
    with torch.no_grad():
        net.field.weights.theta.copy_(torch.from_numpy(K))
        net.field.weights.beta.copy_(torch.from_numpy(b))
    return net


def by_rk4(net: hdnn.HamiltonianNetwork, y: Tensor, substeps: int) -> Tensor:
    """y(T) of the ODE of a network, whose weights are constant on pieces."""
    values = net.values()._replace(velocity=net.field.velocity_fn())
    return reference.run(ode_program(net, substeps), values, y)


def moving_exact() -> Tensor:
    """y(T) of the ODE with K(t) and b(t) themselves, by scipy."""
    half, J = FEATURES // 2, hdnn.fields.canonical(FEATURES).numpy()

    def velocity(t: float, flat: np.ndarray) -> np.ndarray:
        theta, b = (part[0] for part in moving(np.array([t])))
        K = np.zeros((FEATURES, FEATURES))
        K[:half, :half], K[half:, half:] = theta.reshape(2, half, half)
        y = flat.reshape(-1, FEATURES)
        return (np.tanh(y @ K.T + b) @ K @ J.T).ravel()

    found = solve_ivp(
        velocity, (0, T), states().numpy().ravel(), method="DOP853", rtol=1e-11, atol=1e-12
    )
    return torch.from_numpy(found.y[:, -1]).reshape(-1, FEATURES)


@torch.no_grad()
def moving_study(scheme: str, end: Tensor) -> list[tuple[float, float]]:
    """For every depth the error against K(t), and against the network's own pieces."""
    found, y = [], states()
    for layers in DEPTHS:
        net = sampled(scheme, layers)
        own = by_rk4(net, y, substeps=2 * max(2, DEPTHS[-1] // layers))
        out = net(y)
        found.append((float((out - end).norm(dim=-1).max()), float((out - own).norm(dim=-1).max())))
    return found


# --- output ---------------------------------------------------------------------------------------


def report(found: dict[str, list[Row]], flow: Tensor) -> None:
    size = torch.linalg.matrix_norm(flow[:-1], 2)
    print(
        f"ODE: norms of d y(T) / d y(t) from {float(size.min()):.4f} to {float(size.max()):.4f}\n"
    )
    print(
        "| scheme | order, states | order, gradients | error of states, N = 32 | N = 512 "
        "| norms of gradients, N = 8 | N = 32 | N = 512 |"
    )
    print("| --- " * 8 + "|")
    for scheme, rows in found.items():
        at = {row.layers: row for row in rows}
        spans = " | ".join(f"{at[k].smallest:.3f} to {at[k].largest:.2f}" for k in (8, 32, 512))
        print(
            f"| {scheme} | {order([r.state for r in rows]):.2f} | "
            f"{order([r.gradient for r in rows]):.2f} | {at[32].state:.1e} | "
            f"{at[512].state:.1e} | {spans} |"
        )


def report_moving(schemes: tuple[str, ...]) -> None:
    end = moving_exact()
    print("\n| scheme | order against K(t) | order against its own pieces | errors at N = 512 |")
    print("| --- " * 4 + "|")
    for scheme in schemes:
        rows = moving_study(scheme, end)
        both = [order([row[k] for row in rows]) for k in (0, 1)]
        print(
            f"| {scheme} | {both[0]:.2f} | {both[1]:.2f} | {rows[-1][0]:.1e} and "
            f"{rows[-1][1]:.1e} |"
        )


def draw(found: dict[str, list[Row]], flow: Tensor, path: str) -> None:
    from hdnn.plots import LIGHT, clean, label_ends, new_figure, save_figure
    from hdnn.plots.style import NORMAL

    figure = new_figure(11.0, 3.5)
    axes = figure.subplots(1, 3)
    for number, (scheme, rows) in enumerate(found.items()):
        N, name = [row.layers for row in rows], _words(scheme)
        style = {"color": LIGHT.color(number), "ms": 3, "lw": 1.5}
        axes[0].loglog(N, [r.state for r in rows], "o-", **style)
        axes[1].loglog(N, [r.gradient for r in rows], "o-", label=name, **style)
        axes[2].loglog(N, [r.largest for r in rows], "o-", **style)
        axes[2].loglog(N, [r.smallest for r in rows], "o:", **style)
    limit = float(torch.linalg.matrix_norm(flow[:-1], 2).max())
    axes[2].axhline(limit, color=LIGHT.ink, lw=0.9, ls="--")
    for text, place in ((f"largest; dashed: the ODE, {limit:.1f}", 0.86 * limit), ("smallest", 1)):
        va = "top" if place > 1 else "bottom"
        axes[2].text(20, place * 1.04, text, fontsize=NORMAL, color=LIGHT.muted, va=va)
    titles = ("error of the states", "relative error of the gradients", "norms of the gradients")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=NORMAL, loc="left")
        axis.set_xlabel(f"layers N at T = {T:g}")
        axis.set_xticks(DEPTHS, [str(N) for N in DEPTHS])
        axis.minorticks_off()
        clean(axis)
    axes[2].set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    label_ends(axes[1])
    save_figure(figure, path)


def _words(scheme: str) -> str:
    """The name of a scheme as people write it."""
    return {
        "ForwardEuler": "forward Euler",
        "SemiImplicitEuler": "semi-implicit Euler",
        "Leapfrog": "leapfrog",
        "ImplicitMidpoint": "implicit midpoint",
        "Yoshida4": "Yoshida, order 4",
    }.get(scheme, scheme)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", help="where to draw it")
    options = parser.parse_args()
    y_end, sensitivity = exact()
    results = {scheme: study(scheme, y_end, sensitivity) for scheme in SHOWN}
    report(results, sensitivity)
    report_moving(("ForwardEuler", "Leapfrog", "RK4"))
    if options.figure:
        draw(results, sensitivity, options.figure)
