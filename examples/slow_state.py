"""Gradients that grow although the state moves slowly: y' = eps J tanh(y).

J is skew, K = I, and every Jacobian eps J D(y) has imaginary eigenvalues and is diagonalizable:
Lemmas 2 and 3 hold at every state. The speed is at most eps sqrt(n), as small as one likes. Yet the
period of an orbit depends on its size, so two neighboring states drift apart, and d y(T) / d y(0)
grows linearly in eps T: "slowly varying" must mean slow against the dynamics itself, whose
frequency is eps too. The certificate says exactly this.

Run it:  python examples/slow_state.py
"""

from __future__ import annotations

import torch

import hdnn
from hdnn.analysis import Certificate, certify


def slow_network(eps: float, turns: float, layers: int) -> hdnn.HamiltonianNetwork:
    """y' = eps J1 tanh(y) over time T = turns / eps, by a scheme that keeps the structure."""
    net = hdnn.network(
        "HS",
        features=2,
        layers=layers,
        T=turns / eps,
        X=eps * torch.eye(1),
        time_invariant=True,
        dtype=torch.float64,
    )
    with torch.no_grad():
        net.field.weights.theta.fill_(1.0)  # K = I
        net.field.weights.beta.zero_()
    return net


def examine(eps: float, turns: float) -> Certificate:
    net = slow_network(eps, turns, layers=max(10, round(8 * turns)))
    return certify(net, torch.tensor([[1.5, 0.0], [0.0, 1.0]], dtype=torch.float64))


if __name__ == "__main__":
    print("  eps   eps T   largest norm   kappa   Lemma 2   Lemma 3   marginal growth")
    for eps in (1.0, 1e-3):
        for turns in (0.5, 5.0, 20.0, 40.0):
            certificate = examine(eps, turns)
            growth, lemma2, lemma3 = (
                certificate[name]
                for name in ("marginal-growth", "imaginary-spectrum", "diagonalizable")
            )
            print(
                f"{eps:5g}  {turns:5g}   {growth.detail['largest']:12.2f}   {lemma3.value:5.2f}   "
                f"{lemma2.verdict:7}   {lemma3.verdict:7}   {growth.verdict}"
            )
    print()
    print(certificate)
