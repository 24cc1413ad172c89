"""Norms along depth: the one record of them, whoever measures, and norms of given Jacobians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hdnn import notebooks
from hdnn.errors import HdnnError
from hdnn.kernels import native
from hdnn.threads import one_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 17
"""Rows that a printed record has at most."""
COLUMNS = ("mean", "minimum", "maximum", "of mean", "energy")
"""What a printed record shows of each layer."""
SMALL = 24
"""Up to which width the kernel for small matrices is faster than LAPACK: for n = 4 ten times."""


@dataclass(frozen=True, eq=False, repr=False)
class Norms:
    """How strongly the output of a network reacts to a change at each layer.

        M_l = d y_N / d y_l,      norm = its largest singular value, sample by sample

    Every measurement gives this record: `norms` of Jacobians, `profile` of a network, `watch` of
    any torch model, and the recorder of a training. All tensors are float64, with one entry for
    each layer: ``(D,)``, for an ensemble of networks ``(E, D)``.

    Args:
        layers: l, from 0 (input) to N (output); or the names of the watched modules.
        samples: how many were measured.
        mean, minimum, maximum: over the samples, of the norm of each sample's own Jacobian.
        smallest: the smallest singular value of any sample; NaN where it was not measured.
        of_mean: the norm of the *mean* Jacobian of the batch, which the paper's own code plots; it
            can be far below the norm of every sample, where their Jacobians cancel.
        energy: mean over the samples of the energy H of layer l at y_l, at l = N with the weights
            of the last layer; None where there is no energy.
        exact: False where the norms are estimates from below, by power iteration.

    >>> import hdnn, torch
    >>> turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> M = torch.stack([torch.stack([3 * turn, turn]), torch.stack([turn, turn])])
    >>> hdnn.analysis.norms(M)
    reaction of the output to a change at each layer, 2 samples
    layer        mean    minimum    maximum   of mean
    0               2          1          3         2
    1               1          1          1         1
    """

    layers: tuple[int | str, ...]
    samples: int
    mean: Tensor
    minimum: Tensor
    maximum: Tensor
    smallest: Tensor
    of_mean: Tensor
    energy: Tensor | None = None
    exact: bool = True

    @classmethod
    def of_samples(
        cls,
        layers: Sequence[int | str],
        largest: Tensor,
        smallest: Tensor,
        of_mean: Tensor,
        **rest: Any,
    ) -> Norms:
        """The record of singular values, sample by sample.

        Args:
            layers: of the record.
            largest, smallest: ``([E,] D, samples)``.
            of_mean: ``([E,] D)``.
            **rest: ``energy`` and ``exact`` of the record.

        Returns:
            The record.
        """
        summary = largest.mean(-1), largest.amin(-1), largest.amax(-1), smallest.amin(-1)
        return cls(tuple(layers), largest.shape[-1], *summary, of_mean, **rest)

    @property
    def depths(self) -> list[int]:
        """l of every entry, for axes of figures; of named modules their place."""
        return [k if isinstance(l, str) else l for k, l in enumerate(self.layers)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the inverse of `from_dict`.

        Returns:
            Numbers, strings and lists only.
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["layers"] = list(self.layers)
        return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in plain.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Norms:
        """The record of plain values; None stands for a number that is not finite.

        Args:
            values: as `to_dict` gives them.

        Returns:
            The record.
        """
        plain = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for name, value in plain.items():
            if isinstance(value, list) and name != "layers":
                # numpy reads None as NaN, in lists of lists too
                plain[name] = torch.from_numpy(np.array(value, dtype=np.float64))
        return cls(**{**plain, "layers": tuple(plain["layers"])})

    def metrics(self) -> dict[str, float]:
        """Numbers by name, for loggers; all layers but the last, whose norm is 1.

        Returns:
            "gradient_norm/<layer>" (the mean), "gradient_norm_min/<layer>", "..._max/<layer>".
        """
        columns = {"": self.mean, "_min": self.minimum, "_max": self.maximum}
        return {
            f"gradient_norm{suffix}/{layer}": float(column[place])
            for suffix, column in columns.items()
            for place, layer in enumerate(self.layers[:-1])
        }

    def plot(self, axis: Axes | None = None, label: str = "", color: str | None = None) -> Axes:
        """Draw the mean along depth, and the range of the samples as a band.

        Args:
            axis: where to draw; None: a new one, of pyplot.
            label: text next to the curve.
            color: of the curve; None is blue.

        Returns:
            The axis; of an ensemble with its first network.

        Raises:
            MissingPackageError: there is no matplotlib.

        >>> import hdnn, torch
        >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
        >>> axis = hdnn.analysis.profile(net, torch.randn(10, 4)).plot(label="H1")
        >>> axis.get_yscale(), axis.texts[0].get_text()
        ('log', 'H1')
        """
        plots = notebooks.plots()
        first = self if self.mean.ndim == 1 else self._first()
        axis = plots.given_or_new(axis)
        drawn: Axes = plots.norms_by_depth(axis, first, label, color or plots.LIGHT.color(0))
        drawn.set_ylabel("norm of $dy_N/dy_\\ell$")
        return drawn

    def _first(self) -> Norms:
        """Of the first network of an ensemble."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        first: dict[str, Any] = {k: v[0] for k, v in plain.items() if isinstance(v, Tensor)}
        return Norms(**{**plain, **first})

    def _table(self) -> tuple[str, list[tuple[str, ...]]]:
        """What people see: a title, and rows of texts, of which the first is the header."""
        columns = {name: getattr(self, name.replace(" ", "_")) for name in COLUMNS}
        columns = {name: column for name, column in columns.items() if column is not None}
        table = [("layer", *columns)]
        for k in spaced_depths(len(self.layers) - 1, SHOWN):
            numbers = [column.reshape(-1, len(self.layers))[0, k] for column in columns.values()]
            table.append((str(self.layers[k]), *(f"{float(x):.4g}" for x in numbers)))
        networks = "" if self.mean.ndim == 1 else f", first of {len(self.mean)} networks"
        title = f"reaction of the output to a change at each layer, {self.samples} samples"
        return title + networks + ("" if self.exact else ", estimated"), table

    def _repr_html_(self) -> str:
        title, (header, *rows) = self._table()
        return notebooks.table(title, header, rows)

    def __repr__(self) -> str:
        title, table = self._table()
        width = max(len(row[0]) for row in table)
        lines = [f"{row[0]:{width}}" + "".join(f"{c:>11}" for c in row[1:]) for row in table]
        return "\n".join([title, *lines])


def norms(M: Tensor) -> Norms:
    """Norms of Jacobians, sample by sample, and of their mean over the batch.

    Args:
        M: ``(layers, ..., n, n)``, such as `sensitivities` gives; the axes between are samples.

    Returns:
        One entry for every layer.

    Raises:
        HdnnError: M is not a stack of square matrices, or has no samples.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0, dtype=torch.float64)
    >>> N = norms(hdnn.analysis.sensitivities(net, torch.randn(20, 4, dtype=torch.float64)))
    >>> N.minimum.shape, bool((N.minimum > 1 - 1e-12).all())
    (torch.Size([9]), True)
    """
    if M.ndim < 2 or M.shape[-1] != M.shape[-2]:
        raise HdnnError(f"norms takes Jacobians (layers, ..., n, n), got {tuple(M.shape)}")
    M = M.unsqueeze(0) if M.ndim == 2 else M
    M = M.reshape(len(M), -1, *M.shape[-2:])
    if not M.shape[1]:
        raise HdnnError("norms needs at least one sample")
    return Norms.of_samples(range(len(M)), *extreme_singular_values(M), norm_of_mean(M))


@one_thread()
def singular_values(M: Tensor) -> Tensor:
    """``(..., n)``, descending, in float64; NaN where a matrix is not finite."""
    wide = M.detach().to(torch.float64).cpu()
    finite = torch.isfinite(wide).all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], wide, 0.0))
    return torch.where(finite[..., None], values, torch.nan)


def extreme_singular_values(M: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and smallest singular values of matrices ``(..., m, n)``: two tensors ``(...)``."""
    if M.shape[-2] == M.shape[-1] <= SMALL and native.obstacle() is None:
        largest, smallest = native.singular_values(M.detach().double().cpu().numpy())
        return torch.from_numpy(largest), torch.from_numpy(smallest)
    values = singular_values(M)
    return values[..., 0], values[..., -1]


def spectral_norm(M: Tensor) -> Tensor:
    """The largest singular values of matrices ``(..., m, n)``: ``(...)``."""
    return extreme_singular_values(M)[0]


@one_thread()
def unit_eigenvalues(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``(..., n)`` of A / ||A||, and the norms ``(...)``."""
    size = torch.linalg.matrix_norm(A, 2)
    unit = A / torch.where(size > 0, size, 1.0)[..., None, None]
    # LAPACK can fail on entries near underflow.
    unit = torch.where(unit.abs() > torch.finfo(A.dtype).eps ** 4, unit, 0.0)
    return torch.linalg.eigvals(unit), size


@one_thread()
def norm_of_mean(M: Tensor) -> Tensor:
    """The norm of the mean of ``(..., samples, m, n)`` over the samples: ``(...)``."""
    return spectral_norm(M.to(torch.float64).mean(-3))


def spaced_depths(layers: int, count: int) -> list[int]:
    """At most so many depths from 0 to ``layers``, evenly spaced, with both ends.

    >>> spaced_depths(64, 5), spaced_depths(3, 17)
    ([0, 16, 32, 48, 64], [0, 1, 2, 3])
    """
    count = min(layers + 1, max(2, count))
    return [round(k * layers / (count - 1)) for k in range(count)] if count > 1 else [0]
