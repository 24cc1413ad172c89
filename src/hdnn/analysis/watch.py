"""Norms between the layers of any torch model, once (`watch`) or while it is trained (`monitor`).

Hooks record the states h_l that the watched submodules give. Vector-Jacobian products, batched over
directions and shared by all layers, give M_l = d h_N / d h_l sample by sample. Where h_N is too
large for all its directions, the norms are estimated by power iteration on M M'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.hooks import RemovableHandle

from hdnn.analysis.norms import Norms, extreme_singular_values, norm_of_mean
from hdnn.errors import HdnnError
from hdnn.program import Function
from hdnn.progress import track
from hdnn.threads import one_thread

MAX_NUMBERS = 2**25
"""Numbers that batched vector-Jacobian products may hold at once: 128 MB in float32."""

WORK = 64
"""Multiplications of a layer for every number that it is given, about."""

Log = Callable[[dict[str, float], int], object]
"""Takes numbers by name and the training step that they belong to."""


def watch(
    module: nn.Module,
    layers: Sequence[str | nn.Module] | None = None,
    *,
    batch_axis: int = 0,
    limit: int = 256,
    iterations: int = 50,
    tolerance: float = 1e-3,
) -> Callable[..., Norms]:
    """Norms of d h_N / d h_l between layers of any torch model, sample by sample.

        M_l = d h_N / d h_l,    h_l the output of layer l, h_N that of the last watched layer

    The whole Jacobian is computed where a sample of h_N has at most ``limit`` numbers: then the
    norms are exact. Beyond, they are estimated by power iteration on M M' (a vector-Jacobian and
    a Jacobian-vector product each), a lower bound that grows to the norm; it stops where it
    grows by less than ``tolerance``, relatively, for every sample.

    Samples must not mix. Batch normalization in training mode mixes them: use ``module.eval()``.
    Mixing is detected and raises. Dropout in training mode is measured with the sampled mask. The
    ``.grad`` of parameters is not touched.

    Args:
        module: any model.
        layers: submodules, by name (as in ``named_modules``) or themselves, in any order; None for
            the children of an `nn.Sequential` or `nn.ModuleList`.
        batch_axis: axis of the samples in all states; 1 for ``(time, batch, features)``.
        limit: largest size of a sample of h_N whose Jacobian is computed; beyond, norms are
            estimated.
        iterations: steps of the power iteration at most.
        tolerance: relative growth of the estimates below which the power iteration stops.

    Returns:
        A callable: give it the arguments of the model, and it returns the `Norms` of "input" (what
        the first watched layer is given) and of the layers in the order in which they ran; one that
        ran twice is numbered, "name:2".

    Raises:
        HdnnError: no such layers; on measuring, none of them ran, or samples mix.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
    >>> watch(model)(torch.randn(10, 6))
    reaction of the output to a change at each layer, 10 samples
    layer       mean    minimum    maximum    of mean
    input     0.1757     0.1072     0.2394     0.1722
    0         0.3177     0.2409     0.3621     0.3148
    1          0.359       0.33     0.3865      0.355
    2         0.8459     0.8054       0.87     0.8456
    3              1          1          1          1
    """
    watched = _submodules(module, layers)

    def measure(*inputs: Any, **options: Any) -> Norms:
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        # Fast attention has no second derivative, which the power iteration needs.
        with (
            one_thread(WORK * max((x.numel() for x in tensors), default=0)),
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH),
            _recorded_states(watched, batch_axis) as states,
        ):
            module(*inputs, **options)
        if len(states) < 2:
            raise HdnnError(f"no watched layer ran: {', '.join(watched)[:200]}; name others")
        names, rows = list(states), list(states.values())
        exact = rows[-1].shape[1] <= limit
        directions = rows[-1].shape[1] if exact else 1
        with one_thread(WORK * directions * max(state.numel() for state in rows)):
            _check_samples(states, batch_axis)
            if exact:
                values = [(*extreme_singular_values(M), norm_of_mean(M)) for M in _jacobians(rows)]
                return Norms.of_samples(names, *map(torch.stack, zip(*values, strict=True)))
            calls = [(h, shared) for shared in (False, True) for h in rows]
            found = [
                _power(h, rows[-1], shared, iterations, tolerance)
                for h, shared in track(calls, "measuring layers")
            ]
            largest, of_mean = torch.stack(found[: len(rows)]), torch.stack(found[len(rows) :])
        unknown = torch.full_like(largest, torch.nan)  # power iteration does not see the smallest
        return Norms.of_samples(names, largest, unknown, of_mean[:, 0], exact=False)

    return measure


def _submodules(
    module: nn.Module, layers: Sequence[str | nn.Module] | None
) -> dict[str, nn.Module]:
    """The watched layers by name."""
    known = dict(module.named_modules())
    some = f"{', '.join(list(known)[1:9])}, ..."
    if layers is None and isinstance(module, nn.Sequential | nn.ModuleList):
        return dict(module.named_children())
    if not layers:
        raise HdnnError(
            f"say which layers of {type(module).__name__} to watch: layers=[...], names or "
            f"modules; it has {some}"
        )
    names = {id(part): name for name, part in known.items()}
    modules = {}
    for layer in layers:
        name = names.get(id(layer)) if isinstance(layer, nn.Module) else layer
        if name is None or name not in known:
            raise HdnnError(f"{layer!r} is no submodule; names are {some}")
        modules[name or type(module).__name__] = known[name]
    return modules


# --- states ---------------------------------------------------------------------------------------


@contextmanager
def _recorded_states(layers: Mapping[str, nn.Module], axis: int) -> Iterator[dict[str, Tensor]]:
    """A dictionary that fills with the states of the layers that run, ``(samples, size)``."""
    states: dict[str, Tensor] = {}

    def record(name: str, value: Any) -> Any:
        """Record the (first) tensor; what goes on is a copy, safe from operations in place."""
        first, *rest = value if isinstance(value, tuple) else (value,)
        if not isinstance(first, Tensor) or not first.is_floating_point():
            if name == "input":  # tokens have no derivative
                return None
            raise HdnnError(f"layer {name!r} gives {type(first).__name__}, not a tensor of numbers")
        # The rows are on the path of the model itself, so that gradients arrive as rows.
        moved = first.movedim(axis, 0)
        rows = moved.reshape(len(moved), moved.numel() // max(len(moved), 1))
        rows = rows if rows.requires_grad else rows.detach().requires_grad_()
        times = sum(known.split(":")[0] == name for known in states)
        states[f"{name}:{times + 1}" if times else name] = rows
        onward = rows.clone().reshape(moved.shape).movedim(0, axis)
        return (onward, *rest) if isinstance(value, tuple) else onward

    def before(layer: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return None if states or not inputs else record("input", inputs)

    def after(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        return lambda layer, inputs, output: record(name, output)

    handles: list[RemovableHandle] = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(before))
        handles.append(layer.register_forward_hook(after(name)))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _check_samples(states: Mapping[str, Tensor], axis: int) -> None:
    """Equally many in every state, and not mixed: one sample's vjp is zero for all others."""
    counts = [len(state) for state in states.values()]
    if len({*counts}) > 1:
        raise HdnnError(
            f"the watched states have {counts} samples along axis {axis}; say which axis is the "
            "batch with batch_axis=..."
        )
    *inner, last = states.values()
    direction = torch.zeros_like(last)
    direction[0] = torch.linspace(0.5, 1.5, last.shape[1])  # not symmetric: terms could cancel
    for name, g in zip(states, _vjp(inner, last, direction), strict=False):
        # NaN != 0: a model that has diverged does not mix its samples.
        if bool((torch.nan_to_num(g[1:], nan=0.0) != 0).any()):
            raise HdnnError(
                f"samples mix after {name!r}: batch normalization in training mode (use "
                "module.eval()), or the batch is on another axis (batch_axis=...)"
            )


# --- Jacobians ------------------------------------------------------------------------------------


def _vjp(
    states: list[Tensor], out: Tensor, cotangent: Tensor, batched: bool = False
) -> tuple[Tensor, ...]:
    """Vector-Jacobian products with all states; zeros where ``out`` does not depend on one."""
    return torch.autograd.grad(
        out,
        states,
        cotangent,
        retain_graph=True,
        materialize_grads=True,
        is_grads_batched=batched,
    )


def _jacobians(states: list[Tensor]) -> list[Tensor]:
    """M_l ``(samples, m_N, m_l)`` for every state, a few directions of h_N at a time."""
    *inner, last = states
    samples, n = last.shape
    matrices = [state.new_empty(n, *state.shape) for state in inner]
    chunk = max(1, MAX_NUMBERS // max(1, sum(state.numel() for state in states)))
    eye = torch.eye(n, dtype=last.dtype, device=last.device)
    for rows in torch.arange(n).split(chunk):
        directions = eye[rows, None].expand(len(rows), samples, n)
        for M, g in zip(matrices, _batched_vjp(inner, last, directions), strict=True):
            M[rows] = g
    return [*(M.movedim(0, 1) for M in matrices), eye.expand(samples, n, n)]


def _batched_vjp(states: list[Tensor], out: Tensor, directions: Tensor) -> Sequence[Tensor]:
    """Products with a stack of directions: at once, or one by one where a layer cannot do that."""
    try:
        return _vjp(states, out, directions, batched=True)
    except (RuntimeError, HdnnError):
        each = [_vjp(states, out, direction) for direction in directions]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]


def linear_maps(last: Tensor, state: Tensor) -> tuple[Function, Function]:
    """u -> M' u and v -> M v for the Jacobian M = d last / d state, without M.

    M v is the derivative of <M' u, v> along u, at any u: M' u is linear in u.
    """
    point = torch.zeros_like(last).requires_grad_()
    options = {"retain_graph": True, "materialize_grads": True}
    (linear,) = torch.autograd.grad(last, state, point, create_graph=True, **options)

    def vjp(u: Tensor) -> Tensor:
        return torch.autograd.grad(last, state, u, **options)[0]

    def jvp(v: Tensor) -> Tensor:
        return torch.autograd.grad(linear, point, v, **options)[0]

    return vjp, jvp


def _power(state: Tensor, last: Tensor, shared: bool, iterations: int, tolerance: float) -> Tensor:
    """The norm of M of every sample (or of the mean of M), by power iteration on M M'.

    u -> v = M' u / ||M' u|| -> u = M v, and ||M v|| grows to the norm.
    """
    count = 1 if shared else len(last)
    if state is last:  # M is the identity
        return torch.ones(count, dtype=torch.float64)
    vjp, jvp = linear_maps(last, state)
    generator = torch.Generator().manual_seed(0)  # the same estimate every time
    u = torch.randn(count, last.shape[1], generator=generator, dtype=torch.float64).to(last)
    u = u / u.norm(dim=1, keepdim=True)
    tiny = torch.finfo(u.dtype).tiny
    norms = u.new_zeros(count)
    for _ in range(iterations):
        v = vjp(u.expand_as(last))
        v = v.mean(0, keepdim=True) if shared else v
        v = v / v.norm(dim=1, keepdim=True).clamp_min(tiny)
        u = jvp(v.expand_as(state))
        u = u.mean(0, keepdim=True) if shared else u
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
        samples: number of samples of a batch that are measured.
        log: called with the numbers by name (`Norms.metrics`) and the step; it has the signature of
            ``logger.log_metrics`` of Lightning. For Weights & Biases
            ``lambda metrics, step: run.log(metrics, step=step)``.
        batch_axis: axis of the samples in the inputs and the states.
        **options: ``limit``, ``iterations`` and ``tolerance`` of `watch`.

    Yields:
        Norms by training step; they stay when the context has ended.

    Raises:
        HdnnError: there are no such layers, or ``every`` or ``samples`` is not positive.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with monitor(model, every=10) as norms:
    ...     for _ in range(25):
    ...         loss = model(torch.randn(8, 2)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    >>> {step: round(float(n.mean[0]), 3) for step, n in norms.items()}  # of d output / d input
    {0: 0.198, 10: 0.087, 20: 0.053}
    """
    for name, value in (("every", every), ("samples", samples)):
        if value < 1:
            raise HdnnError(f"{name} must be positive, got {value!r:.100}")
    measure, measurements = watch(module, layers, batch_axis=batch_axis, **options), {}
    step = 0

    def first_samples(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim <= batch_axis:
            return value
        return value.detach().narrow(batch_axis, 0, min(samples, value.shape[batch_axis]))

    def before(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        nonlocal step
        # A measurement calls the module too, but in evaluation mode.
        if not module.training or not torch.is_grad_enabled():
            return
        if step % every == 0:
            few = {name: first_samples(value) for name, value in keywords.items()}
            with undisturbed(module):
                measurements[step] = measure(*map(first_samples, inputs), **few)
            if log is not None:
                log(measurements[step].metrics(), step)
        step += 1

    handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield measurements
    finally:
        handle.remove()


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and random numbers of its own, so that a training goes on as without it."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
