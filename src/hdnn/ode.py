"""The ordinary differential equation that a network discretizes, for solvers of others."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import ConvergenceError, HdnnError
from hdnn.fields import Field
from hdnn.program import Step, times

Array = npt.NDArray[Any]
Velocity = Callable[[float, Tensor], Tensor]

MOST_EVALUATIONS = 10**6
"""More than this are a tolerance that the dtype cannot meet, or a step that shrinks to nothing."""
SAFETY, SHRINK, GROW = 0.9, 0.2, 5.0
"""Of the next step: a little less than the estimate asks for, and within these factors."""


class Solution(NamedTuple):
    """Where an ODE takes a state.

    Args:
        y: at time T, in the shape of the state.
        steps, rejected: how many steps were taken, and how many were tried in vain.
        evaluations: of f, each about as much work as a layer.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> solution = net.ode().solve(torch.zeros(2, 4), 1e-4)
    >>> solution.y.shape, solution.steps > 0
    (torch.Size([2, 4]), True)
    """

    y: Tensor
    steps: int
    rejected: int
    evaluations: int


class ODE(nn.Module):
    """y' = f(t, y) with weights that are constant on pieces: those of layer j on [t_j, t_{j+1}).

        f(t, y) = J K_j' sigma(K_j y + b_j),      t_j = h_0 + ... + h_{j-1}

    Before t_0 = 0 the first layer serves, from t_N = T on the last. J(y, t) and energies H(y, t)
    get the time t itself (a network freezes it at t_j). Where the layers' weights differ, f jumps
    at the inner `breakpoints`; a solver keeps its order only if it stops there (torchdiffeq:
    ``options={"jump_t": ode.breakpoints[1:-1]}``) or goes layer by layer with `layer`.

    Tensors in, tensors out, differentiable, with the parameters of the field as its own (so that
    torchdiffeq's adjoint finds them). Arrays in, arrays out, as scipy's ``solve_ivp`` calls it: a
    vector is taken for all entries of a state of the given shape, one after the other.

    Args:
        field: the dynamics.
        h: the step, one number or ``(L,)``.
        layers: L.
        shape: of the state that a flat vector stands for; None: ``(-1, n)``, for features only.

    Raises:
        HdnnError: there are no layers, or the networks of an ensemble have no time in common.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0, dtype=torch.float64)
    >>> f = net.ode()
    >>> f(0.3, torch.zeros(5, 4, dtype=torch.float64)).shape, f(0.3, np.zeros(20)).shape
    (torch.Size([5, 4]), (20,))
    """

    breakpoints: Tensor

    def __init__(
        self, field: Field, h: Step, layers: int, shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        if isinstance(h, Tensor) and h.ndim > 1:
            raise HdnnError(
                f"the networks of an ensemble with steps {tuple(h.shape)} have no time in common; "
                "use one step for all, or single networks"
            )
        if not layers:
            raise HdnnError("a network without layers discretizes no ODE")
        self.field, self.layers, self.shape = field, layers, shape
        begins = [float(t) for t in times(h, layers)]
        last = h[-1].item() if isinstance(h, Tensor) else h
        self._times = [*begins, begins[-1] + last]
        points = torch.tensor(self._times, dtype=torch.float64)
        self.register_buffer("breakpoints", points, persistent=False)

    @property
    def T(self) -> float:
        """The final time."""
        return self._times[-1]

    def layer_at(self, t: float | Tensor) -> int:
        """The layer whose weights hold at time t.

        Args:
            t: between 0 and T.

        Returns:
            Its number, from 0.
        """
        times, now = self._times, t.detach().item() if isinstance(t, Tensor) else float(t)
        if isinstance(t, Tensor) and t.dtype != torch.float64:  # t_j as that solver rounds it
            times = torch.tensor(times, dtype=t.dtype).tolist()
        return min(max(bisect.bisect_right(times, now) - 1, 0), self.layers - 1)

    def layer(self, j: int) -> Callable[[Any, Any], Any]:
        """f(t, y) with the weights of layer j at every time: smooth on the closed interval.

        Args:
            j: the layer, from 0.

        Returns:
            A function of time and state.

        Raises:
            HdnnError: there is no such layer.
        """
        if not 0 <= j < self.layers:
            raise HdnnError(f"layer {j} is out of range: there are {self.layers}")
        return lambda t, y: self._evaluate(j, t, y)

    def forward(self, t: Any, y: Any) -> Any:
        """f(t, y): a tensor for a tensor, else an array in float64, in the shape of y.

        Args:
            t: between 0 and T.
            y: states ``(..., n)``, or as one row of numbers, as scipy has it.

        Returns:
            dy/dt.
        """
        return self._evaluate(self.layer_at(t), t, y)

    def solve(self, y: Tensor, tolerance: float = 1e-4) -> Solution:
        """Integrate from 0 to T with steps that adapt to a tolerance, stopping at breakpoints.

        Bogacki and Shampine's pair of orders 3 and 2: the difference of both estimates the error
        of a step, which must stay below tolerance (1 + |y|) in every entry. All samples take the
        same steps. Differentiable, with the steps taken for given.

        Args:
            y: a state of the network.
            tolerance: of the error of a step, absolute and relative.

        Returns:
            The state at T, and what it took.

        Raises:
            HdnnError: the tolerance is no positive number.
            ConvergenceError: no step is short enough for it.
        """
        if not 0 < tolerance < float("inf"):
            raise HdnnError(f"tolerance is a positive number, got {tolerance!r:.40}")
        total, h = Solution(y, 0, 0, 0), self._times[1]
        for j in range(self.layers):
            piece, h = _integrate(
                self.layer(j), total.y, (self._times[j], self._times[j + 1]), h, tolerance
            )
            counts = (a + b for a, b in zip(total[1:], piece[1:], strict=True))
            total = Solution(piece.y, *counts)
        return total

    def _evaluate(self, j: int, t: Any, y: Any) -> Any:
        if isinstance(y, Tensor):
            return self.field.velocity(y, j, t)
        array = np.asarray(y, dtype=np.float64)
        state = array.reshape(self._shape()) if array.ndim == 1 else array
        weights = next(iter(self.field.parameters()), None)
        x = torch.as_tensor(state)
        with torch.no_grad():
            velocity = self.field.velocity(x if weights is None else x.to(weights), j, float(t))
        out: Array = velocity.cpu().numpy().reshape(array.shape).astype(np.float64, copy=False)
        return out

    def _shape(self) -> tuple[int, ...]:
        if self.shape is not None:
            return self.shape
        layout = self.field.layout
        if layout.channels or layout.ensemble is not None:
            raise HdnnError(
                f"a flat vector says nothing about the shape of a state with {layout}; "
                "give it, such as net.ode(shape=y.shape)"
            )
        return (-1, layout.width)

    def extra_repr(self) -> str:
        return f"{self.layers} pieces on [0, {self.T:.6g}]"


def _integrate(
    f: Velocity, y: Tensor, span: tuple[float, float], h: float, tolerance: float
) -> tuple[Solution, float]:
    """Adaptive steps over an interval on which f is smooth, and the step to go on with.

    Args:
        f: the velocity f(t, y).
        y: the state at the beginning.
        span: the interval.
        h: the step to try first.
        tolerance: of a step's error.
    """
    t, end = span
    k1, steps, rejected, evaluations = f(t, y), 0, 0, 1
    while t < end:
        length = min(h, end - t)
        last = length >= (end - t) * (1 - 1e-12)
        k2 = f(t + length / 2, y + length / 2 * k1)
        k3 = f(t + 3 * length / 4, y + 3 * length / 4 * k2)
        new = y + length / 9 * (2 * k1 + 3 * k2 + 4 * k3)
        k4 = f(t + length, new)
        evaluations += 3
        difference = length * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
        scale = tolerance * (1 + y.detach().abs())
        error = float((difference.detach().abs() / scale).max()) if y.numel() else 0.0
        if error <= 1:  # not so where it is no number
            t, y, k1, steps = (end if last else t + length), new, k4, steps + 1
        else:
            rejected += 1
        factor = SAFETY * max(error, 1e-10) ** (-1 / 3) if error < float("inf") else SHRINK
        wanted = length * min(max(factor, SHRINK), GROW)
        h = max(h, wanted) if error <= 1 and last else wanted  # the end says nothing about steps
        if evaluations > MOST_EVALUATIONS or t + h == t:
            raise ConvergenceError(
                f"no step meets the tolerance {tolerance:g} at t = {t:.6g}; use a larger one"
            )
    return Solution(y, steps, rejected, evaluations), h
