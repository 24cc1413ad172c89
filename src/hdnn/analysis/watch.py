"""Norms between the layers of any torch model, once (`watch`) or while it is trained (`monitor`).

Hooks keep the states h_l that the chosen submodules give. Vector-Jacobian products, batched over
directions and shared by all layers, give M_l = d h_N / d h_l sample by sample. Where h_N is too
large for all its directions, the norms are estimated by power iteration on M M'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hdnn.analysis.norms import Norms, extreme_singular_values, norm_of_mean
from hdnn.errors import HdnnError

MAX_NUMBERS = 2**25
"""Numbers that batched vector-Jacobian products may hold at once."""

Log = Callable[[dict[str, float], int], object]
"""Takes numbers by name and the training step that they belong to."""


def watch(
    module: nn.Module,
    layers: Sequence[str | nn.Module] | None = None,
    *,
    batch_axis: int = 0,
    limit: int = 256,
    per_sample: bool = True,
    iterations: int = 50,
    tolerance: float = 1e-3,
) -> Callable[..., Norms]:
    """Norms of d h_N / d h_l between layers of any torch model, sample by sample.

        M_l = d h_N / d h_l,    h_l the output of layer l, h_N that of the last watched layer

    The whole Jacobian is computed where a sample of h_N has at most ``limit`` numbers: then the
    norms are exact. Beyond, they are estimated by power iteration on M M' (a vector-Jacobian and
    a Jacobian-vector product each), a lower bound that grows to the norm; it stops where it
    grows by less than ``tolerance``, relatively, for every sample.

    Samples must not mix. Batch normalization in training mode mixes them: use ``module.eval()``,
    or ``per_sample=False``, which takes the whole batch as one sample. Mixing is
    detected and raises. Dropout in training mode is measured with the sampled mask. The ``.grad``
    of parameters is not touched.

    Args:
        module: any model.
        layers: submodules, by name (as in ``named_modules``) or themselves, in any order; None for
            the children of an `nn.Sequential` or `nn.ModuleList`.
        batch_axis: of the states; 1 for ``(time, batch, features)``.
        limit: largest state that is treated exactly.
        per_sample: False takes the batch as one state.
        iterations, tolerance: of the power iteration.

    Returns:
        A callable: give it the arguments of the model, and it returns the `Norms` of "input" (what
        the first watched layer is given) and of the layers in the order in which they ran; one that
        ran twice is numbered, "name:2".

    Raises:
        HdnnError: no such layers; on measuring, none of them ran, or samples mix.

    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
    >>> norms = watch(model)(torch.randn(10, 6))
    >>> norms.layers, norms.exact, float(norms.mean[-1])
    (('input', '0', '1', '2', '3'), True, 1.0)
    """
    watched = _submodules(module, layers)

    def measure(*inputs: Any, **options: Any) -> Norms:
        with torch.enable_grad(), _kept_states(watched) as seen:
            module(*inputs, **options)
        if len(seen) < 2:
            raise HdnnError(f"no watched layer ran: {', '.join(watched)[:200]}; name others")
        names = [name for name, _ in seen]
        states = [_State(state, batch_axis if per_sample else None) for _, state in seen]
        _check_samples(names, states)
        if states[-1].size <= limit:
            values = [(*extreme_singular_values(M), norm_of_mean(M)) for M in _jacobians(states)]
            return Norms.of_samples(names, *map(torch.stack, zip(*values, strict=True)))
        estimates = [
            [_power(state, states[-1], shared, iterations, tolerance) for state in states]
            for shared in (False, True)
        ]
        largest, of_mean = map(torch.stack, estimates)
        unknown = torch.full_like(largest, torch.nan)  # power iteration does not see the smallest
        return Norms.of_samples(names, largest, unknown, of_mean[:, 0], exact=False)

    return measure


def _submodules(
    module: nn.Module, layers: Sequence[str | nn.Module] | None
) -> dict[str, nn.Module]:
    known = dict(module.named_modules())
    if layers is None:
        if not isinstance(module, nn.Sequential | nn.ModuleList):
            raise HdnnError(
                f"say which layers of {type(module).__name__} to watch: layers=[...], names or "
                f"modules; it has {', '.join(list(known)[1:9])}, ..."
            )
        return dict(module.named_children())
    names = {id(part): name for name, part in known.items()}
    modules = {}
    for layer in layers:
        name = names.get(id(layer)) if isinstance(layer, nn.Module) else layer
        if name is None or name not in known:
            raise HdnnError(
                f"{layer!r} is no submodule; names are {', '.join(list(known)[1:9])}, ..."
            )
        modules[name or type(module).__name__] = known[name]
    if not modules:
        raise HdnnError("layers is empty: name at least one submodule")
    return modules


# --- states ---------------------------------------------------------------------------------------


@contextmanager
def _kept_states(layers: Mapping[str, nn.Module]) -> Iterator[list[tuple[str, Tensor]]]:
    """A list that fills with the names and states of the layers that run meanwhile."""
    seen: list[tuple[str, Tensor]] = []

    def before(layer: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return None if seen or not inputs else _keep(seen, "input", inputs)

    def after(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        return lambda layer, inputs, output: _keep(seen, name, output)

    handles: list[RemovableHandle] = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(before))
        handles.append(layer.register_forward_hook(after(name)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _keep(seen: list[tuple[str, Tensor]], name: str, value: Any) -> Any:
    """Keep the (first) tensor; what goes on is a copy, safe from operations in place."""
    first, *rest = value if isinstance(value, tuple) else (value,)
    if not isinstance(first, Tensor) or not first.is_floating_point():
        if name == "input":  # tokens have no derivative
            return None
        raise HdnnError(f"layer {name!r} gives {type(first).__name__}, not a tensor of numbers")
    state = first if first.requires_grad else first.detach().requires_grad_()
    times = sum(known.split(":")[0] == name for known, _ in seen)
    seen.append((f"{name}:{times + 1}" if times else name, state))
    return (state.clone(), *rest) if isinstance(value, tuple) else state.clone()


class _State:
    """A state as rows ``(samples, size)``, while gradients are taken of the tensor itself."""

    def __init__(self, tensor: Tensor, axis: int | None) -> None:
        self.tensor, self.axis = tensor, axis  # of the samples; None: all is one sample
        self.samples = 1 if axis is None else tensor.shape[axis]
        self.size = tensor.numel() // max(self.samples, 1)

    def to_rows(self, x: Tensor) -> Tensor:
        """``(..., *shape)`` to ``(..., samples, size)``."""
        lead = x.shape[: x.ndim - self.tensor.ndim]
        if self.axis is not None:
            x = x.movedim(len(lead) + self.axis % self.tensor.ndim, len(lead))
        return x.reshape(*lead, self.samples, self.size)

    def from_rows(self, rows: Tensor) -> Tensor:
        """The inverse of `to_rows`."""
        lead = rows.shape[:-2]
        if self.axis is None:
            return rows.reshape(*lead, *self.tensor.shape)
        axis, shape = self.axis % self.tensor.ndim, list(self.tensor.shape)
        rest = shape[:axis] + shape[axis + 1 :]
        return rows.reshape(*lead, self.samples, *rest).movedim(len(lead), len(lead) + axis)


def _check_samples(names: list[str], states: list[_State]) -> None:
    """Equally many in every state, and not mixed: one sample's vjp is zero for all others."""
    last = states[-1]
    if len({state.samples for state in states}) > 1:
        raise HdnnError(
            f"the watched states have {[state.samples for state in states]} samples along axis "
            f"{last.axis}; say which axis is the batch with batch_axis=..."
        )
    direction = torch.zeros(last.samples, last.size).to(last.tensor)
    direction[0] = torch.linspace(0.5, 1.5, last.size)
    cotangents = _vjp(states[:-1], last.tensor, last.from_rows(direction))
    for name, state, g in zip(names, states, cotangents, strict=False):
        if bool((state.to_rows(g)[1:] != 0).any()):
            raise HdnnError(
                f"samples mix after {name!r}: batch normalization in training mode (use "
                "module.eval()), or the batch is on another axis (batch_axis=...); per_sample="
                "False takes the whole batch as one state"
            )


# --- Jacobians ------------------------------------------------------------------------------------


def _vjp(
    states: list[_State], out: Tensor, cotangent: Tensor, batched: bool = False
) -> list[Tensor]:
    """Vector-Jacobian products with all states; zeros where ``out`` does not depend on one."""
    grads = torch.autograd.grad(
        out,
        [state.tensor for state in states],
        cotangent,
        retain_graph=True,
        allow_unused=True,
        is_grads_batched=batched,
    )
    lead = cotangent.shape[: cotangent.ndim - out.ndim]
    return [
        state.tensor.new_zeros(*lead, *state.tensor.shape) if g is None else g
        for state, g in zip(states, grads, strict=True)
    ]


def _jacobians(states: list[_State]) -> list[Tensor]:
    """M_l ``(samples, m_N, m_l)`` for every state, a few directions of h_N at a time."""
    last, inner = states[-1], states[:-1]
    n, samples = last.size, last.samples
    matrices = [state.tensor.new_empty(n, samples, state.size) for state in inner]
    chunk = max(1, MAX_NUMBERS // max(1, samples * sum(state.size for state in states)))
    eye = torch.eye(n, dtype=last.tensor.dtype, device=last.tensor.device)
    for rows in torch.arange(n).split(chunk):
        directions = last.from_rows(eye[rows, None].expand(len(rows), samples, n))
        for M, g, state in zip(
            matrices, _batched_vjp(inner, last.tensor, directions), inner, strict=True
        ):
            M[rows] = state.to_rows(g)
    return [*(M.movedim(0, 1) for M in matrices), eye.expand(samples, n, n)]


def _batched_vjp(states: list[_State], out: Tensor, directions: Tensor) -> list[Tensor]:
    """Products with a stack of directions: at once, or one by one where a layer cannot do that."""
    try:
        return _vjp(states, out, directions, batched=True)
    except (RuntimeError, HdnnError):
        each = [_vjp(states, out, direction) for direction in directions]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]


def _power(state: _State, last: _State, shared: bool, iterations: int, tolerance: float) -> Tensor:
    """The norm of M of every sample (or of the mean of M), by power iteration on M M'.

    u -> v = M' u / ||M' u|| -> u = M v, and ||M v|| grows to the norm. M v is the derivative of
    <M' u, v> along u: M' u is linear in u.
    """
    count = 1 if shared else last.samples
    if state is last:  # M is the identity
        return torch.ones(count, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)  # the same estimate every time
    u = torch.randn(count, last.size, generator=generator, dtype=torch.float64).to(last.tensor)
    u = u / u.norm(dim=1, keepdim=True)
    tiny = torch.finfo(u.dtype).tiny
    norms = u.new_zeros(count)
    for _ in range(iterations):
        slack = last.from_rows(u.expand(last.samples, -1)).requires_grad_()
        (g,) = torch.autograd.grad(
            last.tensor, state.tensor, slack, create_graph=True, allow_unused=True
        )
        if g is None:
            return torch.zeros(count, dtype=torch.float64)
        vjp = state.to_rows(g)
        v = vjp.detach().mean(0, keepdim=True) if shared else vjp.detach()
        v = v / v.norm(dim=1, keepdim=True).clamp_min(tiny)
        (image,) = torch.autograd.grad(
            vjp, slack, v.expand_as(vjp), retain_graph=True, allow_unused=True
        )
        image = last.to_rows(image)
        u = image.mean(0, keepdim=True) if shared else image
        before, norms = norms, u.norm(dim=1)
        u = u / norms[:, None].clamp_min(tiny)
        if bool((norms <= before * (1 + tolerance)).all()):
            break
    return norms.detach().double().cpu()


# --- during a training ----------------------------------------------------------------------------


@contextmanager
def monitor(
    module: nn.Module,
    layers: Sequence[str | nn.Module] | None = None,
    *,
    every: int = 100,
    samples: int = 16,
    log: Log | None = None,
    batch_axis: int = 0,
    **options: Any,
) -> Iterator[dict[int, Norms]]:
    """Measure gradient norms by layer while a module is trained, in any loop.

    A hook counts the forward passes in training mode. At every ``every``-th, before it, `watch`
    measures the module in evaluation mode on the first samples of that batch. The training itself
    is the same to the last bit: parameters, their gradients, statistics of batch normalization and
    random numbers are as without it.

    Args:
        module: the model that the loop calls.
        layers: its layers, as in `watch`.
        every: training steps between measurements.
        samples: of a batch that are measured.
        log: called with the numbers by name (`Norms.metrics`) and the step; it has the signature of
            ``logger.log_metrics`` of Lightning. For Weights & Biases
            ``lambda metrics, step: run.log(metrics, step=step)``.
        batch_axis: of the inputs and the states.
        **options: of `watch`: ``limit``, ``per_sample``, ``iterations``, ``tolerance``.

    Yields:
        Norms by training step; they stay when the context has ended.

    Raises:
        HdnnError: there are no such layers, or ``every`` or ``samples`` is not a positive integer.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with monitor(model, every=10) as seen:
    ...     for _ in range(25):
    ...         loss = model(torch.randn(8, 2)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    >>> list(seen)
    [0, 10, 20]
    >>> sorted(seen[0].metrics())[:3]
    ['gradient_norm/0', 'gradient_norm/1', 'gradient_norm/input']
    """
    for name, value in (("every", every), ("samples", samples)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise HdnnError(f"{name} is a positive integer, got {value!r:.100}")
    measure, measurements = watch(module, layers, batch_axis=batch_axis, **options), {}
    step, measuring = 0, False

    def first_samples(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim <= batch_axis:
            return value
        return value.detach().narrow(batch_axis, 0, min(samples, value.shape[batch_axis]))

    def before(module: nn.Module, inputs: tuple[Any, ...], given: dict[str, Any]) -> None:
        nonlocal step, measuring
        if measuring or not module.training or not torch.is_grad_enabled():
            return
        if step % every == 0:
            few = {name: first_samples(value) for name, value in given.items()}
            measuring = True
            try:
                with _undisturbed(module):
                    measurements[step] = measure(*map(first_samples, inputs), **few)
            finally:
                measuring = False
            if log is not None:
                log(measurements[step].metrics(), step)
        step += 1

    handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield measurements
    finally:
        handle.remove()


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and random numbers of its own, so that a training goes on as without it."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
