"""The network: a field, a scheme and a backend joined to a torch module."""

from __future__ import annotations

import copy
import functools
import operator
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from hdnn import backends
from hdnn.backends import BACKENDS, MEMORY, reference
from hdnn.errors import HdnnError, IncompatibleError, finite_number, is_count, unknown_name
from hdnn.fields import Field, LayerField, Learned
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.weights import Generators
from hdnn.ode import ODE
from hdnn.program import Program, Values, explicit
from hdnn.schemes import ForwardEuler, Scheme

_PER_SAMPLE = backends.BackendChoice(
    "reference",
    "the fused backend cannot serve: its kernels take the same steps for all samples, and here "
    "every sample has a T of its own",
)
StepSize = float | Sequence[float] | Tensor
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def without_autocast(function: FunctionT) -> FunctionT:
    """Decorate a function of a network and a state: autocast does not lower its precision.

    Changes of the state add up from layer to layer, and lower precisions lose them.

    Args:
        function: takes the network and the state first, and possibly more.

    Returns:
        The same function, with autocast off and the state in the network's dtype.

    Raises:
        HdnnError: in the call, the state is no tensor.

    >>> import hdnn
    >>> net, y = hdnn.network("H1", features=2, layers=3, T=1.0), torch.zeros(2)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     without_autocast(lambda net, y: (net.K @ y).dtype)(net, y)
    torch.float32
    """

    @functools.wraps(function)
    def call(net: HamiltonianNetwork, y: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(y, Tensor):
            raise HdnnError(f"a state is a tensor, got a {type(y).__name__}; use torch.as_tensor")
        # torch knows no autocast for the device meta, and raises. A device's type takes 0.2 us.
        device = "cpu" if y.is_cpu else y.device.type
        if device == "meta" or not torch.is_autocast_enabled(device):
            return function(net, y, *args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(net, y.to(net.field.dtype or y.dtype), *args, **kwargs)

    return cast(FunctionT, call)


class HamiltonianNetwork(nn.Module):
    """A residual network that is a discretized ODE: y_0 = y, layer j advances it by h_j.

    Args:
        field: the dynamics y' = f(y, t): J, the weights K and b, the energy; see `hdnn.fields`.
        scheme: how time is discretized, one of `hdnn.schemes`; None is forward Euler.
        layers: the number of layers L; None takes it from the weights of the field.
        T: the final time; every layer has the step h = T / L.
        step: the step h, instead of T: a number, a list or tensor with one entry for every layer,
            or ``(E, L)`` for an ensemble.
        learn_steps: True makes the steps parameters, which stay positive.
        backend: "auto" (compiled kernels where they are faster), "reference" (plain PyTorch) or
            "fused" (compiled kernels, or an error that says why not).
        memory: "fast", or "lean": the reference keeps states between about sqrt(L) segments of
            layers only, and computes a segment again on the way back.
        name: the name of the architecture, shown by `repr` and in messages.

    Attributes:
        program: what it computes, as stages and flows: static, made once.

    Under `torch.autocast` it computes in its own dtype, since changes of the state add up from
    layer to layer and lower precisions lose them.

    Raises:
        HdnnError: scheme, backend, memory, step or layers do not suit the field.

    >>> from hdnn.fields import HamiltonianField, Weights
    >>> weights = Weights("dense", features=2, layers=4, generator=torch.Generator().manual_seed(0))
    >>> net = HamiltonianNetwork(HamiltonianField("J1", weights), step=0.25)
    >>> net(torch.tensor([1.0, 2.0]))
    tensor([2.6199, 1.0778], grad_fn=...)
    >>> net.trajectory(torch.zeros(3, 2)).shape  # y_0 to y_4
    torch.Size([5, 3, 2])
    """

    steps: Tensor | None

    def __init__(
        self,
        field: Field,
        scheme: Scheme | None = None,
        *,
        layers: int | None = None,
        T: float | None = None,
        step: StepSize | None = None,
        learn_steps: bool = False,
        backend: str = "auto",
        memory: str = "fast",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.field, self.scheme = field, ForwardEuler() if scheme is None else scheme
        # Found before `__getattr__` of modules, which takes a microsecond; another field that is
        # assigned takes its place.
        self.__dict__["field"] = field
        if not isinstance(self.scheme, Scheme):
            raise HdnnError(
                f"scheme is one of hdnn.schemes, such as RK4(), got {reprlib.repr(scheme)}"
            )
        self.scheme.check(field)  # before anything else: the message names a pair that fits
        self.layers = _layers(field, layers)
        for kind, word, known in (("backend", backend, BACKENDS), ("memory", memory, MEMORY)):
            if word not in known:
                raise unknown_name(kind, word, known)
        self.backend, self.memory, self.name = backend, memory, name
        self.learn_steps = learn_steps
        self._set_steps(T, step)
        self.lower()

    def _set_steps(self, T: float | None, step: StepSize | None) -> None:
        """One step for all layers is a number; one for each is a buffer, or a parameter."""
        self._step: float | None = None
        self.register_buffer("steps", None)
        if not self.scheme.uses_step:
            if T is not None or step is not None or self.learn_steps:
                raise HdnnError(f"{self._title()} takes neither T nor step: it has no step size")
            self._step = 1.0
            return
        if (T is None) == (step is None):
            raise HdnnError(
                f"give exactly one of T (h = T / layers) and step (h), got T={T}, step={step}"
            )
        if T is not None:
            step = finite_number("T", T, positive=True) / max(self.layers, 1)
        elif not isinstance(step, Tensor | list | tuple):
            step = finite_number("step", step, positive=True)
        if isinstance(step, float) and not self.learn_steps:
            self._step = step
            return
        h = torch.as_tensor(step, dtype=self.field.dtype or torch.get_default_dtype())
        shape = (*self.field.layout.lead, self.layers)
        if h.shape not in ((), shape[-1:], shape):
            raise HdnnError(
                f"step must have shape {shape} (one for every layer), got {tuple(h.shape)}"
            )
        if not bool(((h > 0) & torch.isfinite(h)).all()):
            raise HdnnError(f"steps must be positive and finite, got {reprlib.repr(h.tolist())}")
        h = h.expand(shape).clone()
        if self.learn_steps:
            self.log_steps = nn.Parameter(h.log())
        else:
            self.steps = h

    def lower(self) -> None:
        """Make the program: once, and again after layers or layout of the field were changed."""
        field = self.field
        self.program = Program(self.layers, self.scheme.lower(field), field.layout, field.sizes)

    @property
    def h(self) -> float | Tensor:
        """The step size, one number, or ``([E,] L)`` where every layer has its own."""
        if self._step is not None:
            return self._step
        # Logarithms are trained, so that steps stay positive.
        return self.log_steps.exp() if self.steps is None else self.steps

    @property
    def T(self) -> float:
        """The final time, the sum of all steps (of the first network of an ensemble)."""
        if self._step is not None:
            return self._step * self.layers
        return float(torch.as_tensor(self.h).detach().reshape(-1, self.layers)[0].sum())

    @property
    def features(self) -> int | None:
        """n where states are ``(..., n)``."""
        return None if self.field.layout.channels else self.field.layout.width

    @property
    def channels(self) -> int | None:
        """n where states are ``(B, n, *spatial)``."""
        return self.field.layout.width if self.field.layout.channels else None

    @property
    def kernel(self) -> int:
        """k where K_j is a convolution with kernels of k x k pixels, else 1."""
        return self.field.weights.kernel if isinstance(self.field, WeightedField) else 1

    @property
    def ensemble(self) -> int | None:
        """E, the number of networks side by side, or None."""
        return self.field.layout.ensemble

    @property
    def time_invariant(self) -> bool:
        """Whether all layers share their weights."""
        return not isinstance(self.field, WeightedField) or self.field.weights.time_invariant

    @property
    def parameters_per_layer(self) -> int:
        """The number of parameters of a layer, as in the last row of Table 1."""
        return self._weighted("weights").weights.parameters_per_layer

    def _weighted(self, what: str) -> WeightedField:
        if not isinstance(self.field, WeightedField):
            raise HdnnError(f"{self._title()} has a custom energy, and so no {what}")
        return self.field

    @property
    def K(self) -> Tensor:
        """The assembled weights, ``([E,] L, m, n)``, of convolutions ``(L, m, n, k, k)``."""
        return self._weighted("K").K

    @property
    def b(self) -> Tensor:
        """The biases of the layer equations, ``([E,] L, m)``; for MS1 ``(b_{j,1}, b_{j,2})``."""
        return self._weighted("b").weights.b

    @property
    def J(self) -> Tensor:
        """``(n, n)`` where constant; ``(L, n, n)`` for J(t), MS1 and MS2 (the inverse of K_j')."""
        if not self.field.hamiltonian:
            raise HdnnError(f"{self._title()} is a baseline, not a Hamiltonian network: no J")
        return self.field.J

    def field_at(self, layer: int) -> LayerField:
        """The general (J, K, b) of a layer, y' = J K' sigma(K y + b).

        Args:
            layer: its number; negative counts from the end.

        Returns:
            J ``(n, n)``, K ``(m, n)`` and b ``(m,)``.

        Raises:
            HdnnError: a baseline, a custom energy, a convolution, an ensemble, or no such layer.
        """
        field = self.field
        if (
            not isinstance(field, WeightedField)
            or field.couples_pixels
            or self.ensemble is not None
        ):
            raise HdnnError(
                "field_at gives J, K and b as matrices of a single network with weights, not of "
                "a custom energy, a convolution or an ensemble; use net.field, net.K, net.b"
            )
        if not -self.layers <= layer < self.layers:
            raise HdnnError(f"layer {layer} is out of range: there are {self.layers}")
        J = self.J
        return LayerField(J if J.ndim == 2 else J[layer], field.K[layer], field.b[layer])

    def member(self, index: int | Sequence[int]) -> HamiltonianNetwork:
        """A network of an ensemble, as a copy; or some of them, as a smaller ensemble.

        Args:
            index: the number e of the network, from 0, or several such numbers.

        Returns:
            The network with the parameters and steps of number e; for several numbers an ensemble
            of these.

        Raises:
            HdnnError: this is no ensemble with weights.

        >>> import hdnn, torch
        >>> nets = hdnn.network("H1", features=4, layers=3, T=1.0, ensemble=5)
        >>> torch.equal(nets.member(2).K, nets.K[2]), nets.member([0, 2]).K.shape
        (True, torch.Size([2, 3, 4, 4]))
        """
        if self.ensemble is None:
            raise HdnnError(f"{self._title()} is a single network; build one with ensemble=E")
        copied = copy.deepcopy(self)  # maps, stages and J stay as they are
        weights = copied._weighted("weights of members").weights
        index = list(index) if isinstance(index, Sequence) else operator.index(index)
        own: list[tuple[Any, str]] = [
            (weights, "theta"),
            (weights, "beta"),
            (weights, "B"),
            (copied, "log_steps"),
            (copied, "steps"),
        ]
        J = copied.field.interconnection
        if isinstance(J, Learned) and J.theta.ndim == 3:  # else all networks share it
            own.append((J, "theta"))
        for module, name in own:
            tensor = getattr(module, name, None)
            if tensor is not None:
                part = tensor.detach()[index].clone()
                if isinstance(tensor, nn.Parameter):
                    part = nn.Parameter(part, tensor.requires_grad)
                setattr(module, name, part)
        number = len(index) if isinstance(index, list) else None
        copied.field.layout = weights.layout = replace(weights.layout, ensemble=number)
        copied.lower()
        return copied

    @property
    def structure_preserving(self) -> bool:
        """Whether M J M' = J holds for the Jacobian M of the whole network, up to rounding."""
        field = self.field
        return (
            self.scheme.structure_preserving
            and field.conservative
            and field.constant_interconnection
        )

    def values(self) -> Values:
        """The numbers that the program computes with, read from the modules as they are now.

        Returns:
            Parameters, J - R and the step; the velocity where the program has flows.
        """
        values = self.field.values(self.h if self._step is None else self._step)
        if self.program.has_flows:
            values = values._replace(velocity=self.field.velocity_fn())
        return values

    def _values(self, y: Tensor, T: Tensor | None) -> Values:
        """The numbers for a state whose samples may have final times of their own."""
        if T is None:
            return self.values()
        layout = self.field.layout
        batch = y.shape[: layout.axis] if layout.channels else y.shape[:-1]
        if not self.scheme.uses_step:
            raise HdnnError(f"{self._title()} takes no T: it has no step size")
        one = (*(1 for _ in layout.lead), *batch[len(layout.lead) :])  # for all of an ensemble
        if not isinstance(T, Tensor) or T.shape not in (batch, one):
            shape = tuple(T.shape) if isinstance(T, Tensor) else reprlib.repr(T)
            raise HdnnError(
                f"T must be a tensor {tuple(batch)}, a time for every sample, got {shape}"
            )
        samples = T.to(y).expand((*layout.lead, *batch[len(layout.lead) :]))
        steps = torch.as_tensor(self.h).to(y)
        steps = steps if steps.ndim else steps.expand(self.layers)
        shares = steps / steps.sum(-1, keepdim=True)
        samples = samples.reshape(*layout.lead, -1, 1)
        return self.values()._replace(h=samples * shares.unsqueeze(-2), per_sample=True)

    @property
    def invertible(self) -> bool:
        """Whether `inverse` undoes `forward`."""
        return self.program.invertible

    def check_state(self, y: Tensor) -> None:
        """Raise for a state of another shape or dtype than the network's.

        Args:
            y: what `forward` would take.

        Raises:
            HdnnError: its shape or dtype is not the network's.
        """
        self.field.layout.check(y)
        dtype = self.field.dtype
        if dtype not in (None, y.dtype):
            raise HdnnError(
                f"the state is {y.dtype} but the network is {dtype}; use y.to({dtype}) or "
                f"net.to({y.dtype})"
            )

    @without_autocast
    def forward(self, y: Tensor, u: Tensor | None = None, *, T: Tensor | None = None) -> Tensor:
        """y_N, for states ``(..., n)`` or ``(B, n, *spatial)``; with inputs, all states on the way.

        Args:
            y: y_0, ``(..., n)`` or ``(B, n, *spatial)``; for an ensemble ``(E or 1, ...)``.
            u: inputs ``([E,] batch, time, d)`` of a network that was built with ``inputs=d``; each
                moves the biases to b + B u while the state ``([E,] batch, n)`` goes through all
                layers.
            T: the final time of every sample ``(...)``, in the batch shape of y, as irregularly
                sampled data need it: all steps of a sample are as many times longer as its time
                is. It may need gradients. None is the T of the network. Runs on the reference.

        Returns:
            y_N, in the shape of y; with inputs the states before the first, and after each,
            ``([E,] batch, time + 1, n)``.

        Raises:
            HdnnError: the shape or dtype of y, u or T is not the network's, or the backend cannot
                serve.
        """
        if u is not None:
            return self._driven(y, u, T)
        if T is not None:
            self.explain_backend(y, T)  # raises where that is not the reference
            return reference.run(self.program, self._values(y, T), y, self.memory)
        values = self.values()
        # The full check takes a walk over all tensors; a dtype that agrees needs none. Backends
        # look at the shape.
        if values.theta is None or y.dtype is not values.theta.dtype:
            self.check_state(y)
        return backends.run(self.program, values, y, self.backend, self.memory)

    def _driven(self, y: Tensor, u: Tensor, T: Tensor | None) -> Tensor:
        """The states at all times, of inputs."""
        B = self._weighted("inputs").weights.B
        if B is None or T is not None or self.program.has_flows:
            raise HdnnError(
                "inputs u are for networks of stages that were built with inputs=d (and not with "
                "an implicit scheme or RK4), and have no T of their own"
            )
        self.check_state(y)
        lead = self.field.layout.lead
        if y.ndim != len(lead) + 2:
            raise HdnnError(
                f"with inputs the state is {(*lead, 'batch', self.features)}, got {tuple(y.shape)}"
            )
        y, times = y.expand(*lead, *y.shape[len(lead) :]), u.shape[-2] if u.ndim > 1 else 0
        form = explicit(self.program, self.values(), B, times)
        states, last = backends.rollout(form, y, u, self.backend)
        return torch.cat([states[..., :: form.hold, :], last.unsqueeze(-2)], -2)

    @without_autocast
    def explain_backend(self, y: Tensor, T: Tensor | None = None) -> backends.BackendChoice:
        """Which backend computes `forward` of y, and why.

        Args:
            y: a state, as `forward` takes it.
            T: the final time of every sample, as `forward` takes it.

        Returns:
            The backend and the reason, in words.

        Raises:
            HdnnError: as `forward`.
        """
        if T is not None:
            self.check_state(y)
            self._values(y, T)  # T, too
            if self.backend == "fused":
                raise IncompatibleError(f"{_PER_SAMPLE.reason}; use backend='auto' or 'reference'")
            return _PER_SAMPLE
        values = self.values()
        self.field.layout.check(y)
        if values.theta is None or y.dtype is not values.theta.dtype:  # as in `forward`
            self.check_state(y)
        return backends.choose(self.program, values, y, self.backend)

    @without_autocast
    def trajectory(self, y: Tensor, T: Tensor | None = None) -> Tensor:
        """``(layers + 1, ...)``: y_0 to y_N.

        Args:
            y: y_0, as `forward` takes it.
            T: the final time of every sample, as `forward` takes it.

        Returns:
            ``(layers + 1, *y.shape)``.

        Raises:
            HdnnError: the shape or dtype of y or T is not the network's.
        """
        self.check_state(y)
        backend = self.backend if T is None else self.explain_backend(y, T).backend
        return backends.trajectory(self.program, self._values(y, T), y, backend)

    @without_autocast
    def inverse(self, y: Tensor, T: Tensor | None = None) -> Tensor:
        """The y_0 that `forward` takes to y; exact where stages read and write disjoint parts.

        Args:
            y: y_N, as `forward` returns it.
            T: the final time of every sample, as `forward` took it.

        Returns:
            y_0, in the shape of y.

        Raises:
            HdnnError: the scheme has no exact inverse.
        """
        self.check_state(y)
        if not self.program.invertible:
            raise HdnnError(
                f"{self._title()} has no exact inverse: {self.scheme} reads what it writes; use a "
                "splitting scheme (MS1, MS3, HS) or ImplicitMidpoint()"
            )
        return reference.inverse(self.program, self._values(y, T), y)

    def ode(self) -> ODE:
        """The ODE that the network discretizes, as f(t, y) for scipy and torchdiffeq; see `ODE`.

        Returns:
            The right-hand side, and the times at which layers begin.

        Raises:
            HdnnError: the network has no step size (FCNN).
        """
        if not self.scheme.uses_step:
            raise HdnnError(f"{self._title()} discretizes no ODE: it has no step size")
        return ODE(self.field, self.h, self.layers)

    def reset_parameters(self, generator: Generators = None, *, scale: float = 1.0) -> None:
        """Draw K and b anew; see `hdnn.fields.Weights.reset_parameters`.

        Args:
            generator: source of random numbers; None is torch's default.
            scale: factor on every parameter.

        Raises:
            HdnnError: the field has no weights.
        """
        self._weighted("weights to draw").weights.reset_parameters(generator, scale=scale)

    def _title(self) -> str:
        return self.name or type(self).__name__

    def extra_repr(self) -> str:
        title = "" if self.name is None else f"{self.name}, "
        step = ""
        if self.scheme.uses_step:
            step = f", h={self._step:.6g}" if self._step is not None else ", h per layer"
            step += " (learned)" if self.learn_steps else ""
            step += f", T={self.T:.6g}"
        shared = ", time-invariant" if self.time_invariant else ""
        kernel = f", kernel={self.kernel}" if self.kernel > 1 else ""
        state = f"{self.field.layout}{kernel}{self._units()}, layers={self.layers}"
        return f"{title}{state}{step}, {self.scheme}{shared}"

    def _units(self) -> str:
        if not isinstance(self.field, WeightedField):
            return ""
        units, signs = self.field.weights.map.units, self.field.signs
        text = f", units={units}" if units != self.field.layout.width else ""
        return text if signs is None else f"{text}, {signs.count(-1)} of {units} signs negative"


def _layers(field: Field, layers: int | None) -> int:
    if layers is None:
        layers = field.layers
    if layers is None or not is_count(layers, least=0):
        raise HdnnError(f"give layers, an integer of at least 0, got {layers!r:.40}")
    if field.layers not in (None, layers):
        raise HdnnError(f"layers={layers}, but the weights of the field have {field.layers}")
    return layers
