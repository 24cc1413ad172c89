"""Levenberg-Marquardt on whole recordings, with exact sensitivities and initial states eliminated.

A layer is x+ = A v, v = [x; u; s], s = sigma(W w + b), w = [x; u], y = Y w + c. The derivative of
the state with respect to the entries of A, of [W b] and x_0 follows the same recurrence,

    dx+ = (A_x + A_s S W_x) dx + dA v + A_s S d[W b] [w; 1],        S = sigma'(W w + b),

and the chain rule takes it to the parameters, of which A, W, Y, b and c are functions. Every
segment has an initial state of its own. It enters no other segment's residuals, so that the normal
equations are solved for it first, and the equations that remain have the size of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hdnn.backends import rollout
from hdnn.data.recordings import Recordings
from hdnn.program import Recurrence
from hdnn.statespace import Layer, LayerWeights, StateSpace

LENGTH, MOST = 1024, 8192
"""Samples of a segment of what is long, and of all segments together."""

Score = Callable[[StateSpace, Tensor], float]
"""Takes a model and the initial states ``(segments, n)``; less is better."""


class Segments(NamedTuple):
    """Parts of recordings that are fitted side by side, padded to the same length.

    Args:
        u: inputs ``(S, time, inputs)``.
        y: outputs ``(S, time, outputs)``.
        weight: ``(S, time)``, 1 where there is a sample, 0 in the padding.
        first: for every recording, which segment begins with it.
    """

    u: Tensor
    y: Tensor
    weight: Tensor
    first: list[int]

    @classmethod
    def of(cls, recordings: Recordings, length: int = LENGTH, most: int = MOST) -> Segments:
        """Whole recordings while all have at most half of ``most`` samples; else evenly spread."""
        spans: list[tuple[int, int, int]] = []
        first, total = [], sum(map(len, recordings.inputs))
        for k, u in enumerate(recordings.inputs):
            first.append(len(spans))
            if total <= most // 2 or len(u) <= 2 * length:
                spans.append((k, 0, len(u)))
                continue
            count = max(1, min(len(u) // length, round(most * len(u) / total / length)))
            starts = [round(j * (len(u) - length) / max(count - 1, 1)) for j in range(count)]
            spans += [(k, start, start + length) for start in starts]
        pad = nn.utils.rnn.pad_sequence
        tensors = [
            pad([torch.tensor(part[k][i:j]) for k, i, j in spans], batch_first=True)
            for part in (recordings.inputs, recordings.outputs)
        ]
        weight = pad([torch.ones(j - i, dtype=torch.float64) for _, i, j in spans], True)
        return cls(tensors[0], tensors[1], weight, first)

    @property
    def samples(self) -> float:
        """How many outputs are fitted."""
        return float(self.weight.sum()) * self.y.shape[-1]

    def residuals(self, y: Tensor) -> Tensor:
        """What is left of the outputs ``(S, time, outputs)``; 0 in the padding."""
        return (y - self.y) * self.weight.unsqueeze(-1)


class Jacobian(NamedTuple):
    """Residuals and their derivatives.

    Args:
        e: ``(S, R)``, R = time * outputs.
        theta: with respect to the parameters, ``(S, R, P)``.
        x0: with respect to the initial states, each of its own segment, ``(S, R, n)``.
    """

    e: Tensor
    theta: Tensor
    x0: Tensor


def _matrices(layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """A, [W b] and [Y c]."""
    W, Y = (
        (part, vector.unsqueeze(-1)) for part, vector in ((layer.W, layer.b), (layer.Y, layer.c))
    )
    return layer.A, torch.cat(W, -1), torch.cat(Y, -1)


def weights_of(model: StateSpace) -> LayerWeights:
    """The parameters of a network of one layer."""
    (weights,) = model.weights
    assert isinstance(weights, LayerWeights)
    return weights


@torch.no_grad()
def recurrence(model: StateSpace) -> Recurrence:
    """One step of a network as s = sigma(W [x; u; 1]), x+ = A [x; u; 1; s].

    Args:
        model: of one layer.

    Returns:
        The matrices.
    """
    layer = weights_of(model).assemble()
    A, W, _ = _matrices(layer)
    k = W.shape[1]
    A = torch.cat([A[:, : k - 1], A.new_zeros(len(A), 1), A[:, k - 1 :]], -1)
    return Recurrence(W.unsqueeze(0), A.unsqueeze(0), layer.activation, 1)


@torch.no_grad()
def states_of(model: StateSpace, u: Tensor, x0: Tensor) -> Tensor:
    """States of a free run.

    Args:
        model: of one layer.
        u: inputs ``(S, time, inputs)``.
        x0: initial states ``(S, n)``.

    Returns:
        Those before every input, ``(S, time, n)``.
    """
    form = recurrence(model)._replace(steps=u.shape[-2])
    return rollout(form, x0.contiguous(), u)[0]


def jacobian(model: StateSpace, segments: Segments, x0: Tensor, names: Sequence[str]) -> Jacobian:
    """Residuals of a free run and their exact derivatives.

    Args:
        model: of one layer, with tanh.
        segments: what is simulated.
        x0: initial states ``(S, n)``.
        names: parameters to derive by.

    Returns:
        The residuals and derivatives.
    """
    weights, u = weights_of(model), segments.u
    A, W, Y = (part.detach() for part in _matrices(weights.assemble()))
    (S, T, _), (n, _), (m, k), q = u.shape, A.shape, W.shape, len(Y)
    w = torch.cat([states_of(model, u, x0), u, torch.ones_like(u[..., :1])], -1)
    s = torch.tanh(w @ W.mT)
    v = torch.cat([w[..., :-1], s], -1)
    drive = A[:, k - 1 :] * (1 - s * s).unsqueeze(-2)  # A_s S, (S, T, n, m)
    step = A[:, :n] + drive @ W[:, :n]
    # The derivatives by A, W and x_0, in this order; those of Y follow at the end.
    a, b = A.numel(), A.numel() + W.numel()
    now, after = x0.new_zeros(2, S, n, b + n)
    now[..., b:] = torch.eye(n, dtype=x0.dtype)
    views = [
        (
            part[..., :a].unflatten(-1, (n, -1)).diagonal(dim1=1, dim2=2),
            part[..., a:b].unflatten(-1, (m, k)) if m else None,
        )
        for part in (after, now)
    ]
    by = x0.new_empty(T, S, q, b + n)
    for t in range(T):
        torch.matmul(Y[:, :n], now, out=by[t])
        torch.bmm(step[:, t], now, out=after)
        rows, units = views[t % 2]
        rows.add_(v[:, t].unsqueeze(-1))
        if units is not None:
            units.addcmul_(drive[:, t].unsqueeze(-1), w[:, t, None, None])
        now, after = after, now
    by = by.transpose(0, 1)
    D = _derivatives(weights, names)
    own = (w @ D[b:].unflatten(0, (q, k)).movedim(1, 0).flatten(1)).unflatten(-1, (q, -1))
    theta = own + by[..., :b] @ D[:b]
    mask = segments.weight[..., None, None]
    e = segments.residuals(w @ Y.mT)
    return Jacobian(e.flatten(1), (theta * mask).flatten(1, 2), (by[..., b:] * mask).flatten(1, 2))


def _derivatives(weights: LayerWeights, names: Sequence[str]) -> Tensor:
    """Of the entries of all matrices of a layer with respect to its parameters."""
    with torch.enable_grad():
        entries = torch.cat([part.flatten() for part in _matrices(weights.assemble())])
    each = torch.eye(len(entries), dtype=entries.dtype)
    parameters = [getattr(weights, name) for name in names]
    rows = torch.autograd.grad(entries, parameters, each, is_grads_batched=True)
    return torch.cat([part.flatten(1) for part in rows], 1)


class Fitted(NamedTuple):
    """Where a fit ended.

    Args:
        score: the smallest of all iterations.
        x0: the initial states at it, ``(S, n)``.
        best: its iteration; 0 is the start.
        iterations: how many there were.
    """

    score: float
    x0: Tensor
    best: int
    iterations: int


@torch.no_grad()
def fit(
    model: StateSpace,
    names: Sequence[str],
    segments: Segments,
    x0: Tensor,
    iterations: int,
    score: Score | None = None,
    ridge: float = 0.0,
    patience: int = 20,
    progress: Callable[[float], None] = lambda share: None,
) -> Fitted:
    """Least squares of the free-run residuals, by Levenberg-Marquardt; the model is changed.

        minimize  sum e(theta, x_0)^2 + ridge |theta - theta_start|^2

    Args:
        model: where to start; it ends with the weights of the smallest score.
        names: parameters to fit, by name.
        segments: what is simulated.
        x0: initial states ``(S, n)``, fitted too.
        iterations: at most so many.
        score: what decides on stopping; None: the sum of squares itself.
        ridge: weight of the penalty.
        patience: iterations without a smaller score before stopping.
        progress: called with the share of iterations done.

    Returns:
        The score and the initial states.
    """
    weights = weights_of(model)
    parameters = [getattr(weights, name) for name in names]
    start = theta = nn.utils.parameters_to_vector(parameters).clone()

    def cost(theta: Tensor, x0: Tensor) -> float:
        nn.utils.vector_to_parameters(theta, parameters)
        e = segments.residuals(model(segments.u, x0)[0])
        return float(e.square().sum() + ridge * (theta - start).square().sum())

    now, damping = cost(theta, x0), 1e-2
    best, best_theta, done = Fitted(score(model, x0) if score else now, x0, 0, 0), theta, 0
    for done in range(1, iterations + 1):
        progress((done - 1) / iterations)
        nn.utils.vector_to_parameters(theta, parameters)
        step = _Steps(jacobian(model, segments, x0, names), ridge, theta - start)
        before = now
        for _ in range(8):
            to_theta, to_x0 = step(damping)
            now = cost(theta + to_theta, x0 + to_x0)
            if now < before:
                theta, x0, damping = theta + to_theta, x0 + to_x0, max(damping / 3, 1e-9)
                break
            damping *= 4
        else:
            break
        found = score(model, x0) if score else now
        if found < best.score:
            best, best_theta = Fitted(found, x0, done, done), theta
        if done - best.best >= patience or before - now < 1e-9 * before:
            break
    nn.utils.vector_to_parameters(best_theta, parameters)
    return best._replace(iterations=done)


class _Steps:
    """Steps for any damping, from one Jacobian.

    With H = J'J, damped on its diagonal, the step solves

        [H_tt  H_tx] [dt]     [g_t]
        [H_xt  H_xx] [dx] = - [g_x],    H_xx block diagonal,

    so (H_tt - sum_s H_tx H_xx^-1 H_xt) dt = -g_t + sum_s H_tx H_xx^-1 g_x.
    """

    def __init__(self, J: Jacobian, ridge: float, moved: Tensor) -> None:
        flat = J.theta.flatten(0, 1)
        self.H = flat.mT @ flat + ridge * torch.eye(len(moved), dtype=moved.dtype)
        self.g = flat.mT @ J.e.flatten() + ridge * moved
        self.X, self.XT = J.x0.mT @ J.x0, J.x0.mT @ J.theta
        self.gx = (J.x0.mT @ J.e.unsqueeze(-1)).squeeze(-1)

    def __call__(self, damping: float) -> tuple[Tensor, Tensor]:
        H, X = _damped(self.H, damping), _damped(self.X, damping)
        solved = torch.linalg.solve(X, torch.cat([self.XT, self.gx.unsqueeze(-1)], -1))
        both = torch.einsum("snp,snz->pz", self.XT, solved)
        step = torch.linalg.solve(H - both[:, :-1], both[:, -1] - self.g)
        return step, -solved[..., -1] - solved[..., :-1] @ step


def _damped(H: Tensor, damping: float) -> Tensor:
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    least = 1e-3 * diagonal.mean(-1, keepdim=True)
    tiny = 1e-12 * least + torch.finfo(H.dtype).tiny
    return H + torch.diag_embed(damping * (diagonal + least) + tiny)


@torch.no_grad()
def initial_state(model: StateSpace, u: Tensor, y: Tensor, iterations: int = 15) -> Tensor:
    """The initial state that explains measured outputs best.

        minimize  sum |y_t(x_0) - y_t|^2 + |x_0 - x_rest|_R^2

    by Gauss-Newton, with shorter steps where one does not help, and derivatives by differences; R
    is so small that it decides on nothing but what the outputs do not show.

    Args:
        model: the network.
        u: inputs ``(time, inputs)``, at least as long as y.
        y: the first outputs ``(time, outputs)``.
        iterations: at most so many.

    Returns:
        ``(n,)``.
    """
    rest = x = best = model.x0.detach().clone()
    least, n, step = math.inf, len(x), torch.zeros_like(x)
    inputs = u[: len(y)].expand(2 * n + 1, -1, -1)
    for _ in range(iterations):
        size = 1e-4 * (1 + x.abs().max())
        around = size * torch.eye(n, dtype=x.dtype)
        values = model(inputs, x + torch.cat([0 * around[:1], around, -around]))[0].flatten(1)
        e = values[0] - y.flatten()
        if float(e.square().sum()) < least * (1 - 1e-12):
            least, best = float(e.square().sum()), x
            J = ((values[1 : n + 1] - values[n + 1 :]) / (2 * size)).mT
            H = J.mT @ J
            R = 1e-9 * torch.diag(H.diagonal() + H.diagonal().mean() + torch.finfo(x.dtype).tiny)
            step = -torch.linalg.solve(H + R, J.mT @ e + R @ (x - rest))
        elif not step.abs().max() > 1e-3 * size:
            break
        else:  # too far: the model bends
            step = step / 4
        x = best + step
    return best
