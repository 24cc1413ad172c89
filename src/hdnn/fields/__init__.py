"""What the dynamics are: J (`interconnection`), K, b (`weights`), H (`hamiltonian`, `energy`)."""

from hdnn.fields.activations import ACTIVATIONS, Activation
from hdnn.fields.energy import EnergyField
from hdnn.fields.field import Field, HiddenLayer
from hdnn.fields.hamiltonian import ActivationField, HamiltonianField, LayerField
from hdnn.fields.interconnection import (
    MATRICES,
    Fixed,
    Interconnection,
    InverseTranspose,
    Learned,
    StateDependent,
    canonical,
    signs,
)
from hdnn.fields.layout import Channels, Convolution, Features, Layout
from hdnn.fields.patterns import STRUCTURES, Pattern
from hdnn.fields.weights import INITIALIZERS, Block, Stack, Weights

__all__ = [
    "ACTIVATIONS",
    "INITIALIZERS",
    "MATRICES",
    "STRUCTURES",
    "Activation",
    "ActivationField",
    "Block",
    "Channels",
    "Convolution",
    "EnergyField",
    "Features",
    "Field",
    "Fixed",
    "HamiltonianField",
    "HiddenLayer",
    "Interconnection",
    "InverseTranspose",
    "LayerField",
    "Layout",
    "Learned",
    "Pattern",
    "Stack",
    "StateDependent",
    "Weights",
    "canonical",
    "signs",
]
