"""Multilevel training: the same ODE at one depth after the other, from coarse to fine.

The weights are functions of time, and a level is a grid for them. On the grid of N_l layers (step
h_l), what is trained should be the same up to terms that vanish with the step:

    alpha   times (N_l / N)^2:  the penalty h/2 sum_j ||K_j - K_{j-1}||^2 is h^2/2 int ||K'||^2 dt
    rate    times N_l / N for SGD, as a layer's gradient is proportional to its step; adaptive
            optimizers (Adam, ...) do not see that, and their moments are scaled

so that on the last level, of N layers, both are the settings'.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import accumulate

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.refinement import coarsen, optimizer_state, refine, set_depth
from hdnn.refinement.depth import networks_in
from hdnn.refinement.optimizers import LayerMix, layer_mixes
from hdnn.training.ensemble import CompiledLoop
from hdnn.training.joint import CompiledJointLoop
from hdnn.training.loops import CoordinateLoop, JointLoop, Loop
from hdnn.training.optimizers import flatten_state
from hdnn.training.settings import TrainingConfig
from hdnn.training.varpro import VarProLoop

INTERPOLATION = "linear"
"""Of the weights from level to level: it keeps the smoothness penalty."""
PROPORTIONAL = ("sgd", "asgd")
"""Optimizers whose updates are proportional to the gradient."""


@dataclass(frozen=True)
class Levels:
    """The depths of a training and the epochs in which it leaves them.

    Args:
        config: of the whole training.
        depths: of every Hamiltonian network, level by level; empty for a training at one depth.
        ends: the number of epochs after which a level ends at the latest.
    """

    config: TrainingConfig
    depths: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module, config: TrainingConfig) -> Levels:
        """The levels of a training.

        Args:
            module: has the depth of the last level; of several networks the deepest has it, and
                the others follow in proportion.
            config: of the training.

        Raises:
            HdnnError: the depth is another, or cannot change.
        """
        if config.levels is None:
            return cls(config, (), (config.epochs,))
        final = [net.layers for net in networks_in(module)]
        if not final or max(final) != config.levels[-1]:
            raise HdnnError(
                f"levels end with the depth of the network: got {config.levels[-1]} for "
                f"{max(final, default=0)} layers"
            )
        depths = tuple(
            tuple(max(1, round(n * level / config.levels[-1])) for n in final)
            for level in config.levels
        )
        if config.method == "joint" and config.optimizer.lower() in PROPORTIONAL:
            raise HdnnError(
                f"levels with {config.optimizer} would need another learning rate for the output "
                "layer: use Adam, or method='coordinate'"
            )
        for depth in depths[:-1]:
            coarsen(module, depth)  # raises where there is no ODE, now rather than later
        return cls(config, depths, _ends(config, len(depths)))

    @property
    def last(self) -> int:
        """The number of the last level, counted from 0."""
        return len(self.ends) - 1

    def settings(self, level: int) -> TrainingConfig:
        """The training on a level."""
        if level == self.last or self.config.levels is None:
            return self.config
        share = self.config.levels[level] / self.config.levels[-1]
        proportional = self.config.optimizer.lower() in PROPORTIONAL
        return replace(
            self.config,
            alpha=self.config.alpha * share**2,
            learning_rate=self.config.learning_rate * (share if proportional else 1.0),
        )

    def level_of(self, tensors: Mapping[str, Tensor]) -> int:
        """The level of a state, as `hdnn.training.Snapshot` has it.

        Raises:
            HdnnError: there is no such level.
        """
        level = int(tensors["level"]) if "level" in tensors else self.last
        if not 0 <= level <= self.last:
            raise HdnnError(f"there is no level {level} of {self.last + 1}")
        return level

    def enter(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Bring a module on the last level to the depth of a state, in place."""
        if self.depths:
            set_depth(module, self.depths[self.level_of(tensors)], INTERPOLATION)

    def shapes(self, module: nn.Module, level: int) -> Mapping[str, torch.Size]:
        """The shapes of the tensors of a module on a level, by name.

        Args:
            module: on the last level.
            level: its number.
        """
        there = module if level == self.last else coarsen(module, self.depths[level])
        return {name: tensor.shape for name, tensor in there.state_dict().items()}


def _ends(config: TrainingConfig, levels: int) -> tuple[int, ...]:
    """Epochs after which a level ends, in proportion to the given ones; at least one on each."""
    shares = config.level_epochs or (1,) * levels
    ends: list[int] = []
    total = sum(shares)
    for level, part in enumerate(accumulate(shares)):
        earliest = ends[-1] + 1 if ends else 1
        latest = config.epochs - (levels - 1 - level)
        ends.append(max(min(round(config.epochs * part / total), latest), min(earliest, latest)))
    return tuple(ends)


# --- the state of a loop on the next level --------------------------------------------------------


@singledispatch
def carried(loop: Loop, fine: Model) -> dict[str, Tensor]:
    """What a loop over a model of another depth goes on from, see `Loop.restore`.

    Args:
        loop: over the model as it is.
        fine: the same model with the other depth.

    Raises:
        HdnnError: the loop trains at one depth only.
    """
    raise HdnnError(f"levels are for single models; {type(loop).__name__} trains at one depth")


@carried.register
def _(loop: CoordinateLoop, fine: Model) -> dict[str, Tensor]:
    return flatten_state(optimizer_state(loop.optimizer, loop.model, fine))


@carried.register
def _(loop: JointLoop, fine: Model) -> dict[str, Tensor]:
    state = flatten_state(optimizer_state(loop.optimizer, loop.model, fine))
    if loop.average is None:
        return state
    mean = copy.deepcopy(loop.model)
    mean.load_state_dict(loop.average.weights)
    mean = refine(mean, [net.layers for net in networks_in(fine)], INTERPOLATION)
    weights = {f"average.of.{name}": tensor for name, tensor in mean.state_dict().items()}
    return {**state, "average.count": loop.average.state()["count"], **weights}


@carried.register
def _(loop: CompiledLoop, fine: Model) -> dict[str, Tensor]:
    weights, state = loop.compiled.weights, loop.state()
    mixes = layer_mixes(loop.model, fine)
    for name, p in (("moments_theta", weights.theta), ("moments_beta", weights.beta)):
        state[name] = _carried_moments(state[name], mixes[id(p)])
    return state


@carried.register
def _(loop: CompiledJointLoop, fine: Model) -> dict[str, Tensor]:
    state, mixes = loop.state(), layer_mixes(loop.model, fine)
    pieces = state["moments"].split([p.numel() for p in loop.parts], 1)
    moments = [
        _carried_moments(piece.reshape(2, *p.shape), mixes[id(p)]).reshape(2, -1)
        for piece, p in zip(pieces, loop.parts, strict=True)
    ]
    return {**state, "moments": torch.cat(moments, 1)}


@carried.register
def _(loop: VarProLoop, fine: Model) -> dict[str, Tensor]:
    return {}  # curvature between layers that are others now: L-BFGS begins anew


def _carried_moments(moments: Tensor, mix: LayerMix | None) -> Tensor:
    """First and second moments of Adam, ``(2, ...)``, for the layers of another depth."""
    if mix is None:
        return moments
    return torch.stack([mix.apply(moments[0], 1), mix.apply(moments[1], 2)])
