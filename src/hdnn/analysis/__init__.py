"""Looking at gradients: sensitivities, their norms, and the theory as checks."""

from hdnn.analysis.growth import Norms, norms, product_bound
from hdnn.analysis.sensitivity import forward_sensitivities, layer_factors, sensitivities

__all__ = [
    "Norms",
    "forward_sensitivities",
    "layer_factors",
    "norms",
    "product_bound",
    "sensitivities",
]
