"""Schemes: how time is discretized. `scheme.lower(field)` gives the stages and flows of a layer.

A scheme is a small value: it knows its order and what it needs of a field, never parameters,
step sizes, devices or training. Layer j is one step of the autonomous flow of (K_j, b_j).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from hdnn.errors import ConvergenceError, HdnnError, IncompatibleError, named
from hdnn.fields import Field, Layout
from hdnn.program import Flow, Function, Stage, Step

Steps = tuple[Stage | Flow, ...]


class Scheme(ABC):
    """A one-step method.

    Attributes:
        order: the error of the flow over a fixed time is O(h^order).
        structure_preserving: M J M' = J for the Jacobian M of a step, J constant, no dissipation.
        needs_separable: it applies only where y' depends on z only and z' on y only.
        uses_step: it has a step size (a plain feed-forward network has none).
        implicit: a layer solves an equation, by iterations.

    >>> from hdnn import schemes
    >>> schemes.Leapfrog().order, schemes.Leapfrog().structure_preserving
    (2, True)
    """

    structure_preserving: ClassVar[bool] = False
    needs_separable: ClassVar[bool] = False
    uses_step: ClassVar[bool] = True
    implicit: ClassVar[bool] = False

    @property
    @abstractmethod
    def order(self) -> int:
        """The order of the method."""

    def check(self, field: Field) -> None:
        """Raise for a field that does not fit.

        Args:
            field: the dynamics.

        Raises:
            IncompatibleError: the field does not fit; the message names a pair that would.
        """
        if self.needs_separable and not field.separable:
            raise IncompatibleError(
                f"{self} needs a separable field (y' depends on z only, z' on y only), which this "
                f"{type(field).__name__} is not; use ForwardEuler() or ImplicitMidpoint() with it, "
                f"or {self} with J1 and K of structure 'off-diagonal' or 'block-diagonal' (MS3, HS)"
            )

    @abstractmethod
    def lower(self, field: Field) -> Steps:
        """What a layer does, in order.

        Args:
            field: the dynamics.

        Returns:
            Stages where the field is one hidden layer, else flows.
        """


@dataclass(frozen=True)
class ForwardEuler(Scheme):
    """y_{j+1} = y_j + h f(y_j): the layers of H1, H2, MS2 and ResNet.

    >>> import hdnn, torch
    >>> H = hdnn.fields.EnergyField("J1", lambda x, t: (x**2).sum(-1) / 2, features=2)
    >>> net = hdnn.HamiltonianNetwork(H, ForwardEuler(), layers=1, step=0.5)
    >>> net(torch.tensor([1.0, 0.0]))  # y' = z, z' = -y; exact is (0.8776, -0.4794)
    tensor([ 1.0000, -0.5000])
    """

    order: ClassVar[int] = 1

    def lower(self, field: Field) -> Steps:
        return (field.stage() or Flow(_euler),)


def _euler(f: Function, x: Tensor, h: Step, layout: Layout) -> Tensor:
    return x + h * f(x)


@dataclass(frozen=True)
class DirectMap(Scheme):
    """y_{j+1} = f(y_j): not a discretization; a plain feed-forward network (FCNN).

    >>> import hdnn, torch
    >>> net = hdnn.network("FCNN", features=2, layers=3, scale=0, activation="sigmoid")
    >>> net(torch.tensor([7.0, 9.0]))  # K = 0, b = 0: the state is replaced, not carried on
    tensor([0.5000, 0.5000], grad_fn=...)
    """

    order: ClassVar[int] = 0
    uses_step: ClassVar[bool] = False

    def check(self, field: Field) -> None:
        stage = field.stage()
        if stage is None or stage.adjoint:
            raise IncompatibleError(
                f"DirectMap() fits y' = sigma(K y + b) only, not this {type(field).__name__}; "
                "use ForwardEuler() with it"
            )

    def lower(self, field: Field) -> Steps:
        stage = field.stage(carry=0)
        assert stage is not None  # of an ActivationField
        return (stage,)


@dataclass(frozen=True)
class Splitting(Scheme):
    """Alternating exact steps of the two halves of a separable field.

        y += c_1 h f_y(z),   z += c_2 h f_z(y),   y += c_3 h f_y(z),   ...

    Args:
        coefficients: the factors c_1, c_2, ... of the step; those of each half sum to 1.
        first: the half that moves first, "y" or "z".
        name: what `repr` and messages call it.

    Raises:
        HdnnError: the coefficients or the first half are impossible.

    >>> Splitting((0.5, 1.0, 0.5)).order
    2
    """

    coefficients: tuple[float, ...] = (1.0, 1.0)
    first: str = "y"
    name: str = "Splitting"
    structure_preserving: ClassVar[bool] = True
    needs_separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.first not in ("y", "z"):
            raise HdnnError(f"first is 'y' or 'z', got {self.first!r}")
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        for part in (self.coefficients[::2], self.coefficients[1::2]):
            if not math.isclose(sum(part), 1.0, abs_tol=1e-12):
                raise HdnnError(
                    f"the coefficients of each half must sum to 1, got {self.coefficients}"
                )

    def __str__(self) -> str:
        return f"{self.name}(first={self.first!r})"

    @property
    def order(self) -> int:
        """The order, computed: how long the words in A, B are up to which exp(A + B) is matched."""
        return _splitting_order(self.coefficients)

    def lower(self, field: Field) -> Steps:
        parts = ("y", "z") if self.first == "y" else ("z", "y")
        steps: list[Stage | Flow] = []
        for k, c in enumerate(self.coefficients):
            part = parts[k % 2]
            steps.append(field.stage(part, c) or Flow(partial(_move_half, part, c), True))
        return tuple(steps)


def _move_half(part: str, factor: float, f: Function, x: Tensor, h: Step, layout: Layout) -> Tensor:
    """Move one half of a separable field that is only a velocity; -h undoes it."""
    # f has no halves of its own: all of it is computed, half of it is used.
    change = f(x).split(layout.width // 2, layout.axis)[part == "z"]
    still = torch.zeros_like(change)
    both = (change, still) if part == "y" else (still, change)
    return x + factor * h * torch.cat(both, layout.axis)


def _splitting_order(coefficients: tuple[float, ...], highest: int = 6) -> int:
    """The largest p such that the product of exp(c_k A), exp(c_k B) equals exp(A + B) to degree p.

    In the free algebra of A and B the coefficient of a word of length k in exp(A + B) is 1/k!.
    """
    # Published coefficients have some 15 digits; a method of lower order misses by far more than
    # 1e-9. Beyond degree 6 no scheme in use is of interest, and there are 2^degree words.
    for degree in range(1, highest + 1):
        for word in product((0, 1), repeat=degree):
            if not math.isclose(
                _word_coefficient(word, coefficients), 1 / math.factorial(degree), abs_tol=1e-9
            ):
                return degree - 1
    return highest


def _word_coefficient(word: tuple[int, ...], coefficients: tuple[float, ...]) -> float:
    # reached[i]: the coefficient of the first i letters in the product of the factors so far.
    reached = [1.0] + [0.0] * len(word)
    for k, c in enumerate(coefficients):
        for end in range(len(word), 0, -1):
            run = 0
            while run < end and word[end - 1 - run] == k % 2:
                run += 1
                reached[end] += reached[end - run] * c**run / math.factorial(run)
    return reached[-1]


def SemiImplicitEuler(first: str = "y") -> Splitting:  # noqa: N802 (reads as the other schemes do)
    """One half, then the other with the new value: order 1, structure-preserving.

    Args:
        first: the half that moves first, "y" or "z".

    Returns:
        The scheme.

    >>> SemiImplicitEuler().coefficients, SemiImplicitEuler().order
    ((1.0, 1.0), 1)
    """
    return Splitting((1.0, 1.0), first, "SemiImplicitEuler")


def Verlet(first: str = "y") -> Splitting:  # noqa: N802
    """What the paper calls Verlet in MS1 (z first) and MS3 (y first): semi-implicit Euler.

    Args:
        first: the half that moves first, "y" or "z".

    Returns:
        The scheme.

    >>> Verlet("z").coefficients, Verlet("z").first, Verlet("z").order
    ((1.0, 1.0), 'z', 1)
    """
    return Splitting((1.0, 1.0), first, "Verlet")


def Leapfrog(first: str = "y") -> Splitting:  # noqa: N802
    """Stoermer-Verlet: half a step, a whole one, half a step; order 2.

    Args:
        first: the half that moves first, "y" or "z".

    Returns:
        The scheme.

    >>> Leapfrog().coefficients, Leapfrog().order
    ((0.5, 1.0, 0.5), 2)
    """
    return Splitting((0.5, 1.0, 0.5), first, "Leapfrog")


def Yoshida4(first: str = "y") -> Splitting:  # noqa: N802
    """Three leapfrogs with Yoshida's weights: order 4.

    Args:
        first: the half that moves first, "y" or "z".

    Returns:
        The scheme.

    >>> [round(c, 3) for c in Yoshida4().coefficients], Yoshida4().order
    ([0.676, 1.351, -0.176, -1.702, -0.176, 1.351, 0.676], 4)
    """
    # The third-order errors of the three leapfrogs cancel: 2 outer^3 + (1 - 2 outer)^3 = 0. The
    # last move of one and the first of the next are of the same half: they are one.
    outer = 1 / (2 - 2 ** (1 / 3))
    weights = (outer, 1 - 2 * outer, outer)
    merged = [weights[0] / 2]
    for left, right in pairwise((*weights, 0.0)):
        merged += [left, (left + right) / 2]
    return Splitting(tuple(merged), first, "Yoshida4")


@dataclass(frozen=True)
class RK4(Scheme):
    """The classical Runge-Kutta method: order 4, any field, not structure-preserving.

    >>> import hdnn, torch
    >>> H = hdnn.fields.EnergyField("J1", lambda x, t: (x**2).sum(-1) / 2, features=2)
    >>> net = hdnn.HamiltonianNetwork(H, RK4(), layers=1, step=0.5)
    >>> net(torch.tensor([1.0, 0.0]))  # y' = z, z' = -y; exact is (0.8776, -0.4794)
    tensor([ 0.8776, -0.4792])
    """

    order: ClassVar[int] = 4

    def lower(self, field: Field) -> Steps:
        return (Flow(_rk4),)


def _rk4(f: Function, x: Tensor, h: Step, layout: Layout) -> Tensor:
    k1 = f(x)
    k2 = f(x + h / 2 * k1)
    k3 = f(x + h / 2 * k2)
    k4 = f(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@dataclass(frozen=True)
class ImplicitMidpoint(Scheme):
    """y_{j+1} = y_j + h f((y_j + y_{j+1}) / 2): order 2, preserves M J M' = J for any constant J.

    Args:
        solver: "newton", which also converges for large steps, or "fixed-point", which is cheaper
            for small h and differentiates through its iterations.
        tolerance: the change at which iterations stop, relative to 1 + |y|; None is 32 eps, a few
            roundings of the dtype.
        max_iterations: the number of iterations after which a `ConvergenceError` is raised.

    Raises:
        HdnnError: there is no such solver.

    >>> import hdnn, torch
    >>> H = hdnn.fields.EnergyField("J1", lambda x, t: (x**2).sum(-1) / 2, features=2)
    >>> net = hdnn.HamiltonianNetwork(H, ImplicitMidpoint(), layers=1, step=0.5)
    >>> net(torch.tensor([1.0, 0.0]))  # y' = z, z' = -y; exact is (0.8776, -0.4794)
    tensor([ 0.8824, -0.4706])
    """

    solver: str = "newton"
    tolerance: float | None = None
    max_iterations: int = 50
    order: ClassVar[int] = 2
    structure_preserving: ClassVar[bool] = True
    implicit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.solver not in ("newton", "fixed-point"):
            raise HdnnError(f"solver is 'newton' or 'fixed-point', got {self.solver!r}")

    def lower(self, field: Field) -> Steps:
        return (Flow(partial(self._advance, field.couples_pixels), invertible=True),)

    def _advance(self, coupled: bool, f: Function, x: Tensor, h: Step, layout: Layout) -> Tensor:
        if self.solver == "fixed-point":
            middle = self._solve(lambda m: x + h / 2 * f(m), x)
        else:
            middle = self._newton(f, x, h, _Vectors(layout.axis, coupled, x.shape))
        return x + h * f(middle)

    def _newton(self, f: Function, x: Tensor, h: Step, vectors: _Vectors) -> Tensor:
        def better(x: Tensor, h: Step, m: Tensor) -> Tensor:
            residual = m - x - h / 2 * f(m)
            return m - _solve_linear(f, m, h / 2, residual, vectors)

        fixed_h = h.detach() if isinstance(h, Tensor) else h  # iterations need no graph
        with torch.no_grad():
            middle = self._solve(lambda m: better(x.detach(), fixed_h, m), x.detach())
        # Newton's method doubles the number of correct derivatives: two steps from the detached
        # solution carry the exact first and second (and third) derivatives, at no memory in depth.
        middle = middle.detach()
        return better(x, h, better(x, h, middle))

    def _solve(self, improve: Function, x: Tensor) -> Tensor:
        """Iterate until nothing changes; NaN where that cannot be decided and it did not."""
        # A few times the rounding of f: what is reached in practice, also in float32.
        m, tolerance = x, self.tolerance or 32 * torch.finfo(x.dtype).eps
        change = torch.zeros_like(x)
        for iteration in range(self.max_iterations):
            new = improve(m)
            change, m = (new - m).abs() - tolerance * (1 + new.abs()), new
            settled = _decide((change <= 0).all())
            if settled is None and iteration == _UNDECIDED_ITERATIONS:
                break
            if settled:
                # One more step brings the derivatives to where the values are.
                return improve(m)
        if _decide((change <= 0).all()) is False:
            last = float(change.detach().max())
            raise ConvergenceError(
                f"implicit midpoint did not converge in {self.max_iterations} {self.solver} "
                f"iterations (tolerance {tolerance:.1e}, last change {last:.1e}); "
                "reduce the step, or use solver='newton'"
            )
        return torch.where(change <= 0, m, torch.nan)


@dataclass(frozen=True)
class DiscreteGradient(Scheme):
    """y_{j+1} = y_j + h (J - R) g, with the mean g of dH/dy on the line from y_j to y_{j+1}.

    For H = s' E(K y + b) it is known in closed form: hidden unit i contributes to g = K' s d

        d_i = (E(a_i) - E(c_i)) / (a_i - c_i),   a = K y_{j+1} + b,   c = K y_j + b

    so that g'(y_{j+1} - y_j) = H(y_{j+1}) - H(y_j), and for every step h and all weights

        H(y_{j+1}) - H(y_j) = -h g' R g

    The energy of a layer is conserved exactly, and with R it never grows; order 2, and a step of -h
    undoes one of h. It does not preserve M J M' = J; where H is quadratic it is the implicit
    midpoint rule, which does.

    Where E is convex (sigma nondecreasing, no signs) and J depends on no state, the equation for
    y_{j+1} has exactly one solution for every h > 0, and Newton's method with backtracking finds
    it. Where H is not convex (signs of hidden units, sin), that is certain only where
    h |J - R| |K|^2 max |sigma'| < 2; beyond, the energy of what is found is still that of y_j, but
    it may be one of several solutions, or a `ConvergenceError` is raised.

    Args:
        max_iterations: the number of Newton iterations after which a `ConvergenceError` is raised.

    >>> import hdnn, torch
    >>> net = hdnn.network(
    ...     "H1",
    ...     features=4,
    ...     layers=3,
    ...     step=5.0,
    ...     scheme="DiscreteGradient",
    ...     time_invariant=True,
    ...     dtype=torch.float64,
    ... )
    >>> y = torch.randn(4, dtype=torch.float64)
    >>> H = net.field.energy(net.trajectory(y))  # of y_0 to y_3, however large the step
    >>> bool((H - H[0]).abs().max() < 1e-12 * H[0])
    True
    """

    max_iterations: int = 1000
    order: ClassVar[int] = 2
    implicit: ClassVar[bool] = True

    def check(self, field: Field) -> None:
        if not field.has_discrete_gradient:
            raise IncompatibleError(
                f"{self} needs an energy H = 1' E(K y + b) whose activation has a known mean value "
                f"(Activation.mean), which this {type(field).__name__} has not; use ForwardEuler() "
                "or ImplicitMidpoint() with it, or this scheme with a network such as H1 or MS3"
            )

    def lower(self, field: Field) -> Steps:
        return (Flow(partial(self._advance, field.couples_pixels), invertible=True),)

    def _advance(self, coupled: bool, f: Function, x: Tensor, h: Step, layout: Layout) -> Tensor:
        vectors = _Vectors(layout.axis, coupled, x.shape)
        fixed_h = h.detach() if isinstance(h, Tensor) else h
        with torch.no_grad():
            y = self._solve(f, x.detach(), fixed_h, vectors)
        y = y.detach()
        for _ in range(2):  # for the derivatives, as in ImplicitMidpoint
            y = y - _solve_linear(partial(f, x), y, h, y - x - h * f(x, y), vectors)
        return y

    def _solve(self, f: Function, x: Tensor, h: Step, vectors: _Vectors) -> Tensor:
        """Newton's method with backtracking, down to the rounding of the residual.

        That rounding grows with h |K|^2, so no fixed tolerance would do: iterations stop where the
        residual is small and a full step no longer halves it.
        """

        def look(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """The residual, its norm, and whether this is small."""
            r = y - x - h * f(x, y)
            size = vectors.norm(r)
            return r, size, size <= tolerance * (1 + vectors.norm(x) + vectors.norm(y))

        y, tolerance = x, torch.finfo(x.dtype).eps ** 0.5
        r, size, small = look(y)
        for iteration in range(self.max_iterations):
            step = _solve_linear(partial(f, x), y, h, r, vectors)
            factor = torch.ones_like(size)
            for _ in range(_HALVINGS):
                new = y - factor * step
                new_r, new_size, new_small = look(new)
                # With this much less residual at every step the iteration cannot stall; written so
                # that NaN is halved, too.
                enough = (new_size <= (1 - factor / 4) * size) | small
                if _decide(enough.all()) is not False:
                    break
                factor = torch.where(enough, factor, factor / 2)
            better = new_size < size
            settled = _decide((torch.where(small, new_size >= size / 2, ~better)).all())
            y, r = torch.where(better, new, y), torch.where(better, new_r, r)
            size, small = torch.where(better, new_size, size), torch.where(better, new_small, small)
            if settled or (settled is None and iteration == _UNDECIDED_ITERATIONS):
                break
        if _decide(small.all()) is False:
            raise ConvergenceError(
                f"the discrete gradient did not converge: after {iteration + 1} iterations the "
                f"residual is {float(size.max()):.1e}; reduce the step, or the scale of the weights"
            )
        return torch.where(small, y, torch.nan)


_HALVINGS = 40
"""Of a step of Newton's method at most; beyond, the residual cannot be reduced."""
_UNDECIDED_ITERATIONS = 8
"""Newton's method needs no more where it converges at all."""


def _decide(condition: Tensor) -> bool | None:
    """A condition as a Python value, or None where none can be had: under vmap and compilation."""
    if torch.compiler.is_compiling():
        return None
    try:
        return bool(condition)
    except RuntimeError:
        return None


_UNKNOWNS = 4096
"""The most unknowns of a dense system: its matrix takes 134 MB in float64, for every sample."""


class _Vectors(NamedTuple):
    """Canonical states as vectors ``(..., m)`` of what a layer couples, and back."""

    axis: int  # of the width
    coupled: bool  # whether all pixels of a sample are, or each pixel is on its own
    shape: torch.Size

    def take(self, x: Tensor) -> Tensor:
        return x.flatten(self.axis) if self.coupled else x.movedim(self.axis, -1)

    def back(self, v: Tensor) -> Tensor:
        return v.reshape(self.shape) if self.coupled else v.movedim(-1, self.axis)

    def norm(self, x: Tensor) -> Tensor:
        """That of every vector, with as many axes as x."""
        axes = tuple(range(self.axis, x.ndim)) if self.coupled else self.axis
        return torch.linalg.vector_norm(x, dim=axes, keepdim=True)


def _solve_linear(f: Function, m: Tensor, h: Step, r: Tensor, vectors: _Vectors) -> Tensor:
    """(I - h df/dm)^{-1} r, by one dense system for every vector of what a layer couples."""
    point = vectors.take(m)
    n = point.shape[-1]
    if n > _UNKNOWNS:
        raise HdnnError(
            f"Newton's method would solve dense systems of {n} unknowns, a convolution couples all "
            f"pixels; use ImplicitMidpoint(solver='fixed-point'), or at most {_UNKNOWNS}"
        )
    pull = torch.func.vjp(lambda v: vectors.take(f(vectors.back(v))), point)[1]
    basis = torch.eye(n, dtype=m.dtype, device=m.device)
    rows = torch.func.vmap(lambda e: pull(e.expand_as(point))[0])(basis)
    jacobian = rows.movedim(0, -2)
    if isinstance(h, Tensor) and h.ndim:  # with the axes of a state
        h = vectors.take(h).unsqueeze(-1)
    system = torch.eye(n, dtype=m.dtype, device=m.device) - h * jacobian
    return vectors.back(torch.linalg.solve(system, vectors.take(r).unsqueeze(-1)).squeeze(-1))


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "ForwardEuler": ForwardEuler,
    "SemiImplicitEuler": SemiImplicitEuler,
    "Verlet": Verlet,
    "Leapfrog": Leapfrog,
    "Yoshida4": Yoshida4,
    "RK4": RK4,
    "ImplicitMidpoint": ImplicitMidpoint,
    "DiscreteGradient": DiscreteGradient,
}
"""The named schemes; every test of a declared property walks this catalog."""


def named_scheme(name: str | Scheme) -> Scheme:
    """The scheme of a name, whatever its case.

    Args:
        name: of `SCHEMES`, or a scheme, which is returned as it is.

    Returns:
        The scheme.

    Raises:
        HdnnError: no scheme has that name.

    >>> named_scheme("leapfrog").name
    'Leapfrog'
    """
    if isinstance(name, Scheme):
        return name
    return named("scheme", name, SCHEMES)()
