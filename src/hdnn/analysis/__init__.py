"""Looking at gradients: sensitivities of the output to the state of every layer."""

from hdnn.analysis.sensitivity import sensitivities

__all__ = ["sensitivities"]
