"""A network as one ONNX `Scan` over its layers, so that a file's graph does not grow with depth.

The state is cut where stages read and write, and its pieces are the variables of the loop; arrays
that differ from layer to layer are what it scans, those that all layers share stay outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import pairwise

import torch
from onnx import helper
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields import Activation, Convolution, Matrix
from hdnn.models.onnx.graph import Graph
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Program, Stage
from hdnn.schemes import RK4, ForwardEuler, ImplicitMidpoint, Scheme

ACTIVATIONS = {
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "identity": "Identity",
    "arctan": "Atan",
    "softsign": "Softsign",
    "sin": "Sin",
    "erf": "Erf",
}
"""The operators of the activations in the catalogue; a new one is one more line."""

LayerBody = Callable[["Layers", list[str]], list[str]]
"""What a layer does: from the pieces of the state to the pieces of the next one."""


@dataclass(frozen=True)
class Arrays:
    """The names of a stage's arrays in the body of the loop; A is a matrix or a factor."""

    W: str
    b: str
    A: str | None
    dense: bool


class Layers:
    """The body of the loop, with the arrays that a layer needs.

    Args:
        outer: the graph that the loop is in.
        net: the network.
        h: the step that stages take, a number or ``([E,] L)``.
        cuts: the places where the state is cut, from 0 to its width.
    """

    def __init__(
        self, outer: Graph, net: HamiltonianNetwork, h: float | Tensor, cuts: list[int]
    ) -> None:
        self.graph, self.outer = Graph(outer.dtype, outer), outer
        self.layout, self.kernel, self.cuts = net.field.layout, net.kernel, cuts
        self.values = net.values()._replace(h=h)
        self.lead = len(self.layout.lead)
        self.scanned: list[tuple[str, str]] = []
        self._stages: dict[tuple[int, float], Arrays] = {}

    def array(self, stack: Tensor, hint: str) -> str:
        """The name of a layer's entry of a stack ``([E,] L or 1, ...)``."""
        if stack.shape[self.lead] == 1:
            return self.outer.constant(stack.squeeze(self.lead), hint)
        return self.scan(stack, hint)

    def scan(self, stack: Tensor, hint: str) -> str:
        """The name of a layer's entry of a stack ``([E,] L, ...)``."""
        inside = self.graph.name(hint)
        self.scanned.append((inside, self.outer.constant(stack, f"{hint}_stack")))
        return inside

    def step(self, h: float | Tensor) -> str:
        """The name of a step size, or of another factor ``([E,] L)``, of a layer."""
        if not isinstance(h, Tensor):
            return self.outer.constant(h, "h")
        tail = () if self.layout.ensemble is None else (1,) * (3 if self.layout.channels else 2)
        return self.array(h.reshape(*h.shape, *tail), "h")

    def arrays(self, stage: Stage) -> Arrays:
        """W, b and A of a stage; what stages have in common is stored once."""
        key = id(stage.W), stage.factor
        if key not in self._stages:
            self._stages[key] = self._arrays(stage)
        return self._stages[key]

    def _arrays(self, stage: Stage) -> Arrays:
        if not isinstance(stage.W, Matrix | Convolution):
            raise HdnnError(
                f"{type(stage.W).__name__} is a map of your own, which ONNX has no operator for; "
                "export networks whose K is a matrix or a convolution"
            )
        theta, beta, S, h = self.values.theta, self.values.beta, self.values.S, self.values.h
        assert theta is not None
        assert beta is not None
        W, b, step = stage.W.assemble(theta), stage.b.assemble(beta), stage.factor * h
        if stage.adjoint:
            assert S is not None
            A = stage.W.mixed(S[..., slice(*stage.write), slice(*stage.read)], W)
            if isinstance(step, Tensor):
                step = step[(..., *(None,) * (A.ndim - step.ndim))]
            gain: str | None = self.array(self._matrix(A * step), "A")
        else:
            gain = None if isinstance(step, float) and step == 1.0 else self.step(step)
        dense = stage.adjoint
        bias = b if self._fused else b.reshape(*b.shape[:-1], *self._column(b.shape[-1]))
        return Arrays(self.array(self._matrix(W), "W"), self.array(bias, "b"), gain, dense)

    @property
    def _fused(self) -> bool:
        """Whether one operator (Gemm, Conv) computes W x + b."""
        return self.kernel > 1 or (not self.layout.channels and self.lead == 0)

    def _column(self, size: int) -> tuple[int, ...]:
        """The shape in which a bias is added to a state; an ensemble's batch is the axis before."""
        shape = (size, 1) if self.layout.channels else (size,)
        return (*(1,) * self.lead, *shape)

    def _matrix(self, W: Tensor) -> Tensor:
        """A stack of matrices as the operator takes them."""
        if self.kernel > 1:
            return W
        if self.layout.channels:
            return W if self.lead == 0 else W.unsqueeze(-3)
        return W if self.lead == 0 else W.mT

    def linear(self, W: str, x: str, b: str | None = None) -> str:
        """W x, or W x + b."""
        add, bias = self.graph.add, () if b is None else (b,)
        if self.kernel > 1:
            return add("Conv", x, W, *bias, auto_pad="SAME_UPPER")
        if self._fused:
            return add("Gemm", x, W, *bias, transB=1)
        product = add("MatMul", W, x) if self.layout.channels else add("MatMul", x, W)
        return product if b is None else add("Add", product, b)

    def change(self, stage: Stage, arrays: Arrays, x: str) -> str:
        """A sigma(W x + b)."""
        s = self.graph.add(operator(stage.activation), self.linear(arrays.W, x, arrays.b))
        if arrays.A is None:
            return s
        return self.linear(arrays.A, s) if arrays.dense else self.graph.add("Mul", s, arrays.A)

    def read(self, pieces: list[str], span: tuple[int, int]) -> str:
        """A range of the width, of which the cuts are known."""
        return self.graph.join([pieces[k] for k in self.places(span)], self.axis)

    def places(self, span: tuple[int, int]) -> list[int]:
        """The pieces that make up a range of the width."""
        return [k for k, start in enumerate(self.cuts[:-1]) if span[0] <= start < span[1]]

    @property
    def axis(self) -> int:
        """The axis of the width in the canonical form."""
        return self.layout.axis


def operator(activation: Activation) -> str:
    """The ONNX operator of an activation."""
    if activation.name not in ACTIVATIONS:
        raise HdnnError(
            f"the activation {activation.name!r} is a function of yours and has no ONNX operator; "
            f"exported are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[activation.name]


# --- what a layer does, by scheme -----------------------------------------------------------------


@singledispatch
def program_of(scheme: Scheme, net: HamiltonianNetwork) -> Program:
    """The stages that a layer's body is made of.

    Raises:
        HdnnError: the layer is a torch function, and not of a form that ONNX can hold.
    """
    return _staged(net.program, net)


def _staged(program: Program, net: HamiltonianNetwork) -> Program:
    """The program itself, which must have stages only."""
    if program.has_flows:
        raise HdnnError(
            f"{net.scheme} of this {type(net.field).__name__} is a torch function of yours "
            "(J(y, t), an energy or a scheme), which ONNX has no form of; export networks with "
            "weights K, b and a J that does not depend on the state"
        )
    return program


@program_of.register
def _(scheme: ImplicitMidpoint, net: HamiltonianNetwork) -> Program:
    raise HdnnError(
        "ImplicitMidpoint() solves an equation in every layer, with as many iterations as it "
        "takes, which ONNX has no operator for; use an explicit scheme, such as RK4()"
    )


@program_of.register
def _(scheme: RK4, net: HamiltonianNetwork) -> Program:
    """The velocity as one stage with step 1; `_runge_kutta` calls it four times."""
    return _staged(replace(net.program, steps=ForwardEuler().lower(net.field)), net)


@singledispatch
def layer_body(scheme: Scheme, net: HamiltonianNetwork, program: Program) -> LayerBody:
    """What a layer does with the pieces: its stages, one after the other."""

    def body(layers: Layers, pieces: list[str]) -> list[str]:
        pieces = list(pieces)
        for stage in program.stages:
            new = layers.change(stage, layers.arrays(stage), layers.read(pieces, stage.read))
            if stage.carry:
                new = layers.graph.add("Add", layers.read(pieces, stage.write), new)
            where = layers.places(stage.write)
            sizes = [layers.cuts[k + 1] - layers.cuts[k] for k in where]
            parts = layers.graph.split(new, sizes, layers.axis)
            for k, part in zip(where, parts, strict=True):
                pieces[k] = part
        return pieces

    return body


@layer_body.register
def _runge_kutta(scheme: RK4, net: HamiltonianNetwork, program: Program) -> LayerBody:
    (stage,) = program.stages

    def body(layers: Layers, pieces: list[str]) -> list[str]:
        (x,), add = pieces, layers.graph.add
        arrays, h = layers.arrays(stage), net.h
        half, whole, sixth = layers.step(h / 2), layers.step(h), layers.step(h / 6)
        k1 = layers.change(stage, arrays, x)
        k2 = layers.change(stage, arrays, add("Add", x, add("Mul", half, k1)))
        k3 = layers.change(stage, arrays, add("Add", x, add("Mul", half, k2)))
        k4 = layers.change(stage, arrays, add("Add", x, add("Mul", whole, k3)))
        middle = add("Add", k2, k3)
        slopes = add("Sum", k1, middle, middle, k4)
        return [add("Add", x, add("Mul", sixth, slopes))]

    return body


# --- the loop -------------------------------------------------------------------------------------


def add_network(graph: Graph, net: HamiltonianNetwork, x: str) -> str:
    """The nodes of a network; x is the name of a state ``([E,] B, n)`` or ``([E,] B, n, ...)``."""
    program, layout = program_of(net.scheme, net), net.field.layout
    if not net.layers:
        return x
    pixels = layout.channels and net.kernel == 1
    shape = graph.add("Shape", x) if pixels else ""
    if pixels:
        kept = (0,) * (2 if layout.ensemble is None else 3)
        x = graph.add("Reshape", x, graph.integers(*kept, -1))
    out = _scan(graph, net, program, x)
    return graph.add("Reshape", out, shape) if pixels else out


def _scan(graph: Graph, net: HamiltonianNetwork, program: Program, x: str) -> str:
    layout, stages = net.field.layout, program.stages
    cuts = sorted({0, layout.width, *(end for s in stages for end in (*s.read, *s.write))})
    step = 1.0 if isinstance(net.scheme, RK4) else net.h  # whose body multiplies by it itself
    layers = Layers(graph, net, step, cuts)
    sizes = [end - start for start, end in pairwise(cuts)]
    inside = [layers.graph.name("state") for _ in sizes]
    new = layer_body(net.scheme, net, program)(layers, inside)
    # A Scan needs an array to count its iterations by, and a variable must not leave as it entered.
    if not layers.scanned:
        layers.scan(torch.zeros(*(1,) * layers.lead, net.layers), "layer")
    new = [layers.graph.add("Identity", name) for name in new]
    inputs = [layers.graph.value(name, None) for name in (*inside, *(n for n, _ in layers.scanned))]
    body = layers.graph.finish("layer", inputs, [layers.graph.value(name, None) for name in new])
    outputs = [graph.name("piece") for _ in sizes]
    graph.nodes.append(
        helper.make_node(
            "Scan",
            [*graph.split(x, sizes, layout.axis), *(stack for _, stack in layers.scanned)],
            outputs,
            body=body,
            num_scan_inputs=len(layers.scanned),
            scan_input_axes=[layers.lead] * len(layers.scanned),
        )
    )
    return graph.join(outputs, layout.axis)
