"""How large Jacobians are: norms over samples, and the product bound of section 2.2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Stage

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that `norms` gives."""


@dataclass(frozen=True)
class Norms:
    """Spectral norms of a stack of Jacobians, one entry for every layer, in float64.

    Args:
        mean, minimum, maximum: over the samples, of the norm of every sample's own Jacobian.
        quantiles: ``(5, layers)``, the same at `levels`.
        smallest: the smallest singular value of any sample.
        of_mean: the norm of the *mean* Jacobian of the batch, which the paper's own code plots; it
            can be far below the norm of every sample, where their Jacobians cancel.
        levels: of the quantiles.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> norms = hdnn.analysis.norms(hdnn.analysis.sensitivities(net, torch.randn(8, 4)))
    >>> norms.mean.shape, norms.quantiles.shape
    (torch.Size([7]), torch.Size([5, 7]))
    """

    mean: Tensor
    minimum: Tensor
    maximum: Tensor
    quantiles: Tensor
    smallest: Tensor
    of_mean: Tensor
    levels: tuple[float, ...] = LEVELS


def singular_values(M: Tensor) -> Tensor:
    """``(..., n)``, descending, in float64; NaN where a matrix is not finite."""
    wide = M.detach().to(torch.float64)
    finite = torch.isfinite(wide).all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], wide, 0.0))
    return torch.where(finite[..., None], values, torch.nan)


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
    rows = M.unsqueeze(0) if M.ndim == 2 else M
    rows = rows.reshape(len(rows), -1, *M.shape[-2:])
    if not rows.shape[1]:
        raise HdnnError("norms needs at least one sample")
    values = singular_values(rows)
    largest = values[..., 0]
    levels = torch.tensor(LEVELS, dtype=torch.float64, device=M.device)
    return Norms(
        largest.mean(1),
        largest.amin(1),
        largest.amax(1),
        largest.quantile(levels, dim=1),
        values[..., -1].amin(1),
        singular_values(rows.to(torch.float64).mean(1))[..., 0],
    )


@torch.no_grad()
def product_bound(net: HamiltonianNetwork) -> Tensor:
    """An upper bound on the norm of d y_N / d y_l for every l, from the weights alone.

        ||d y_N / d y_l|| <= product over layers j >= l and stages of c + ||A|| ||W|| sup |sigma'|

    with c = 1 in residual stages and c = 0 where a stage replaces the state (FCNN). How tight it
    is: ``norms(sensitivities(net, y)).maximum / product_bound(net)``, at most 1.

    Returns:
        ``(layers + 1,)``, for an ensemble ``(layers + 1, E)``, in float64; the last is 1.

    Args:
        net: a network whose layers are stages.

    Raises:
        HdnnError: the layers are no stages, or K is a convolution.

    >>> import hdnn
    >>> product_bound(hdnn.network("H1", features=4, layers=8, T=1.0)).shape
    torch.Size([9])
    """
    program = net.program()
    if program.stages is None:
        raise HdnnError(
            f"the product bound needs layers that are stages; with {net.scheme} they are not; "
            "use ForwardEuler() or a splitting scheme"
        )
    if net.kernel > 1:
        raise HdnnError(
            f"the product bound needs weights that are matrices, but K is a convolution "
            f"(kernel={net.kernel})"
        )
    lead = () if net.ensemble is None else (net.ensemble,)
    factor = torch.ones(*lead, net.layers, dtype=torch.float64)
    for stage in program.stages:
        everything = stage.write == (0, net.field.layout.width)
        factor = factor * (float(stage.carry or not everything) + _lipschitz(stage, net))
    products = factor.movedim(-1, 0).flip(0).cumprod(0).flip(0)
    return torch.cat([products, torch.ones(1, *lead, dtype=torch.float64)])


def _lipschitz(stage: Stage, net: HamiltonianNetwork) -> Tensor:
    """``([E,] L)``: ||A|| ||W|| sup |sigma'|."""
    W = stage.W.tensor()
    A = torch.as_tensor(stage.gain(W, net.field.layout), dtype=torch.float64)
    size = torch.linalg.matrix_norm(A, 2) if A.ndim == W.ndim else A.abs()
    return stage.activation.slope * size * torch.linalg.matrix_norm(W.to(torch.float64), 2)
