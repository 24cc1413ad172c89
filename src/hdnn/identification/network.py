"""From a linear model to a network, and from scaled signals to the units of the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hdnn.data.recordings import Scaling
from hdnn.identification.levenberg import weights_of
from hdnn.statespace import StateSpace


@torch.no_grad()
def with_units(
    linear: StateSpace,
    units: int,
    size: float,
    seed: int = 0,
    share: float = 0.3,
    spread: float = 0.5,
) -> tuple[StateSpace, Tensor]:
    """A linear network with units added, the same for small signals around an equilibrium.

    The states are scaled to the root mean square 1. With beta = K x* + b, the values in the units
    at the equilibrium x* of u = 0, and S = diag sigma'(beta), units take a share of the damping,

        K' S K = share (M - mu I),     L L' = M - mu I - K' S K,     G' = G + K' S B,

    so that I - h (K'SK + LL' + mu I) and G' - K'SB, the linearization, are what they were. x* and b
    follow from beta, and c makes up for C x*.

    Args:
        linear: with units=0.
        units: how many.
        size: root mean square of its states.
        seed: of beta, B and the directions K.
        share: of the damping; less where K'K + M would be too large for h, or
            there are fewer units than states.
        spread: standard deviation of beta and B.

    Returns:
        The network and its equilibrium x*; its states are x / size + x*.
    """
    own, n, h = weights_of(linear), linear.states, linear.h
    net = StateSpace(
        inputs=linear.inputs,
        outputs=linear.outputs,
        states=n,
        units=units,
        step=h,
        mu=linear.mu,
        learn_initial=True,
        dtype=torch.float64,
        scale=0.0,
    )
    new, draw = weights_of(net), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    Q, _, M = own.parts()
    values, vectors = torch.linalg.eigh(M)
    directions = torch.linalg.qr(normal(max(units, n), max(units, n)))[0][:units, :n]
    beta, B = spread * normal(units), spread * normal(units, linear.inputs)
    S = 1 - torch.tanh(beta).square()
    damping, room = (values - linear.mu).clamp(min=0), (2 / h - linear.mu - values).clamp(min=0)
    least = float(S.min())  # K'K is at most K'SK / least
    taken = torch.minimum(share * damping, room * least / (1 - least))
    new.K.copy_(directions / S.sqrt().unsqueeze(-1) * taken.sqrt() @ vectors.mT)
    left, axes = torch.linalg.eigh(vectors * damping @ vectors.mT - new.K.mT * S @ new.K)
    new.L.copy_(axes * left.clamp(min=0).sqrt() @ axes.mT)
    new.A.copy_(own.A)
    new.G.copy_(own.G / size + new.K.mT @ (S.unsqueeze(-1) * B))
    new.B.copy_(B)
    new.C.copy_(own.C * size)
    new.D.copy_(own.D)
    # x* = Q (x* - h K' sigma(beta) - h M* x*), with what is left of M
    _, _, M = new.parts()
    identity = torch.eye(n, dtype=M.dtype)
    pull = -h * Q @ (new.K.mT @ torch.tanh(beta))
    rest = torch.linalg.solve(identity - Q @ (identity - h * M), pull)
    new.b.copy_(beta - new.K @ rest)
    new.c.copy_(own.c - new.C @ rest)
    net.x0.copy_(rest)
    return net, rest


@torch.no_grad()
def in_units(model: StateSpace, scaling: Scaling, sampling_time: float) -> StateSpace:
    """The same network between inputs and outputs as they were measured.

    With u = (v - m_u) / s_u, a step h' in place of h and r = sqrt(h' / h), the states r (x + a),

        a = (I - Q P)^-1 h Q G m_u / s_u,     P = I - h M,

    make a network of the same kind: K, L, G, C shrink by r, which leaves h K'K and h M as they are,
    so that the rate stays; the gain becomes that of the data.

    Args:
        model: between scaled signals.
        scaling: mean and standard deviation of inputs and outputs.
        sampling_time: the new step h'.

    Returns:
        A new network, which begins at rest under the mean input.
    """
    own, h, n = weights_of(model), model.h, model.states
    mean_u, std_u, mean_y, std_y = (torch.from_numpy(each) for each in scaling)
    r = math.sqrt(sampling_time / h)
    out = StateSpace(
        inputs=model.inputs,
        outputs=model.outputs,
        states=n,
        units=model.units,
        step=sampling_time,
        mu=model.mu / r**2,
        learn_initial=True,
        dtype=torch.float64,
        scale=0.0,
    )
    new, (Q, K, M) = weights_of(out), own.parts()
    F = Q - h * Q @ M  # Q P
    a = torch.linalg.solve(torch.eye(n, dtype=M.dtype) - F, h * Q @ own.G @ (mean_u / std_u))
    new.K.copy_(own.K / r)
    new.L.copy_(own.L / r)
    new.A.copy_(own.A)
    new.G.copy_(own.G / std_u / r)
    new.B.copy_(own.B / std_u)
    new.b.copy_(own.b - own.B @ (mean_u / std_u) - K @ a)
    C, D = std_y.unsqueeze(-1) * own.C, std_y.unsqueeze(-1) * own.D / std_u
    new.C.copy_(C / r)
    new.D.copy_(D)
    new.c.copy_(mean_y + std_y * own.c - D @ mean_u - C @ a)
    out.x0.copy_(r * (rest_state(model) + a))
    return out


@torch.no_grad()
def rest_state(model: StateSpace, u: Tensor | None = None) -> Tensor:
    """The state that a constant input leads to, whatever the state before.

    Args:
        model: the network.
        u: the input ``(inputs,)``; None: 0.

    Returns:
        ``(n,)``, to ten digits, or as near as 100,000 steps come.
    """
    steps = min(math.ceil(math.log(1e-10) / math.log(float(model.rate))), 100_000)
    u = torch.zeros(model.inputs, dtype=torch.float64) if u is None else u
    return model(u.repeat(steps, 1))[1]
