"""An ensemble of networks for two classes, trained by coordinate descent as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.backends import choose
from hdnn.config import TrainingConfig
from hdnn.errors import HdnnError
from hdnn.fields.hamiltonian import WeightedField
from hdnn.kernels.native import SolverOptions
from hdnn.networks import HamiltonianNetwork
from hdnn.training.compiled import CompiledTraining
from hdnn.training.loops import TOLERANCE, Batches, Epoch, Loop
from hdnn.training.objective import smoothness_of_members
from hdnn.training.optimizers import flatten_optimizer, make_optimizer, restore_optimizer
from hdnn.training.output_solver import solve

FINAL_ITERATIONS = 50
"""Of the Newton solver, for the output layers on all training data."""


class Ensemble(nn.Module):
    """E networks for two classes, and their output layers; `Trainer` trains them together.

    Args:
        network: the networks.
        seeds: one a network, for the order of its batches.
        may_diverge: whether the others go on when one diverges; else that ends the training.

    Attributes:
        V: ``(E, 1, n + 1)``, the output layers (W, mu) in float64.

    Raises:
        HdnnError: there is not one seed a network.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0, ensemble=2)
    >>> hdnn.training.Ensemble(net, seeds=[0, 1]).V.shape
    torch.Size([2, 1, 5])
    """

    V: Tensor

    def __init__(
        self, network: HamiltonianNetwork, seeds: Sequence[int], may_diverge: bool = False
    ) -> None:
        super().__init__()
        if network.ensemble != len(seeds) or network.features is None:
            raise HdnnError(
                f"an ensemble has one seed a network, got {len(seeds)} seeds for "
                f"{network.ensemble or 'no'} networks over features"
            )
        self.network, self.seeds, self.may_diverge = network, list(seeds), may_diverge
        V = torch.zeros(len(seeds), 1, network.features + 1, dtype=torch.float64)
        self.register_buffer("V", V)

    def batches(self, X: Tensor, target: Tensor) -> Batches:
        """The training data of all networks.

        Args:
            X: ``(E, samples, n)``, states of the networks.
            target: ``(E, samples)``, classes 0 and 1.

        Returns:
            The same with weights of 1.

        Raises:
            HdnnError: the shapes do not fit.
        """
        expected = (len(self.seeds), target.shape[-1], self.V.shape[-1] - 1)
        if tuple(X.shape) != expected or target.shape != X.shape[:2] or not target.numel():
            raise HdnnError(
                f"an ensemble of {expected[0]} networks is trained on X (E, samples, n) and "
                f"classes (E, samples), got {tuple(X.shape)} and {tuple(target.shape)}"
            )
        return Batches(X, target, torch.ones(target.shape))

    @torch.no_grad()
    def fit_outputs(self, X: Tensor, target: Tensor, alpha_c: float) -> None:
        """Fit the output layers to all samples; that of a network which diverged stays.

        Args:
            X: ``(E, samples, n)``.
            target: ``(E, samples)``.
            alpha_c: weight decay.
        """
        options = SolverOptions("newton", FINAL_ITERATIONS, TOLERANCE)
        solve_outputs(with_ones(self.network(X)), target, self.V.numpy(), alpha_c, options)


def ensemble_loop(model: Ensemble, data: Batches, config: TrainingConfig) -> Loop:
    """Coordinate descent of an ensemble: in kernels where they can serve, else by autograd.

    Args:
        model: trained in place.
        data: of its members.
        config: coordinate descent with Adam.

    Raises:
        HdnnError: the settings do not suit an ensemble.
    """
    if config.method != "coordinate" or config.optimizer.lower() != "adam":
        raise HdnnError("an ensemble is trained with method='coordinate', optimizer='adam'")
    network, batch = model.network, data.states[:, : config.batch_size]
    choice = choose(network.program, network.values(), batch, network.backend)
    if config.loop == "compiled" and choice.backend != "fused":
        raise HdnnError(f"loop='compiled' cannot serve: {choice.reason}; use loop='auto'")
    if config.loop == "autograd" or choice.backend != "fused":
        return EnsembleLoop(model, data, config)
    return CompiledEnsembleLoop(model, data, config)


class CompiledEnsembleLoop(Loop):
    """Coordinate descent of an ensemble in compiled kernels; arguments as of `ensemble_loop`."""

    def __init__(self, model: Ensemble, data: Batches, config: TrainingConfig) -> None:
        self.loss, self.observer, self.ensemble = "logistic", None, model
        self.compiled = CompiledTraining(
            model.network,
            weights_of(model.network),
            Batches(data.states, data.target.unsqueeze(-1), data.weight),
            config,
            outputs=1,
            loss=self.loss,
        )
        self.compiled.V[:] = model.V.numpy()

    def epoch(self, order: Tensor, number: int) -> Epoch:
        epochs = self.compiled.epoch(order, number, self.observer)
        self.ensemble.V.copy_(torch.from_numpy(self.compiled.V))
        return mean_of(epochs)

    def state(self) -> dict[str, Tensor]:
        return self.compiled.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.compiled.restore(state)


class EnsembleLoop(Loop):
    """Coordinate descent of an ensemble by autograd; arguments as of `ensemble_loop`.

    A network whose loss is not finite keeps its weights until the next epoch.
    """

    def __init__(self, model: Ensemble, data: Batches, config: TrainingConfig) -> None:
        self.loss, self.observer, self.ensemble = "logistic", None, model
        self.data, self.config, self.weights = data, config, weights_of(model.network)
        self.optimizer = make_optimizer(self.weights, config, weight_decay=0.0)

    def epoch(self, order: Tensor, number: int) -> Epoch:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate_at(number)
        batches = order.split(self.config.batch_size, 1)
        good = torch.ones(len(order), dtype=torch.bool)
        sums, correct = np.zeros(2), 0
        for i, chosen in enumerate(batches):
            self._look(number * len(batches) + i, chosen)
            losses, hits = ensemble_gradients(self.ensemble, self.data, chosen, self.config)
            smooth = self._add_smoothness()
            if self._looked and self.observer is not None:
                self.observer.after_gradients(gradient_norms(self.weights))
            good &= torch.isfinite(losses) & torch.isfinite(smooth)
            penalty = self.config.alpha_c * self.ensemble.V.square().sum((1, 2))
            sums += float(losses.mean()), float((losses + smooth + penalty).mean())
            correct += hits
            self._move(good)
        if not bool(good.all()):
            sums[:] = np.nan
        mean = sums / len(batches)
        return Epoch(float(mean[0]), float(mean[1]), correct / order.numel())

    def _add_smoothness(self) -> Tensor:
        """Add the gradients of the smoothness penalty, ``(E,)``, and clip."""
        network, config = self.ensemble.network, self.config
        penalty = config.alpha * smoothness_of_members(network)
        if penalty.requires_grad:
            penalty.sum().backward()
        if config.clip is not None:
            grads = [p.grad for p in self.weights if p.grad is not None]
            norm = torch.stack([g.square().sum((1, 2)) for g in grads]).sum(0).sqrt()
            for grad in grads:
                grad.mul_((config.clip / (norm + 1e-6)).clamp(max=1.0)[:, None, None])
        return penalty.detach()

    def _move(self, good: Tensor) -> None:
        """One step of Adam on all networks but those that diverged."""
        parts = [*self.weights, *self._moments()]
        before = [part.detach().clone() for part in parts]
        self.optimizer.step()
        with torch.no_grad():
            after = [*self.weights, *self._moments()]
            before += [torch.zeros_like(part) for part in after[len(before) :]]
            for part, own in zip(after, before, strict=True):
                part[~good] = own[~good]

    def _moments(self) -> list[Tensor]:
        entries = [self.optimizer.state[p] for p in self.weights]
        return [entry[k] for entry in entries for k in ("exp_avg", "exp_avg_sq") if k in entry]

    def state(self) -> dict[str, Tensor]:
        return flatten_optimizer(self.optimizer)

    def restore(self, state: dict[str, Tensor]) -> None:
        restore_optimizer(self.optimizer, state)


def weights_of(network: HamiltonianNetwork) -> list[nn.Parameter]:
    """The parameters of K and b."""
    assert isinstance(network.field, WeightedField)
    return [network.field.weights.theta, network.field.weights.beta]


def ensemble_gradients(
    model: Ensemble, data: Batches, chosen: Tensor, config: TrainingConfig
) -> tuple[Tensor, int]:
    """Solve for the output layers on a batch; then the gradients of the data losses.

    Args:
        model: whose weights get the gradients.
        data: of its members.
        chosen: ``(E, batch)``, numbers of samples.
        config: how the output layers are solved.

    Returns:
        The losses ``(E,)``, and how many samples are classified correctly.
    """
    states, labels = (
        torch.stack([part[samples] for part, samples in zip(parts, chosen, strict=True)])
        for parts in (data.states, data.target)
    )
    for p in model.parameters():
        p.grad = None
    out, V = model.network(states), model.V
    options = SolverOptions(
        config.solver, config.solver_iterations, TOLERANCE, config.learning_rate, *config.betas
    )
    solve_outputs(with_ones(out), labels, V.numpy(), config.alpha_c, options)
    logits = (out @ V[:, 0, :-1, None].to(out))[..., 0] + V[:, 0, -1:].to(out)
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(1)
    losses.sum().backward()
    return losses.detach(), int(((logits > 0) == (labels > 0)).sum())


def gradient_norms(parameters: Sequence[nn.Parameter]) -> np.ndarray:
    """``(E, layers)``: norms of the gradients of theta and beta."""
    squares = [p.grad.double().square().sum(-1) for p in parameters if p.grad is not None]
    norms: np.ndarray = torch.stack(squares).sum(0).sqrt().numpy()
    return norms


def mean_of(epochs: Sequence[Epoch]) -> Epoch:
    """The mean over the networks; not a number where one of them diverged."""
    accuracies = [epoch.accuracy for epoch in epochs if epoch.accuracy is not None]
    return Epoch(
        float(np.mean([epoch.loss for epoch in epochs])),
        float(np.mean([epoch.penalized for epoch in epochs])),
        float(np.mean(accuracies)) if accuracies else None,
    )


def solve_outputs(
    Z: np.ndarray, target: Tensor, V: np.ndarray, alpha_c: float, options: SolverOptions
) -> None:
    """Fit output layers in place; that of a network which diverged stays.

    Args:
        Z: ``(E, samples, n + 1)``, outputs of the networks and a column of ones.
        target: ``(E, samples)``, classes.
        V: ``(E, 1, n + 1)``.
        alpha_c: weight decay.
        options: the solver.
    """
    count = target.shape[1]
    weight = np.full(count, 1 / count)
    for e in range(len(V)):
        classes = target[e].double().numpy()[:, None]
        if np.isfinite(Z[e]).all() and np.isfinite(V[e]).all():
            solve(Z[e], classes, weight, V[e], "logistic", alpha_c, options)


def with_ones(states: Tensor) -> np.ndarray:
    """States in float64 and a column of ones, ``(E, samples, n + 1)``."""
    out = states.detach().double().numpy()
    return np.concatenate([out, np.ones((*out.shape[:2], 1))], axis=2)
