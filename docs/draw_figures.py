"""Draws the figures of the pages: ``python docs/draw_figures.py``, or with names of figures.

Each function returns a figure, which is written to docs/figures under the function's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import hdnn
from hdnn import analysis, data, plots, schemes
from hdnn.training import Trainer, TrainingConfig

FOLDER = Path(__file__).parent / "figures"
BLUE, ORANGE = plots.LIGHT.color(0), plots.LIGHT.color(1)
MUTED = plots.LIGHT.muted


def _plane(width: float, count: int = 200) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """A grid over a square: x and y ``(count,)``, and its points ``(count, count, 2)``."""
    side = np.linspace(-width, width, count)
    return side, side, torch.tensor(np.stack(np.meshgrid(side, side), -1))


def theory() -> Figure:
    """Orbits along the level sets of H; a disk of states under H1 and under a ResNet."""
    options = {"features": 2, "layers": 64, "time_invariant": True, "dtype": torch.float64}
    long = hdnn.network("H1", T=6.0, **options)
    nets = {name: hdnn.network(name, T=2.0, **options) for name in ("H1", "ResNet")}
    K = torch.tensor([[-1.0, -0.4], [0.3, -0.8]], dtype=torch.float64)
    with torch.no_grad():
        for net in (long, *nets.values()):
            net.field.weights.theta.copy_(K.flatten())
            net.field.weights.beta.zero_()
        x, y, points = _plane(2.2)
        energy = long.field.energy(points, layer=0)
        angles = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
        circle = torch.stack([angles.cos(), angles.sin()], -1)
        disk = torch.cat([circle * r for r in (0.25, 0.5, 0.75, 1.0)]) * 0.5 + 0.9
        orbits = long.trajectory(torch.tensor([[0.4, 0.0], [0.9, 0.0], [1.4, 0.0]]).double())
        after = {name: net(disk) for name, net in nets.items()}
    figure = plots.new_figure(7.2, 3.4)
    left, right = figure.subplots(1, 2)
    left.contour(x, y, energy, levels=12, colors=[plots.LIGHT.grid], linewidths=1.2)
    for orbit in orbits.unbind(1):
        left.plot(*orbit.T, color=BLUE, linewidth=1.6)
        left.plot(*orbit[0], "o", color=BLUE, markersize=4)
    left.set_title("orbits run along level sets of $H$", fontsize=10)
    for (name, states), color in zip(
        [("input", disk), *after.items()], (MUTED, BLUE, ORANGE), strict=True
    ):
        right.scatter(*states.T, s=2, color=color, rasterized=True)
        below = (float(states[:, 0].mean()), float(states[:, 1].min()) - 0.3)
        right.annotate(name, below, color=color, fontsize=9.5, ha="center")
    right.set_title("a disk of states after 64 layers", fontsize=10)
    for axis in (left, right):
        plots.bare(axis).set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), aspect="equal")
    return figure


def faq() -> Figure:
    """The Swiss roll after the same network with three values of T."""
    split = data.split("swiss-roll", size=4000)
    start = torch.nn.functional.pad(split.X, (0, 2))
    figure = plots.new_figure(8.0, 2.2)
    for axis, T in zip(figure.subplots(1, 4), (0.0, 0.1, 1.0, 10.0), strict=True):
        torch.manual_seed(3)
        net = hdnn.network("H1", features=4, layers=64, T=max(T, 1e-9), time_invariant=True)
        with torch.no_grad():
            states = net(start.float())
        plots.scatter(axis, states[:, :2].numpy(), split.y.numpy())
        axis.set_title(f"T = {T:g}" if T else "input", fontsize=10)
        axis.set_box_aspect(1)
    return figure


def pytorch() -> Figure:
    """Gradient norms by depth: an H1 block, and a ResNet block in its place."""
    torch.manual_seed(0)
    stem, x = nn.Linear(30, 16), torch.randn(64, 30)
    states = stem(x).detach()
    figure = plots.new_figure(7.6, 2.9)
    for axis, T in zip(figure.subplots(1, 2, sharey=True), (1.0, 20.0), strict=True):
        for name, color in (("H1", BLUE), ("ResNet", ORANGE)):
            torch.manual_seed(1)
            block = hdnn.network(name, features=16, layers=32, T=T, scale=0.25)
            plots.norms_by_depth(axis, analysis.profile(block, states), "", color)
            axis.plot([], [], color=color, label=name)
        axis.set_title(f"T = {T:g}", fontsize=10)
    figure.axes[0].legend(frameon=False)
    figure.axes[0].set_ylabel("norm of $dy_N/dy_\\ell$")
    return figure


def extending() -> Figure:
    """The pendulum as a network: orbits on the level sets of its energy."""
    pendulum = hdnn.fields.EnergyField(
        "J1",
        lambda x, t: x[..., 1] ** 2 / 2 - x[..., 0].cos(),
        features=2,
        separable=True,
        dtype=torch.float64,
    )
    net = hdnn.HamiltonianNetwork(pendulum, schemes.Leapfrog(), layers=1000, step=0.01)
    starts = torch.tensor([[0.6, 0.0], [1.4, 0.0], [2.2, 0.0], [-4.5, 2.3], [4.5, -2.3]]).double()
    figure = plots.new_figure(6.4, 2.9)
    axis = figure.subplots()
    q, p = np.linspace(-4.5, 4.5, 200), np.linspace(-2.8, 2.8, 200)
    energy = p[:, None] ** 2 / 2 - np.cos(q)[None, :]
    axis.contour(q, p, energy, levels=14, colors=[plots.LIGHT.grid], linestyles="solid")
    for k, orbit in enumerate(net.trajectory(starts).detach().unbind(1)):
        axis.plot(*orbit.T, color=plots.LIGHT.color(k), linewidth=1.6)
        axis.plot(*orbit[0], "o", color=plots.LIGHT.color(k), markersize=4)
    plots.clean(axis).set(xlim=(-4.5, 4.5), ylim=(-2.8, 2.8), xlabel="angle", ylabel="momentum")
    axis.grid(visible=False)
    return figure


def certificates() -> Figure:
    """Eigenvalues of the Jacobian of the field: H1, and a ResNet with the same weights."""
    figure = plots.new_figure(6.4, 2.8)
    states = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for axis, name, color in zip(
        figure.subplots(1, 2, sharex=True, sharey=True),
        ("H1", "ResNet"),
        (BLUE, ORANGE),
        strict=True,
    ):
        net = hdnn.network(name, features=4, layers=16, T=1.0, dtype=torch.float64)
        net.reset_parameters(torch.Generator().manual_seed(0))
        found = torch.linalg.eigvals(analysis.velocity_jacobians(net, states))
        values = found.numpy().ravel()
        axis.axvline(0, color=plots.LIGHT.grid, linewidth=1)
        axis.scatter(
            values.real, values.imag, s=5, color=color, alpha=0.5, linewidths=0, rasterized=True
        )
        plots.clean(axis).set(xlabel="real part", ylim=(-6, 6))
        axis.set_title(name, fontsize=10)
    figure.axes[0].set_ylabel("imaginary part")
    return figure


def images() -> Figure:
    """Digits of the test set, each with the class and the probability that a small model gives."""
    torch.manual_seed(0)
    digits = data.images.load("digits")
    model = hdnn.image_model(channels=1, size=(8, 8), classes=10, layers=8, step=0.05)
    config = TrainingConfig(method="joint", batch_size=100, epochs=20, learning_rate=0.01)
    Trainer(model, config).fit(digits)
    chances, classes = model.probabilities(digits.X_test[:9]).max(1)
    figure = plots.new_figure(8.0, 1.3)
    for k, axis in enumerate(figure.subplots(1, 9)):
        axis.imshow(digits.X_test[k, 0], cmap="gray_r")
        axis.set_title(f"{classes[k]}: {100 * chances[k]:.0f} %", fontsize=8)
        plots.bare(axis)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function
    for function in (theory, faq, pytorch, extending, certificates, images)
}


def main(names: list[str]) -> None:
    """Draw the figures of these names, or all."""
    for name in names or FIGURES:
        torch.manual_seed(0)
        plots.save_figure(FIGURES[name](), FOLDER / f"{name}.svg", dpi=110)


if __name__ == "__main__":
    main(sys.argv[1:])
