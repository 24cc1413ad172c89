"""Random programs that misuse a network: what users, optimizers and wrappers of torch may do to it.

A case is the text of a short program, drawn from a seed: a network, a state, tampering with both,
and calls. So a case is its own reproduction. `tampered` runs them; the names that they use are its.
"""

from __future__ import annotations

import textwrap
from random import Random
from typing import NamedTuple

# --- what may stand in place of a tensor t --------------------------------------------------------

SAME_KIND = (  # other numbers or another place in memory, but the same shape and dtype
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
    "{t}.expand(1, *{t}.shape)",
    "{t}.expand(2, *{t}.shape)",
)
DTYPES = (
    "{t}.double()",
    "{t}.float()",
    "{t}.half()",
    "{t}.bfloat16()",
    "{t}.to(torch.complex64)",
    "{t}.to(torch.complex128)",
    "{t}.to(torch.float8_e5m2)",
    "{t}.long()",
    "{t} > 0",
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
CLASSES = (
    "{t}.as_subclass(Plain)",
    "{t}.as_subclass(Strict)",
    "Wrapped({t})",
    "FAKE.from_tensor({t})",
    "nn.Parameter({t})",
    "nn.Buffer({t})",
    "inferred({t})",
    "{t}.detach().numpy()",
    "None",
)

# --- what may be done to a network, or to a tensor p of it ----------------------------------------

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
    "net = copy.deepcopy(net)",
    "net = pickle.loads(pickle.dumps(net))",
    "net(y.detach()); net = copy.deepcopy(net)",
    "net(y.detach()); net = pickle.loads(pickle.dumps(net))",
    "net.load_state_dict({k: v.double() for k, v in net.state_dict().items()}, assign=True)",
    "net.load_state_dict({k: v.float() for k, v in net.state_dict().items()}, assign=True)",
    "net.load_state_dict({k: v.to('meta') for k, v in net.state_dict().items()}, assign=True)",
    "nn.utils.vector_to_parameters("
    "torch.full((sum(p.numel() for p in net.parameters()),), 0.1), net.parameters())",
    "nn.utils.vector_to_parameters("
    "nn.utils.parameters_to_vector(net.parameters()).double(), net.parameters())",
    "torch.set_num_threads(3)",
)
IN_PLACE = (  # through detach(), which autograd notices, unlike .data
    "{p}.requires_grad_(False).resize_(3)",
    "{p}.requires_grad_(False).resize_({p}.numel() + 40)",
    "{p}.data.resize_({p}.numel() + 40)",
    "{p}.untyped_storage().resize_(0)",
    "{p}.detach().zero_()",
    "{p}.detach().mul_(0.5)",
    "{p}.requires_grad_()",
    "{p}.data = {p}.data.clone()",
    "{p}.share_memory_()",
)
PARAMETRIZATIONS = (
    "class P(nn.Module):\n    forward = lambda self, t: {e}\n"
    "nn.utils.parametrize.register_parametrization(net.field.weights, '{n}', P(), unsafe=True)",
    "nn.utils.parametrizations.weight_norm(net.field.weights, '{n}')",
    "nn.utils.parametrizations.spectral_norm(net.field.weights, '{n}')",
)

# --- calls, and where they happen -----------------------------------------------------------------

CONTEXTS = (
    "torch.no_grad()",
    "torch.inference_mode()",
    "torch.enable_grad()",
    "torch.autocast('cpu', torch.bfloat16)",
    "torch.autograd.graph.save_on_cpu()",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)",
    "torch.autograd.graph.saved_tensors_hooks(halves[0], lambda t: t[0])",
    "torch.autograd.graph.saved_tensors_hooks(*halves)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.to('meta'), lambda t: t)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t, grown)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t, reversed_memory)",
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
    "out.backward(gradient)",
    "out.backward(gradient)",
    "out.backward(gradient)",
    "out.register_hook(lambda gradient: {g}); out.sum().backward()",
    "Nothing.apply(out).sum().backward()",
    "out.sum().backward(retain_graph=True); out.sum().backward()",
    "out.sum().backward(); out.sum().backward()",
    "out.sum().backward(create_graph=True)",
    "out[:0].sum().backward()",
    "out = grads(out.square().sum(), create_graph=True)\n"
    "sum(g.square().sum() for g in out if g is not None).backward()",
    "out = grads(out, torch.stack([out.detach()] * 3), is_grads_batched=True)",
    "out = torch.func.vmap(lambda v: grads(out, v, retain_graph=True))(gradient[None])",
    "out = torch.autograd.grad(out.sum(), leaf)",
    "out = torch.autograd.grad(out.sum(), [p for p in net.parameters()][-1:])",
    "with torch.inference_mode():\n    out.sum().backward()",
    "with torch.autocast('cpu', torch.bfloat16):\n    out.sum().backward()",
    "with FAKE:\n    out.sum().backward()",
)
OF_STATE = (  # f is the network as a function of the state
    "out = torch.func.vmap({f})(torch.stack([y, y]))",
    "out = torch.func.vmap({f}, in_dims=-1, out_dims=1)(torch.stack([y, y.detach() * 2], -1))",
    "out = torch.func.vmap({f})(y)",
    "out = torch.func.vmap(torch.func.vmap({f}))(torch.stack([y, y])[None])",
    "out = torch.func.jvp({f}, (y,), (torch.ones_like(y),))",
    "out = torch.func.jvp({f}, (y,), (torch.ones_like(y),))\n"
    "sum(o.square().sum() for o in out).backward()",
    "out = torch.func.vjp({f}, y)[1](y)",
    "out = torch.func.grad(lambda y: ({f})(y).square().sum())(y)",
    "out = torch.func.jacrev({f})(y)",
    "out = torch.func.jacfwd({f})(y)",
    "out = torch.func.vmap(torch.func.jacrev({f}))(y)",
    "out = torch.func.vmap(torch.func.jacfwd({f}))(y)",
    "t = torch.tensor(0.5, dtype=y.dtype)\n"
    "out = torch.func.hessian(lambda t: ({f})(y * t).sum())(t)",
    "t = torch.tensor(0.5, dtype=y.dtype)\n"
    "out = torch.func.grad(torch.func.grad(lambda t: ({f})(y * t).square().sum()))(t)",
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
    "with forward_ad.dual_level():\n"
    "    dual = ({f})(forward_ad.make_dual(y, torch.ones_like(y)))\n"
    "    out = tuple(forward_ad.unpack_dual(dual))\n"
    "    (out[0].sum() + out[1].square().sum()).backward()",
    "with forward_ad.dual_level():\n"
    "    dual = ({f})(forward_ad.make_dual(y, torch.ones_like(y)))\n"
    "    grads(dual.sum())\n"
    "    out = forward_ad.unpack_dual(dual).tangent",
)
OF_NUMBERS = (  # f is the network as a function of one of its tensors, p
    "out = torch.func.vmap({f})(torch.stack([p, p * 2]))",
    "out = torch.func.vmap(lambda p, y: functional_call(net, {{'{k}': p}}, (y,)))"
    "(torch.stack([p, p * 2]), torch.stack([y, y]))",
    "out = torch.func.vmap(torch.func.grad(lambda p: ({f})(p).square().sum()))"
    "(torch.stack([p, p * 2]))",
    "out = torch.func.jvp({f}, (p,), (p * 0.5,))",
    "out = torch.func.jvp({f}, (p,), (p * 0.5,)); sum(o.square().sum() for o in out).backward()",
    "out = torch.func.grad(lambda p: ({f})(p).square().sum())(p)",
    "out = torch.func.jacrev({f})(p)",
    "out = torch.func.jacfwd({f})(p)",
    "t = torch.tensor(0.5, dtype=y.dtype)\n"
    "out = torch.func.hessian(lambda t: ({f})(p * t).sum())(t)",
    "q = p.detach().clone().requires_grad_()\nout = torch.autograd.grad(({f})(q).sum(), q)",
    "with forward_ad.dual_level():\n"
    "    dual = ({f})(forward_ad.make_dual(p.detach(), torch.ones_like(p)))\n"
    "    out = tuple(forward_ad.unpack_dual(dual))",
)
OTHERS = (
    "out = net.trajectory(y)",
    "out = net.trajectory(y); out.square().sum().backward()",
    "out = net.inverse(y)",
    "out = net.inverse(net(y)); out.square().sum().backward()",
    "out = hdnn.analysis.sensitivities(net, y)",
    "out = hdnn.analysis.sensitivities(net, y)",
    "out = torch.func.vmap(lambda y: hdnn.analysis.sensitivities(net, y))(torch.stack([y, y]))",
    "out = hdnn.analysis.layer_factors(net, y)",
    "out = hdnn.analysis.velocity_jacobians(net, y)",
    "net = net.member(0); out = net(y[0]); out.sum().backward()",
    "net = net.member([0, 1]); out = net(y[:2]); out.sum().backward()",
    "net(y); net.lower(); out = net(y); out.sum().backward()",
    "out = nn.Sequential(nn.Identity(), net, net)(y); out.sum().backward()",
    "out = net(net(y).mT.contiguous().mT); out.square().sum().backward()",
)


# --- programs that went wrong once, each for a reason of its own ----------------------------------

H1, STEPPED = "build('H1', backend=BACKEND)", "build('H1', step=[0.1, 0.3, 0.2], backend=BACKEND)"
NO_J, SEVERAL = "build('MS2', backend=BACKEND)", "build('H1', ensemble=3, backend=BACKEND)"
HALVES = "with torch.autograd.graph.saved_tensors_hooks(halves[0], lambda t: t[0]):\n"
MANY = "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, grown):\n"
KNOWN = (
    # Tensors that are not numbers of the state's dtype in the memory of the CPU.
    (H1, "out = net.to('meta')(y)"),
    (H1, "net.field.interconnection.to('meta')", "out = net(y)"),
    (H1, "net.field.interconnection.double()", "out = net(y)"),
    (H1, "net.field.interconnection.double()", "out = hdnn.analysis.sensitivities(net, y)"),
    (STEPPED, "net.steps = net.steps.to('meta')", "out = net(y)"),
    (STEPPED, "net.steps = net.steps + 0.1j", "out = net(y)"),
    (H1, "net.field.weights.beta.data = net.field.weights.beta.data.double()", "out = net(y)"),
    (H1, "net.field.weights.theta.untyped_storage().resize_(0)", "out = net(y)"),
    (H1, "out = net(torch._efficientzerotensor((5, 4)))"),
    (H1, "out = hdnn.analysis.sensitivities(net, torch._neg_view(-y.detach()))"),
    (H1, "out = net(misaligned(y))"),
    (H1, "net(y).sgn().sum().backward()"),
    (H1, "out = net(y)", "out.backward(torch._neg_view(torch.ones(5, 4)))"),
    (H1, "g = torch.ones(5, 4); g.untyped_storage().resize_(0)", "net(y).backward(g)"),
    (
        H1,
        "value = net.field.weights.beta.detach().as_subclass(Plain)",
        "del net.field.weights.beta; net.field.weights.beta = value",
        "out = net(y)",
    ),
    (
        H1,
        "net.field.weights.beta.data = inferred(net.field.weights.beta)",
        "net(y).sum().backward()",
    ),
    (
        NO_J,
        f"with torch.inference_mode():\n    net = {NO_J}",
        "net = copy.deepcopy(net); net(y).sum().backward()",
    ),
    (
        H1,
        "J = net.field.interconnection.J",
        "net.field.interconnection.J = J.mT.clone().mT",
        "net(y).sum().backward()",
    ),
    # Other shapes than the program's.
    (H1, "net.field.weights.theta = nn.Parameter(torch.ones(2, 16))", "out = net(y)"),
    (H1, "net.field.weights.theta = nn.Parameter(torch.ones(3, 20))", "out = net(y)"),
    (H1, "net.field.weights.theta = nn.Parameter(torch.ones(1, 3, 16))", "out = net(y)"),
    (H1, "net.field.interconnection.J = torch.zeros(2, 2)", "out = net(y)"),
    (H1, "net.layers = 5; net.lower()", "out = net(y)"),
    (STEPPED, "net.steps = torch.ones(1)", "out = net(y)"),
    (STEPPED, "net.steps = torch.ones(9)", "out = net(y)"),
    (
        SEVERAL,
        "net.field.weights.theta.data = net.field.weights.theta.data[:1]",
        "out = net(y.expand(3, 5, 4))",
    ),
    (
        H1,
        "net(y); w = net.field.weights",
        "p = {'field.weights.theta': w.theta[:1], 'field.weights.beta': w.beta[:1]}",
        "out = functional_call(net, p, (y,))",
    ),
    (H1, "net.field.weights.beta.data = net.field.weights.beta.data[:1]", "out = net(y)"),
    (H1, "net.layers += 1", "out = hdnn.analysis.sensitivities(net, y)"),
    # Other numbers that are learned.
    ("build('H1', learn_steps=True, backend=BACKEND)", "net(y).sum().backward()"),
    ("learned(features=4, layers=3, backend=BACKEND)", "net(y).sum().backward()"),
    # Changes between the two passes.
    (
        H1,
        "out = net(y)",
        "net.field.weights.theta.data = torch.zeros(3, 16)",
        "out.sum().backward()",
    ),
    (
        H1,
        "out = net(y)",
        "net.field.weights.theta.data = torch.zeros(1, 16)",
        "out.sum().backward()",
    ),
    (
        H1,
        "out = net(y)",
        "net.field.interconnection.J.data = torch.zeros(4, 4)",
        "out.sum().backward()",
    ),
    (H1, "out = net(y)", "net.double()", "out.sum().backward()"),
    (H1, "out = net(y)", "net.requires_grad_(False)", "out.sum().backward(create_graph=True)"),
    (H1, "out = net(y)", "net.share_memory()", "out.sum().backward()"),
    (H1, "x = y * 1; out = net(x).sum()", "x.untyped_storage().resize_(0)", "out.backward()"),
    (H1, f"{HALVES}    out = net(y)", "out.sum().backward()"),
    (H1, f"{MANY}    out = net(y)", "out.sum().backward()"),
    (
        H1,
        "J = net.field.interconnection; J.J = J.J.mT; out = net(y)",
        "J.J.untyped_storage().resize_(0)",
        "out.sum().backward()",
    ),
    (  # as sharding frees parameters, which are parts of one
        H1,
        "flat = torch.randn(9, 16); net.field.weights.theta = nn.Parameter(flat[2:5])",
        "flat.untyped_storage().resize_(0)",
        "out = net(y)",
    ),
    (
        H1,
        "flat = torch.randn(9, 16); net.field.weights.theta = nn.Parameter(flat[2:5])",
        "out = net(y); flat.untyped_storage().resize_(0)",
        "out.sum().backward()",
    ),
    (
        H1,
        "out = net(y)",
        "net.requires_grad_(False)",
        "out = torch.func.vmap(lambda v: grads(out, v, retain_graph=True))(torch.ones(2, 5, 4))",
    ),
    (H1, "out = net(y)", "net.float()", "grads(out.sum(), create_graph=True)"),
    # Transforms and modes.
    (
        H1,
        "out = net(y)",
        "out = torch.func.vmap(lambda v: grads(out, v, retain_graph=True))(torch.ones(2, 5, 4))",
    ),
    (
        H1,
        "with torch.autograd.graph.save_on_cpu():\n    out = net(y)",
        "out = torch.func.vmap(lambda v: grads(out, v, retain_graph=True))(torch.ones(2, 5, 4))",
    ),
    (NO_J, "with FAKE:\n    out = net(y)"),
    (H1, "out = net(y)", "with FAKE:\n    out.sum().backward()"),
    (H1, "out = make_fx(net)(y.detach())(y + 1)"),
    (H1, "out = torch.func.functionalize(net)(y)"),
    (H1, "out = torch.func.vmap(net)(y)"),
    (
        H1,
        "J = net.field.interconnection.J",
        "out = torch.func.vmap(lambda J: functional_call("
        "net, {'field.interconnection.J': J}, (y,)))(torch.stack([J, J * 2]))",
    ),
    (
        STEPPED,
        "with forward_ad.dual_level():\n"
        "    p = {'steps': forward_ad.make_dual(net.steps, net.steps)}\n"
        "    out = forward_ad.unpack_dual(functional_call(net, p, (y,))).tangent",
    ),
    (
        H1,
        "with forward_ad.dual_level():\n"
        "    out = forward_ad.unpack_dual(net(forward_ad.make_dual(y, y.detach()))).tangent\n"
        "    out.square().sum().backward()",
    ),
    (H1, "out = torch.func.vmap(lambda y: hdnn.analysis.sensitivities(net, y))(y[None])"),
    (H1, "Nothing.apply(net(y)).sum().backward()"),
)


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

    @property
    def smaller(self) -> list[Case]:
        """The case without one of the lines that it might not need."""
        t, e = self.tampering, self.tail
        less = [self._replace(tampering=t[:k] + t[k + 1 :]) for k in range(len(t))]
        places = [k for k in range(1, len(e) - 1) if "randn" not in e[k]]
        return less + [self._replace(tail=e[:k] + e[k + 1 :]) for k in places]


def draw(seed: int) -> Case:
    """The case of a seed; the first ones are those that are known."""
    if seed < len(KNOWN):
        network, *lines = KNOWN[seed]
        state = "y = leaf = torch.randn(5, 4).requires_grad_()"
        head = ("torch.manual_seed(0)", f"net = {network}", state)
        return Case(seed, "auto", head, (), tuple(lines))
    rng = Random(seed)
    network, state, tensors = _network(rng)
    head = [f"torch.manual_seed({seed})", network, f"y = leaf = {state}"]
    tampering = tuple(_tampering(rng, tensors) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))))
    swaps = any(line.startswith("swap") for line in tampering)
    tail = _calls(rng, tensors, "functional_call(net, swap, (y,))" if swaps else "net(y)")
    if swaps:
        head.append("swap = {}")
    return Case(seed, rng.choice(("auto", "auto", "fused")), tuple(head), tampering, tail)


def _network(rng: Random) -> tuple[str, str, list[str]]:
    """The text of a network and of a state, and where the network's tensors are."""
    dtype = rng.choice(("torch.float32", "torch.float32", "torch.float64"))
    name = rng.choice(_NETWORKS)
    n, layers = rng.choice((2, 4, 4, 4, 6, 10, 16, 34)), rng.choice((1, 2, 3, 3, 3, 7))
    tensors = ["field.weights.theta", "field.weights.beta"]
    options, batch, pixels = [f"layers={layers}"], rng.choice(_BATCHES), ""
    if n == 34 and batch == "40, ":
        batch = "5, "  # a Jacobian of all samples is large enough
    if rng.random() < 0.2:
        options.append("time_invariant=True")
    if name in ("H1", "H2", "HS", "dissipative"):
        tensors += ["field.interconnection.J"] * 2  # few know it: more often
    if name == "dissipative":
        tensors.append("field.R")
    if name == "learned":
        tensors.append("field.interconnection.theta")
    if name in ("learned", "dissipative"):
        n = min(n, 6)
        options.append(f"features={n}")
    else:
        name = f"'{name}'"
        kind = rng.choice(("features",) * 5 + ("channels",))
        options.append(f"{kind}={n}")
        if kind == "channels":
            batch, pixels = "5, ", rng.choice(("", ", 3", ", 2, 3"))
        if n > 6:
            options.append("scale=0.3")  # large random weights multiply rounding
        if rng.random() < 0.2:
            options.append("ensemble=3")
            batch = f"{rng.choice((3, 3, 1))}, {batch or '5, '}"
        if name == "'HS'" and rng.random() < 0.5:
            X = rng.choice(("'learned'", f"torch.eye({n // 2}) * 0.5"))
            options.append(f"X={X}")
            if X == "'learned'":
                tensors[2:] = ["field.interconnection.theta"]
        steps = rng.random() if name != "'FCNN'" else 1.0
        if steps < 0.2:
            options.append(f"step={[0.1, 0.3, 0.2, 0.1, 0.3, 0.2, 0.1][:layers]}")
            tensors += ["steps"] * 2
        elif steps < 0.3:
            options.append("learn_steps=True")
            tensors.append("log_steps")
        if name != "'MS1'" and rng.random() < 0.2:
            options.append(f"activation='{rng.choice(_ACTIVATIONS)}'")
        if name in ("'MS3'", "'HS'") and rng.random() < 0.2:
            options.append(rng.choice(("scheme='Yoshida4'", "scheme='Leapfrog'")))
    function = name if name in ("learned", "dissipative") else "build"
    arguments = [] if function == name else [name]
    arguments += [*options, f"dtype={dtype}", "backend=BACKEND"]
    network = f"net = {function}({', '.join(arguments)})"
    if rng.random() < 0.03:
        network = f"with torch.inference_mode():\n    {network}"
    grad = ".requires_grad_()" if rng.random() < 0.8 else ""
    return network, f"torch.randn({batch}{n}{pixels}, dtype={dtype}){grad}", tensors


_NETWORKS = ("H1", "H1", "H2", "MS1", "MS2", "MS3", "HS", "HS", "FCNN", "ResNet")
_NETWORKS += ("learned", "dissipative")
_BATCHES = ("5, ", "5, ", "5, ", "1, ", "40, ", "2, 3, ", "", "0, ")
_ACTIVATIONS = ("relu", "sigmoid", "identity", "softsign", "sin")


def _tensor(rng: Random) -> str:
    return rng.choice(rng.choice((SAME_KIND, SAME_KIND, SHAPES, DTYPES, ELSEWHERE, CLASSES)))


def _tampering(rng: Random, tensors: list[str]) -> str:
    """A line that changes the network or the state."""
    expression, what = _tensor(rng), rng.random()
    if what < 0.22:
        change = expression.format(t="y")
        leaf = f"y = leaf = ({change}).detach().requires_grad_()"
        return rng.choice((f"y = {change}", f"y = {change}", leaf))
    if what < 0.38:
        return rng.choice(MODULES)
    name = rng.choice(tensors)
    place = f"net.{name}"
    module, last = place.rsplit(".", 1)
    if what < 0.5:
        return rng.choice(IN_PLACE).format(p=place)
    if what < 0.57 and module == "net.field.weights":
        return rng.choice(PARAMETRIZATIONS).format(n=last, e=expression.format(t="t"))
    value = expression.format(t=f"{place}.detach()")
    lines = [
        # Torch itself hardly knows a leaf of its own class with the numbers of a jagged one.
        f"{place}.data = {expression.replace('jagged', 'strided').format(t=f'{place}.data')}",
        f"swap['{name}'] = {value}",
        f"swap['{name}'] = {expression.format(t=place)}",
        f"value = {value}; del {place}; {place} = value",
    ]
    buffer = last in ("J", "R", "steps")
    lines.append(f"{place} = {value}" if buffer else f"{place} = nn.Parameter({value})")
    return rng.choice(lines)


def _calls(rng: Random, tensors: list[str], call: str) -> tuple[str, ...]:
    """The lines that call the network, and may differentiate."""
    what = rng.random()
    if what < 0.55:
        line = within(rng, f"out = {call}")
        if what < 0.15:
            return (line,)
        gradient = _tensor(rng).format(t="gradient")
        lines = [line, "gradient = torch.randn(out.shape, dtype=out.dtype)"]
        if rng.random() < 0.5:
            lines.append(f"gradient = {gradient}")
        backward = rng.choice(BACKWARDS).replace("{g}", gradient)
        # Fake tensors of what changed since trip over themselves, inside torch.
        count = 0 if "FAKE" in backward else rng.choice((0, 0, 1, 1, 2))
        between = [_tampering(rng, tensors) for _ in range(count)]
        return (*lines, *(line for line in between if not line.startswith("swap")), backward)
    if what < 0.72:
        function = "net" if call == "net(y)" else f"lambda y: {call}"
        return (within(rng, rng.choice(OF_STATE).format(f=function)),)
    if what < 0.86:
        name = rng.choice(tensors)
        function = f"lambda p: functional_call(net, {{'{name}': p}}, (y,))"
        line = rng.choice(OF_NUMBERS).format(f=function, k=name)
        return f"p = net.{name}", within(rng, line)
    return (within(rng, rng.choice(OTHERS)),)


def within(rng: Random, lines: str) -> str:
    """Lines as they are, or the same in a context."""
    if rng.random() < 0.75:
        return lines
    return f"with {rng.choice(CONTEXTS)}:\n{textwrap.indent(lines, '    ')}"
