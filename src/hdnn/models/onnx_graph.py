"""Networks, models of tables and state-space networks as ONNX graphs, written node by node.

    s = sigma(W x + b),   x = c x + A s          every stage of every layer

In a shallow network every layer has nodes of its own, which is what runtimes compute fastest; in a
deep one the layers are the iterations of a `Scan`, so that the graph does not grow. What is no
program of matrices is left to torch's exporter, which takes seconds; see `onnx_export`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from hdnn.fields.activations import ACTIVATIONS, Activation
from hdnn.models.model import Model
from hdnn.models.stems import TableStem
from hdnn.networks import HamiltonianNetwork
from hdnn.program import explicit
from hdnn.statespace import Layer, StateSpace

OPERATORS = {
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "identity": "Identity",
    "arctan": "Atan",
    "softsign": "Softsign",
    "sin": "Sin",
    "erf": "Erf",
}
"""Of the activations in the catalog."""
OPSET, IR_VERSION = 18, 8  # of 2022: any newer runtime reads them

Shape = tuple[int | str, ...]
Body = Callable[["Graph", str, list[str]], tuple[str, list[str]]]
"""Writes an iteration, of a state and slices of arrays: the next state, and what is stacked."""


class Graph:
    """A graph while it is written: nodes in the order of computation, and names of values.

    States are ``([E,] batch, n)``, and matrices ``([E,] in, out)``.

    Args:
        dtype: of states and matrices, a number of ONNX.
        ensemble: whether they have a first axis E.
        outer: the graph around the body of a loop, which holds the constants of both.
    """

    def __init__(self, dtype: int, ensemble: bool, outer: Graph | None = None) -> None:
        self.dtype, self.ensemble, self.nodes = dtype, ensemble, list[onnx.NodeProto]()
        self.constants: dict[str, onnx.TensorProto] = {} if outer is None else outer.constants
        self._names: list[str] = [] if outer is None else outer._names

    def name(self) -> str:
        """A name that no other value has."""
        self._names.append(f"hdnn/{len(self._names)}")
        return self._names[-1]

    def constant(self, numbers: Tensor) -> str:
        """A tensor that the file holds."""
        name = self.name()
        array = numbers.detach().contiguous().numpy()
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def nodes_of(self, operator: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """The results of an operator."""
        names = [self.name() for _ in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The one result of an operator."""
        return self.nodes_of(operator, *inputs, count=1, **attributes)[0]

    def affine(self, x: str, M: str, *added: str) -> str:
        """x M + added, a bias or a state."""
        if not self.ensemble:
            return self.node("Gemm", x, M, *added)
        product = self.node("MatMul", x, M)
        return self.node("Add", product, *added) if added else product

    def activate(self, sigma: Activation, x: str) -> str:
        """sigma(x)."""
        return self.node(OPERATORS[sigma.name], x)

    def scan(
        self, body: Body, state: str, arrays: Mapping[str, int], axis: int = 0, stacked: int = 0
    ) -> list[str]:
        """A loop over an axis of arrays.

        Args:
            body: writes an iteration.
            state: before the first.
            arrays: what it takes slices of, each with its dtype.
            axis: of the arrays, and of what is stacked.
            stacked: how many values of every iteration are stacked.

        Returns:
            The last state, and what was stacked.
        """
        inner = Graph(self.dtype, self.ensemble, self)
        given = [inner.name() for _ in range(1 + len(arrays))]
        last, results = body(inner, given[0], given[1:])
        # A body does not give back what it was given.
        found = [inner.node("Identity", name) for name in (last, *results)]
        kinds = [self.dtype, *arrays.values()]
        enter = [_value(name, kind) for name, kind in zip(given, kinds, strict=True)]
        leave = [_value(name, self.dtype) for name in found]
        return self.nodes_of(
            "Scan",
            state,
            *arrays,
            count=1 + stacked,
            body=helper.make_graph(inner.nodes, "iteration", enter, leave),
            num_scan_inputs=len(arrays),
            scan_input_axes=[axis] * len(arrays),
            **({"scan_output_axes": [axis] * stacked} if stacked else {}),
        )


def _value(name: str, dtype: int, shape: Shape | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


# --- what there is a form for ---------------------------------------------------------------------


def has_form(thing: HamiltonianNetwork | Model) -> bool:
    """Whether `write` can write it. A state-space network always has a form.

    Args:
        thing: a network or a model.

    Returns:
        False for flows, convolutions, maps and activations of one's own, and images.
    """
    if isinstance(thing, Model):
        networks = thing.networks
        whole = isinstance(thing.stem, TableStem) and len(networks) == len(thing.blocks)
        return whole and all(net.ensemble is None and has_form(net) for net in networks)
    everything = (0, thing.field.layout.width)
    return not thing.program.has_flows and all(
        stage.W.compiled
        and _has_operator(stage.activation)
        and (stage.carry == 1 or stage.write == everything)
        for stage in thing.program.stages
    )


def _has_operator(sigma: Activation) -> bool:
    return sigma.name in OPERATORS and sigma == ACTIVATIONS[sigma.name]


# --- the parts ------------------------------------------------------------------------------------


def write(
    thing: HamiltonianNetwork | Model | StateSpace,
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    dtype: torch.dtype,
    unroll: int,
    *,
    single_step: bool = False,
) -> onnx.ModelProto:
    """The file of a network, a model of a table or a state-space network.

    Args:
        thing: a network or a model that `has_form`, or a state-space network.
        inputs, outputs: names and shapes.
        dtype: of all of them.
        unroll: the most layers of a network that are written out.
        single_step: of a state-space network, one step.

    Returns:
        The file's content.
    """
    kind = helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=dtype).numpy().dtype)
    graph = Graph(kind, not isinstance(thing, Model) and thing.ensemble is not None)
    names = [*inputs]
    if isinstance(thing, StateSpace):
        results = _state_space(graph, thing, names, single_step)
    elif isinstance(thing, Model):
        results = [_model(graph, thing, names[0], unroll)]
    else:
        results = [_network(graph, thing, names[0], unroll)]
    for result, name in zip(results, outputs, strict=True):
        graph.nodes.append(helper.make_node("Identity", [result], [name]))
    enter, leave = (
        [_value(name, kind, shape) for name, shape in shapes.items()]
        for shapes in (inputs, outputs)
    )
    constants = [*graph.constants.values()]
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "hdnn", enter, leave, initializer=constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(proto)
    return proto


def _network(graph: Graph, net: HamiltonianNetwork, y: str, unroll: int) -> str:
    """y_N of a state ``([E,] batch, n)`` or ``([E,] batch, n, height, width)``."""
    layout, layers = net.field.layout, net.layers
    if not layers:
        return graph.node("Identity", y)
    axis, before = layout.axis, [*range(layout.axis)]
    if layout.channels:  # every pixel is a sample
        y = graph.node("Transpose", y, perm=[*before, axis + 1, axis + 2, axis])
        pixels = graph.node("Shape", y)
        rows = graph.constant(torch.tensor([*layout.lead, -1, layout.width]))
        y = graph.node("Reshape", y, rows)
    stacks = _stacks(net)
    if layers <= unroll:
        own = [[graph.constant(part) for part in stack] for stack in stacks]
        for j in range(layers):
            y = _layer(graph, net, y, [names[j % len(names)] for names in own])
    else:
        y = _scanned(graph, net, y, stacks)
    if layout.channels:
        y = graph.node("Reshape", y, pixels)
        y = graph.node("Transpose", y, perm=[*before, axis + 2, axis, axis + 1])
    return y


def _scanned(graph: Graph, net: HamiltonianNetwork, y: str, stacks: Sequence[Tensor]) -> str:
    """The layers as iterations. What all of them share stays outside: a file holds it once."""
    names = [graph.constant(s if len(s) > 1 else s[0]) for s in stacks]
    arrays = {name: graph.dtype for name, s in zip(names, stacks, strict=True) if len(s) > 1}
    if not arrays:  # something has to say how many iterations there are
        count = graph.constant(torch.zeros(net.layers, dtype=torch.uint8))
        arrays = {count: int(onnx.TensorProto.UINT8)}

    def iteration(inner: Graph, x: str, slices: list[str]) -> tuple[str, list[str]]:
        current = dict(zip(arrays, slices, strict=True))
        return _layer(inner, net, x, [current.get(name, name) for name in names]), []

    return graph.scan(iteration, y, arrays)[0]


def _layer(graph: Graph, net: HamiltonianNetwork, x: str, matrices: Sequence[str]) -> str:
    """One layer, by the matrices of its stages: W, b and A of each."""
    for k, stage in enumerate(net.program.stages):
        W, b, A = matrices[3 * k : 3 * k + 3]
        s = graph.activate(stage.activation, graph.affine(x, W, b))
        x = graph.affine(s, A, *([x] if stage.carry else []))
    return x


def _stacks(net: HamiltonianNetwork) -> list[Tensor]:
    """W, b and A of every stage, the layers first: one entry for each, or one that all share."""
    W, A, *_ = explicit(net.program, net.values())
    stages, n, stacks = net.program.stages, net.field.layout.width, list[Tensor]()
    for k, stage in enumerate(stages):
        m, (own, back) = stage.W.units, (M.movedim(-3, 0)[k :: len(stages)] for M in (W, A))
        bias = own[..., :m, n]
        parts = own[..., :m, :n].mT, bias.unsqueeze(-2), back[..., n + 1 : n + 1 + m].mT
        stacks += [part[:1] if bool((part == part[:1]).all()) else part for part in parts]
    return stacks


def _model(graph: Graph, model: Model, x: str, unroll: int) -> str:
    """Probabilities or predictions of raw features ``(batch, features)``."""
    stem = model.stem
    assert isinstance(stem, TableStem)
    if stem.scaler is not None:
        mean, scale = (graph.constant(t) for t in (stem.scaler.mean, stem.scaler.scale))
        missing = graph.node("IsNaN", x)
        x = graph.node("Div", graph.node("Sub", x, mean), scale)
        x = graph.node("Where", missing, graph.constant(torch.zeros_like(stem.scaler.mean)), x)
    if stem.padding is not None:
        places = stem.padding(torch.arange(1, stem.padding.features + 1)).sub(1)
        more = graph.constant(torch.tensor([0, 0, 0, 1]))  # a column of zeros, number -1
        x = graph.node("Gather", graph.node("Pad", x, more), graph.constant(places), axis=1)
    if stem.projection is not None:
        x = _linear(graph, x, stem.projection.weight, stem.projection.bias)
    for net in model.networks:
        x = _network(graph, net, x, unroll)
    x = _linear(graph, x, model.head.weight, model.head.bias)
    if model.task == "regression":
        return x
    if model.head.out_features > 1:
        return graph.node("Softmax", x, axis=-1)
    both = graph.node("Concat", graph.node("Neg", x), x, axis=-1)
    return graph.node("Sigmoid", both)


def _state_space(graph: Graph, model: StateSpace, inputs: list[str], single: bool) -> list[str]:
    """The next state and y, of x and u; or y of all times and the last state, of u and x0."""
    layers = model.assemble().layers
    if single:
        return [*_step(graph, layers, *inputs)]
    u, x0 = inputs

    def iteration(inner: Graph, x: str, slices: list[str]) -> tuple[str, list[str]]:
        after, y = _step(inner, layers, x, *slices)
        return after, [y]

    times = 2 if graph.ensemble else 1
    last, y = graph.scan(iteration, x0, {u: graph.dtype}, axis=times, stacked=1)
    return [y, last]


def _step(graph: Graph, layers: Sequence[Layer], x: str, u: str) -> tuple[str, str]:
    """`Cell.step`."""
    count, after = len(layers), []
    parts = graph.nodes_of("Split", x, count=count, axis=-1, num_outputs=count)
    for layer, q in zip(layers, parts, strict=True):
        sigma, W, b, A, a, Y, c, damp, turn = layer
        if damp is not None:
            q = _linear(graph, _with_units(graph, sigma, q, damp.K, damp.b), damp.P, damp.p)
        v = graph.node("Concat", q, u, axis=-1)
        u = _linear(graph, v, Y, c)
        if turn is None:
            after.append(_linear(graph, _with_units(graph, sigma, v, W, b), A, a))
        else:
            after.append(_linear(graph, v, turn))
    return graph.node("Concat", *after, axis=-1), u


def _with_units(graph: Graph, sigma: Activation, v: str, W: Tensor, b: Tensor) -> str:
    """[v; sigma(W v + b)]."""
    if not W.shape[-2]:
        return v
    return graph.node("Concat", v, graph.activate(sigma, _linear(graph, v, W, b)), axis=-1)


def _linear(graph: Graph, x: str, M: Tensor, b: Tensor | None = None) -> str:
    """M x + b."""
    added = [] if b is None else [graph.constant(b.unsqueeze(-2))]
    return graph.affine(x, graph.constant(M.mT), *added)
