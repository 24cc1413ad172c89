"""Variable projection: quasi-Newton on the hidden layers, the output layer eliminated.

    minimize over K, b:   phi(K, b) = min over W, mu of the objective of section 3.3

The inner problem is convex and solved to the end, so the gradient of phi is the partial gradient by
K and b at the solution. L-BFGS with a strong Wolfe line search minimizes phi on all samples at
once: for small networks and moderate data, where few exact steps are worth many noisy ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.models import Model
from hdnn.training.loops import Batches, Epoch, Loop, count_correct, solve_output
from hdnn.training.objective import data_loss, output_penalty, smoothness
from hdnn.training.settings import TrainingConfig

ITERATIONS = 5
"""Of L-BFGS in an epoch; each takes one or two passes over the data."""
MEMORY = 20
"""Pairs of steps and changes of the gradient that L-BFGS keeps."""
SOLVER_ITERATIONS = 30
"""Of Newton for the output layer, from where it was: phi must be smooth for the line search."""
LISTS = ("old_dirs", "old_stps", "ro")
"""What torch's L-BFGS keeps one of for every pair."""


class VarProLoop(Loop):
    """L-BFGS on the hidden layers, with the output layer solved at every evaluation."""

    def __init__(self, model: Model, data: Batches, config: TrainingConfig) -> None:
        exact = replace(config, solver="newton", solver_iterations=SOLVER_ITERATIONS)
        super().__init__(model, data, exact)
        self.whole = data.take(slice(None), self.device)  # every evaluation takes all samples
        self.hidden = [
            p for p in (*model.stem.parameters(), *model.stages.parameters()) if p.requires_grad
        ]
        self.optimizer = torch.optim.LBFGS(
            self.hidden, max_iter=ITERATIONS, history_size=MEMORY, line_search_fn="strong_wolfe"
        )

    def epoch(self, order: Tensor, number: int) -> Epoch:
        self._look(number, order)
        first: list[Epoch] = []

        def closure() -> Tensor:
            objective, told = self._evaluate()
            first.append(told)
            return objective

        before = [p.detach().clone() for p in self.hidden]
        self.optimizer.step(closure)
        if not all(bool(torch.isfinite(p).all()) for p in self.hidden):
            self._begin_anew(before)
        self._report_gradients()
        return first[0]

    def _evaluate(self) -> tuple[Tensor, Epoch]:
        """Phi and its gradient, and what an epoch that begins here tells."""
        config, head, data = self.config, self.model.head, self.whole
        self.optimizer.zero_grad()
        out = self.model.stages(self.model.stem(data.states))
        if not bool(torch.isfinite(out).all()):  # a trial step of the line search, much too long
            return out.new_full((), np.inf), Epoch(np.nan, np.nan, None)
        solve_output(self.model, out.detach(), data.target, data.weight, config)
        logits = out @ head.weight.detach().mT + head.bias.detach()
        plain = data_loss(logits, data.target, data.weight, self.loss)
        penalized = plain + config.alpha * smoothness(self.model.network)
        penalized.backward()
        objective = (
            penalized.detach() + config.alpha_c * output_penalty(head.weight, head.bias).detach()
        )
        hits = count_correct(logits.detach(), data.target, self.loss)
        accuracy = None if self.loss == "squared" else hits / len(data)
        return objective, Epoch(float(plain.detach()), float(objective), accuracy)

    @torch.no_grad()
    def _begin_anew(self, weights: list[Tensor]) -> None:
        """Forget the curvature, which led nowhere, and go back."""
        for p, kept in zip(self.hidden, weights, strict=True):
            p.copy_(kept)
        self.optimizer.state.clear()

    def state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, value in self._entries().items():
            if name in LISTS:
                found[name] = torch.stack([torch.as_tensor(v) for v in value] or [torch.zeros(0)])
            elif name != "al":  # scratch
                found[name] = torch.as_tensor(value).clone()
        return found

    def _entries(self) -> dict[str, Any]:
        return dict(self.optimizer.state.get(self.hidden[0], {}))

    def restore(self, state: dict[str, Tensor]) -> None:
        entries: dict[str, Any] = {name: t.to(self.device, copy=True) for name, t in state.items()}
        for name in LISTS:
            if name in entries:
                entries[name] = list(entries[name].unbind()) if entries[name].numel() else []
        for name in ("n_iter", "func_evals", "prev_loss"):
            if name in entries:
                entries[name] = entries[name].item()
        self.optimizer.state.clear()
        if entries:
            self.optimizer.state[self.hidden[0]] = entries
