"""Variable projection: quasi-Newton on the hidden layers, the output layer eliminated.

    minimize over K, b:   phi(K, b) = min over W, mu of the objective of section 3.3

The inner problem is convex and solved to the end, so the gradient of phi is the partial gradient by
K and b at the solution. L-BFGS minimizes phi on all samples at once: for small networks and
moderate data, where few exact steps are worth many noisy ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hdnn.models import Model
from hdnn.training import output_solver
from hdnn.training.loops import Batches, Epoch, Loop
from hdnn.training.objective import LOSSES, smoothness
from hdnn.training.settings import TrainingConfig

ITERATIONS = 5
"""Of L-BFGS in an epoch; each takes one or two passes over the data."""
MEMORY = 20
"""Pairs of steps and changes of the gradient that L-BFGS keeps."""
SOLVER_ITERATIONS = 30
"""Of Newton for the output layer, from where it was: phi must be smooth for the line search."""
TOLERANCE = 1e-8
"""Where Newton stops: the largest entry of the gradient by the output layer."""
SHRUNK = (1.0, 0.1, 0.0)
"""Newton begins with the best of these multiples of the last output layer: a large one may be far
off for other hidden layers."""
TRIALS = 20
"""Step lengths of a line search before it gives up."""
DECREASE, CURVATURE = 1e-4, 0.9
"""The weak Wolfe conditions: the share of the slope that phi must fall by, and that may be left."""

Array = np.ndarray


class Point(NamedTuple):
    """Weights of the hidden layers, and what was computed there.

    Attributes:
        x: the weights, ``(parameters,)``; in float64, but numbers of the model's dtype.
        V: the output layer that is best for them, ``(outputs, n + 1)``: (W, mu).
        objective, gradient: phi and its gradient, ``(parameters,)``.
        loss: of the data alone.
        accuracy: on the training data; NaN for regression.
    """

    x: Array
    V: Array
    objective: float
    gradient: Array
    loss: float
    accuracy: float


class VarProLoop(Loop):
    """L-BFGS on the hidden layers, with the output layer solved at every evaluation."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        super().__init__(model, data, config)
        self.hidden = [
            p for p in (*model.stem.parameters(), *model.stages.parameters()) if p.requires_grad
        ]
        self.sizes = [p.numel() for p in self.hidden]
        self.states = data.take(slice(None), self.device).states  # an evaluation takes all samples
        self.target = data.target.double().reshape(len(data), -1).numpy()
        self.weight = data.weight.double().numpy() / float(data.weight.double().sum())
        self.point: Point | None = None
        self.steps: list[Array] = []
        self.changes: list[Array] = []
        self.converged = False

    def epoch(self, order: Tensor, number: int) -> Epoch:
        self._look(number, order)
        x = self._read()
        if self.point is None or not np.array_equal(x, self.point.x):
            self.restore({})
            self.point = self.evaluate(x, self._read_output())
        begin = self.point
        self._write(begin)
        self._report_gradients()
        for _ in range(ITERATIONS):
            if self.converged or not np.isfinite(begin.objective):
                break
            self._iterate()
        self._write(self.point)
        accuracy = None if self.loss == "squared" else begin.accuracy
        return Epoch(begin.loss, begin.objective, accuracy)

    # --- phi --------------------------------------------------------------------------------------

    def evaluate(self, x: Array, V: Array) -> Point:
        """Phi and its gradient; the model is left with these weights.

        Args:
            x: the weights of the hidden layers.
            V: where the solution for the output layer begins.
        """
        config, data = self.config, self.data
        self._write_hidden(x)
        x = self._read()  # as the model's dtype has them
        for p in self.hidden:
            p.grad = None
        out = self.model.stages(self.model.stem(self.states))
        Z = np.ones((len(data), out.shape[1] + 1))
        Z[:, :-1] = out.detach().cpu().numpy()
        if not np.isfinite(Z).all():  # a trial step of the line search, much too long
            return Point(x, V, np.inf, np.full_like(x, np.nan), np.nan, np.nan)
        V = V.copy()
        self._solve(Z, V)
        loss, residual = output_solver.loss_and_residuals(Z, self.target, self.weight, V, self.loss)
        covector = torch.from_numpy(residual @ V[:, :-1]).to(out)
        penalty = config.alpha * smoothness(self.model.network)
        if penalty.requires_grad:
            torch.autograd.backward([out, penalty], [covector, torch.ones_like(penalty)])
        else:
            out.backward(covector)
        objective = loss + float(penalty.detach()) + config.alpha_c * float((V * V).sum())
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.hidden]
        gradient = np.concatenate([g.reshape(-1).double().cpu().numpy() for g in grads])
        return Point(x, V, objective, gradient, loss, self._accuracy(Z, V))

    def _solve(self, Z: Array, V: Array) -> None:
        """The best output layer, in place."""
        V *= min(SHRUNK, key=lambda share: self._inner(Z, share * V))
        options = self.config.alpha_c, SOLVER_ITERATIONS, TOLERANCE
        if self.loss == "softmax":  # compiled code forms its Hessian
            from hdnn.kernels import output_layer  # loads numba

            code = LOSSES.index(self.loss)
            output_layer.kernel("newton")(Z, self.target, self.weight, V, code, *options)
        else:
            output_solver.newton(Z, self.target, self.weight, V, self.loss, *options)

    def _inner(self, Z: Array, V: Array) -> float:
        """The objective of the output layer."""
        loss, _ = output_solver.loss_and_residuals(Z, self.target, self.weight, V, self.loss)
        return loss + self.config.alpha_c * float((V * V).sum())

    def _accuracy(self, Z: Array, V: Array) -> float:
        if self.loss == "squared":
            return np.nan
        logits = Z @ V.T
        found = logits[:, 0] > 0 if self.loss == "logistic" else logits.argmax(1)
        return float((found == self.target[:, 0]).mean())

    # --- L-BFGS -----------------------------------------------------------------------------------

    def _iterate(self) -> None:
        """One step, or the end: where not even the gradient leads down any more."""
        assert self.point is not None
        before = self.point
        after = self._search(before, self._direction(before.gradient))
        if after is None:
            self.converged = not self.steps
            self.steps, self.changes = [], []
            return
        step, change = after.x - before.x, after.gradient - before.gradient
        if step @ change > 0:  # else rounding
            self.steps, self.changes = self.steps[1 - MEMORY :], self.changes[1 - MEMORY :]
            self.steps.append(step)
            self.changes.append(change)
        self.point = after

    def _direction(self, gradient: Array) -> Array:
        """Minus the approximate inverse Hessian times the gradient, by the two-loop recursion."""
        d = -gradient
        if not self.steps:
            return d / max(1.0, float(np.abs(gradient).sum()))
        pairs = [(s, y, 1.0 / (s @ y)) for s, y in zip(self.steps, self.changes, strict=True)]
        shares = []
        for s, y, rho in reversed(pairs):
            shares.append(rho * (s @ d))
            d -= shares[-1] * y
        s, y, rho = pairs[-1]
        d /= rho * (y @ y)
        for (s, y, rho), share in zip(pairs, reversed(shares), strict=True):
            d += (share - rho * (y @ d)) * s
        return d

    def _search(self, start: Point, direction: Array) -> Point | None:
        """The first point on the line where the weak Wolfe conditions hold, or the lowest.

        Lengths are doubled until a minimum is bracketed, then interpolated. None where nothing
        lower is found, or only what rounding hides.
        """
        slope, length = float(start.gradient @ direction), 1.0
        if not -slope > 10 * torch.finfo(self.data.states.dtype).eps * start.objective:
            return None
        low, high, best = (0.0, start, slope), np.inf, None
        for _ in range(TRIALS):
            tried = self.evaluate(start.x + length * direction, start.V)
            if np.array_equal(tried.x, start.x):
                return best
            new = float(tried.gradient @ direction)
            if not tried.objective <= start.objective + DECREASE * length * slope:
                high = length
            elif new < CURVATURE * slope:
                low, best = (length, tried, new), tried
            else:
                return tried
            length = 2 * length if high == np.inf else _between(low, high, length, tried, new)
        return best

    # --- the model --------------------------------------------------------------------------------

    def _read(self) -> Array:
        return np.concatenate([p.detach().reshape(-1).double().cpu().numpy() for p in self.hidden])

    def _read_output(self) -> Array:
        head = self.model.head
        return torch.cat([head.weight, head.bias[:, None]], 1).detach().double().cpu().numpy()

    @torch.no_grad()
    def _write_hidden(self, x: Array) -> None:
        for p, part in zip(self.hidden, torch.from_numpy(x).split(self.sizes), strict=True):
            p.copy_(part.view_as(p))

    @torch.no_grad()
    def _write(self, point: Point) -> None:
        """Give the model the weights of a point, and its gradients."""
        self._write_hidden(point.x)
        head = self.model.head
        head.weight.copy_(torch.from_numpy(point.V[:, :-1]))
        head.bias.copy_(torch.from_numpy(point.V[:, -1]))
        parts = torch.from_numpy(point.gradient).split(self.sizes)
        for p, part in zip(self.hidden, parts, strict=True):
            p.grad = part.view_as(p).to(p)

    def state(self) -> dict[str, Tensor]:
        if self.point is None:
            return {}
        parts = self.point._asdict().items()
        found = {name: torch.tensor(value, dtype=torch.float64) for name, value in parts}
        found["converged"] = torch.tensor(self.converged)
        if self.steps:
            found["steps"] = torch.from_numpy(np.stack(self.steps))
            found["changes"] = torch.from_numpy(np.stack(self.changes))
        return found

    def restore(self, state: dict[str, Tensor]) -> None:
        arrays = {name: tensor.numpy().copy() for name, tensor in state.items()}
        self.steps, self.changes = (list(arrays.get(name, ())) for name in ("steps", "changes"))
        self.converged = bool(arrays.get("converged", False))
        self.point = None
        if state:
            x, V, objective, gradient, loss, accuracy = (arrays[name] for name in Point._fields)
            self.point = Point(x, V, float(objective), gradient, float(loss), float(accuracy))


def _between(
    low: tuple[float, Point, float], high: float, length: float, tried: Point, slope: float
) -> float:
    """A length between two, by the cubic through the last trial where that is safe."""
    begin, point, before = low
    width = high - begin
    if length == high and np.isfinite(tried.objective):
        d = before + slope - 3 * (point.objective - tried.objective) / (begin - length)
        root = d * d - before * slope
        if root >= 0:
            root = np.sqrt(root)
            share = 1 - (slope + root - d) / (slope - before + 2 * root)
            return begin + width * float(np.clip(share, 0.1, 0.9))
    return begin + width * (0.5 if np.isfinite(tried.objective) else 0.1)
