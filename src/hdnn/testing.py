"""Is a layer what its docstring says? Assertions of structure, for any module or function.

Beside every ``assert_...`` there is a measure, ``..._defect``, which returns the number. An
assertion measures twice: at the parameters as they are, and at random ones of ordinary size
(`typical_parameters`), because small initial values hide what is wrong, and a structure must hold
for all of them. Parameters are found in modules, in the objects of bound methods, and in what
functions refer to; those with ``requires_grad=False`` stay as they are.

Everything is computed in float64; afterwards modules are as before, to the last bit. The first axis
of states ``(samples, ...)`` counts samples; where these react to each other, as the nodes of a
graph do, all of them are one state. Functions get copies of x, which require a gradient.

Derivatives are central difference quotients with the steps s and 2 s, extrapolated, where s is
1e-5 of the size of x: autograd need not agree with the map. With eps = 2e-16, and for a map that
changes over a length of d times the size of x, their relative errors are about

    eps / s = 2e-11 by rounding,        4 (s / d)^4 / 30 by truncation,

and the two quotients differ by (s / d)^2 / 2. Samples where they differ by more than 1e-4 (near the
kink of a ReLU) are left out, so that for the others truncation is below 1e-8. The tolerance of
1e-7, the default, is ten times that.

>>> import torch
>>> from torch import nn
>>> class Leapfrog(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.K = nn.Parameter(torch.randn(8, 2) / 100)
...
...     def forward(self, x):
...         q, p = x.chunk(2, dim=-1)
...         q = q + 0.1 * p
...         return torch.cat([q, p - 0.2 * torch.tanh(q @ self.K.T) @ self.K], -1)
>>> assert_symplectic(Leapfrog(), torch.randn(10, 4))
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import CellType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name

Map = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, float], Tensor]
InputStep = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Structure = str | Tensor | Map

TOLERANCE = 1e-7
"""Ten times the largest error of a difference quotient; see above."""
STEP, ROUGH = 1e-5, 1e-4
"""The step of difference quotients, and what two of them may differ by."""
DIRECTIONS = 64
"""Numbers of a state up to which all directions are tried; beyond, so many random ones."""
LARGEST = 1024
"""Numbers of a state up to which its whole Jacobian is computed, where that is needed."""


@dataclass(frozen=True)
class Defect:
    """How far something is from what it should be.

    Args:
        value: 0 up to errors of the measurement, where all is well.
        sample: the number of the worst sample; None where it concerns all of them.
        guess: at the cause, for a value that is not small.

    >>> import torch
    >>> symplectic_defect(lambda x: 2 * x, torch.ones(3, 4)).guess
    "M J M' = 4 J: does something scale or damp the state?"
    """

    value: float
    sample: int | None = None
    guess: str = ""


def _worst(values: Tensor, guess: str = "", among: Tensor | None = None) -> Defect:
    """The largest of a number for each sample; NaN is infinite."""
    values = torch.where(values.isnan(), math.inf, values)
    values = values if among is None else torch.where(among, values, 0.0)
    value, sample = (float(v) for v in values.max(0))
    guess = guess if math.isfinite(value) else "it diverges, or overflows"
    return Defect(value, int(sample) if len(values) > 1 else None, guess)


def _require(claim: str, tolerance: float, measure: Callable[..., Defect], *arguments: Any) -> None:
    """Measure at a module's own parameters and at typical ones; raise where it is too much."""
    functions = [a for a in arguments if callable(a)]
    defect, where = measure(*arguments), ""
    if defect.value <= tolerance and _parameters(functions):
        where = f" at typical parameters (own: {defect.value:.1e})"
        with typical_parameters(*functions):
            try:
                defect = measure(*arguments)
            except Exception as error:
                error.add_note("at typical parameters; with requires_grad=False they stay as given")
                raise
    if not defect.value <= tolerance:
        sample = "" if defect.sample is None else f", worst sample {defect.sample}"
        guess = f"; {defect.guess}" if defect.guess else ""
        raise AssertionError(
            f"not {claim}: {defect.value:.1e} > {tolerance:.0e}{where}{sample}{guess}"
        )


# --- modules, parameters and calls ----------------------------------------------------------------


def _owners(functions: Any) -> list[nn.Module | Tensor]:
    """The modules and the tensors that functions, methods and objects refer to."""
    found: list[nn.Module | Tensor] = []
    seen, todo = set(), [*functions]
    for thing in todo:  # which grows
        if id(thing) in seen or isinstance(thing, type | ModuleType):
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module | Tensor):
            found.append(thing)
        elif isinstance(thing, partial):
            todo += [thing.func, *thing.args, *thing.keywords.values()]
        elif inspect.ismethod(thing):
            todo.append(thing.__self__)
        elif inspect.isfunction(thing):
            if not str(thing.__module__).startswith("torch"):
                cells = (cell for cell in thing.__closure__ or () if cell != CellType())
                todo += [cell.cell_contents for cell in cells]
                todo += [thing.__globals__.get(name) for name in thing.__code__.co_names]
        elif isinstance(thing, list | tuple | dict):
            todo += thing.values() if isinstance(thing, dict) else thing
        else:
            todo += getattr(thing, "__dict__", {}).values()
    return found


def _parameters(functions: Any) -> list[Tensor]:
    """What an optimizer would train."""
    lists = (o.parameters() if isinstance(o, nn.Module) else [o] for o in _owners(functions))
    return list({p: None for some in lists for p in some if p.requires_grad and p.is_leaf})


@contextmanager
def typical_parameters(*functions: Any, scale: float = 0.5, seed: int = 0) -> Iterator[None]:
    """Parameters of the size that training reaches; afterwards there are those from before.

    Vectors are normal with standard deviation `scale`; matrices and kernels with ``2 scale /
    sqrt(fan_in)``. What is positive in all entries, such as a mass, stays so: exp(scale z).

    Args:
        functions: modules, or functions and methods that refer to them.
        scale: of the random numbers.
        seed: of the random numbers.

    Yields:
        Nothing.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 1)
    >>> before = layer.weight.clone()
    >>> with typical_parameters(layer):
    ...     changed = not torch.equal(layer.weight, before)
    >>> changed, torch.equal(layer.weight, before)
    (True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    with _restored(_parameters(functions)) as parameters:
        for p in parameters:
            z = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            size = 2 * scale / math.sqrt(p[0].numel()) if p.ndim > 1 and p.numel() else scale
            p.data = ((scale * z).exp() if bool((p > 0).all()) else size * z).to(p)
        yield


@contextmanager
def _restored(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """What tensors hold, whatever happens to it meanwhile."""
    saved = [(t, t.data) for t in tensors]
    try:
        yield tensors
    finally:
        for t, old in saved:
            t.data = old


@contextmanager
def _in_double(*functions: Any) -> Iterator[None]:
    """All that functions refer to as copies in float64; what they change is undone."""
    modules = [owner for owner in _owners(functions) if isinstance(owner, nn.Module)]
    held = [v for m in modules for v in (*m.parameters(), *m.buffers(), *map(vars, m.modules()))]
    tensors = [t for t in _owners([*functions, *held]) if isinstance(t, Tensor) and t.is_leaf]
    if any(nn.parameter.is_lazy(t) for t in tensors):
        raise HdnnError("lazy parameters have no values yet; call the module once before")
    default = torch.get_default_dtype()
    with torch.inference_mode(False), _restored(tensors):
        try:
            torch.set_default_dtype(torch.float64)
            for t in tensors:
                t.data = t.data.to(torch.float64 if t.is_floating_point() else t.dtype, copy=True)
            yield
        finally:
            torch.set_default_dtype(default)


def _state(x: Tensor) -> Tensor:
    """States in float64."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel() or not x.ndim:
        raise HdnnError(f"states are a tensor of real numbers (samples, ...), got {x!r:.60}")
    if not bool(torch.isfinite(x).all()):
        raise HdnnError("states must be finite; choose some that the module is made for")
    return x.detach().double()


def _copy(v: Any) -> Any:
    """No leaf, so that functions may change it in place."""
    return v.detach().clone().requires_grad_() * 1 if isinstance(v, Tensor) else v


def _outputs(count: int, function: Callable[..., Any], *inputs: Any) -> tuple[Tensor, ...]:
    """The tensors that a function gives for copies of its inputs, in float64, without a graph."""
    try:
        with torch.enable_grad():
            out = function(*map(_copy, inputs))
    except RuntimeError as error:
        if "double" in str(error).lower():
            error.add_note("in hdnn.testing x is float64: make constants buffers, or use x.dtype")
        raise
    given = out if isinstance(out, tuple) else (out,)
    if len(given) != count or not all(isinstance(v, Tensor) for v in given):
        kinds = ", ".join(type(v).__name__ for v in given)
        wanted = "a tensor" if count == 1 else "the next state and the output, (x, y)"
        raise HdnnError(f"a function must give {wanted}, got {kinds}; wrap it")
    return tuple(v.detach().double() for v in given)


def _value(function: Callable[..., Any], *inputs: Any, like: Tensor | None = None) -> Tensor:
    """What a function gives, in the shape of another tensor."""
    (y,) = _outputs(1, function, *inputs)
    if like is not None and y.shape != like.shape:
        raise HdnnError(f"the shape must be that of x, {(*like.shape,)}, got {(*y.shape,)}")
    return y


def _energy(H: Map, x: Tensor, samples: int) -> Tensor:
    """The energies of states."""
    E = _value(H, x)
    if E.numel() != samples:
        raise HdnnError(f"an energy is one number for each sample, ({samples},), got {(*E.shape,)}")
    return E.reshape(samples)


def _rms(x: Tensor) -> float:
    """The size of the numbers of x: 1 where all are 0."""
    return float(x.square().mean().sqrt()) or 1.0


def _normal(x: Tensor, seed: int = 0) -> Tensor:
    """Random numbers in the shape of x."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)


def _samples(function: Map, x: Tensor) -> int:
    """How many states x is: 1 where its samples react to each other."""
    y = _value(function, x)
    if x.ndim == 1 or not y.ndim or len(y) != len(x):
        return 1
    numbers, change = torch.arange(len(x)), _rms(x) * _normal(x)
    # Any two samples differ in a bit of their numbers: half of them move, the others should not.
    for k in range(2 * (len(x) - 1).bit_length()):
        still = ((numbers >> k // 2) & 1) == k % 2
        moved = torch.where(still.reshape(-1, *(1,) * (x.ndim - 1)).to(x.device), x, x + change)
        if bool(((_value(function, moved) - y)[still].abs() > 1e-9 * y.abs().max()).any()):
            return 1
    return len(x)


def _draws(count: int, *tensors: Tensor) -> Iterator[list[Tensor]]:
    """The given states and inputs, small ones, and others around the given, in all combinations."""
    yield list(tensors)
    for draw in range(count):
        sizes = [draw // 3**k % 3 for k in range(len(tensors))]
        yield [
            v * (size > 0) + 10.0 ** (size - 1) * _rms(v) * _normal(v, 9 * draw + k)
            for k, (v, size) in enumerate(zip(tensors, sizes, strict=True))
        ]


# --- difference quotients -------------------------------------------------------------------------


def _directions(x: Tensor, samples: int, most: int = DIRECTIONS) -> Tensor:
    """Rows ``(k, n)``: the unit vectors of a state, or some random orthogonal ones."""
    n = x.numel() // samples
    if n <= most:
        return torch.eye(n, dtype=torch.float64, device=x.device)
    frame: Tensor = torch.linalg.qr(_normal(x.new_empty(n, DIRECTIONS)))[0]
    return frame.mT


def _quotients(function: Map, x: Tensor, directions: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """D f(x) v for rows v, ``(samples, k, m)``, and which samples are smooth enough for that.

    Args:
        function: the map.
        x: states.
        directions: ``(k, n)``, or ``(k, samples, n)``.
        samples: how many states x is.

    Raises:
        HdnnError: no sample is smooth enough.
    """
    y = _value(function, x).reshape(samples, -1)
    steps = []
    for v in directions:
        length = float(v.abs().max()) or 1.0
        change = (v / length).expand(samples, -1).reshape(x.shape)
        for s in (STEP * _rms(x), 2 * STEP * _rms(x)):
            high, low = (_value(function, x + sign * s * change) for sign in (1, -1))
            steps.append((high - low).reshape(samples, -1) * (length / (2 * s)))
    near, far = torch.stack(steps[::2], 1), torch.stack(steps[1::2], 1)
    # Where derivatives vanish, what is left is rounding of the value.
    size = near.flatten(1).norm(dim=1) + ROUGH / _rms(x) * y.norm(dim=1)
    rough = (near - far).flatten(1).norm(dim=1) > ROUGH * size
    if bool(rough.all()):
        raise HdnnError(
            "difference quotients with two steps disagree at every sample: the function is random "
            "(dropout), computes in float32 inside, solves with a loose tolerance, or is not smooth"
        )
    return near + (near - far) / 3, ~rough


# --- maps -----------------------------------------------------------------------------------------


def form_defect(A: Tensor, J_A: Tensor, B: Tensor, J_B: Tensor) -> Tensor:
    """The change of a bilinear form, || A (J_A)' - B (J_B)' || / (||A|| ||J_A||), Frobenius norms.

    With A = M, J_A = M J', B = I and J_B = J' it is M J M' - J, whose rounding error is that of M
    relative to the norm of M squared. Rows may be few: products with some directions.

    Args:
        A, B: rows after and before, ``(..., k, n)``.
        J_A, J_B: J applied to these rows.

    Returns:
        ``(...)``; relative to ||B|| ||J_B||, where that is larger.

    >>> import torch
    >>> J, I = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), torch.eye(2)
    >>> form_defect(I, J.mT, I, J.mT)
    tensor(0.)
    """
    pairs = ((A, J_A), (B, J_B))
    change = (A @ J_A.mT - B @ J_B.mT).flatten(-2).norm(dim=-1)
    sizes = (P.flatten(-2).norm(dim=-1) * Q.flatten(-2).norm(dim=-1) for P, Q in pairs)
    return change / torch.maximum(*sizes).clamp_min(1e-300)


def _structure(J: Structure, width: int) -> Map:
    """J as a function of the state."""
    if callable(J):
        return J
    if isinstance(J, str):
        turn, rest = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), torch.eye(width // 2)
        forms = {"canonical": (turn, rest), "interleaved": (rest, turn)}
        if J not in forms:
            raise unknown_name("J", J, forms)
        if width % 2:
            raise HdnnError(f"J={J!r} needs an even width, got {width}; give a matrix, or dim")
        matrix = torch.kron(*forms[J])
    else:
        matrix = J.detach()
    if matrix.shape != (width, width) or not torch.equal(matrix, -matrix.mT) or not matrix.any():
        raise HdnnError(
            f"J must be skew-symmetric, ({width}, {width}) and not 0, got {tuple(matrix.shape)}; "
            "states have their width on axis dim, the last one by default"
        )
    return matrix.to


def symplectic_defect(f: Map, x: Tensor, J: Structure = "canonical", dim: int = -1) -> Defect:
    """How far M J M' is from J, for the Jacobian M of f, relative to ||M||^2 ||J||.

    J is that of y' = J dH/dy; where it depends on the state, M J(x) M' is compared with J(f(x)).
    States of more than 64 numbers are examined in 64 random directions v: J^-1 is skew, too, and
    M' J^-1 M = J^-1 needs products M v only, no matrix of the size of the state.

    Args:
        f: the map.
        x: states ``(samples, ..., n)``, of at least two degrees of freedom.
        J: "canonical", [0 I; -I 0] for states (q, p); "interleaved" for (q_1, p_1, q_2, ...); a
            matrix; or a function that gives ``(..., n, n)`` for states ``(..., n)``.
        dim: axis of the width n, on which J acts; 1 for channels.

    Returns:
        The defect of the worst sample.

    Raises:
        HdnnError: x, J or the shape of f(x) does not fit.

    >>> import torch
    >>> x = torch.randn(5, 4)
    >>> symplectic_defect(lambda x: x.roll(2, -1) * torch.tensor([1, 1, -1, -1]), x).value < 1e-9
    True
    """
    with _in_double(f, J):
        x = _state(x)
        x, at = x.movedim(dim, -1), _structure(J, x.shape[dim])

        def g(x: Tensor) -> Tensor:
            return _value(f, x.movedim(-1, dim), like=x.movedim(-1, dim)).movedim(dim, -1)

        samples = _samples(g, x)
        n = x.numel() // samples
        if n == 2:
            raise HdnnError(
                "with one degree of freedom every map that keeps areas is symplectic, and mistakes "
                "do not show: take states of at least 4 numbers, or assert_volume_preserving"
            )
        V = _directions(x, samples, LARGEST if callable(J) else DIRECTIONS)
        A, smooth = _quotients(g, x, V, samples)
        B = V.expand_as(A)
        whole = len(V) == n
        before, after = at(x), at(g(x))
        if whole:  # rows of M, and after them of the identity
            A, before, after = A.mT, after, before
        elif callable(J) or torch.linalg.matrix_rank(before) < len(before):
            raise HdnnError(
                f"states of {n} numbers are examined by J^-1, and this J has none, or changes with "
                f"the state; take at most {LARGEST if callable(J) else DIRECTIONS} numbers"
            )
        else:
            before = after = torch.linalg.inv(before)

        def apply(matrix: Tensor, rows: Tensor) -> Tensor:
            v = rows.movedim(1, 0).reshape(-1, *x.shape, 1)
            return (matrix @ v).reshape(len(v), samples, n).movedim(0, 1)

        J_A, J_B = apply(after, A), apply(before, B)
        worst = _worst(form_defect(A, J_A, B, J_B), among=smooth)
        guess = _guess(A @ J_A.mT, B @ J_B.mT, A if whole else None, worst.sample or 0)
        return replace(worst, guess=worst.guess or guess)


def _guess(after: Tensor, before: Tensor, M: Tensor | None, k: int) -> str:
    """Why a map is not symplectic, by what became of the form."""
    a, b = after[k], before[k]
    factor = float((a * b).sum() / b.square().sum())
    if float((a - factor * b).norm()) < 1e-4 * float(a.norm()):
        if abs(factor + 1) < 1e-4:
            return "M J M' = -J: are q and p exchanged?"
        return f"M J M' = {factor:.3g} J: does something scale or damp the state?"
    if M is None:
        return "is the force a gradient, H separable, each adjoint that of its map?"
    det = float(torch.linalg.det(M[k]))
    if abs(abs(det) - 1) < 1e-6:
        return (
            f"the determinant is {det:.0f}: no gradient as force, an adjoint that is none, or "
            "another order of the state (J='interleaved')?"
        )
    return f"the determinant is {det:.3g}: explicit Euler, an old time level, H not separable?"


def assert_symplectic(
    f: Map,
    x: Tensor,
    J: Structure = "canonical",
    dim: int = -1,
    tolerance: float = TOLERANCE,
) -> None:
    """Assert that the Jacobian M of f satisfies M J M' = J; see `symplectic_defect`.

    Args:
        f: the map.
        x: states ``(samples, ..., n)``, of at least two degrees of freedom.
        J: "canonical", "interleaved", a matrix, or a function of the state.
        dim: axis of the width n.
        tolerance: of the defect; above the error of difference quotients.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: x, J or the shape of f(x) does not fit.

    >>> import torch
    >>> assert_symplectic(torch.nn.Linear(4, 4), torch.randn(3, 4))
    Traceback (most recent call last):
    AssertionError: not symplectic: ...
    """
    _require("symplectic", tolerance, symplectic_defect, f, x, J, dim)


def volume_defect(f: Map, x: Tensor) -> Defect:
    """| log |det M| |, for the Jacobian M of f: what a step does to volumes.

    The error of a quotient changes log |det M| by up to n times as much, times the condition of M.

    Args:
        f: the map.
        x: states ``(samples, ...)``, of at most 1024 numbers.

    Returns:
        The defect of the worst sample.

    Raises:
        HdnnError: states are larger, or f does not keep their shape.

    >>> import torch
    >>> round(volume_defect(lambda x: 2 * x, torch.ones(1, 3)).value, 6)  # 3 log 2
    2.079442
    """
    with _in_double(f):
        x = _state(x)
        _value(f, x, like=x)
        samples = _samples(f, x)
        n = x.numel() // samples
        if n > LARGEST:
            raise HdnnError(
                f"the determinant of a Jacobian is computed up to {LARGEST} numbers, got {n}; take "
                "a smaller module of the same kind"
            )
        M, smooth = _quotients(f, x, _directions(x, samples, LARGEST), samples)
        log = torch.linalg.slogdet(M)[1]
        change = "shrinks" if float(log[smooth].mean()) < 0 else "grows"
        return _worst(log.abs(), f"volume {change}: explicit Euler, damping?", smooth)


def assert_volume_preserving(f: Map, x: Tensor, tolerance: float = 1e-6) -> None:
    """Assert that the Jacobian of f has determinant 1 or -1; see `volume_defect`.

    Args:
        f: the map.
        x: states ``(samples, ...)``, of at most 1024 numbers.
        tolerance: of log |det M|, to which all rows of M contribute.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: states are larger, or f does not keep their shape.

    >>> import torch
    >>> assert_volume_preserving(lambda x: x.roll(1, -1), torch.randn(3, 5))
    """
    _require("volume-preserving", tolerance, volume_defect, f, x)


def inverse_defect(f: Map, inverse: Map, x: Tensor) -> Defect:
    """How far inverse(f(x)) and f(inverse(x)) are from x, relative to the largest number in x.

    Args:
        f: the map.
        inverse: what should undo it.
        x: states ``(samples, ...)``.

    Returns:
        The defect of the worst sample.

    Raises:
        HdnnError: x is no tensor of states.

    >>> import torch
    >>> inverse_defect(torch.exp, torch.log, torch.rand(5, 2)).value < 1e-15
    True
    """
    with _in_double(f, inverse):
        x = _state(x)
        errors = []
        for one, other in ((f, inverse), (inverse, f)):
            back = _value(other, _value(one, x), like=x)
            errors.append((back - x).abs().reshape(len(x), -1).amax(1) / x.abs().max())
        left, right = errors
        guess = "does a half use an old value of the other, or are the halves in the same order?"
        if bool((left < 1e-3 * right).all()):
            guess = "inverse(f(x)) is x, but not f(inverse(x)): is x in the range of f?"
        return _worst(torch.maximum(left, right), guess)


def assert_invertible(f: Map, inverse: Map, x: Tensor, tolerance: float = TOLERANCE) -> None:
    """Assert that inverse(f(x)) = x = f(inverse(x)); see `inverse_defect`.

    Args:
        f: the map.
        inverse: what should undo it.
        x: states ``(samples, ...)``.
        tolerance: of the defect: rounding, times the condition of the Jacobian of f.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: x is no tensor of states.

    >>> import torch
    >>> assert_invertible(torch.exp, torch.log, torch.rand(5, 2))
    """
    _require("inverse to each other", tolerance, inverse_defect, f, inverse, x)


# --- energies -------------------------------------------------------------------------------------


def energy_defect(step: Map, H: Map, x: Tensor, steps: int = 1000) -> Defect:
    """How far H drifts in so many steps, relative to how far it swings.

    The mean of H over the last quarter of the steps is compared with that over the first, relative
    to the range of H within one of them (but at least 1e-9 of H, as rounding and solvers need).
    Where H oscillates, as along a symplectic scheme, this is nearly 0; a steady drift gives 3.

    In a quarter of the steps the state should turn around: before, nobody can tell the beginning of
    an oscillation from a drift. So samples that move less than three times as far as they get from
    their start do not count.

    Args:
        step: the state after one step.
        H: the energy of states, ``(samples,)``.
        x: states ``(samples, ...)``.
        steps: their number, at least 8.

    Returns:
        The drift of all samples over their ranges, and the sample that drifts most.

    Raises:
        HdnnError: too few steps for any sample, or x is no tensor of states.

    >>> import torch
    >>> euler = lambda x: x + 0.1 * torch.stack([x[:, 1], -x[:, 0]], 1)
    >>> energy_defect(euler, lambda x: x.square().sum(1), torch.ones(1, 2)).guess
    'H grows: explicit Euler, an old time level, a force that is no gradient?'
    """
    if steps < 8:
        raise HdnnError(f"give at least 8 steps, got {steps}")
    with _in_double(step, H):
        x, quarter = _state(x), steps // 4
        path, samples = [x], _samples(H, x)
        for _ in range(steps):
            path.append(_value(step, path[-1], like=x))
        E = torch.stack([_energy(H, state, samples) for state in path[1:]])
        first, last = E[:quarter], E[-quarter:]
        shift = last.mean(0) - first.mean(0)
        swings = (part.amax(0) - part.amin(0) for part in (first, last))
        swing = torch.minimum(*swings) + 1e-9 * E.abs().amax(0) + 1e-300
        begin = torch.stack(path[: quarter + 1]).reshape(quarter + 1, samples, -1)
        way = begin.diff(dim=0).norm(dim=2).sum(0)
        turned = ~(way < 3 * (begin - begin[0]).norm(dim=2).amax(0))  # what is not finite counts
        if not bool(turned.any()):
            raise HdnnError(f"no state turns around in {quarter} steps; take more, or larger ones")
        trend = "grows" if float(shift[turned].sum()) > 0 else "falls"
        guess = f"H {trend}: explicit Euler, an old time level, a force that is no gradient?"
        worst = _worst(shift.abs() / swing, guess, turned)
        return replace(worst, value=float(shift[turned].abs().sum() / swing[turned].sum()))


def assert_energy_conserved(
    step: Map, H: Map, x: Tensor, steps: int = 1000, tolerance: float = 2.0
) -> None:
    """Assert that H stays or oscillates, and does not drift; see `energy_defect`.

    Args:
        step: the state after one step.
        H: the energy of states, ``(samples,)``.
        x: states ``(samples, ...)``.
        steps: their number; enough for several periods.
        tolerance: of the drift; slow beats of several frequencies can give 1, a steady drift 3.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: too few steps, or x is no tensor of states.

    >>> import torch
    >>> def step(x):
    ...     q = x[:, :1] + 0.1 * x[:, 1:]
    ...     return torch.cat([q, x[:, 1:] - 0.1 * q.sin()], 1)
    >>> assert_energy_conserved(step, lambda x: x[:, 1] ** 2 / 2 - x[:, 0].cos(), torch.rand(5, 2))
    """
    _require("conserving H", tolerance, energy_defect, step, H, x, steps)


def conservation_defect(field: Map, H: Map, x: Tensor) -> Defect:
    """|dH/dt| along a field f, |<dH/dx, f>| / (|dH/dx| |f|): the cosine of their angle.

    Args:
        field: the velocity at states.
        H: the energy of states, ``(samples,)``.
        x: states ``(samples, ...)``.

    Returns:
        The defect of the worst sample.

    Raises:
        HdnnError: x is no tensor of states, or the field has another shape.

    >>> import torch
    >>> turn = lambda x: torch.stack([x[:, 1], -x[:, 0]], 1)
    >>> conservation_defect(turn, lambda x: x.square().sum(1), torch.rand(5, 2)).value < 1e-9
    True
    """
    with _in_double(field, H):
        x = _state(x)
        f, samples = _value(field, x, like=x), _samples(H, x)
        f, _ = f.reshape(samples, -1), _energy(H, x, samples)
        rate, smooth = _quotients(H, x, f.unsqueeze(0), samples)
        # Where directions are few they find a part of the gradient only: then the bar is higher.
        gradient, _ = _quotients(H, x, _directions(x, samples), samples)
        size = gradient.flatten(1).norm(dim=1) * f.norm(dim=1)
        values = rate.flatten(1).norm(dim=1) / size.clamp_min(1e-300)
        guess = "are the velocities of q and p exchanged, a sign wrong, or is there damping?"
        return _worst(values, guess, smooth)


def assert_field_conserves(field: Map, H: Map, x: Tensor, tolerance: float = TOLERANCE) -> None:
    """Assert that H is constant along a field; see `conservation_defect`.

    Args:
        field: the velocity at states.
        H: the energy of states, ``(samples,)``.
        x: states ``(samples, ...)``.
        tolerance: of the defect; above the error of difference quotients.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: x is no tensor of states, or the field has another shape.

    >>> import torch
    >>> turn = lambda x: torch.stack([x[:, 1], -x[:, 0]], 1)
    >>> assert_field_conserves(turn, lambda x: x.square().sum(1), torch.rand(5, 2))
    """
    _require("conserving H", tolerance, conservation_defect, field, H, x)


def passivity_defect(
    step: InputStep,
    energy: Map,
    x: Tensor,
    u: Tensor,
    h: float | None = None,
    supply: Callable[[Tensor, Tensor], Tensor] | None = None,
    incremental: bool = False,
) -> Defect:
    """How much more energy is stored than supplied, energy(x+) - energy(x) - supply, relative.

    It is searched for at the given states and inputs and in 27 random draws: a tenth of their size,
    and around them up to ten times their size. A search proves nothing, but finds most mistakes.

    Args:
        step: gives (x+, y) for (x, u).
        energy: of states, ``(samples,)``.
        x: states ``(samples, ...)``.
        u: inputs ``(samples, ...)``.
        h: the step, for the supply h <u, y>.
        supply: another one, a function of (u, y).
        incremental: whether differences of two trajectories are examined, in place of x, u and y.

    Returns:
        The excess of the worst sample, relative to the sum of the three terms; 0 if there is none.

    Raises:
        HdnnError: both or none of h and supply are given, or step gives no pair.

    >>> import torch
    >>> passivity_defect(
    ...     lambda x, u: (0.9 * x + u, x),
    ...     lambda x: x.square().sum(1) / 2,
    ...     torch.ones(1, 1),
    ...     torch.ones(1, 1),
    ...     h=1.0,
    ... ).guess
    'more is stored than supplied: a sign, or an output without its share of the input?'
    """
    if (h is None) == (supply is None):
        raise HdnnError("give the step h, for the supply h <u, y>, or a function supply(u, y)")

    def product(u: Tensor, y: Tensor) -> Tensor:
        return (u * y).flatten(1).sum(1) * (h or 0.0)

    with _in_double(step, energy, supply):
        x, u = _state(x), _state(u)
        excess = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
        for x1, u1, x2, u2 in _draws(27, x, u, x, u):
            (next1, y1), before, inputs = _outputs(2, step, x1, u1), x1, u1
            if incremental:
                (next2, y2), before, inputs = _outputs(2, step, x2, u2), x1 - x2, u1 - u2
                next1, y1 = next1 - next2, y1 - y2
            after, first = (_energy(energy, v, len(x)) for v in (next1, before))
            given = _value(supply or product, inputs, y1, like=after)
            size = after.abs() + first.abs() + given.abs()
            excess = torch.maximum(excess, (after - first - given) / size.clamp_min(1e-300))
        guess = "more is stored than supplied: a sign, or an output without its share of the input?"
        return _worst(excess.clamp_min(0.0), guess)


def assert_passive(
    step: InputStep,
    energy: Map,
    x: Tensor,
    u: Tensor,
    h: float | None = None,
    supply: Callable[[Tensor, Tensor], Tensor] | None = None,
    incremental: bool = False,
    tolerance: float = 1e-9,
) -> None:
    """Assert that energy(x+) - energy(x) <= h <u, y>, or <= supply(u, y); see `passivity_defect`.

    Args:
        step: gives (x+, y) for (x, u).
        energy: of states, ``(samples,)``.
        x: states ``(samples, ...)``.
        u: inputs ``(samples, ...)``.
        h: the step, for the supply h <u, y>.
        supply: another one, a function of (u, y).
        incremental: whether differences of two trajectories are examined, in place of x, u and y.
        tolerance: of the defect; there is no error but rounding.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: both or none of h and supply are given, or step gives no pair.

    >>> import torch
    >>> def step(x, u):
    ...     y = (x + u / 20) / 1.05  # the state in the middle of the implicit step
    ...     return x + 0.1 * (u - y), y
    >>> half = lambda x: x.square().sum(1) / 2
    >>> assert_passive(step, half, torch.ones(3, 2), torch.ones(3, 2), h=0.1)
    """
    what = (step, energy, x, u, h, supply, incremental)
    _require("passive", tolerance, passivity_defect, *what)


def contraction_defect(step: InputStep, x: Tensor, u: Tensor, rate: float = 1.0) -> Defect:
    """By how much the largest singular value of d x+ / d x exceeds a rate.

    Where it never does, |x+ - x'+| <= rate |x - x'| for any two states and one input. It is
    searched for as in `passivity_defect`, in 9 draws; of states of more than 64 numbers, in 64
    directions.

    Args:
        step: gives (x+, y) for (x, u).
        x: states ``(samples, ...)``.
        u: inputs ``(samples, ...)``.
        rate: per step, in the Euclidean norm. For |P x| let step take and give P x.

    Returns:
        The excess of the worst sample; 0 if there is none.

    Raises:
        HdnnError: step gives no pair, or x is no tensor of states.

    >>> import torch
    >>> x, u = torch.ones(1, 2), torch.ones(1, 2)
    >>> contraction_defect(lambda x, u: (0.9 * x + u, x), x, u, rate=0.8).guess
    'differences of states grow by a factor of 0.9 in a step'
    """

    def following(u: Tensor, x: Tensor) -> Tensor:
        return _outputs(2, step, x, u)[0]

    with _in_double(step):
        x, u = _state(x), _state(u)
        samples = _samples(partial(following, u), x)
        V, largest = _directions(x, samples), x.new_zeros(samples)
        for x1, u1 in _draws(9, x, u):
            A, smooth = _quotients(partial(following, u1), x1, V, samples)
            size = torch.linalg.matrix_norm(A.nan_to_num(0.0, 0.0, 0.0), 2)
            size = torch.where(A.isfinite().flatten(1).all(1), size, math.inf)
            largest = torch.maximum(largest, torch.where(smooth, size, 0.0))
        guess = f"differences of states grow by a factor of {float(largest.max()):.4g} in a step"
        return _worst((largest - rate).clamp_min(0.0), guess)


def assert_contracting(
    step: InputStep, x: Tensor, u: Tensor, rate: float = 1.0, tolerance: float = TOLERANCE
) -> None:
    """Assert that |x+ - x'+| <= rate |x - x'|; see `contraction_defect`.

    Args:
        step: gives (x+, y) for (x, u).
        x: states ``(samples, ...)``.
        u: inputs ``(samples, ...)``.
        rate: per step, in the Euclidean norm.
        tolerance: of the excess; above the error of difference quotients.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: step gives no pair, or x is no tensor of states.

    >>> import torch
    >>> x, u = torch.randn(3, 2), torch.randn(3, 2)
    >>> assert_contracting(lambda x, u: (0.9 * torch.tanh(x) + u, x), x, u, rate=0.9)
    """
    _require("contracting", tolerance, contraction_defect, step, x, u, rate)


# --- steps ----------------------------------------------------------------------------------------


def _time(step: Step, x: Tensor) -> float:
    """A time in which the state changes about by its own size."""
    return 1e-3 * _rms(x) / _rms(_value(step, x, 1e-3, like=x) - x)


def consistency_defect(step: Step, field: Map, x: Tensor) -> Defect:
    """How far (step(x, h) - x) / h is from f(x) for small h, relative to |f|.

    Quotients with h, h / 2 and h / 4 are extrapolated: with h = 1e-3 of the time in which x changes
    by its own size, the error is about 1e-9 by truncation and 1e-12 by rounding.

    Args:
        step: the state after a time h.
        field: the velocity f at states.
        x: states ``(samples, ...)``.

    Returns:
        The defect of the worst sample, relative to the mean size of f.

    Raises:
        HdnnError: shapes do not agree, or x is no tensor of states.

    >>> import torch
    >>> wrong = lambda x, h: x + h * x  # integrates the field x
    >>> round(consistency_defect(wrong, lambda x: 2 * x, torch.ones(1, 2)).value, 6)
    0.5
    """
    with _in_double(step, field):
        x = _state(x)
        f, h = _value(field, x, like=x), 1e-3 * _time(step, x)
        q1, q2, q4 = ((_value(step, x, h / k) - x) * (k / h) for k in (1, 2, 4))
        error = (8 * q4 - 6 * q2 + q1) / 3 - f
        values = error.reshape(len(x), -1).square().mean(1).sqrt() / _rms(f)
        return _worst(values, "a wrong sign or factor of h, or the velocity of another variable?")


def assert_consistent(step: Step, field: Map, x: Tensor, tolerance: float = 1e-6) -> None:
    """Assert that a step follows the field that it should integrate; see `consistency_defect`.

    Args:
        step: the state after a time h.
        field: the velocity at states.
        x: states ``(samples, ...)``.
        tolerance: of the defect; above the error of the extrapolated quotient.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: shapes do not agree, or x is no tensor of states.

    >>> import torch
    >>> assert_consistent(lambda x, h: x + h * x.sin(), torch.sin, torch.randn(3, 2))
    """
    _require("consistent", tolerance, consistency_defect, step, field, x)


def order_defect(step: Step, x: Tensor, order: int) -> Defect:
    """What the observed order lacks of the one that is claimed.

    One step of h is compared with two of h / 2: they differ by O(h^(p+1)). h is halved until they
    differ by 1e-11 of x, where rounding begins to show; the last ratio that is larger gives p.

    Args:
        step: the state after a time h.
        x: states ``(samples, ...)``.
        order: what is claimed.

    Returns:
        order - p, and p in the guess.

    Raises:
        HdnnError: the step does not keep the shape of x, or x is no tensor of states.

    >>> import torch
    >>> order_defect(lambda x, h: x + h * x.sin(), torch.ones(1, 2), 2).guess
    'the observed order is 1.00'
    """
    with _in_double(step):
        x = _state(x)
        h, errors = 0.4 * _time(step, x), []
        for _ in range(40):
            twice = _value(step, _value(step, x, h / 2), h / 2)
            errors.append(float((_value(step, x, h) - twice).norm() / x.norm()))
            if errors[-1] < 1e-11:
                break
            h /= 2
        if len(errors) < 3:  # an exact flow, as far as can be seen
            return Defect(-math.inf)
        before, last = errors[-3:-1]
        observed = math.log2(before / last) - 1
        return Defect(order - observed, None, f"the observed order is {observed:.2f}")


def assert_order(step: Step, x: Tensor, order: int, tolerance: float = 0.2) -> None:
    """Assert that a one-step method has the order that is claimed, or more; see `order_defect`.

    Args:
        step: the state after a time h.
        x: states ``(samples, ...)``, where the field is smooth.
        order: what is claimed.
        tolerance: what the observed order may lack.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: the step does not keep the shape of x, or x is no tensor of states.

    >>> import torch
    >>> assert_order(lambda x, h: x + h * (x + h / 2 * x.sin()).sin(), torch.ones(1, 2), 2)
    """
    _require(f"of order {order}", tolerance, order_defect, step, x, order)


# --- modules --------------------------------------------------------------------------------------


def adjoint_defect(K: Map, K_adjoint: Map, x: Tensor) -> Defect:
    """|<K x, s> - <x, K' s>| for random x and s, relative to |K x| |s| + |x| |K' s|.

    Args:
        K: a linear map.
        K_adjoint: what should be its adjoint.
        x: what K takes, of any shape.

    Returns:
        The largest of ten draws.

    Raises:
        HdnnError: x is no tensor of states, or K' s has another shape.

    >>> import torch
    >>> A = torch.randn(3, 3)
    >>> adjoint_defect(lambda x: x @ A, lambda s: s @ A.mT, torch.ones(2, 3)).value < 1e-12
    True
    """
    with _in_double(K, K_adjoint):
        x, values = _state(x), []
        for draw in range(10):
            v = _normal(x, draw)
            there = _value(K, v)
            s = _normal(there, 100 + draw)
            back = _value(K_adjoint, s, like=x)
            size = there.norm() * s.norm() + v.norm() * back.norm()
            values.append(((there * s).sum() - (v * back).sum()).abs() / size.clamp_min(1e-300))
        linear = torch.allclose(_value(K, 2 * v), 2 * there)
        guess = "is it the map itself, or one over other edges?" if linear else "K is not linear"
        return replace(_worst(torch.stack(values), guess), sample=None)


def assert_adjoint(K: Map, K_adjoint: Map, x: Tensor, tolerance: float = 1e-9) -> None:
    """Assert that <K x, s> = <x, K' s>; see `adjoint_defect`.

    Args:
        K: a linear map.
        K_adjoint: what should be its adjoint.
        x: what K takes, of any shape.
        tolerance: of the defect; there is no error but rounding.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: x is no tensor of states, or K' s has another shape.

    >>> import torch
    >>> assert_adjoint(lambda x: x.roll(1, -1), lambda s: s.roll(-1, -1), torch.ones(5))
    """
    _require("adjoint", tolerance, adjoint_defect, K, K_adjoint, x)


def gradient_defect(f: Map, x: Tensor) -> Defect:
    """How far autograd is from difference quotients, for the state and for all parameters.

    <u, D f(x) v> is compared with <u D f(x), v>, for a random u and all v of a state (or 64 of
    them), relative to |u| |D f(x) v|; and with a random change of all parameters.

    Args:
        f: a module or function; of parameters, those that it refers to.
        x: states ``(samples, ...)``.

    Returns:
        The defect of the worst sample; None as sample where it is that of the parameters.

    Raises:
        HdnnError: f is not smooth at x, or x is no tensor of states.

    >>> import torch
    >>> gradient_defect(lambda x: x * x.detach(), torch.ones(1, 2)).value > 0.1
    True
    """
    with _in_double(f):
        x, parameters = _state(x), _parameters([f])
        samples = _samples(f, x)
        V, u, inputs = _directions(x, samples), _normal(_value(f, x)), x.clone().requires_grad_()
        with torch.enable_grad():
            total = (u * f(inputs * 1)).sum() + 0 * inputs.sum()
        slopes = torch.autograd.grad(total, [inputs, *parameters], materialize_grads=True)
        A, smooth = _quotients(f, x, V, samples)
        rows, g = u.reshape(samples, 1, -1), slopes[0].reshape(samples, -1)
        size = A.flatten(1).norm(dim=1) * rows.flatten(1).norm(dim=1)
        error = ((A * rows).sum(-1) - g @ V.mT).norm(dim=1) / size.clamp_min(1e-300)
        worst = _worst(error, "autograd and differences disagree: is a state detached?", smooth)

        moves = [(p, p.data, _normal(p, 1)) for p in parameters]

        def along(t: Tensor) -> Tensor:
            for p, start, change in moves:
                p.data = start + float(t.detach()) * change
            return _value(f, x).reshape(1, -1)

        D = _quotients(along, x.new_zeros(1, 1), x.new_ones(1, 1), 1)[0].flatten()
        slope = sum((g * change).sum() for g, (_, _, change) in zip(slopes[1:], moves, strict=True))
        error = ((D * u.flatten()).sum() - slope).abs() / (D.norm() * u.norm() + 1e-300)
        if float(error) > worst.value:
            return Defect(float(error), None, "parameters: is one detached, or rounded?")
        return worst


def assert_gradients(f: Map, x: Tensor, tolerance: float = TOLERANCE) -> None:
    """Assert that autograd differentiates the map that is computed; see `gradient_defect`.

    Args:
        f: a module or function; of parameters, those that it refers to.
        x: states ``(samples, ...)``.
        tolerance: of the defect; above the error of difference quotients.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: f is not smooth at x, or x is no tensor of states.

    >>> import torch
    >>> assert_gradients(torch.nn.Linear(3, 2), torch.randn(4, 3))
    """
    _require("differentiated by autograd", tolerance, gradient_defect, f, x)


def same_map_defect(f: Map, x: Tensor) -> Defect:
    """How much f depends on how it is called: train or eval, grad or no grad, a second time.

    Args:
        f: a module or function.
        x: states ``(samples, ...)``.

    Returns:
        The largest relative difference, and what makes it; also that of x before and after.

    Raises:
        HdnnError: x is no tensor of states.

    >>> import torch
    >>> same_map_defect(torch.nn.BatchNorm1d(4), torch.randn(5, 4)).guess
    'it gives something else in the other mode: dropout, batch statistics, another formula?'
    """
    modules = [owner for owner in _owners([f]) if isinstance(owner, nn.Module)]
    modes = [(part, part.training) for module in modules for part in module.modules()]
    with _in_double(f):
        x = _state(x)
        given = _copy(x)
        first = _value(lambda: f(given))
        values = {"the second time: is it random, or does it keep a state?": _value(f, x)}
        with torch.no_grad():
            values["without gradients"] = f(x.clone())
        try:
            for module in modules:
                module.train(not module.training)
            values["in the other mode: dropout, batch statistics, another formula?"] = _value(f, x)
        finally:
            for part, training in modes:
                part.training = training
        defects = [_relative(given.detach(), x, "it changes its input in place")]
        for when, value in values.items():
            defects.append(_relative(value, first, f"it gives something else {when}"))
            first = value
        worst = max(d.value for d in defects)
        return next(d for d in defects if not d.value < worst / 2)  # one mistake, many effects


def _relative(a: Tensor, b: Tensor, guess: str) -> Defect:
    """The largest difference, relative to the largest number."""
    rows = (a - b).abs().reshape(len(b) if b.ndim else 1, -1)
    return _worst(rows.amax(1) / b.abs().max().clamp_min(1e-300), guess)


def assert_same_map(f: Map, x: Tensor, tolerance: float = 1e-12) -> None:
    """Assert that f is one map, in both modes, with and without gradients; see `same_map_defect`.

    Args:
        f: a module or function.
        x: states ``(samples, ...)``.
        tolerance: of the defect; formulas that differ by rounding only may be used.

    Raises:
        AssertionError: the defect is larger, at the module's parameters or at typical ones.
        HdnnError: x is no tensor of states.

    >>> import torch
    >>> assert_same_map(torch.nn.Linear(3, 2), torch.randn(4, 3))
    """
    _require("the same map", tolerance, same_map_defect, f, x)
