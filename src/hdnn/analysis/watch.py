"""A microscope for any torch model: Jacobians of its last watched state to all earlier ones.

Hooks keep the states h_l that the chosen submodules give; vector-Jacobian products, batched over
directions and shared by all layers, give M_l = d h_N / d h_l sample by sample. Where h_N is too
large for all its directions, the norms are estimated by power iteration on M M' (see `watch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.analysis.gradient_norms import Norms
from hdnn.analysis.vjp import FlatState, check_mixing, jacobians, norms_of, power, stack, summary
from hdnn.errors import HdnnError
from hdnn.notebook import curve, table


@dataclass(frozen=True)
class Watched:
    """What a batch meets on its way through the watched layers.

    Args:
        names: "input" (what the first watched layer is given), then the layers in the order in
            which they ran; one that ran several times is numbered, "name:2".
        norms: of M_l = d h_N / d h_l for every name; the last is that of the identity. Where they
            are estimated, ``norms.smallest`` is NaN: power iteration does not see it.
        exact: False where the norms are estimates by power iteration, from below.
        sizes: numbers a sample has in every state.
        jacobians: M_l ``(samples, m_N, m_l)`` for every name, where exact and asked for.

    >>> import hdnn, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> watched = hdnn.analysis.watch(model)(torch.randn(5, 3))
    >>> watched.names, watched.sizes, watched.exact
    (('input', '0', '1', '2'), (3, 4, 4, 1), True)
    """

    names: tuple[str, ...]
    norms: Norms
    exact: bool
    sizes: tuple[int, ...]
    jacobians: tuple[Tensor, ...] | None = None

    def __str__(self) -> str:
        kind = "exact" if self.exact else "by power iteration"
        width = max(map(len, self.names))
        rows = [f"{'':{width}}  mean      minimum   maximum   of mean   (norms {kind})"]
        n = self.norms
        for place, name in enumerate(self.names):
            values = (n.mean[place], n.minimum[place], n.maximum[place], n.of_mean[place])
            rows.append(f"{name:{width}}  " + "  ".join(f"{float(v):<8.4g}" for v in values))
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        n = self.norms
        columns = (n.mean, n.minimum, n.maximum, n.of_mean)
        rows = [
            (name, *(f"{float(column[k]):.4g}" for column in columns))
            for k, name in enumerate(self.names)
        ]
        kind = "exact" if self.exact else "by power iteration"
        header = ("layer", "mean", "minimum", "maximum", "of mean")
        title = f"norms of d h_N / d h_l, {kind}"
        return curve("mean norm by layer", n.mean.tolist()) + table(title, rows, header)


class Watch:
    """Watches layers of a module; made by `watch`.

    Called with the input of the module, it runs the module once and measures. As a context it only
    keeps states while *you* run the module, once, and `measure` does the rest:

        with watch(model, ["encoder.0", "encoder.5"]) as watcher:
            model(tokens, mask)
        print(watcher.measure())

    Args:
        module, layers, batch_axis, limit, per_sample, iterations, tolerance, keep: as in `watch`.

    >>> import hdnn, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> with hdnn.analysis.watch(model) as watcher:
    ...     _ = model(torch.randn(5, 3))
    >>> watcher.measure().names
    ('input', '0', '1', '2')
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[str | nn.Module] | None,
        batch_axis: int,
        limit: int,
        per_sample: bool,
        iterations: int,
        tolerance: float,
        keep: bool,
    ) -> None:
        self.module, self.axis, self.limit = module, batch_axis, limit
        self.per_sample, self.iterations, self.tolerance = per_sample, iterations, tolerance
        self.keep, self.layers = keep, _chosen(module, layers)
        self._handles: list[Any] = []
        self._states: list[tuple[str, Tensor]] = []

    def __enter__(self) -> Watch:
        self._states = []
        for name, layer in self.layers.items():
            self._handles += [
                layer.register_forward_pre_hook(self._before),
                layer.register_forward_hook(self._after(name)),
            ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __call__(self, *inputs: Any, **options: Any) -> Watched:
        """Run the module on inputs, and measure."""
        with self, torch.enable_grad():
            self.module(*inputs, **options)
        return self.measure()

    # --- keeping states ---------------------------------------------------------------------------

    def _before(self, layer: nn.Module, inputs: tuple[Any, ...]) -> Any:
        if self._states or not inputs:
            return None
        return self._kept("input", inputs)

    def _after(self, name: str) -> Callable[[nn.Module, Any, Any], Any]:
        return lambda layer, inputs, output: self._kept(name, output)

    def _kept(self, name: str, value: Any) -> Any:
        """Keep the (first) tensor; what goes on is a copy, safe from operations in place."""
        first, *rest = value if isinstance(value, tuple) else (value,)
        if not isinstance(first, Tensor) or not first.is_floating_point():
            if name == "input":  # tokens have no derivative
                return None
            raise HdnnError(f"layer {name!r} gives {type(first).__name__}, not a tensor of numbers")
        state = first if first.requires_grad else first.detach().requires_grad_()
        times = sum(seen.split(":")[0] == name for seen, _ in self._states)
        self._states.append((f"{name}:{times + 1}" if times else name, state))
        return (state.clone(), *rest) if isinstance(value, tuple) else state.clone()

    # --- measuring --------------------------------------------------------------------------------

    def measure(self) -> Watched:
        """Norms of d h_N / d h_l of what was kept.

        Returns:
            One entry for every watched layer.

        Raises:
            HdnnError: fewer than two states were kept, or samples mix.
        """
        if len(self._states) < 2:
            raise HdnnError(
                "nothing was watched: run the module inside the context, with gradients"
            )
        (names, states), self._states = zip(*self._states, strict=True), []
        axis = self.axis if self.per_sample else None
        rows = [FlatState(state, axis) for state in states]
        if len({row.samples for row in rows}) > 1:
            raise HdnnError(
                f"the watched states have {[row.samples for row in rows]} samples along axis "
                f"{self.axis}; say which axis is the batch with batch_axis=..."
            )
        if self.per_sample and rows[0].samples > 1:
            check_mixing(rows, names)
        sizes = tuple(row.size for row in rows)
        exact = sizes[-1] <= self.limit
        if exact:
            matrices = jacobians(rows)
            norms = stack([norms_of(M) for M in matrices])
            return Watched(names, norms, True, sizes, tuple(matrices) if self.keep else None)
        return Watched(names, self._estimates(rows), False, sizes)

    def _estimates(self, rows: list[FlatState]) -> Norms:
        parts = []
        for row in rows[:-1]:
            by_sample = power(row, rows[-1], self.iterations, self.tolerance, shared=False)
            of_mean = power(row, rows[-1], self.iterations, self.tolerance, shared=True)
            parts.append(summary(by_sample, by_sample.new_tensor(math.nan), of_mean[0]))
        one = torch.ones(rows[-1].samples, dtype=torch.float64)
        return stack([*parts, summary(one, one.new_tensor(math.nan), one[0])])


def watch(
    module: nn.Module,
    layers: Sequence[str | nn.Module] | None = None,
    *,
    batch_axis: int = 0,
    limit: int = 256,
    per_sample: bool = True,
    iterations: int = 50,
    tolerance: float = 1e-3,
    keep: bool = False,
) -> Watch:
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
        keep: return the Jacobians too, where exact.

    Returns:
        A callable: give it the arguments of the model, and it returns `Watched`.

    Raises:
        HdnnError: no such layers; on measuring, samples mix.

    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
    >>> watched = watch(model)(torch.randn(10, 6))
    >>> watched.names, watched.exact, float(watched.norms.mean[-1])
    (('input', '0', '1', '2', '3'), True, 1.0)
    """
    return Watch(module, layers, batch_axis, limit, per_sample, iterations, tolerance, keep)


def _chosen(module: nn.Module, layers: Sequence[str | nn.Module] | None) -> dict[str, nn.Module]:
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
