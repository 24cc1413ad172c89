"""Depth as a dial: the same ODE with more layers or fewer, weights interpolated in time.

    K_j = K(t_j),    t_j = h_0 + ... + h_{j-1}

The weights of a network are samples of functions of time. A change of depth samples them anew, on
a grid with the same final time T: steps are split and joined, and every array with one entry for
each layer is multiplied by one matrix ``(new layers, old layers)``, the same for all of them.
"""

from hdnn.refinement.depth import coarsen, refine, set_depth
from hdnn.refinement.interpolation import INTERPOLATIONS
from hdnn.refinement.optimizers import optimizer_state

__all__ = ["INTERPOLATIONS", "coarsen", "optimizer_state", "refine", "set_depth"]
