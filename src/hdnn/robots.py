"""Twelve robots swap sides: plant, two controllers and their loop, with weights that are stored.

The benchmark of Furieri, Galimberti, Zakwan and Ferrari-Trecate, "Distributed neural network
control with dependability guarantees" (L4DC 2022), sampled; see results/robots. `benchmarks/robots`
trains these controllers and others, and writes the weights; `hdnn demo` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hdnn.control import GainLimit, LinearPlant, gain_limit, sampled
from hdnn.files import atomic
from hdnn.statespace import Cell, StateSpace
from hdnn.threads import one_thread

ROBOTS, STEP = 12, 0.05
HORIZON, LONG = 100, 1000
"""Steps of training and of what comes after it: 5 s and 50 s."""
GAIN = 30.0
WEIGHTS = Path(__file__).with_name("robots.safetensors")
"""Of the controllers of seed 0. A training amplifies rounding, so no two machines agree on them."""

FLOAT: dict[str, Any] = {"dtype": torch.float64}
RING = torch.eye(ROBOTS) + torch.eye(ROBOTS).roll(1, 0) + torch.eye(ROBOTS).roll(-1, 0)
NEIGHBORS = torch.tensor([[k, (k + 1) % ROBOTS, (k - 1) % ROBOTS] for k in range(ROBOTS)])
APART = ~torch.eye(ROBOTS, dtype=torch.bool)


def starts_and_targets() -> tuple[Tensor, Tensor]:
    """Momentum and position of every robot, ``(12, 4)`` each."""
    starts, targets = [], []
    for column in (-3.0, 3.0):
        for k, height in enumerate((5.0, 3.0, 1.0, -1.0, -3.0, -5.0)):
            starts.append([0.0, 0.5 if k < 3 else -0.5, column, height])
            targets.append([0.0, 0.0, -column, -height])
    return torch.tensor(starts, **FLOAT), torch.tensor(targets, **FLOAT)


def robot(mass: float = 1.0, spring: float = 1.0, friction: float = 0.2) -> LinearPlant:
    """One robot in the plane: momentum and distance from the target; the output is the velocity."""
    none, one = torch.zeros(2, 2, **FLOAT), torch.eye(2, **FLOAT)
    motion = torch.tensor([[-friction / mass, -spring], [1 / mass, 0.0]], **FLOAT)
    B, C = torch.cat([one, none]), torch.cat([one / mass, none], 1)
    return sampled(torch.kron(motion, one), B, C, step=STEP)


# --- controllers: a state and a step from velocities (B, 12, 2) to forces -------------------------

State = Any
Loop = tuple[Callable[[int], State], Callable[[State, Tensor], tuple[State, Tensor]]]


class StateSpaceController(nn.Module):
    """Units and dynamics for every robot, inputs along the ring; passive, so the force is -y."""

    def __init__(self, seed: int, scale: float = 0.1, gain: float = GAIN) -> None:
        super().__init__()
        n, m, each = 8, 16, torch.eye(ROBOTS, **FLOAT)
        blocks = {
            "K": torch.kron(each, torch.ones(m, n)),
            "L": torch.eye(ROBOTS * n),
            "A": torch.kron(each, torch.ones(n, n)),
            "G": torch.kron(RING, torch.ones(n, 2)),
        }
        self.net = StateSpace(
            inputs=2 * ROBOTS,
            states=ROBOTS * n,
            units=ROBOTS * m,
            step=STEP,
            mu=0.05,
            passive=True,
            gain=gain,
            structure={name: block > 0 for name, block in blocks.items()},
            learn_initial=True,
            generator=torch.Generator().manual_seed(seed),
            scale=scale,
            **FLOAT,
        )
        # It begins as an oscillator for each axis, driven by the velocity.
        half = n // 2
        J, drive = torch.zeros(n, n, **FLOAT), torch.zeros(n, 2, **FLOAT)
        J[:half, half:], J[half:, :half] = -torch.eye(half), torch.eye(half)
        drive[0, 0] = drive[1, 1] = 1.0
        start = {
            "A": torch.kron(each, J) / 2 * STEP,
            "G": torch.kron(each, drive),
            "L": 0.6 * torch.eye(ROBOTS * n, **FLOAT),
        }
        layer: Any = self.net.weights[0]
        with torch.no_grad():
            layer.K.mul_(3.0)
            layer.A.mul_(0.1 * STEP)
            for name, value in start.items():
                getattr(layer, name).add_(value[blocks[name] > 0])
            self.net.x0[::n] = 3.0

    def loop(self) -> Loop:
        """The initial state of a batch, and a step."""
        cell: Cell = self.net.assemble()

        def step(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            x, y = cell.step(x, v.flatten(-2))
            return x, -y.unflatten(-1, (ROBOTS, 2))

        return cell.initial, step


class PerRobot(nn.Module):
    """The same small function for a robot's own sensors, with weights of its own."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int, scale: float) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        for name, shape in shapes.items():
            fan = shape[-1] if len(shape) > 1 else 1
            size = scale / fan**0.5 if len(shape) > 1 else 0.1 * scale
            start = size * torch.randn(ROBOTS, *shape, generator=draw, **FLOAT)
            self.register_parameter(name, nn.Parameter(start))

    @staticmethod
    def seen(v: Tensor) -> Tensor:
        """The velocities of a robot and its neighbors: ``(B, 12, 6)``."""
        return v[..., NEIGHBORS, :].flatten(-2)

    @staticmethod
    def apply_weights(W: Tensor, x: Tensor) -> Tensor:
        """W x for every robot."""
        return torch.einsum("roi,bri->bro", W, x)


class MLP(PerRobot):
    """6 - 16 - 2 for every robot: 1,752 parameters, as published."""

    W: Tensor
    b: Tensor
    V: Tensor
    c: Tensor

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__({"W": (16, 6), "b": (16,), "V": (2, 16), "c": (2,)}, seed, scale)

    def force(self, v: Tensor) -> Tensor:
        """Forces ``(B, 12, 2)`` of velocities."""
        s = torch.tanh(self.apply_weights(self.W, self.seen(v)) + self.b)
        return self.apply_weights(self.V, s) + self.c

    def loop(self) -> Loop:
        """No state, and a step."""
        return lambda batch: None, lambda x, v: (None, self.force(v))


CONTROLLERS: dict[str, Callable[..., Any]] = {"state space": StateSpaceController, "MLP": MLP}


# --- the loop and its cost ------------------------------------------------------------------------


def simulate(
    controller: Any,
    steps: int,
    plant: LinearPlant | None = None,
    starts: Tensor | None = None,
    delay: int = 0,
) -> tuple[Tensor, Tensor]:
    """Distances from the targets ``(steps + 1, B, 12, 4)`` and forces ``(steps, B, 12, 2)``."""
    first, targets = starts_and_targets()
    z = ((first if starts is None else starts) - targets).reshape(-1, ROBOTS, 4)
    plant = plant or robot()
    initial, step = controller.loop()
    x, states, forces = initial(len(z)), [z], []
    waiting = [torch.zeros(len(z), ROBOTS, 2, **FLOAT)] * delay
    for _ in range(steps):
        x, force = step(x, plant.measure(z))
        waiting.append(force)
        applied = waiting.pop(0)
        z = plant.advance(z, applied)
        states.append(z)
        forces.append(applied)
    return torch.stack(states), torch.stack(forces)


def squared_distances(states: Tensor) -> Tensor:
    """Of every pair of robots, ``(steps + 1, B, 12, 12)``."""
    positions = states[..., 2:] + starts_and_targets()[1][:, 2:]
    return (positions.unsqueeze(-2) - positions.unsqueeze(-3)).square().sum(-1)


def costs(states: Tensor, forces: Tensor, discount: float = 1.0) -> Tensor:
    """The cost of every sample: states, half of the squared forces, and near collisions."""
    weights = (discount ** (STEP * torch.arange(len(states), **FLOAT))).flip(0)[:, None]
    near = squared_distances(states)
    collisions = 50 * ((1 / (near + 1e-3)) * (near.detach() < 0.49) * APART).sum((0, 2, 3))
    own = (states.square().sum((2, 3)) * weights).sum(0)
    return own + 0.5 * forces.square().sum((0, 2, 3)) + collisions


# --- stored weights -------------------------------------------------------------------------------


def save_weights(controllers: Mapping[str, nn.Module]) -> None:
    """Write the weights of trained controllers to `WEIGHTS`, in float32."""
    tensors = {
        f"{name}/{key}": value.float().contiguous()
        for name, controller in controllers.items()
        for key, value in controller.state_dict().items()
    }
    with atomic(WEIGHTS) as temporary:
        save_file(tensors, temporary)


def load_controllers() -> dict[str, nn.Module]:
    """The controllers of `CONTROLLERS` with the stored weights."""
    tensors, controllers = load_file(WEIGHTS), {}
    for name, make in CONTROLLERS.items():
        controllers[name] = controller = make(seed=0)
        prefix = f"{name}/"
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        controller.load_state_dict(own)
    return controllers


@dataclass(frozen=True, eq=False)
class Drive:
    """What the robots do in the hands of a controller.

    Args:
        positions: ``(steps + 1, 12, 2)``, in m.
        distances: the largest of a robot from its target, ``(steps + 1,)``.
        short_cost, long_cost: after `HORIZON` and after all steps.
        parameters: of the controller.
        gain: the bound of the controller's gain; None where it has none.
    """

    positions: np.ndarray
    distances: np.ndarray
    short_cost: float
    long_cost: float
    parameters: int
    gain: float | None

    @classmethod
    @torch.no_grad()
    def of(cls, controller: nn.Module) -> Self:
        """Run the robots for `LONG` steps."""
        with one_thread():
            states, forces = simulate(controller, LONG)
            short, long = (costs(states[: k + 1], forces[:k]) for k in (HORIZON, LONG))
        gaps, (_, targets) = states[:, 0, :, 2:], starts_and_targets()
        net = getattr(controller, "net", None)
        return cls(
            (gaps + targets[:, 2:]).numpy(),
            gaps.norm(dim=-1).amax(1).numpy(),
            float(short),
            float(long),
            sum(parameter.numel() for parameter in controller.parameters()),
            None if net is None else net.gain_bound,
        )


def loop_limit() -> GainLimit:
    """The gain below which a controller keeps these robots stable, whatever its weights."""
    plant = robot()
    return gain_limit(plant.A, plant.B, plant.C)
