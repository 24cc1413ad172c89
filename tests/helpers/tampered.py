"""Runs the programs of `tampering` on two backends, and says where they disagree.

Both have to compute the same, or both have to raise. Cases run in child processes, so that one that
crashes is named by its seed, and the others go on.

    python tests/helpers/tampered.py FIRST COUNT     what `run` runs
    python tests/helpers/tampered.py SEED            one case in this process, printed
"""

from __future__ import annotations

import copy
import faulthandler
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import hdnn
from catalog import build
from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields import HamiltonianField, Learned, Weights
from hdnn.kernels import native
from tampering import Case, draw

Net = hdnn.HamiltonianNetwork

# --- what programs use beside torch ---------------------------------------------------------------


class Plain(Tensor):
    """A subclass with nothing of its own."""


class Strict(Tensor):
    """A subclass that will not be multiplied."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if getattr(function, "__name__", "") in ("matmul", "__matmul__", "addmm", "linear"):
            return NotImplemented
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(Tensor):
    """A subclass without memory: every operation is that of the tensor within."""

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


class Watching(TorchDispatchMode):
    """A mode that looks on."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        return operation(*args, **(kwargs or {}))


class Nothing(torch.autograd.Function):
    """Passes no gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


@contextmanager
def deterministic() -> Iterator[None]:
    """Torch's deterministic algorithms, which also fill empty tensors with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def misaligned(t: Tensor) -> Tensor:
    """The same numbers at an odd address."""
    raw = bytearray(1) + bytearray(t.detach().contiguous().numpy().tobytes())
    return torch.frombuffer(raw, dtype=t.dtype, offset=1).view(t.shape)


def inferred(t: Tensor) -> Tensor:
    """The same numbers as a tensor of inference mode."""
    with torch.inference_mode():
        return t.detach().clone()


def reversed_memory(t: Tensor) -> Tensor:
    """The same numbers in another order."""
    return t.movedim(0, -1).contiguous().movedim(-1, 0) if t.ndim else t


def grown(t: Tensor) -> Tensor:
    """A state with more samples than it had; no parameter has an axis of 5."""
    return torch.cat([t] * 9999) if t.ndim and len(t) == 5 else t


def _half(t: Tensor) -> tuple[Tensor, torch.dtype]:
    return (t.half() if t.is_floating_point() else t), t.dtype


halves = _half, lambda kept: kept[0].to(kept[1])
"""Hooks that keep what a backward pass needs in half precision."""


def learned(backend: str, **options: Any) -> Net:
    """A network with a J that is trained."""
    weights = Weights(**options)
    field = HamiltonianField(Learned(weights.layout.width), weights)
    return Net(field, T=1.0, backend=backend)


def dissipative(backend: str, **options: Any) -> Net:
    """A network with an R."""
    weights = Weights(**options)
    R = torch.eye(weights.layout.width) * 0.5
    return Net(HamiltonianField("J2", weights, dissipation=R), T=1.0, backend=backend)


TORCH = (torch, nn, copy, pickle, hdnn, forward_ad, functional_call, checkpoint, make_fx)
OURS = (Plain, Strict, Wrapped, Watching, Nothing, deterministic, default_dtype, misaligned)
OURS += (inferred, reversed_memory, grown, build, learned, dissipative)
NAMES = {thing.__name__.rsplit(".", 1)[-1]: thing for thing in TORCH + OURS} | {"halves": halves}

# --- one case -------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a program: the error and its line, if any, and the tensors at its end."""

    error: Exception | None
    line: int
    tensors: dict[str, Any]


class DisagreementError(Exception):
    """What a case must not do."""


def play(text: str, backend: str) -> Outcome:
    """Run a program on a backend."""
    names: dict[str, Any] = {**NAMES, "BACKEND": backend, "net": None, "leaf": None}
    names["FAKE"] = FakeTensorMode(allow_non_fake_inputs=True)

    def grads(out: Tensor, *args: Any, **options: Any) -> Any:
        inputs = [t for t in (names["leaf"], *names["net"].parameters()) if t.requires_grad]
        return torch.autograd.grad(out, inputs, *args, allow_unused=True, **options)

    names["grads"] = grads
    error, line = None, 0
    try:
        exec(compile(text, "<case>", "exec"), names)
    except DisagreementError:
        raise
    except Exception as caught:
        frames = traceback.extract_tb(caught.__traceback__)
        error, line = caught, next(f.lineno or 0 for f in frames if f.filename == "<case>")
    finally:
        torch.set_num_threads(1)
    tensors = {"out": names.get("out"), "leaf.grad": getattr(names["leaf"], "grad", None)}
    named = [] if names["net"] is None else names["net"].named_parameters()
    return Outcome(error, line, tensors | {f"{name}.grad": p.grad for name, p in named})


CHANGED = "modified by an inplace operation"
FREED = "resize_(0)"
"""A backward pass may raise where its input was changed or freed: the kernels compute the forward
pass again, from all of its inputs, and plain torch may not need that one."""
BROKEN = ("lambda t: t[0])", "lambda t: t.to('meta')", "grown")
"""Hooks that do not give back what they were given, which torch's documentation rules out: the
gradient of that is as good as an error, but no crash is."""
FLOAT8 = "Promotion for Float8"
"""Torch adds up no gradients in the dtype that a parameter got between the passes."""
HOOK, UNNOTICED = "torch.autograd.graph.save", (".detach().zero_()", ".detach().mul_", "_norm(")
"""Torch does not notice changes in place of what a hook keeps: then any gradient will do."""
LIMITS = (
    "don't yet support saved tensor hooks",
    "fake_mode.in_kernel_invocation",
    "is the output of a function that returns multiple views",
    "Couldn't swap",
    "do not track version counter",
    "Inplace update to inference tensor",
)
"""Errors of torch about itself, on the reference's way, and not about what it was given."""
INFINITE = "torch.inf"
"""Where zeros of J times infinity make NaN in a matrix product; the kernels do not multiply by
zeros that they know of."""
COARSE = ("autocast", "halves")
"""Where the reference computes gradients from rounded numbers: 16 bits, by the user's wish."""
USUAL = (HdnnError, RuntimeError, TypeError, ValueError, IndexError)


def compare(text: str, actual: Outcome, expected: Outcome) -> None:
    """Raise unless both computed the same, or both raised."""
    error, exact = actual.error, expected.error
    if (
        FLOAT8 in str(error)
        or CHANGED in str(error)
        or (error is not None and exact is None and FREED in text)
    ):
        return
    if HOOK in text and any(word in text for word in UNNOTICED):
        return
    if any(word in text for word in BROKEN) or any(word in str(exact) for word in LIMITS):
        return
    if (error is None) != (exact is None) or actual.line != expected.line:
        raise DisagreementError(f"{_what(actual)}, where the reference {_what(expected)}")
    if error is not None:
        if not isinstance(error, (*USUAL, type(exact))):
            raise DisagreementError(f"raises {error!r}, and the reference {exact!r}")
        return
    for name, value in expected.tensors.items():
        _same(name, actual.tensors.get(name), value, text)


def _what(outcome: Outcome) -> str:
    error = outcome.error
    return "computes" if error is None else f"raises {error!r:.300} at line {outcome.line}"


def _same(name: str, a: Any, b: Any, text: str) -> None:
    (leaves, form), (exact, exact_form) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    kinds, exact_kinds = [type(x) for x in leaves], [type(x) for x in exact]
    if form != exact_form or kinds != exact_kinds:
        raise DisagreementError(f"{name} is {kinds}, and the reference gives {exact_kinds}")
    for x, y in zip(leaves, exact, strict=True):
        if isinstance(y, Tensor):
            _same_tensor(name, x, y, text)


def _same_tensor(name: str, x: Tensor, exact: Tensor, text: str) -> None:
    # Of a parameter whose dtype was changed between the passes, a gradient in either will do.
    kinds = () if name.endswith(".grad") else ("dtype",)
    for what in (*kinds, "device", "layout", "requires_grad"):
        mine, others = getattr(x, what), getattr(exact, what)
        if mine != others:
            raise DisagreementError(f"{name}.{what} is {mine}, not {others}")
    if exact.is_nested or exact.layout is not torch.strided:
        return
    if x.shape != exact.shape:
        raise DisagreementError(f"{name} has shape {tuple(x.shape)}, not {tuple(exact.shape)}")
    if isinstance(exact, Wrapped):
        x, exact = x.within, exact.within
    if exact.is_meta or isinstance(exact, FakeTensor):
        return
    coarse = any(word in text for word in COARSE)
    tolerance = max(_tolerance(t.dtype, coarse) for t in (x, exact))
    x, exact = (t.detach().as_subclass(Tensor).to(torch.complex128) for t in (x, exact))
    finite = torch.isfinite(exact)
    if INFINITE not in text and bool(torch.isfinite(x)[~finite].any()):
        raise DisagreementError(f"{name} is finite where the reference is not")
    scale = max(1.0, float(exact[finite].abs().max())) if finite.any() else 1.0
    difference = (x - exact)[finite].abs()
    if not bool((difference <= tolerance * scale).all()):
        raise DisagreementError(
            f"{name} is wrong by {float(difference.max()):.3g} at scale {scale:.3g}"
        )


def _tolerance(dtype: torch.dtype, coarse: bool) -> float:
    """1e-9 in float64, 3e-4 in float32: 7 layers of random weights multiply rounding, twice."""
    known = {torch.float64: 1e-9, torch.float32: 3e-4}
    return 0.1 if coarse else known.get(dtype, 0.1 if dtype.is_floating_point else 0)


def fits(net: Net) -> bool:
    """Whether the numbers of a network have the shapes of its program, and are on one device."""
    program, weights, values = net.program, net.field.weights, net.values()
    lead, L, n = program.layout.lead, program.layers, program.layout.width
    K, b = weights.map.size, weights.parameters_per_layer - weights.map.size
    sizes = ((values.theta, K), (values.beta, b))
    shapes = [t.shape in ((*lead, L, size), (*lead, 1, size)) for t, size in sizes]
    if values.S is not None:
        shapes.append(values.S.shape in ((n, n), (L, n, n), (*lead, L, n, n), (*lead, 1, n, n)))
    if isinstance(values.h, Tensor):
        shapes.append(values.h.shape in ((L,), (*lead, L)))
    devices = {t.device for t in values[1:4] if t is not None}
    return all(shapes) and len(devices) == 1


calls = 0
"""How often the kernels computed a value."""


def watch() -> None:
    """See to it that no network computes with numbers that do not fit, or otherwise than it says.

    By hooks of all modules, so that every call of every program is watched.
    """
    library, notes = native.library(), []
    native.LEAST = 0  # the activations of these small networks are kept, too

    def count(forward: Any, place: int) -> Any:
        def counted(*arguments: Any) -> Any:
            global calls  # noqa: PLW0603
            calls += 1
            if arguments[place] % 4:
                raise DisagreementError("the kernels are given a state at an odd address")
            return forward(*arguments)

        return counted

    library.hdnn_forward = count(library.hdnn_forward, 2)
    library.hdnn_rollout_forward = count(library.hdnn_rollout_forward, 3)

    def before(net: nn.Module, arguments: Any) -> None:
        if isinstance(net, Net):
            try:
                said = net.explain_backend(*arguments).backend
            except Exception as error:
                said = repr(error)
            notes.append((said, calls))

    def after(net: nn.Module, arguments: Any, out: Any) -> None:
        if isinstance(net, Net) and notes:
            said, count = notes.pop()
            happened = "fused" if calls > count else "reference"
            if not fits(net):
                raise DisagreementError(f"{happened} computes with numbers that do not fit")
            if said != happened:
                raise DisagreementError(f"explain_backend says {said}, and {happened} computes")

    nn.modules.module.register_module_forward_pre_hook(before)
    nn.modules.module.register_module_forward_hook(after)


class Untouched:
    """Networks that nobody touches: they compute the same bits after every case as at first."""

    def __init__(self) -> None:
        self.nets = [
            build("H1", layers=3),
            build("MS3", features=6, layers=5, dtype=torch.float64),
            build("H2", features=16, ensemble=2),
            build("ResNet", channels=4, layers=2),
        ]
        shapes = ((5, 4), (7, 6), (2, 9, 16), (3, 4, 5))
        both = zip(shapes, self.nets, strict=True)
        self.states = [torch.randn(shape, dtype=net.field.dtype) for shape, net in both]
        self.first = self.compute()

    def compute(self) -> list[Tensor]:
        found = []
        for net, y in zip(self.nets, self.states, strict=True):
            out = net(y)
            found += [out.detach(), *torch.autograd.grad(out.sum(), list(net.parameters()))]
        return found

    def check(self) -> None:
        if not all(map(torch.equal, self.compute(), self.first)):
            raise DisagreementError("an untouched network computes other numbers afterwards")


class Verdict(NamedTuple):
    """What is wrong with a case, if anything; whether it computes, and whether kernels did."""

    wrong: str
    computed: bool = False
    fused: bool = False


def judge(case: Case, untouched: Untouched, note: Callable[[], object]) -> Verdict:
    """Run a case on both backends; `note` is called between them."""
    count, computed, wrong = calls, False, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = play(case.text, "reference")
            computed = expected.error is None
            note()
            actual = play(case.text, case.backend)
            # What was asked for cannot be had: that is what "fused" says, and "auto" must not.
            if case.backend != "fused" or not isinstance(actual.error, IncompatibleError):
                compare(case.text, actual, expected)
            fused = calls > count
            untouched.check()
        except DisagreementError as caught:
            wrong, fused = str(caught), False
    return Verdict(wrong, computed, fused)


# --- many, in processes ---------------------------------------------------------------------------

BLOCK, SECONDS = 25, 60
HALF = "the reference is done"
LAZY = ("torch._dynamo", "torch._decomp.decompositions_for_jvp", "torch.nested._internal.ops")
"""What torch imports when a case first needs it: once here, instead of once in every child."""


def run_block(cases: list[Case], untouched: Untouched) -> Iterator[tuple[Case, Verdict]]:
    """Run cases in a child process; after one that ends it, the rest in another."""
    while cases:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            _child(cases, untouched, write)
        os.close(write)
        done, ours = 0, False
        with os.fdopen(read) as pipe:
            for line in pipe:
                if line.strip() == HALF:
                    ours = True
                else:
                    yield cases[done], Verdict(*json.loads(line))
                    done, ours = done + 1, False
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if done < len(cases):
            how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            # Torch has crashes of its own, which are not ours to mend.
            yield cases[done], Verdict(f"ends the process: {how}" if ours else "")
            done += 1
        cases = cases[done:]


def _child(cases: list[Case], untouched: Untouched, write: int) -> None:
    status = 1
    try:
        with os.fdopen(write, "w", buffering=1) as pipe:
            for case in cases:
                signal.alarm(SECONDS)
                verdict = judge(case, untouched, lambda: pipe.write(f"{HALF}\n"))
                pipe.write(json.dumps(verdict) + "\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def shrink(case: Case, wrong: str, untouched: Untouched) -> tuple[Case, str]:
    """The case without the lines that it does not need to go wrong, in whichever way."""
    for less in case.smaller:
        ((_, verdict),) = run_block([less], untouched)
        if verdict.wrong:
            return shrink(less, verdict.wrong, untouched)
    return case, wrong


def main(first: int, count: int) -> None:
    faulthandler.enable(all_threads=False)
    # Whatever else is printed goes to standard error.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(record: object) -> None:
        output.write(json.dumps(record) + "\n")

    for name in LAZY:
        with suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    untouched = Untouched()
    watch()
    computed = fused = 0
    for start in range(first, first + count, BLOCK):
        cases = [draw(seed) for seed in range(start, min(start + BLOCK, first + count))]
        for case, verdict in run_block(cases, untouched):
            computed, fused = computed + verdict.computed, fused + verdict.fused
            if verdict.wrong:
                smaller, wrong = shrink(case, verdict.wrong, untouched)
                program = f"BACKEND = {case.backend!r}\n{smaller.text}"
                say(f"seed {case.seed}: {wrong}\n{program}\n")
    say([computed, fused])


class Run(NamedTuple):
    """Where backends disagree; how many cases computed, and how many of these by the kernels."""

    disagreements: list[str]
    computed: int
    fused: int


def run(first: int, count: int) -> Run:
    """Run the cases of some seeds in a process that looks for damage to its memory."""
    found = {
        "PYTHONFAULTHANDLER": "1",
        # glibc: check every block that is freed, and fill what is freed and what is new.
        "LD_PRELOAD": "libc_malloc_debug.so.0",
        "MALLOC_CHECK_": "3",
        "MALLOC_PERTURB_": "165",
    }
    words = [sys.executable, __file__, str(first), str(count)]
    env = {**found, **os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    *disagreements, (computed, fused) = map(json.loads, done.stdout.splitlines())
    return Run(disagreements, computed, fused)


def check(first: int, count: int) -> None:
    """Run the cases of some seeds; many of them compute, and many of these in kernels.

    Raises:
        AssertionError: backends disagree; the programs are printed.
    """
    found = run(first, count)
    assert not found.disagreements, "\n".join(found.disagreements)
    assert found.computed > 0.3 * count
    assert found.fused > 0.1 * count


def show(seed: int) -> None:
    """One case, with what it computes."""
    case = draw(seed)
    sys.stdout.write(f"BACKEND = {case.backend!r}\n{case.text}\n")
    for backend in ("reference", case.backend):
        sys.stdout.write(f"\n{backend}: {play(case.text, backend)}\n")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(*numbers) if len(numbers) > 1 else show(*numbers)
