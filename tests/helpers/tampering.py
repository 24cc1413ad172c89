"""Random programs that misuse a network, and whether the backends agree on what becomes of them.

A case is the text of a short program, drawn from a seed: a network, a state, some tampering with
both, and calls. It runs twice, on "reference" and on "auto" or "fused", and both have to compute
the same or both have to raise. What a case prints is therefore its own reproduction.

    python tests/helpers/tampering.py FIRST COUNT    runs cases, each block of them in a process
    python tests/helpers/tampering.py SEED           runs one in this process, and prints it
"""

from __future__ import annotations

import copy
import faulthandler
import gc
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import hdnn
from catalog import build
from hdnn.fields import HamiltonianField, Learned, Weights
from hdnn.kernels import native

# --- what programs are made of --------------------------------------------------------------------

SHAPES = (
    "{t}[:1]",
    "{t}[:-1]",
    "{t}[:0]",
    "{t}[None]",
    "{t}[..., :-1]",
    "{t}[..., :1]",
    "{t}[..., :0]",
    "{t}.mT",
    "{t}.flatten()",
    "{t}.sum()",
    "{t}.new_zeros(0)",
    "torch.cat([{t}, {t}])",
    "torch.cat([{t}, {t}], -1)",
    "{t}.expand(2, *{t}.shape)",
    "{t}.expand(1, *{t}.shape)",
)
DTYPES = (
    "{t}.double()",
    "{t}.float()",
    "{t}.half()",
    "{t}.bfloat16()",
    "{t}.to(torch.complex64)",
    "{t}.to(torch.complex128)",
    "{t}.long()",
    "{t} > 0",
    "{t}.to(torch.float8_e5m2)",
)
ELSEWHERE = (
    "{t}.to('meta')",
    "{t}.to_sparse()",
    "{t}.to_sparse_csr()",
    "{t}.detach().to_mkldnn()",
    "torch.quantize_per_tensor({t}.detach().float(), 0.1, 0, torch.qint8)",
    "torch.nested.nested_tensor([*{t}.detach()])",
    "torch.nested.nested_tensor([*{t}.detach()], layout=torch.jagged)",
)
VIEWS = (
    "{t}.clone()",
    "{t}.mT.contiguous().mT",
    "{t}.flip(0)",
    "{t}[:1].expand({t}.shape)",
    "{t}.mean().expand({t}.shape)",
    "torch.stack([{t}, {t}], -1)[..., 0]",
    "torch.cat([{t}.new_zeros(1), {t}.flatten()])[1:].view({t}.shape)",
    "misaligned({t})",
    "torch.cat([{t}.flatten(), {t}.flatten()]).as_strided({t}.shape, [1] * {t}.ndim)",
    "torch._neg_view(-{t})",
    "torch.complex({t}, -{t}).conj().imag",
    "torch.complex({t}, {t}).real",
    "torch._efficientzerotensor({t}.shape, dtype={t}.dtype)",
    "torch.zeros_like({t})",
    "{t} * torch.nan",
    "{t}.index_fill(-1, torch.tensor([0]), torch.inf)",
    "{t}.index_fill(0, torch.tensor([0]), torch.nan)",
    "{t} * 1e-310",
)
CLASSES = (
    "{t}.as_subclass(Plain)",
    "{t}.as_subclass(Loud)",
    "{t}.as_subclass(Strict)",
    "Wrapped({t})",
    "FAKE.from_tensor({t})",
    "nn.Parameter({t})",
    "nn.Buffer({t})",
    "inferred({t})",
    "None",
    "{t}.tolist()",
    "{t}.detach().numpy()",
)
TENSORS = (SHAPES, DTYPES, ELSEWHERE, VIEWS, CLASSES)

MODULES = (
    "net.double()",
    "net.float()",
    "net.half()",
    "net.bfloat16()",
    "net.to('meta')",
    "net.share_memory()",
    "net.field.weights.double()",
    "net.field.weights.float()",
    "net.field.weights.bfloat16()",
    "net.field.weights.to('meta')",
    "net.requires_grad_(False)",
    "net.field.weights.theta.requires_grad_(False)",
    "net.field.weights.beta.requires_grad_(False)",
    "net.lower()",
    "net.layers += 1",
    "net.layers += 1; net.lower()",
    "net.layers -= 1; net.lower()",
    "net.memory = 'lean'",
    "net.eval()",
    "torch.set_num_threads(3)",
    "net = copy.deepcopy(net)",
    "net = pickle.loads(pickle.dumps(net))",
    "net(y.detach()); net = copy.deepcopy(net)",
    "net(y.detach()); net = pickle.loads(pickle.dumps(net))",
    "net.load_state_dict({k: v.double() for k, v in net.state_dict().items()}, assign=True)",
    "net.load_state_dict({k: v.float() for k, v in net.state_dict().items()}, assign=True)",
    "net.load_state_dict({k: v.to('meta') for k, v in net.state_dict().items()}, assign=True)",
    "net.load_state_dict({k: v[:1] for k, v in net.state_dict().items()}, assign=True)",
    "nn.utils.vector_to_parameters("
    "torch.ones(sum(p.numel() for p in net.parameters())), net.parameters())",
    "nn.utils.vector_to_parameters("
    "nn.utils.parameters_to_vector(net.parameters()).double(), net.parameters())",
)
OF_TENSOR = (  # what is done to a tensor of the network where it is
    "{p}.data.resize_(3)",
    "{p}.data.resize_({p}.numel() + 40)",
    "{p}.untyped_storage().resize_(0)",
    "{p}.untyped_storage().resize_(7)",
    "{p}.data.set_()",
    "{p}.data.zero_()",
    "{p}.data.mul_(0.5)",
    "{p}.requires_grad_()",
    "{p}.data = {p}.data.clone()",
    "{p}.share_memory_()",
)
CONTEXTS = (
    "torch.no_grad()",
    "torch.inference_mode()",
    "torch.enable_grad()",
    "torch.autocast('cpu', torch.bfloat16)",
    "torch.autograd.graph.save_on_cpu()",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.to('meta'), lambda t: t)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.flatten())",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.mT.contiguous().mT)",
    "torch.autograd.graph.disable_saved_tensors_hooks('no')",
    "torch.autograd.set_multithreading_enabled(False)",
    "torch.autograd.forward_ad.dual_level()",
    "torch.device('meta')",
    "FAKE",
    "Watching()",
    "deterministic()",
    "default_dtype(torch.float64)",
)
BACKWARDS = (
    "out.sum().backward()",
    "out.square().sum().backward()",
    "out.sgn().sum().backward()",
    "(out * 0).sum().backward()",
    "out.backward(torch.ones_like(out))",
    "out.backward(None)",
    "out.backward(gradient)",
    "out.backward(gradient)",
    "out.backward(gradient)",
    "out.register_hook(lambda gradient: {g}); out.sum().backward()",
    "out.sum().backward(retain_graph=True); out.sum().backward()",
    "out.sum().backward(); out.sum().backward()",
    "out.sum().backward(create_graph=True)",
    "out[:0].sum().backward()",
    "out.mean(0).sum().backward(); out = out.detach()",
    "out = grads(out.square().sum(), create_graph=True)\nsum(g.square().sum() for g in out).backward()",
    "out = grads(out, torch.stack([out.detach()] * 3), is_grads_batched=True)",
    "out = grads(out, torch.zeros(2, *out.shape, dtype=out.dtype), is_grads_batched=True)",
    "out = torch.func.vmap(lambda v: grads(out, v, retain_graph=True))(torch.stack([out.detach()] * 2))",
    "out = torch.autograd.grad(out.sum(), leaf)",
    "out = torch.autograd.grad(out.sum(), [p for p in net.parameters()][-1:])",
    "with torch.inference_mode():\n    out.sum().backward()",
    "with torch.autocast('cpu', torch.bfloat16):\n    out.sum().backward()",
    "with FAKE:\n    out.sum().backward()",
)
STATE_TRANSFORMS = (
    "out = torch.func.vmap({f})(torch.stack([y, y]))",
    "out = torch.func.vmap({f}, in_dims=-1, out_dims=1)(torch.stack([y, y.detach() * 2], -1))",
    "out = torch.func.vmap({f})(y)",
    "out = torch.func.vmap(torch.func.vmap({f}))(torch.stack([y, y])[None])",
    "out = torch.func.jvp({f}, (y,), (torch.ones_like(y),))",
    "out = torch.func.jvp({f}, (y,), (torch.ones_like(y),)); sum(o.square().sum() for o in out).backward()",
    "out = torch.func.vjp({f}, y)[1](y)",
    "out = torch.func.grad(lambda y: ({f})(y).square().sum())(y)",
    "out = torch.func.grad(torch.func.grad(lambda t: ({f})(y * t).square().sum()))(torch.tensor(0.5, dtype=y.dtype))",
    "out = torch.func.jacrev({f})(y)",
    "out = torch.func.jacfwd({f})(y)",
    "out = torch.func.vmap(torch.func.jacrev({f}))(y)",
    "out = torch.func.vmap(torch.func.jacfwd({f}))(y)",
    "out = torch.func.hessian(lambda t: ({f})(y * t).sum())(torch.tensor(0.5, dtype=y.dtype))",
    "out = torch.func.linearize({f}, y)[1](torch.ones_like(y))",
    "out = torch.func.functionalize({f})(y)",
    "out = torch.autograd.functional.jacobian({f}, y, vectorize=True)",
    "out = torch.autograd.functional.jacobian({f}, y, vectorize=True, strategy='forward-mode')",
    "out = torch.autograd.functional.hvp(lambda y: ({f})(y).square().sum(), y, torch.ones_like(y))",
    "out = torch.autograd.functional.jvp({f}, y, torch.ones_like(y))",
    "out = checkpoint({f}, y, use_reentrant=False); out.square().sum().backward()",
    "out = checkpoint({f}, y, use_reentrant=True); out.square().sum().backward()",
    "out = make_fx({f})(y)(y + 1)",
    "out = torch.jit.trace({f}, y.detach(), check_trace=False)(y.detach() + 1)",
    "with torch.autograd.forward_ad.dual_level():\n"
    "    dual = ({f})(torch.autograd.forward_ad.make_dual(y, torch.ones_like(y)))\n"
    "    out = tuple(torch.autograd.forward_ad.unpack_dual(dual))\n"
    "    (out[0].sum() + out[1].square().sum()).backward()",
    "with torch.autograd.forward_ad.dual_level():\n"
    "    dual = ({f})(torch.autograd.forward_ad.make_dual(y, torch.ones_like(y)))\n"
    "    torch.autograd.grad(dual.sum(), [leaf, *net.parameters()], allow_unused=True)\n"
    "    out = torch.autograd.forward_ad.unpack_dual(dual).tangent",
)
NUMBER_TRANSFORMS = (  # of a tensor of the network
    "out = torch.func.vmap({f})(torch.stack([p, p * 2]))",
    "out = torch.func.vmap(lambda p, y: functional_call(net, {{'{k}': p}}, (y,)))"
    "(torch.stack([p, p * 2]), torch.stack([y, y]))",
    "out = torch.func.vmap(torch.func.grad(lambda p: ({f})(p).square().sum()))(torch.stack([p, p * 2]))",
    "out = torch.func.jvp({f}, (p,), (p * 0.5,))",
    "out = torch.func.jvp({f}, (p,), (p * 0.5,)); sum(o.square().sum() for o in out).backward()",
    "out = torch.func.grad(lambda p: ({f})(p).square().sum())(p)",
    "out = torch.func.jacrev({f})(p)",
    "out = torch.func.jacfwd({f})(p)",
    "out = torch.func.hessian(lambda t: ({f})(p * t).sum())(torch.tensor(0.5, dtype=y.dtype))",
    "q = p.detach().clone().requires_grad_(); out = ({f})(q); out = torch.autograd.grad(out.sum(), q)",
    "with torch.autograd.forward_ad.dual_level():\n"
    "    dual = ({f})(torch.autograd.forward_ad.make_dual(p.detach(), torch.ones_like(p)))\n"
    "    out = tuple(torch.autograd.forward_ad.unpack_dual(dual))",
)
OTHER_CALLS = (
    "out = net.trajectory(y)",
    "out = net.trajectory(y); out.square().sum().backward()",
    "out = net.inverse(y)",
    "out = net.inverse(net(y)); out.square().sum().backward()",
    "out = hdnn.analysis.sensitivities(net, y)",
    "with torch.no_grad():\n    out = hdnn.analysis.sensitivities(net, y)",
    "out = torch.func.vmap(lambda y: hdnn.analysis.sensitivities(net, y))(torch.stack([y, y]))",
    "out = hdnn.analysis.layer_factors(net, y)",
    "out = hdnn.analysis.velocity_jacobians(net, y)",
    "net = net.member(0); out = net(y[0]); out.sum().backward()",
    "net = net.member([0]); out = net(y[:1]); out.sum().backward()",
    "net(y); net.lower(); out = net(y); out.sum().backward()",
    "out = net.vjp(y, torch.ones_like(y))",
    "out = nn.Sequential(nn.Identity(), net, net)(y); out.sum().backward()",
    "out = net(net(y).mT.contiguous().mT); out.square().sum().backward()",
)
PARAMETRIZATIONS = (
    "class P(nn.Module):\n    forward = lambda self, t: {e}\n"
    "nn.utils.parametrize.register_parametrization(net.field.weights, '{n}', P(), unsafe=True)",
    "nn.utils.parametrizations.weight_norm(net.field.weights, '{n}')",
    "nn.utils.parametrizations.spectral_norm(net.field.weights, '{n}')",
)


class Plain(Tensor):
    """Nothing of its own."""


class Loud(Tensor):
    """Has its word in every function of torch."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Strict(Tensor):
    """Refuses every function that computes."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if getattr(function, "__name__", "") in ("matmul", "addmm", "linear", "__matmul__", "mm"):
            raise TypeError("no products")
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(Tensor):
    """Has no memory of its own: every operation is that of the tensor within."""

    within: Tensor

    @staticmethod
    def __new__(cls, within: Tensor) -> Wrapped:
        made = Tensor._make_wrapper_subclass(
            cls,
            within.shape,
            strides=within.stride(),
            dtype=within.dtype,
            device=within.device,
            requires_grad=within.requires_grad,
        )
        made.within = within.detach()
        return made

    def __repr__(self) -> str:
        return "Wrapped"

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        args, kwargs = pytree.tree_map_only(cls, lambda t: t.within, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, cls, operation(*args, **kwargs))


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that looks on."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        return operation(*args, **(kwargs or {}))


class deterministic:  # noqa: N801 (a context, as torch names them)
    """Torch's deterministic algorithms, which also fill empty tensors with NaN."""

    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


class default_dtype:  # noqa: N801
    """Another default dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


def misaligned(t: Tensor) -> Tensor:
    """The same numbers at an odd address."""
    raw = bytearray(1) + bytearray(t.detach().contiguous().numpy().tobytes())
    return torch.frombuffer(raw, dtype=t.dtype, offset=1).view(t.shape)


def inferred(t: Tensor) -> Tensor:
    """A tensor of inference mode."""
    with torch.inference_mode():
        return t.detach().clone()


def learned(**options: Any) -> hdnn.HamiltonianNetwork:
    """A network with a J that is trained."""
    dtype, backend, n = options.pop("dtype"), options.pop("backend"), options.pop("features", 4)
    field = HamiltonianField(
        Learned(n, layers=options.pop("J_layers", None)), Weights(features=n, dtype=dtype, **options)
    )
    return hdnn.HamiltonianNetwork(field, T=1.0, backend=backend)


def dissipative(**options: Any) -> hdnn.HamiltonianNetwork:
    dtype, backend, n = options.pop("dtype"), options.pop("backend"), options.pop("features", 4)
    field = HamiltonianField(
        "J2", Weights(features=n, dtype=dtype, **options), dissipation=torch.eye(n) * 0.5
    )
    return hdnn.HamiltonianNetwork(field, T=1.0, backend=backend)


# --- drawing a case -------------------------------------------------------------------------------


class Case(NamedTuple):
    """A program: how it begins, tampering (any line of which may be left out), and how it ends."""

    seed: int
    backend: str
    head: tuple[str, ...]
    tampering: tuple[str, ...]
    tail: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((*self.head, *self.tampering, *self.tail))


def pick(rng: Random, *groups: tuple[str, ...]) -> str:
    return rng.choice(rng.choice(groups))


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    dtype = rng.choice(("torch.float32", "torch.float32", "torch.float64"))
    network, shape, tensors, ensemble = draw_network(rng, dtype)
    head = [f"torch.manual_seed({seed})", f"net = {network}"]
    if rng.random() < 0.03:
        head[1] = f"with torch.inference_mode():\n    {head[1]}"
    grad = ".requires_grad_()" if rng.random() < 0.8 else ""
    head += [f"y = leaf = torch.randn({shape}, dtype={dtype}){grad}"]
    tampering, swaps = [], False
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        line = draw_tampering(rng, tensors)
        if line.startswith("swap["):
            swaps = True
        tampering.append(line)
    if swaps:
        head.append("swap = {}")
    tail = draw_calls(rng, tensors, swaps, ensemble)
    return Case(seed, rng.choice(("auto", "auto", "fused")), tuple(head), tuple(tampering), tail)


def draw_network(rng: Random, dtype: str) -> tuple[str, str, list[str], bool]:
    """The text of a network, the shape of a state, and where its tensors are."""
    kind = rng.choice(("H1", "H1", "H2", "MS1", "MS2", "MS3", "HS", "FCNN", "ResNet", "learned", "dissipative"))
    tensors = ["field.weights.theta", "field.weights.beta"]
    options = [f"layers={rng.choice((1, 2, 3, 3, 3, 7))}"]
    n = rng.choice((2, 4, 4, 4, 6, 10, 16, 34))
    ensemble = rng.random() < 0.2
    pixels = rng.choice(("", ", 3", ", 2, 3")) if rng.random() < 0.15 and kind not in ("learned", "dissipative") else None
    if rng.random() < 0.2:
        options.append("time_invariant=True")
    if kind in ("learned", "dissipative"):
        options.append(f"features={n}")
        tensors.append("field.interconnection.theta" if kind == "learned" else "field.interconnection.J")
        tensors += ["field.R"] if kind == "dissipative" else []
        ensemble = False
    else:
        options.append(f"{'features' if pixels is None else 'channels'}={n}")
        if ensemble:
            options.append("ensemble=3")
        if kind in ("H1", "H2", "HS"):
            tensors.append("field.interconnection.J")
        if kind == "HS" and rng.random() < 0.4:
            options.append(rng.choice(("X='learned'", f"X=torch.randn({n // 2}, {n // 2})")))
            if "learned" in options[-1]:
                tensors[-1] = "field.interconnection.theta"
        if kind not in ("FCNN",):
            choice = rng.random()
            layers = int(options[0].split("=")[1])
            if choice < 0.2:
                options.append(f"step={[round(0.1 * (j + 1), 1) for j in range(layers)]}")
                tensors.append("steps")
            elif choice < 0.3:
                options.append("learn_steps=True")
                tensors.append("log_steps")
        if kind not in ("MS1",) and rng.random() < 0.2:
            options.append(f"activation='{rng.choice(('relu', 'sigmoid', 'identity', 'softsign', 'sin'))}'")
        if kind in ("MS3", "HS") and rng.random() < 0.2:
            options.append(f"scheme='{rng.choice(('Yoshida4', 'Leapfrog'))}'")
        if rng.random() < 0.1:
            options.append("memory='lean'")
    options += [f"dtype={dtype}", "backend=BACKEND"]
    name = f"{kind}(" if kind in ("learned", "dissipative") else f"build('{kind}', "
    batch = rng.choice(("5, ", "5, ", "5, ", "1, ", "40, ", "2, 3, ", "", "0, "))
    if ensemble:
        batch = f"{rng.choice((3, 3, 1))}, {batch or '5, '}"
    if pixels is not None:
        batch = "3, 5, " if ensemble else "5, "
    return f"{name}{', '.join(options)})", f"{batch}{n}{pixels or ''}", tensors, ensemble


def draw_tampering(rng: Random, tensors: list[str]) -> str:
    """A line that changes the network or the state."""
    expression = pick(rng, *TENSORS)
    what = rng.random()
    if what < 0.22:
        change = expression.format(t="y")
        return rng.choice((f"y = {change}", f"y = {change}", f"y = leaf = ({change}).detach().requires_grad_()"))
    if what < 0.4:
        return rng.choice(MODULES)
    name = rng.choice(tensors)
    place = f"net.{name}"
    if what < 0.5:
        return rng.choice(OF_TENSOR).format(p=place)
    if what < 0.57 and "weights" in name:
        last = name.rsplit(".", 1)[1]
        return rng.choice(PARAMETRIZATIONS).format(n=last, e=expression.format(t="t"))
    value = expression.format(t=f"{place}.detach()")
    form = rng.randrange(5)
    if form == 0:
        return f"{place}.data = {expression.format(t=f'{place}.data')}"
    if form == 1:
        return f"swap['{name}'] = {value}"
    if form == 2:
        return f"swap['{name}'] = {expression.format(t=place)}"
    module, last = place.rsplit(".", 1)
    if form == 3 and last != "J" and last != "R" and last != "steps":
        return f"{place} = nn.Parameter({value})"
    if form == 4:
        return f"value = {value}; del {place}; {place} = value"
    return f"{place} = {value}"


def draw_calls(rng: Random, tensors: list[str], swaps: bool, ensemble: bool) -> tuple[str, ...]:
    """The lines that call the network."""
    call = "functional_call(net, swap, (y,))" if swaps else "net(y)"
    what = rng.random()
    if what < 0.2:
        lines = [f"out = {call}"]
    elif what < 0.6:
        gradient = pick(rng, *TENSORS).format(t="gradient")
        lines = [within(rng, f"out = {call}", 0.3), "gradient = torch.randn_like(out)"]
        if rng.random() < 0.5:
            lines.append(f"gradient = {gradient}")
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            line = draw_tampering(rng, tensors)
            if not line.startswith("swap["):
                lines.append(line)
        return (*lines, rng.choice(BACKWARDS).replace("{g}", gradient))
    elif what < 0.75:
        function = f"lambda y: {call}" if swaps else "net"
        lines = [rng.choice(STATE_TRANSFORMS).format(f=function)]
    elif what < 0.87:
        name = rng.choice(tensors)
        function = f"lambda p: functional_call(net, {{'{name}': p}}, (y,))"
        lines = [f"p = net.{name}", rng.choice(NUMBER_TRANSFORMS).format(f=function, k=name)]
    else:
        lines = [rng.choice(OTHER_CALLS)]
    return tuple(within(rng, line, 0.25) for line in lines)


def within(rng: Random, line: str, chance: float) -> str:
    """A line, or the same in a context."""
    if rng.random() >= chance:
        return line
    return f"with {rng.choice(CONTEXTS)}:\n{textwrap.indent(line, '    ')}"


# --- running it -----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a program: the error and its line, if any, and the tensors at the end."""

    error: BaseException | None
    line: int
    tensors: dict[str, Any]


def play(text: str, backend: str) -> Outcome:
    """Run a program on a backend."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    names: dict[str, Any] = {**globals(), "BACKEND": backend, "FAKE": fake}
    names["grads"] = lambda out, *args, **options: torch.autograd.grad(
        out, [names["leaf"], *names["net"].parameters()], *args, allow_unused=True, **options
    )
    error, line = None, 0
    try:
        exec(compile(text, "<case>", "exec"), names)
    except Disagreement:
        raise
    except Exception as caught:
        error, trace = caught, caught.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<case>":
                line = trace.tb_lineno
            trace = trace.tb_next
    finally:
        torch.set_num_threads(1)
    tensors = {"out": names.get("out")}
    leaf, net = names.get("leaf"), names.get("net")
    tensors["leaf.grad"] = getattr(leaf, "grad", None)
    if net is not None:
        tensors |= {f"{name}.grad": p.grad for name, p in net.named_parameters()}
    return Outcome(error, line, tensors)


class Disagreement(Exception):
    """What a case must not do."""


def compare(actual: Outcome, expected: Outcome) -> None:
    """Raise unless both computed the same, or both raised."""
    if (expected.error is None) != (actual.error is None):
        if expected.error is None:
            raise Disagreement(
                f"raises where the reference computes (line {actual.line}): "
                f"{type(actual.error).__name__}: {actual.error}"
            )
        raise Disagreement(
            f"computes where the reference raises (line {expected.line}): "
            f"{type(expected.error).__name__}: {expected.error}"
        )
    if expected.error is not None:
        known = (hdnn.errors.HdnnError, RuntimeError, TypeError, ValueError, IndexError)
        if not isinstance(actual.error, (*known, type(expected.error))):
            raise Disagreement(
                f"raises {type(actual.error).__name__}: {actual.error}, and the reference "
                f"{type(expected.error).__name__}: {expected.error}"
            )
        if actual.line != expected.line:
            raise Disagreement(
                f"raises at line {actual.line}, the reference at {expected.line}: "
                f"{actual.error!r}, {expected.error!r}"
            )
        return
    for name in expected.tensors:
        same_tree(name, actual.tensors.get(name), expected.tensors[name])


def same_tree(name: str, a: Any, b: Any) -> None:
    leaves_a, form_a = pytree.tree_flatten(a)
    leaves_b, form_b = pytree.tree_flatten(b)
    if form_a != form_b:
        raise Disagreement(f"{name} is {form_a}, and the reference gives {form_b}")
    for x, exact in zip(leaves_a, leaves_b, strict=True):
        if isinstance(exact, Tensor) and isinstance(x, Tensor):
            same_tensor(name, x, exact)
        elif type(x) is not type(exact):
            raise Disagreement(f"{name} is {type(x).__name__}, not {type(exact).__name__}")


def same_tensor(name: str, x: Tensor, exact: Tensor) -> None:
    for of in ("dtype", "device", "layout", "requires_grad"):
        if getattr(x, of) != getattr(exact, of):
            raise Disagreement(f"{name}.{of} is {getattr(x, of)}, not {getattr(exact, of)}")
    if type(x) is not type(exact):
        raise Disagreement(f"{name} is a {type(x).__name__}, not a {type(exact).__name__}")
    if exact.is_nested or exact.layout is not torch.strided:
        return
    if x.shape != exact.shape:
        raise Disagreement(f"{name} has shape {tuple(x.shape)}, not {tuple(exact.shape)}")
    if isinstance(exact, Wrapped):
        x, exact = x.within, exact.within
    if exact.is_meta or type(exact).__name__ == "FakeTensor":
        return
    with torch.no_grad():
        x, exact = (t.detach().resolve_neg().resolve_conj().as_subclass(Tensor) for t in (x, exact))
        precision = torch.finfo(exact.dtype).eps if exact.dtype.is_floating_point else 0
        tolerance = precision * (1e3 if precision > 1e-10 else 1e6)
        x, exact = x.to(torch.complex128), exact.to(torch.complex128)
        finite = torch.isfinite(exact)
        scale = max(1.0, float(exact[finite].abs().max())) if finite.any() else 1.0
        difference = (x - exact)[finite].abs()
        if not bool((difference <= tolerance * scale).all()):
            raise Disagreement(
                f"{name} is wrong by {float(difference.max()):.3g} at scale {scale:.3g}"
            )
        if bool(torch.isfinite(x)[~finite].any()):
            raise Disagreement(f"{name} is finite where the reference is not")


# --- is what `explain_backend` says what happens? -------------------------------------------------

calls = 0
"""How often the kernels were called for a value."""


def count_calls() -> None:
    """Count the calls of the kernels' forward pass, and compare each network with its word."""
    library = native.library()
    forward, notes = library.hdnn_forward, []

    def counted(*arguments: Any) -> Any:
        global calls  # noqa: PLW0603
        calls += 1
        return forward(*arguments)

    library.hdnn_forward = counted

    def before(net: Any, arguments: Any) -> None:
        if isinstance(net, hdnn.HamiltonianNetwork):
            try:
                said = net.explain_backend(*arguments).backend
            except Exception as error:
                said = error
            notes.append((said, calls))

    def after(net: Any, arguments: Any, out: Any) -> None:
        if isinstance(net, hdnn.HamiltonianNetwork) and notes:
            said, so_far = notes.pop()
            happened = "fused" if calls > so_far else "reference"
            if said != happened:
                raise Disagreement(f"explain_backend says {said!r}, and {happened} computes")

    nn.modules.module.register_module_forward_pre_hook(before)
    nn.modules.module.register_module_forward_hook(after)


# --- untouched networks, which have to compute the same bits after every case ---------------------


class Untouched:
    """Networks that nobody touches, and what they computed at first."""

    def __init__(self) -> None:
        self.nets = [
            build("H1", features=4, layers=3),
            build("MS3", features=6, layers=5, dtype=torch.float64),
            build("H2", features=16, layers=3, ensemble=2),
            build("ResNet", channels=4, layers=2),
        ]
        shapes = ((5, 4), (7, 6), (2, 9, 16), (3, 4, 5))
        self.states = [
            torch.randn(s, dtype=net.field.dtype) for s, net in zip(shapes, self.nets, strict=True)
        ]
        self.first = self.compute()

    def compute(self) -> list[Tensor]:
        found = []
        for net, y in zip(self.nets, self.states, strict=True):
            out = net(y)
            found += [out.detach(), *torch.autograd.grad(out.sum(), list(net.parameters()))]
        return found

    def check(self) -> None:
        if not all(map(torch.equal, self.compute(), self.first)):
            raise Disagreement("an untouched network computes other numbers afterwards")


def verdict(case: Case, untouched: Untouched, note: Callable[[], None]) -> str:
    """What is wrong with a case, or nothing; `note` is called after the reference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = play(case.text, "reference")
            note()
            actual = play(case.text, case.backend)
            if isinstance(actual.error, hdnn.errors.IncompatibleError) and case.backend == "fused":
                return ""
            compare(actual, expected)
            del actual, expected
            untouched.check()
        except Disagreement as wrong:
            return str(wrong)
    return ""


# --- processes ------------------------------------------------------------------------------------

BLOCK, SECONDS = 25, 30
REFERENCE_DONE = "the reference is done\n"


def run_block(cases: list[Case], untouched: Untouched) -> Iterator[tuple[Case, str]]:
    """Run cases in a child process; one that ends the process is named, and the others go on."""
    while cases:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            try:
                with os.fdopen(write, "w", buffering=1) as pipe:
                    for case in cases:
                        signal.alarm(SECONDS)
                        found = verdict(case, untouched, lambda: pipe.write(REFERENCE_DONE))
                        pipe.write(json.dumps(found) + "\n")
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(write)
        done, ours = 0, False
        with os.fdopen(read) as pipe:
            for line in pipe:
                if line == REFERENCE_DONE:
                    ours = True
                    continue
                yield cases[done], json.loads(line)
                done, ours = done + 1, False
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if done < len(cases):
            name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            # Torch itself may fail: that is not for us to mend.
            yield cases[done], f"ends the process: {name}" if ours else os.environ.get("REFCRASH", "")
            done += 1
        cases = cases[done:]


def kind(wrong: str) -> str:
    return wrong.split(":")[0].split("(")[0][:40]


def shrink(case: Case, wrong: str, untouched: Untouched) -> tuple[Case, str]:
    """The case without what it does not need to go wrong in the same way."""
    smaller = True
    while smaller:
        smaller = False
        for k in range(len(case.tampering)):
            less = case._replace(tampering=case.tampering[:k] + case.tampering[k + 1 :])
            ((_, found),) = run_block([less], untouched)
            if kind(found) == kind(wrong):
                case, wrong, smaller = less, found, True
                break
        for k in range(1, len(case.tail) - 1):
            less = case._replace(tail=case.tail[:k] + case.tail[k + 1 :])
            ((_, found),) = run_block([less], untouched)
            if kind(found) == kind(wrong):
                case, wrong, smaller = less, found, True
                break
    return case, wrong


def main(first: int, count: int) -> None:
    faulthandler.enable(all_threads=False)
    count_calls()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    untouched = Untouched()
    if not count:
        case = draw(first)
        print(f"BACKEND = {case.backend!r}\n{case.text}")
        for backend in ("reference", case.backend):
            outcome = play(case.text, backend)
            print(backend, repr(outcome.error), outcome.line, outcome.tensors)
        print(verdict(case, untouched, lambda: None))
        return
    for start in range(first, first + count, BLOCK):
        cases = [draw(seed) for seed in range(start, min(start + BLOCK, first + count))]
        for case, wrong in run_block(cases, untouched):
            if wrong and os.environ.get("SHRINK"):
                case, wrong = shrink(case, wrong, untouched)
            record = {"seed": case.seed, "wrong": wrong, "backend": case.backend, "text": case.text}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
