"""The ordinary differential equation that a network discretizes, for solvers of others."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.fields import Field
from hdnn.program import Step, times

Array = npt.NDArray[Any]


class ODE(nn.Module):
    """y' = f(t, y) with weights that are constant on pieces: those of layer j on [t_j, t_{j+1}).

        f(t, y) = J K_j' sigma(K_j y + b_j),      t_j = h_0 + ... + h_{j-1}

    Before t_0 = 0 the first layer serves, from t_N = T on the last. J(y, t) and energies H(y, t)
    get the time t itself (a network freezes it at t_j). Where the layers' weights differ, f jumps
    at the inner `breakpoints`; a solver keeps its order only if it stops there (torchdiffeq:
    ``options={"jump_t": ode.breakpoints[1:-1]}``) or goes layer by layer with `layer`.

    Tensors in, tensors out, differentiable, with the parameters of the field as its own (so that
    torchdiffeq's adjoint finds them). Arrays in, arrays out, as scipy's ``solve_ivp`` calls it: a
    vector stands for states ``(B, n)``, one after the other (channels and ensembles: reshape it).

    Args:
        field: the dynamics of every layer.
        h: the step size, one number or ``(L,)``.
        layers: the number of layers L.

    Raises:
        HdnnError: there are no layers, or the networks of an ensemble have no time in common.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0, dtype=torch.float64)
    >>> f = net.ode()
    >>> f(0.3, torch.zeros(5, 4, dtype=torch.float64)).shape, f(0.3, np.zeros(20)).shape
    (torch.Size([5, 4]), (20,))
    >>> f.layer_at(0.3), f.breakpoints[:4]
    (2, tensor([0.0000, 0.1250, 0.2500, 0.3750], dtype=torch.float64))
    """

    breakpoints: Tensor

    def __init__(self, field: Field, h: Step, layers: int) -> None:
        super().__init__()
        if isinstance(h, Tensor) and h.ndim > 1:
            raise HdnnError(
                f"the networks of an ensemble with steps {tuple(h.shape)} have no time in common; "
                "use one step for all, or single networks"
            )
        if not layers:
            raise HdnnError("a network without layers discretizes no ODE")
        self.field, self.layers = field, layers
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
        # A solver in float32 stops at t_j as float32 rounds it, which may lie before t_j.
        if isinstance(t, Tensor) and t.dtype != torch.float64:
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

    def _evaluate(self, j: int, t: Any, y: Any) -> Any:
        if isinstance(y, Tensor):
            return self.field.velocity(y, j, t)
        array = np.asarray(y, dtype=np.float64)
        layout = self.field.layout
        flat = array.ndim == 1 and not layout.channels and layout.ensemble is None
        x = torch.as_tensor(array.reshape(-1, layout.width) if flat else array)
        own = next(iter([*self.field.parameters(), *self.field.buffers()]), x)
        with torch.no_grad():
            velocity = self.field.velocity(x.to(own), j, float(t))
        out: Array = velocity.cpu().numpy().reshape(array.shape).astype(np.float64, copy=False)
        return out

    def extra_repr(self) -> str:
        return f"{self.layers} pieces on [0, {self.T:.6g}]"
