"""State-space networks: input, output, memory, and guarantees that hold for all weights.

    g  = K' sigma(K x + B u + b) + M x          gradient of a convex energy, M = L L' + mu I
    z  = x - h g + h G u                        a step down that energy, and the input
    x+ = Q z,   Q = Cayley(A - A')              a rotation
    y  = C x + D u + c

with h lambda_max(K'K + M) <= 2 - h mu, kept by scaling K and L when the weights are assembled. The
proofs are in docs/statespace.md; in code they are `rate`, `gain` and `washout`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hdnn import backends
from hdnn.backends import BACKENDS
from hdnn.backends.selection import obstacle_of_memory
from hdnn.errors import HdnnError, finite_number, is_count, unknown_name
from hdnn.fields import ACTIVATIONS, Activation, Matrix, Pattern
from hdnn.fields.activations import activation as activation_of
from hdnn.fields.interconnection import as_values
from hdnn.fields.weights import Structure, map_of
from hdnn.program import Recurrence

CONTRACTING = ("tanh", "sigmoid", "relu", "identity", "arctan", "softsign")
"""Activations with 0 <= sigma' <= 1, of which every guarantee is made."""


class Parts(NamedTuple):
    """The matrices of a layer after scaling: Q orthogonal, K, and M = L L' + mu I."""

    Q: Tensor
    K: Tensor
    M: Tensor


class Damping(NamedTuple):
    """A step down the energy: q = P [x; sigma(K x + b)] + p."""

    K: Tensor
    b: Tensor
    P: Tensor
    p: Tensor


class Layer(NamedTuple):
    """One assembled layer: y = Y v + c, x+ = A [v; s] + a, s = sigma(W v + b), with v = [x; u].

    In passive mode these equations are those of q, the state after its step down, which `damp`
    gives; `turn` takes [q; u] to the next x.
    """

    activation: Activation
    W: Tensor
    b: Tensor
    A: Tensor
    a: Tensor
    Y: Tensor
    c: Tensor
    damp: Damping | None = None
    turn: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Layer:
        """The same in another dtype."""
        activation, W, b, A, a, Y, c, damp, turn = self
        W, b, A, a, Y, c = (t.to(dtype) for t in (W, b, A, a, Y, c))
        damp = None if damp is None else Damping(*(t.to(dtype) for t in damp))
        turn = None if turn is None else turn.to(dtype)
        return Layer(activation, W, b, A, a, Y, c, damp, turn)

    def _damped(self, x: Tensor) -> Tensor:
        if self.damp is None:
            return x
        K, b, P, p = self.damp
        return _affine(torch.cat([x, self.activation.function(_affine(x, K, b))], -1), P, p)

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The next state, and the output."""
        v = torch.cat([self._damped(x), u], -1)
        y = _affine(v, self.Y, self.c)
        if self.turn is not None:
            return _affine(v, self.turn), y
        s = self.activation.function(_affine(v, self.W, self.b))
        return _affine(torch.cat([v, s], -1), self.A, self.a), y

    def run(
        self, u: Tensor, x: Tensor, lengths: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """All outputs, and the states after `lengths` steps, or after all."""
        W = torch.cat([self.W, self.b.unsqueeze(-1)], -1)
        first, rest = self.A.split([W.shape[-1] - 1, W.shape[-2]], -1)
        A = torch.cat([first, self.a.unsqueeze(-1), rest], -1)
        form = Recurrence(W.unsqueeze(-3), A.unsqueeze(-3), self.activation, u.shape[-2])
        states, last = backends.rollout(form, self._damped(x), u, backend)
        if self.turn is not None:  # the last q and u give the state after them
            pair = (states, u)
            ends = [v[..., -1, :] if lengths is None else _pick(v, lengths - 1) for v in pair]
            last = _affine(torch.cat(ends, -1), self.turn)
        elif lengths is not None:
            last = _pick(torch.cat([states, last.unsqueeze(-2)], -2), lengths)
        C, D = self.Y.split([states.shape[-1], u.shape[-1]], -1)
        return _affine(states, C, self.c) + _affine(u, D), last  # without a copy of all states


def _affine(x: Tensor, M: Tensor, b: Tensor | None = None) -> Tensor:
    """M x + b; matrices of an ensemble have one axis more, which x has, too."""
    if M.ndim == 2:
        return F.linear(x, M, b)
    if x.ndim > M.ndim:  # samples and times
        M, b = M.unsqueeze(-3), None if b is None else b.unsqueeze(-2)
    return x @ M.mT if b is None else x @ M.mT + b.unsqueeze(-2)


def _pick(states: Tensor, index: Tensor) -> Tensor:
    """The state number index[i] of sample i."""
    index = index.to(states.device)[:, None, None].expand(*states.shape[:-2], 1, states.shape[-1])
    return states.gather(-2, index).squeeze(-2)


class Cell:
    """A state-space network with its weights assembled, once and differentiably.

    What training loops and hardware call: `step` is a few small products.

    >>> import hdnn, torch
    >>> cell = hdnn.StateSpace(inputs=1, outputs=1, states=4, units=8).assemble()
    >>> x = cell.initial(10)
    >>> x, y = cell.step(x, torch.zeros(10, 1))
    >>> x.shape, y.shape
    (torch.Size([10, 4]), torch.Size([10, 1]))
    """

    def __init__(self, layers: Sequence[Layer], x0: Tensor, backend: str) -> None:
        self.layers, self.x0, self._backend = tuple(layers), x0, backend

    def initial(self, batch: int) -> Tensor:
        """x_0 of a batch: 0, or what was learned.

        Args:
            batch: the number of samples.

        Returns:
            ``([E,] batch, states)``.
        """
        return self.x0.unsqueeze(-2).expand(*self.x0.shape[:-1], batch, -1)

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """One step: the next state, and the output, which depends on x and u.

        Args:
            x: the state ``([E,] batch, states)``, or without batch.
            u: the input ``([E,] batch, inputs)``, or without batch.

        Returns:
            The next state, and y ``([E,] batch, outputs)``.
        """
        if len(self.layers) == 1:
            return self.layers[0].step(x, u)
        parts = []
        for layer, own in zip(self.layers, x.chunk(len(self.layers), -1), strict=True):
            after, u = layer.step(own, u)
            parts.append(after)
        return torch.cat(parts, -1), u

    def __call__(
        self, u: Tensor, x0: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All outputs and the state after the last step; see `StateSpace.forward`."""
        x = self.initial(u.shape[-3]) if x0 is None else x0
        ends = []
        for layer, own in zip(self.layers, x.chunk(len(self.layers), -1), strict=True):
            u, end = layer.run(u, own, lengths, self._backend)
            ends.append(end)
        return u, torch.cat(ends, -1) if len(ends) > 1 else ends[0]


class _Form(NamedTuple):
    """What all layers of a model share: h, mu, sigma; in passive mode d, else None."""

    h: float
    mu: float
    activation: Activation
    d: float | None


class _Bounds(NamedTuple):
    """Of one layer: rho, a bound of |h (G - K'SB)| for all slopes S, |C| and |D|."""

    rho: Tensor
    drive: Tensor
    C: Tensor
    D: Tensor


def _room(h: float, mu: float) -> float:
    """What the largest eigenvalue of K'K + L L' may be, less what rounding may add."""
    return (2 / h - 2 * mu) * (1 - 8 * torch.finfo(torch.float64).eps)


def _scale(eigenvalues: Tensor, room: float) -> Tensor:
    """The factor by which the largest of them, the last, has room."""
    top = eigenvalues[..., -1, None, None].clamp(min=torch.finfo(eigenvalues.dtype).tiny)
    return (room / top).clamp(max=1.0)


def _maps(
    K: Tensor, L: Tensor, A: Tensor, G: Tensor, B: Tensor, form: _Form
) -> tuple[Tensor, Tensor]:
    """W and A of an assembled layer, [K, B] and Q [I - h M, h G, -h K'], of its parameters."""
    Q, scaled, M = _parts(K.double(), L.double(), A.double(), form)
    identity = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    to_states = form.h * Q @ torch.cat([identity / form.h - M, G, -scaled.mT], -1)
    return torch.cat([scaled.to(B.dtype), B], -1), to_states.to(B.dtype)


def _parts(K: Tensor, L: Tensor, A: Tensor, form: _Form) -> Parts:
    """See `LayerWeights.parts`."""
    damping, identity = L @ L.mT, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    # Of eigenvalues alone, whose derivative v v' is finite also where some coincide.
    scale = _scale(torch.linalg.eigvalsh(K.mT @ K + damping), _room(form.h, form.mu))
    Q = 2 * torch.linalg.inv(identity - (A - A.mT) / 2) - identity
    return Parts(Q, scale.sqrt() * K, scale * damping + form.mu * identity)


class _Maps(torch.autograd.Function):
    """What `_maps` gives, with the derivative by hand.

    That takes fewer operations, which cost more than their arithmetic where there are few states.
    R = [K; L'] becomes r R; where r < 1, |r R v|^2 = room for the first eigenvector v, and d(r R) =
    r (dR - <r R v v', dR> r R / room). With J = A - A' and T = (I - J / 2)^-1, Q is 2 T - I and
    dQ = T dJ T. Derivatives of gradients are those of `_maps`.
    """

    @staticmethod
    def forward(
        ctx: Any, K: Tensor, L: Tensor, A: Tensor, G: Tensor, B: Tensor, form: _Form
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(K, L, A, G, B)
        A, R = A.double(), torch.cat([K, L.mT], -2).double()
        eigenvalues, vectors = torch.linalg.eigh(R.mT @ R)
        scale = _scale(eigenvalues, _room(form.h, form.mu))
        root = scale.sqrt()
        R = root * R
        K, L = R.split([K.shape[-2], L.shape[-1]], -2)
        identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        T = torch.linalg.inv(torch.sub(identity, A - A.mT, alpha=0.5))
        Q = form.h * torch.sub(T + T, identity)
        X = torch.cat([(1 / form.h - form.mu) * identity - L.mT @ L, G, -K.mT], -1)
        ctx.form, ctx.parts = form, (T, Q, X, scale, root, R, vectors[..., -1:])
        return torch.cat([K.to(B.dtype), B], -1), (Q @ X).to(B.dtype)

    @staticmethod
    def backward(ctx: Any, *gouts: Tensor) -> tuple[Tensor | None, ...]:
        K, L, A, G, B = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients themselves will be differentiated
            wanted = [t for t in (K, L, A, G, B) if t.requires_grad]
            outputs = _maps(K, L, A, G, B, ctx.form)
            found = iter(torch.autograd.grad(outputs, wanted, gouts, create_graph=True))
            return tuple(next(found) if need else None for need in ctx.needs_input_grad)
        T, Q, X, scale, root, R, v = ctx.parts
        (n, d), m, dtype = G.shape[-2:], K.shape[-2], K.dtype
        gk, gb = gouts[0].split([n, d], -1)
        ga = gouts[1].double()
        gm, gg, rest = (Q.mT @ ga).split([n, d, m], -1)
        gj = T.mT @ (ctx.form.h * ga @ X.mT) @ T.mT
        gr = torch.cat([gk - rest.mT, R[..., m:, :] @ -(gm + gm.mT)], -2)
        room = max(_room(ctx.form.h, ctx.form.mu), torch.finfo(R.dtype).tiny)
        along = (gr * R).sum((-2, -1), keepdim=True) * (scale < 1) / room
        gk, gl = (root * (gr - R @ v @ (along * v.mT))).to(dtype).split([m, n], -2)
        return gk, gl.mT, (gj - gj.mT).to(dtype), gg.to(dtype), gb, None


class LayerWeights(nn.Module):
    """The parameters of one layer, and the matrices that follow from them.

    Args:
        form: what all layers share.
        shapes: of the parameters, by name.
        structure: patterns of some of them.
        ensemble: E, or None.
    """

    K: Tensor
    b: Tensor
    L: Tensor
    A: Tensor
    G: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    c: Tensor

    def __init__(
        self,
        form: _Form,
        shapes: Mapping[str, tuple[int, ...]],
        structure: Mapping[str, Structure],
        ensemble: int | None,
    ) -> None:
        super().__init__()
        self.form, self.patterns = form, dict[str, Pattern]()
        for name, shape in shapes.items():
            if name in structure:
                found = map_of(structure[name], shape[1])
                if not isinstance(found, Matrix) or found.pattern.shape != shape:
                    raise HdnnError(
                        f"the structure of {name} must be a pattern of shape {shape}, got "
                        f"{found.pattern.shape if isinstance(found, Matrix) else found.name}"
                    )
                self.patterns[name], shape = found.pattern, (found.pattern.size,)
            lead = () if ensemble is None else (ensemble,)
            self.register_parameter(name, nn.Parameter(torch.empty(*lead, *shape)))

    def matrix(self, name: str) -> Tensor:
        """A parameter as a matrix in float64, as the Cayley transform of large A loses digits.

        Args:
            name: of the parameter.

        Returns:
            ``([E,] rows, columns)``.
        """
        return self._own(name).double()

    def _own(self, name: str) -> Tensor:
        parameter: Tensor = getattr(self, name)
        return self.patterns[name].assemble(parameter) if name in self.patterns else parameter

    def parts(self) -> Parts:
        """Q, K and M in float64, scaled so that h lambda_max(K'K + M) <= 2 - h mu.

        Returns:
            The three matrices.
        """
        return _parts(self.matrix("K"), self.matrix("L"), self.matrix("A"), self.form)

    def assemble(self) -> Layer:
        """The matrices of a step, in the dtype of the parameters.

        Returns:
            The layer.
        """
        if self.form.d is not None:
            return self._assemble_passive(self.form.d)
        K, L, A, G = (self._own(name) for name in "KLAG")
        by_hand = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        by_hand = by_hand and obstacle_of_memory(K.dtype, K, L, A, G, self.B) is None
        W, A = (_Maps.apply if by_hand else _maps)(K, L, A, G, self.B, self.form)
        none = self.b.new_zeros(A.shape[:-1])
        Y = torch.cat([self.C, self.D], -1)
        return Layer(self.form.activation, W, self.b, A, none, Y, self.c)

    def _assemble_passive(self, d: float) -> Layer:
        (h, _, activation, _), (Q, K, M) = self.form, self.parts()
        G, b = self.matrix("G"), self.b.double()
        lead, (n, inputs) = G.shape[:-2], G.shape[-2:]
        identity = torch.eye(n, dtype=G.dtype, device=G.device)
        P, down = identity - h * M, -h * K.mT  # a step down the energy: P x + down sigma(...)
        half, rest = h / 2 * G.mT @ G, -(down @ activation.function(b).unsqueeze(-1)).squeeze(-1)
        one = torch.eye(inputs, dtype=G.dtype, device=G.device)
        read = torch.linalg.solve(one + d * half, torch.cat([G.mT, half], -1))  # y = read [q; u]
        Y, D = read.split([n, inputs], -1)
        turn = torch.cat([Q @ (identity - h * d * G @ Y), h * Q @ (G - d * G @ D)], -1)
        A = torch.cat([P @ turn, down], -1)
        none = G.new_zeros(*lead, inputs)
        damp = Damping(K, b, torch.cat([P, down], -1), rest)
        return Layer(activation, K @ turn, b, A, rest, read, none, damp, turn).to(self.b.dtype)

    @torch.no_grad()
    def bounds(self) -> _Bounds:
        """rho, and the norms of which gains are made."""
        (h, _, _, d), (_, K, M) = self.form, self.parts()
        least = torch.linalg.eigvalsh(M)[..., 0]
        largest = torch.linalg.eigvalsh(K.mT @ K + M)[..., -1]
        rho = torch.maximum((1 - h * least).abs(), (1 - h * largest).abs())
        if d is not None:
            return _Bounds(rho, *(torch.zeros_like(rho),) * 3)
        G, B, C, D = (_norm(self.matrix(name)) for name in "GBCD")
        return _Bounds(rho, h * (G + _norm(K) * B), C, D)


def _norm(M: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(M, 2) if M.numel() else M.new_zeros(M.shape[:-2])


class StateSpace(nn.Module):
    """A recurrent network that forgets, is bounded and, in passive mode, passive: for all weights.

        z  = x - h [K' sigma(K x + B u + b) + M x] + h G u,     M = L L' + mu I
        x+ = Q z,   y = C x + D u + c                           Q = Cayley(A - A')

    For all weights, inputs and lengths: two trajectories of equal inputs approach each other by
    the factor `rate` < 1 a step, so bounded inputs give bounded states and gradients through time
    never explode; from u to y the incremental gain is at most `gain`. Every stable linear system is
    contained exactly (`from_linear`).

    In passive mode (``passive=True``, for controllers) there are as many outputs as inputs, 0 is an
    equilibrium, and with d = 1 / gain any two trajectories satisfy

        |dx+|^2 / 2 - |dx|^2 / 2 <= h du' dy - h d |dy|^2

    It cannot fit what is unstable, integrates or has several equilibria (docs/statespace.md).

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs; None is as many as inputs.
        states: the number n of states of a layer.
        units: the number m of hidden units of a layer; 0 is a linear system.
        step: the step h, the sampling time.
        mu: the least damping, h mu <= 1; None is 0.001 / h.
        passive: passive mode; B, C, D and c are then absent, or follow from G.
        gain: in passive mode, a bound of the incremental gain; None is none.
        layers: how many follow each other; those inside have as many outputs as states.
        structure: patterns of K, L, A and G (graphs or patterns as `hdnn.fields.Weights` takes
            them), by name, as for distributed controllers.
        learn_initial: whether x_0 is learned; else it is 0.
        activation: sigma, with 0 <= sigma' <= 1.
        ensemble: E models side by side; inputs are then ``([E,] batch, time, inputs)``.
        backend: "auto" (compiled kernels where they are faster), "reference" (plain PyTorch) or
            "fused" (compiled kernels, or an error that says why not).
        generator: of the random initial parameters; None is torch's default generator.
        scale: standard deviation of the initial parameters.
        dtype: of the parameters; None is torch's default dtype.
        device: of the parameters; None is torch's default device.

    Attributes:
        weights: the parameters K, b, L, A, G and, but in passive mode, B, C, D, c of every layer.

    Raises:
        HdnnError: sizes, step, mu or gain are impossible.

    >>> import hdnn, torch
    >>> model = hdnn.StateSpace(inputs=1, outputs=2, states=6, units=16, step=0.5)
    >>> y, x = model(torch.randn(8, 100, 1))
    >>> y.shape, x.shape, model.rate < 1
    (torch.Size([8, 100, 2]), torch.Size([8, 6]), True)
    """

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int | None = None,
        states: int,
        units: int,
        step: float = 1.0,
        mu: float | None = None,
        passive: bool = False,
        gain: float | None = None,
        layers: int = 1,
        structure: Mapping[str, Structure] | None = None,
        learn_initial: bool = False,
        activation: str | Activation = "tanh",
        ensemble: int | None = None,
        backend: str = "auto",
        generator: torch.Generator | None = None,
        scale: float = 0.3,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        outputs = inputs if outputs is None else outputs
        counts = {"inputs": inputs, "outputs": outputs, "states": states, "layers": layers}
        for name, count in {**counts, "ensemble": 1 if ensemble is None else ensemble}.items():
            if not is_count(count):
                raise HdnnError(f"{name} must be a positive integer, got {count!r:.40}")
        if not is_count(units, least=0):
            raise HdnnError(f"units must be an integer of at least 0, got {units!r:.40}")
        self.inputs, self.outputs, self.states, self.units = inputs, outputs, states, units
        self.h = finite_number("step", step, positive=True)
        self.mu = 1e-3 / self.h if mu is None else finite_number("mu", mu, positive=True)
        if self.h * self.mu > 1:
            raise HdnnError(
                f"step * mu must be at most 1, got {self.h:g} * {self.mu:g}; mu is the "
                "least damping, 0.001 / step if you leave it out"
            )
        if passive and (outputs != inputs or layers > 1):
            raise HdnnError(
                "passive=True needs as many outputs as inputs and layers=1 (passive systems in "
                f"series are not passive), got inputs={inputs}, outputs={outputs}, layers={layers}"
            )
        if gain is not None and not passive:
            raise HdnnError(
                "gain= bounds the gain in passive mode; without passive=True it is a property, "
                "model.gain, which follows from the weights"
            )
        self.passive = passive
        self.gain_bound = None if gain is None else finite_number("gain", gain, positive=True)
        self.activation = activation_of(activation)
        if self.activation.name not in CONTRACTING or ACTIVATIONS.get(self.activation.name) != (
            self.activation
        ):
            raise HdnnError(
                f"the guarantees need an activation with 0 <= sigma' <= 1, one of "
                f"{', '.join(CONTRACTING)}, got {self.activation.name}"
            )
        self.structure = dict(structure or {})
        if unknown := self.structure.keys() - set("KLAG"):
            raise HdnnError(f"structure is of K, L, A and G, got {', '.join(sorted(unknown))}")
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        self.backend, self.ensemble, self.layers = backend, ensemble, layers
        index = None if not passive else 0.0 if gain is None else 1 / gain
        form, self.weights = _Form(self.h, self.mu, self.activation, index), nn.ModuleList()
        for k in range(layers):
            d, q = inputs if k == 0 else states, outputs if k == layers - 1 else states
            n, m = states, units
            shapes = {"K": (m, n), "b": (m,), "L": (n, n), "A": (n, n), "G": (n, d)}
            if not passive:
                shapes |= {"B": (m, d), "C": (q, n), "D": (q, d), "c": (q,)}
            self.weights.append(LayerWeights(form, shapes, self.structure, ensemble))
        lead = () if ensemble is None else (ensemble,)
        x0 = torch.zeros(*lead, layers * states)
        self.learn_initial = learn_initial
        if learn_initial:
            self.x0 = nn.Parameter(x0)
        else:
            self.register_buffer("x0", x0, persistent=False)
        self.to(device=device, dtype=dtype or torch.get_default_dtype())
        self.reset_parameters(generator, scale=scale)

    @torch.no_grad()
    def reset_parameters(
        self, generator: torch.Generator | None = None, *, scale: float = 0.3
    ) -> None:
        """Draw all parameters anew, normally distributed; D, c and x_0 begin at 0.

        Args:
            generator: source of random numbers; None is torch's default.
            scale: their standard deviation.
        """
        scale = finite_number("scale", scale)
        for name, parameter in self.named_parameters():
            if name.rpartition(".")[2] in ("D", "c", "x0"):
                parameter.zero_()
                continue
            device = "cpu" if generator is None else generator.device
            fresh = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            parameter.copy_(fresh.normal_(generator=generator).mul_(scale))

    def assemble(self) -> Cell:
        """The weights, scaled and turned into the matrices of a step: once, differentiably.

        Returns:
            The cell, whose `step` and sequence are what training loops and hardware call.
        """
        return Cell([own.assemble() for own in self._layers], self.x0, self.backend)

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """One step. It assembles the weights; in a loop, call ``cell = model.assemble()`` once.

        Args:
            x: the state ``([E,] batch, layers * states)``, or without batch.
            u: the input ``([E,] batch, inputs)``, or without batch.

        Returns:
            The next state, and y ``([E,] batch, outputs)``, which depends on x and u.
        """
        return self.assemble().step(x, u)

    def forward(self, u: Tensor | PackedSequence, x0: Tensor | None = None) -> tuple[Any, Tensor]:
        """The outputs of whole sequences, and the states after them, as `torch.nn.GRU` gives them.

        Args:
            u: inputs ``([E,] batch, time, inputs)``, ``(time, inputs)``, or packed sequences.
            x0: the states before the first step ``([E,] batch, layers * states)``; None is 0, or
                what was learned.

        Returns:
            y ``([E,] batch, time, outputs)``, or packed as u, and x ``([E,] batch, layers *
            states)``; without the batch axis where u has none.

        Raises:
            HdnnError: shapes do not fit.
        """
        if isinstance(u, PackedSequence):
            if self.ensemble is not None:
                raise HdnnError("an ensemble takes padded inputs (batch, time, inputs)")
            padded, lengths = pad_packed_sequence(u, batch_first=True)
            y, x = self.assemble()(*self._checked(padded, x0), lengths)
            packed = pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
            return packed, x
        batched = u.ndim > 2
        if not batched:
            u, x0 = u.unsqueeze(0), None if x0 is None else x0.unsqueeze(-2)
        if self.ensemble is not None and u.ndim == 3:  # one batch for all
            u = u.expand(self.ensemble, *u.shape)
        y, x = self.assemble()(*self._checked(u, x0))
        return (y, x) if batched else (y.squeeze(-3), x.squeeze(-2))

    def _checked(self, u: Tensor, x0: Tensor | None) -> tuple[Tensor, Tensor | None]:
        lead = () if self.ensemble is None else (self.ensemble,)
        if u.ndim != len(lead) + 3 or u.shape[-1] != self.inputs or u.shape[: len(lead)] != lead:
            raise HdnnError(
                f"inputs must have shape {(*lead, 'batch', 'time', self.inputs)}, got "
                f"{tuple(u.shape)}"
            )
        if not u.shape[-2]:
            raise HdnnError("a sequence has at least one time, got none")
        if u.dtype != self.x0.dtype:
            raise HdnnError(
                f"the inputs are {u.dtype} but the model is {self.x0.dtype}; use "
                f"u.to({self.x0.dtype}) or model.to({u.dtype})"
            )
        expected = (*u.shape[:-2], self.layers * self.states)
        if x0 is not None and x0.shape != expected:
            raise HdnnError(f"the states must have shape {expected}, got {tuple(x0.shape)}")
        return u, x0

    @property
    def _layers(self) -> list[LayerWeights]:
        return cast(list[LayerWeights], list(self.weights))

    # --- what holds for all weights ---

    @property
    def rate(self) -> float | Tensor:
        """rho < 1, by which states of equal inputs approach each other; of layers, the largest.

        Of an ensemble, one for each of its models.
        """
        return _number(torch.stack([own.bounds().rho for own in self._layers]).amax(0))

    @property
    def gain(self) -> float | Tensor:
        """A bound of |dy| / |du|, over time in the root mean square and in the maximum.

        In passive mode the given one, in the root mean square, or infinity.
        """
        if self.passive:
            return math.inf if self.gain_bound is None else self.gain_bound
        bounds = [each.bounds() for each in self._layers]
        gains = [own.C * own.drive / (1 - own.rho) + own.D for own in bounds]
        return _number(torch.stack(gains).prod(0))

    def washout(self, tolerance: float) -> int:
        """After how many steps a wrong initial state matters at most `tolerance` times its size.

        Args:
            tolerance: between 0 and 1.

        Returns:
            The number of steps, for all inputs.

        Raises:
            HdnnError: the tolerance is not between 0 and 1.
        """
        if not 0 < tolerance < 1:
            raise HdnnError(f"tolerance must be between 0 and 1, got {tolerance!r:.40}")
        # The norms of the differences of all layers are at most those of N^t, where every layer is
        # driven by those before it.
        bounds = [each.bounds() for each in self._layers]
        N = torch.zeros(*self.x0.shape[:-1], self.layers, self.layers, dtype=torch.float64)
        for i, own in enumerate(bounds):
            N[..., i, i], through = own.rho, own.drive
            for j in reversed(range(i)):
                N[..., i, j], through = through * bounds[j].C, through * bounds[j].D

        def too_early(t: int) -> bool:
            left = torch.linalg.matrix_norm(torch.linalg.matrix_power(N, t), 2)
            return bool((left > tolerance).any())

        early, late = 0, 1
        while too_early(late):
            early, late = late, 2 * late
        while late - early > 1:
            middle = (early + late) // 2
            early, late = (middle, late) if too_early(middle) else (early, middle)
        return late

    # --- linear systems ---

    @classmethod
    @torch.no_grad()
    def from_linear(
        cls,
        A: Tensor | npt.ArrayLike,
        B: Tensor | npt.ArrayLike,
        C: Tensor | npt.ArrayLike,
        D: Tensor | npt.ArrayLike | None = None,
        *,
        units: int = 0,
        step: float = 1.0,
        mu: float | None = None,
        **options: Any,
    ) -> StateSpace:
        """The network that is x+ = A x + B u, y = C x + D u exactly, with all eigenvalues inside.

        Args:
            A: ``(n, n)``, its eigenvalues less than 1 in size.
            B: ``(n, inputs)``.
            C: ``(outputs, n)``.
            D: ``(outputs, inputs)``; None is 0.
            units: hidden units, which begin with K = 0.
            step: the step h.
            mu: the least damping; it is lowered where A needs that.
            **options: further arguments of `StateSpace`.

        Returns:
            The network, whose states are coordinates in which |A| < 1.

        Raises:
            HdnnError: A is not stable, or shapes do not fit.

        >>> import hdnn
        >>> A, B, C = [[0.9, 0.2], [-0.2, 0.9]], [[1.0], [0.0]], [[1.0, 0.0]]
        >>> model = hdnn.StateSpace.from_linear(A, B, C)
        >>> model(torch.tensor([[1.0], [0.0], [0.0]]))[0].squeeze().tolist()
        [0.0, 1.0, 0.9]
        """
        A, B, C = (torch.as_tensor(as_values(M)).double() for M in (A, B, C))
        D = B.new_zeros(len(C), B.shape[-1]) if D is None else torch.as_tensor(D).double()
        n, shapes = len(A), [tuple(M.shape) for M in (A, B, C, D)]
        if B.ndim != 2 or shapes != [(n, n), (n, B.shape[1]), (len(C), n), (len(C), B.shape[1])]:
            raise HdnnError(
                f"a linear system has A (n, n), B (n, d), C (q, n) and D (q, d), got {shapes}"
            )
        finite = all(bool(M.isfinite().all()) for M in (A, B, C, D))
        radius = float(torch.linalg.eigvals(A).abs().max()) if finite else math.nan
        if not radius < 1:
            raise HdnnError(
                f"A must be stable, all eigenvalues less than 1 in size, but the largest is "
                f"{radius:.6g}; what is unstable or integrates is no state-space network"
            )
        T = _lyapunov_coordinates(A, (1 + radius) / 2)
        U, s, V = torch.linalg.svd(torch.linalg.solve(T, T @ A, left=False))
        signs = _signs(V @ U)
        Q, P = U * signs @ V, V.mT * (signs * s) @ V
        mu = min(1e-3 / step if mu is None else mu, (1 - float(s.max())) / 2 / step)
        options = {"inputs": B.shape[1], "outputs": len(C), "states": n, "units": units} | options
        model = cls(step=step, mu=mu, **options)
        identity, own = torch.eye(n, dtype=A.dtype), model._layers[0]
        values, vectors = torch.linalg.eigh((identity - (P + P.mT) / 2) / step - mu * identity)
        J = 2 * torch.linalg.solve(Q + identity, Q - identity, left=False)
        own.K.zero_()
        own.L.copy_(vectors * values.clamp(min=0).sqrt() @ vectors.mT)
        own.A.copy_((J - J.mT) / 4)
        own.G.copy_(torch.linalg.solve(Q, T @ B) / step)
        own.C.copy_(torch.linalg.solve(T, C, left=False))
        own.D.copy_(D)
        return model

    def extra_repr(self) -> str:
        kind = "" if not self.passive else ", passive"
        bound = "" if self.gain_bound is None else f", gain={self.gain_bound:g}"
        series = "" if self.layers == 1 else f", layers={self.layers}"
        many = "" if self.ensemble is None else f", ensemble={self.ensemble}"
        return (
            f"inputs={self.inputs}, outputs={self.outputs}, states={self.states}, "
            f"units={self.units}, step={self.h:g}, mu={self.mu:g}"
            f"{kind}{bound}{series}{many}"
        )


def _number(values: Tensor) -> float | Tensor:
    return float(values) if not values.ndim else values


def _lyapunov_coordinates(A: Tensor, size: float) -> Tensor:
    """T with |T A T^-1| < size, which is above the spectral radius: X = T'T, X > A'XA / size^2."""
    power, X = A / size, torch.eye(len(A), dtype=A.dtype)
    while True:  # X is a sum of (A^k)' A^k; each turn doubles the number of its terms
        more = power.mT @ X @ power
        X, power = X + more, power @ power
        if not float(more.abs().max()) > torch.finfo(A.dtype).eps * float(X.abs().max()):
            break
    return torch.linalg.cholesky((X + X.mT) / 2).mT / X.diagonal().mean().sqrt()


def _signs(W: Tensor) -> Tensor:
    """Signs E for which W + E is regular: by elimination, with pivots of at least 1/2 in size."""
    signs = torch.ones(len(W), dtype=W.dtype)
    for i in range(len(W)):
        if W[i, i] < -0.5:
            signs[i] = -1
        below = W[:, i] * (torch.arange(len(W)) > i)
        W = W - torch.outer(below, W[i]) / (W[i, i] + signs[i])
    return signs
