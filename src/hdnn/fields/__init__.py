"""What the dynamics are: J (`interconnection`), K, b (`weights`), H (`field`, `hamiltonian`)."""

from hdnn.fields.activations import ACTIVATIONS, Activation, analytic_mean
from hdnn.fields.field import EnergyField, Field
from hdnn.fields.hamiltonian import ActivationField, HamiltonianField, LayerField
from hdnn.fields.interconnection import (
    MATRICES,
    Fixed,
    Interconnection,
    Learned,
    canonical,
    signs,
)
from hdnn.fields.layout import Layout
from hdnn.fields.maps import BlockDiagonal, Convolution, LinearMap, Matrix
from hdnn.fields.patterns import STRUCTURES, Pattern
from hdnn.fields.weights import Weights

__all__ = [
    "ACTIVATIONS",
    "MATRICES",
    "STRUCTURES",
    "Activation",
    "ActivationField",
    "BlockDiagonal",
    "Convolution",
    "EnergyField",
    "Field",
    "Fixed",
    "HamiltonianField",
    "Interconnection",
    "LayerField",
    "Layout",
    "Learned",
    "LinearMap",
    "Matrix",
    "Pattern",
    "Weights",
    "analytic_mean",
    "canonical",
    "signs",
]
