"""The paper's networks by name: one row of a catalog each, plus the baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy.typing as npt
import torch
from torch import Tensor

from hdnn.errors import HdnnError, named
from hdnn.fields import (
    Activation,
    ActivationField,
    Field,
    Fixed,
    HamiltonianField,
    Interconnection,
    Layout,
    Learned,
    Pattern,
    Weights,
    canonical,
)
from hdnn.fields.weights import Generators
from hdnn.networks import HamiltonianNetwork, StepSize
from hdnn.schemes import DirectMap, ForwardEuler, Scheme, SemiImplicitEuler, Verlet, named_scheme


@dataclass(frozen=True)
class Architecture:
    """A composition of structure, J and scheme under a name.

    Args:
        name: the name that `network` takes, as the paper writes it.
        equation: its layer equation, shown to people.
        structure: the structure of K: a name of `hdnn.fields.STRUCTURES`, or a function of the
            width that gives a `Pattern`.
        J: of y' = J K' sigma(K y + b): "J1" or "J2", or a function of the width that gives a skew
            matrix; None for y' = P sigma(K y + b), which has a J where P K is skew (MS1, MS2).
        scheme: the scheme that it has unless another is asked for.
        turn: whether P is J1, not the identity; see `hdnn.fields.ActivationField`.

    >>> from hdnn.zoo import ARCHITECTURES
    >>> for name in ("H1", "MS3"):
    ...     print(ARCHITECTURES[name].equation)
    y += h J1 K' tanh(K y + b)
    y += h K1' tanh(K1 z + b1);  z -= h K2' tanh(K2 y + b2)
    """

    name: str
    equation: str
    structure: str | Callable[[int], Pattern] = "dense"
    J: str | Callable[[int], Tensor] | None = None
    scheme: Scheme = field(default_factory=ForwardEuler)
    turn: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture(
            "MS1",
            "z -= h tanh(K0' y + b1);  y += h tanh(K0 z + b2)",
            "block-adjoint",
            scheme=Verlet("z"),
            turn=True,
        ),
        Architecture("MS2", "y += h tanh(K y + b),  K skew", "skew"),
        Architecture(
            "MS3",
            "y += h K1' tanh(K1 z + b1);  z -= h K2' tanh(K2 y + b2)",
            "off-diagonal",
            "J1",
            Verlet("y"),
        ),
        Architecture("H1", "y += h J1 K' tanh(K y + b)", "dense", "J1"),
        Architecture("H2", "y += h J2 K' tanh(K y + b)", "dense", "J2"),
        Architecture(
            "HS",
            "y += h X K2' tanh(K2 z + b2);  z -= h X' K1' tanh(K1 y + b1)",
            "block-diagonal",
            "J1",
            SemiImplicitEuler("y"),
        ),
        Architecture("FCNN", "y = tanh(K y + b)", scheme=DirectMap()),
        Architecture("ResNet", "y += h tanh(K y + b)"),
    )
}
"""The catalog, by name; add to it with `register`."""


def register(architecture: Architecture) -> Architecture:
    """Add an architecture to the catalog, for `hdnn.network` and every tool that walks it.

    Args:
        architecture: the new row; one of the same name is replaced.

    Returns:
        The same architecture.

    >>> import hdnn
    >>> from hdnn.zoo import ARCHITECTURES, Architecture, register
    >>> _ = register(Architecture("Mine", "y += h J2 K' tanh(K y + b)", "skew", J="J2"))
    >>> hdnn.network("Mine", features=4, layers=3, T=1.0).parameters_per_layer
    10
    >>> _ = ARCHITECTURES.pop("Mine")
    """
    ARCHITECTURES[architecture.name] = architecture
    return architecture


def architecture(name: str | Architecture) -> Architecture:
    """The architecture of a name, whatever its case.

    Args:
        name: of the catalog, or an architecture, which is returned as it is.

    Returns:
        The row of the catalog.

    Raises:
        HdnnError: no architecture has that name.

    >>> architecture("h1").equation
    "y += h J1 K' tanh(K y + b)"
    """
    if isinstance(name, Architecture):
        return name
    return named("architecture", name, ARCHITECTURES)


def network(
    name: str | Architecture,
    *,
    features: int | None = None,
    channels: int | None = None,
    kernel: int = 1,
    units: int | None = None,
    signs: Tensor | npt.ArrayLike | None = None,
    layers: int,
    T: float | None = None,
    step: StepSize | None = None,
    learn_steps: bool = False,
    scheme: str | Scheme | None = None,
    activation: str | Activation = "tanh",
    X: Tensor | str | None = None,
    time_invariant: bool = False,
    inputs: int = 0,
    ensemble: int | None = None,
    backend: str = "auto",
    memory: str = "fast",
    generator: Generators = None,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> HamiltonianNetwork:
    """A network of the catalog by its name, with random parameters.

    One layer of each, with the step h = T / layers and sigma = tanh:

        H1      y += h J1 K' sigma(K y + b),  J1 = [0 I; -I 0]
        H2      y += h J2 K' sigma(K y + b),  J2 = +1 above the diagonal, -1 below
        MS1     z -= h sigma(K0' y + b1);  y += h sigma(K0 z + b2)
        MS2     y += h sigma(K y + b),  K skew-symmetric
        MS3     y += h K1' sigma(K1 z + b1);  z -= h K2' sigma(K2 y + b2)
        HS      y += h X K2' sigma(K2 z + b2);  z -= h X' K1' sigma(K1 y + b1)
        ResNet  y += h sigma(K y + b)
        FCNN    y = sigma(K y + b)

    Where y and z both occur, they are the first and the second half of the state.

    Args:
        name: which one, in upper or lower case, or an `hdnn.zoo.Architecture`.
        features: the width n of states ``(..., n)``, with any batch shape.
        channels: instead of features, the width n of states ``(B, n, *spatial)``: every pixel is
            a state.
        kernel: k, odd: with channels, K_j is a convolution with a kernel of k x k pixels and K_j'
            its adjoint. 1: a matrix over the channels, the same at every pixel.
        units: for H1, H2, MS3 and HS, the number m of hidden units, so that K_j is ``(m, n)``; of
            MS3 and HS, half of them read y and half z. None is n.
        signs: for the same networks, +1 or -1 for every hidden unit ``(m,)``: with them the energy
            H = s' E(K y + b) need not be convex (pendulums, double wells).
        layers: the number of layers L.
        T: the final time; every layer has the step h = T / L. Larger T moves the states further.
        step: the step h, instead of T: a number, or a sequence with one for every layer. FCNN has
            neither T nor step.
        learn_steps: make the steps parameters, which stay positive.
        scheme: a time-stepping scheme of `hdnn.schemes`, or its name such as "leapfrog", in place
            of the architecture's own.
        activation: sigma: a name of `hdnn.fields.ACTIVATIONS`, or an activation of your own.
        X: for HS, whose J is [0 X; -X' 0]: a matrix ``(n/2, n/2)``, "learned", or None (identity).
        time_invariant: all layers share one K and b, so that the flow conserves the energy.
        inputs: d: with time-invariant weights, a recurrent cell. ``net(y, u)`` gives the states at
            all times, driven by inputs u ``(batch, time, d)`` through the biases, b + B u.
        ensemble: E networks of the same form, computed at once on states ``(E, ..., n)``.
        backend: "auto" (compiled kernels where they are faster), "reference" (plain PyTorch) or
            "fused" (compiled kernels, or an error that says why not).
        memory: "fast", or "lean", which computes states again in the backward pass, so that memory
            hardly grows with depth.
        generator: of the random initial parameters; None: torch's default generator.
        scale: standard deviation of the initial K and b. The paper has 1, which saturates wide
            networks; there use 1 / sqrt(n). (A convolution's are 1 / sqrt(n k^2) times as large.)
        dtype: of the parameters; None: torch's default dtype.
        device: of the parameters; None: torch's default device.

    Returns:
        The network, a `torch.nn.Module` that maps states to states of the same shape.

    Raises:
        HdnnError: an unknown name, a width that the structure cannot have, or not exactly one of T
            and step.

    >>> net = network("H1", features=4, layers=64, T=1.2)
    >>> net.K.shape, net.h, net.parameters_per_layer
    (torch.Size([64, 4, 4]), 0.01875, 20)
    >>> draw = torch.Generator().manual_seed(0)
    >>> network("MS3", features=2, layers=4, T=1.0, generator=draw)(torch.tensor([1.0, 2.0]))
    tensor([2.1483, 1.2925], grad_fn=...)
    >>> images = network("H1", channels=8, kernel=3, layers=4, T=0.5)
    >>> images.K.shape, images(torch.zeros(2, 8, 14, 14)).shape
    (torch.Size([4, 8, 8, 3, 3]), torch.Size([2, 8, 14, 14]))
    >>> network("H1", features=2, units=16, signs=[1, -1] * 8, layers=4, T=1.0).K.shape
    torch.Size([4, 16, 2])
    """
    row = architecture(name)
    weights = Weights(
        row.structure,
        features=features,
        channels=channels,
        kernel=kernel,
        units=units,
        layers=layers,
        time_invariant=time_invariant,
        inputs=inputs,
        ensemble=ensemble,
        generator=generator,
        scale=scale,
        dtype=dtype,
        device=device,
    )
    dynamics: Field
    if row.J is None and X is None:
        if signs is not None:
            raise HdnnError(
                f"signs belong to an energy H = s' E(K y + b), as H1, H2, MS3 and HS have it; "
                f"leave them out of {row.name}"
            )
        dynamics = ActivationField(weights, activation=activation, turn=row.turn)
    else:
        J = _interconnection(row, weights.layout, X)
        dynamics = HamiltonianField(J, weights, activation=activation, signs=signs)
    return HamiltonianNetwork(
        dynamics,
        row.scheme if scheme is None else named_scheme(scheme),
        layers=layers,
        T=T,
        step=step,
        learn_steps=learn_steps,
        backend=backend,
        memory=memory,
        name=row.name,
    )


def _interconnection(
    row: Architecture, layout: Layout, X: Tensor | str | None
) -> str | Interconnection:
    """The J of an architecture; of HS with an X it is [0 X; -X' 0]."""
    if X is not None and row.name != "HS":
        raise HdnnError(f"X is the interconnection of HS; {row.name} has none, leave it out")
    if isinstance(X, str):
        if X != "learned":
            raise HdnnError(f"X is a matrix or 'learned', got {X!r}")
        return Learned(layout.width, "off-diagonal-skew", ensemble=layout.ensemble)
    if X is not None:
        return Fixed(canonical(layout.width, X), name="X")
    if callable(row.J):
        return Fixed(row.J(layout.width), name=row.name)
    assert row.J is not None
    return row.J
