"""Sensitivities: how the output of a network depends on the state of every layer.

The paper writes Jacobians transposed (column convention); here M_l = d y_N / d y_l is the usual
Jacobian, M[i, k] = d y_N[i] / d y_l[k].
"""

from __future__ import annotations

from torch import Tensor

from hdnn.backends import choose, reference
from hdnn.errors import HdnnError
from hdnn.network import HamiltonianNetwork


def sensitivities(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_N / d y_l for every layer l and every sample, in one backward sweep.

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers + 1, ..., n, n)``; for channels ``(layers + 1, B, *spatial, n, n)``. The last is
        the identity.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> sensitivities(net, torch.zeros(5, 4)).shape
    torch.Size([9, 5, 4, 4])
    """
    net.check_state(y)
    if net.kernel > 1:
        raise HdnnError(
            f"d y_N / d y_l of a convolution (kernel={net.kernel}) couples all pixels and is too "
            "large to write out; hdnn.analysis.watch follows the norms of gradients instead"
        )
    program = net.program()
    if choose(program, y, net.backend).backend == "fused":
        from hdnn.backends import fused  # loads numba

        found = fused.sensitivities(program, y)
    else:
        found = reference.sensitivities(program, y)
    layout = net.field.layout
    lead = () if layout.ensemble is None else (layout.ensemble,)
    rest = y.shape[len(lead) :]
    samples = rest[:1] + rest[2:] if layout.channels else rest[:-1]
    return found.reshape(found.shape[0], *lead, *samples, layout.width, layout.width)
