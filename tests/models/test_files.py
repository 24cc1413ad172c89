"""Files: what is saved comes back, and no file can do harm."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import hdnn
from catalogue import build, each, skew
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.fields import (
    ACTIVATIONS,
    STRUCTURES,
    BlockDiagonal,
    EnergyField,
    HamiltonianField,
    Learned,
    LinearMap,
    Matrix,
    Weights,
)
from hdnn.models import (
    Augmentation,
    Blocks,
    Model,
    Projection,
    Scaler,
    image_model,
)
from hdnn.schemes import ImplicitMidpoint, Leapfrog, Scheme, Splitting

Net = hdnn.HamiltonianNetwork


def hamiltonian(J: Any, structure: Any = "dense", **options: Any) -> Net:
    return Net(HamiltonianField(J, Weights(structure, features=4, layers=3), **options), T=1.0)


class LowRank(LinearMap):
    """K = U V' of rank r: a map of one's own."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width, width, 2 * width * rank)
        self.rank = rank

    def assemble(self, theta: Tensor) -> Tensor:
        return theta.unflatten(-1, (2, self.width, self.rank))

    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        return x @ K[1] @ K[0].mT

    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        return s @ K[0] @ K[1].mT

    def arguments(self) -> dict[str, Any]:
        return {"width": self.width, "rank": self.rank}


def table(**options: Any) -> Model:
    scaler = Scaler(torch.randn(3), torch.rand(3) + 1)
    labels = {"classes": ["a", 2, 2.5], "feature_names": ["x", "y", "ü"]}
    return Model(build("MS1"), 3, Augmentation(3, 4), scaler, **labels, **options)


def images(**options: Any) -> Model:
    given = {"channels": 1, "size": (4, 4), "widths": 2, "layers": 2} | options
    return image_model(**given, classes=["cat", "dog"])


COLUMNS = [
    {"name": "age", "kind": "number"},
    {"name": "city", "kind": "category", "levels": ["Rome", "Bern"], "indicator": True},
]
THINGS: dict[str, Callable[[], Any]] = {
    "channels": lambda: build("H2", channels=4),
    "convolution": lambda: build("HS", channels=4, kernel=3),
    "ensemble with steps": lambda: build("H1", ensemble=2, step=torch.rand(2, 3) + 0.1),
    "ensemble, J learned": lambda: build("HS", ensemble=2, X="learned"),
    "time-invariant": lambda: build("MS2", time_invariant=True),
    "float32": lambda: build("H1", dtype=torch.float32),
    "half": lambda: build("MS1").half(),
    "no layers": lambda: build("MS3", layers=0),
    "steps": lambda: build("MS3", step=[0.1, 0.2, 0.3]),
    "learned steps": lambda: build("MS3", learn_steps=True),
    "reference, lean": lambda: build("H1", backend="reference", memory="lean"),
    "X": lambda: build("HS", X=torch.randn(2, 2)),
    "J": lambda: hamiltonian(skew(4)),
    "J(t)": lambda: hamiltonian(skew(4, 3)),
    "J learned": lambda: hamiltonian(Learned(4, init=skew(4))),
    "J(t) learned": lambda: hamiltonian(Learned(4, layers=3, init=skew(4))),
    "damped": lambda: hamiltonian("J1", dissipation=torch.eye(4)),
    "graph": lambda: hamiltonian("J2", [[1, 0, 1, 0], [0, 1, 1, 0]]),
    "low rank": lambda: hamiltonian("J2", LowRank(4, 1)),
    "blocks of maps": lambda: hamiltonian(
        "J1", BlockDiagonal(LowRank(2, 1), Matrix(STRUCTURES["skew"](2)))
    ),
    "leapfrog z": lambda: hdnn.network("HS", features=4, layers=3, T=1.0, scheme=Leapfrog("z")),
    "coefficients": lambda: hdnn.network(
        "MS1", features=4, layers=3, T=1.0, scheme=Splitting((0.3, 0.4, 0.7, 0.6))
    ),
    "midpoint": lambda: hdnn.network(
        "H1", features=4, layers=3, T=0.1, scheme=ImplicitMidpoint("fixed-point", 1e-10, 77)
    ),
    **{a: lambda a=a: build("H1", activation=a) for a in ACTIVATIONS},
    **{s: lambda s=s: hamiltonian("J2", s) for s in STRUCTURES},
    "table": table,
    "regression": lambda: Model(
        build("ResNet"),
        2,
        projection=Projection(4, 4),
        task="regression",
        target_names=["u", "v"],
        columns=COLUMNS,
    ),
    "images": lambda: images(mean=(0.1,), std=(0.3,)),
    "images, stages": lambda: images(
        architecture="MS1", widths=(2, 4), layers=(1, 0), kernel=3, norm="batch", head="pool"
    ),
    "images, strided": lambda: images(
        widths=(2, 8), layers=(1, 1), connector="stride", norm="group", time_invariant=True
    ),
    "images, plain": lambda: images(block="convolution", kernel=3),
}


def state_of(thing: Any) -> Tensor:
    """A batch that a network or model takes."""
    dtype = next(thing.parameters()).dtype
    if isinstance(thing, Model) and thing.stem.takes_images:
        return torch.randint(0, 256, (3, *thing.stem.shape), dtype=torch.uint8)
    if isinstance(thing, Model):
        return torch.randn(3, thing.features, dtype=dtype)
    shape = (3, 4, 5, 6) if thing.channels else (3, 4)
    return torch.randn(*(1,) * (thing.ensemble is not None), *shape).to(dtype)


def assert_comes_back(thing: Any, path: Path) -> None:
    thing.eval()
    hdnn.save(thing, path)
    before = torch.get_rng_state()
    other = hdnn.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(other) == repr(thing)
    mine, theirs = thing.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for name, tensor in mine.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=0)
    for name in ("classes", "feature_names", "target_names", "columns", "task", "backend"):
        assert getattr(other, name, None) == getattr(thing, name, None)
    x = state_of(thing)
    if x.dtype != torch.float16:
        assert torch.equal(other(x), thing(x))
    hdnn.save(other, path.with_suffix(".again"))
    assert path.with_suffix(".again").read_bytes() == path.read_bytes()


@each
def test_every_architecture_and_scheme_comes_back(name: str, scheme: str, tmp_path: Path) -> None:
    assert_comes_back(build(name, scheme), tmp_path / "net.safetensors")


@pytest.mark.parametrize("name", THINGS)
def test_everything_comes_back(name: str, tmp_path: Path) -> None:
    assert_comes_back(THINGS[name](), tmp_path / "thing.safetensors")


@pytest.mark.parametrize("name", THINGS)
def test_everything_is_built_on_the_device_meta(name: str) -> None:
    with torch.device("meta"):
        thing = THINGS[name]()
    tensors = {**thing.state_dict(), **dict(thing.named_buffers())}
    assert all(tensor.is_meta for tensor in tensors.values())
    assert repr(thing)
    if name != "midpoint":  # which looks at numbers
        assert thing(state_of(thing).to("meta")).is_meta


# --- what cannot be saved -------------------------------------------------------------------------


class Bent(HamiltonianField):
    """A field that a file would not know from its parent."""


class Still(Scheme):
    """A scheme that is not in the catalogue."""

    order = 1

    def lower(self, field: Any) -> Any:
        return (field.stage(),)


def parametrized() -> Net:
    net = build("H1")
    nn.utils.parametrize.register_parametrization(net.field.weights, "theta", nn.Identity())
    return net


UNSAVED: dict[str, tuple[Callable[[], Any], str]] = {
    "energy": (
        lambda: Net(EnergyField("J1", lambda x, t: (x**2).sum(-1), features=2), layers=2, T=1.0),
        "EnergyField.*never hold code",
    ),
    "J(y, t)": (lambda: hamiltonian(lambda y, t: skew(4)), "StateDependent.*never hold code"),
    "subclass": (
        lambda: Net(Bent("J1", Weights("dense", features=4, layers=3)), T=1.0),
        "Bent.*never hold code",
    ),
    "activation": (
        lambda: build("H1", activation=hdnn.fields.Activation("mine", torch.tanh, torch.cosh)),
        "'mine' is a function of yours",
    ),
    "scheme": (
        lambda: Net(build("H1").field, Still(), T=1.0),
        r"SCHEMES\['Still'\] = Still",
    ),
    "module": (lambda: Model(Blocks(build("H1"), nn.Tanh(), features=4), 1), "Tanh"),
    "parametrized": (parametrized, "ParametrizedWeights"),
    "no network": (lambda: nn.Linear(2, 2), "save takes a network or a model, got Linear"),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_what_holds_code_raises_and_leaves_no_file(name: str, tmp_path: Path) -> None:
    make, message = UNSAVED[name]
    with pytest.raises(HdnnError, match=message):
        hdnn.save(make(), tmp_path / "net")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file/net", "/proc/my-net", "none/net"])
def test_where_nothing_can_be_written_it_says_so(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*net: .*; choose a folder"):
        hdnn.save(build("H1"), tmp_path / place)


# --- damaged and foreign files --------------------------------------------------------------------


def contents(path: Path) -> tuple[Any, dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["hdnn"])
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(about: Any, tensors: dict[str, Tensor], path: Path) -> Path:
    save_file(tensors, path, metadata={"hdnn": json.dumps(about)})
    return path


@pytest.mark.parametrize("make", [lambda: build("MS1", step=[0.1] * 3), table, images])
def test_a_truncated_file_raises(make: Callable[[], Any], tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    hdnn.save(make(), path)
    whole = path.read_bytes()
    for k in range(20):
        path.write_bytes(whole[: k * len(whole) // 20])
        with pytest.raises(FileFormatError, match=r"cannot load .*net\.safetensors: "):
            hdnn.load(path)


def test_foreign_files_raise(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("a,b\n1,2\n")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Payload()))
    torch.save(Payload(), tmp_path / "torch")
    save_file({"x": torch.ones(3)}, tmp_path / "plain")
    save_file({"x": torch.ones(3)}, tmp_path / "other", metadata={"hdnn": '{"kind": "cat"}'})
    texts = ("", "null", "[]", "{", "NaN", "\0", "1" * 10**4, "[" * 10**5, '{"a":' * 10**5)
    for number, text in enumerate(texts):
        save_file({"x": torch.ones(3)}, tmp_path / f"text{number}", metadata={"hdnn": text})
    for path in list(tmp_path.iterdir()):
        with pytest.raises(FileFormatError, match=str(path)):
            hdnn.load(path)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(HdnnError, match="no such file"):
        hdnn.load(tmp_path / "nothing")


def arguments(about: Any, *names: str) -> dict[str, Any]:
    """The arguments of an object within a description."""
    place = about["thing"]["arguments"]
    for name in names:
        place = place[name]["arguments"]
    return place  # type: ignore[no-any-return]


THETA, BETA, J = "field.weights.theta", "field.weights.beta", "field.interconnection.J"
LIES: dict[str, tuple[Callable[[Any, dict[str, Tensor]], Any], str]] = {
    "tensor missing": (lambda a, t: t.pop(BETA), f"{BETA} is absent"),
    "tensor extra": (lambda a, t: t.update(more=torch.ones(1)), "more is torch.float64"),
    "other shape": (lambda a, t: t.update({THETA: torch.ones(2, 16)}), THETA),
    "other dtype": (lambda a, t: t.update({BETA: t[BETA].float()}), BETA),
    "integers": (lambda a, t: t.update({THETA: t[THETA].long()}), THETA),
    "J not skew": (lambda a, t: t.update({J: torch.ones(4, 4)}), "skew"),
    "J not finite": (lambda a, t: t.update({J: torch.full((4, 4), torch.nan)}), "finite"),
    "unknown class": (
        lambda a, t: arguments(a)["scheme"].update({"class": "Popen"}),
        "unknown class Popen",
    ),
    "another class": (
        lambda a, t: a.update(thing=arguments(a)["scheme"]),
        "it holds a ForwardEuler",
    ),
    "unknown argument": (lambda a, t: arguments(a).update(more=1), "more"),
    "missing argument": (lambda a, t: arguments(a).pop("backend"), "leaves out arguments"),
    "wrong type": (lambda a, t: arguments(a, "field", "weights").update(layers="3"), "layers"),
    "a function": (lambda a, t: arguments(a, "field").update(activation="eval"), "activation"),
    "infinite step": (lambda a, t: arguments(a).update(step=float("inf")), "step"),
    "newer": (lambda a, t: a.update(format=2), "update hdnn"),
    "no format": (lambda a, t: a.pop("format"), "format"),
    "no thing": (lambda a, t: a.pop("thing"), "thing"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_description_that_does_not_fit_raises(name: str, tmp_path: Path) -> None:
    change, message = LIES[name]
    hdnn.save(build("H1"), tmp_path / "net")
    about, tensors = contents(tmp_path / "net")
    change(about, tensors)
    with pytest.raises(FileFormatError, match=message):
        hdnn.load(write(about, tensors, tmp_path / "lie"))


@pytest.mark.parametrize(
    "code",
    [torch.ones(1, 4, 1, 1), torch.ones(4), torch.full((1, 4), -(2**63)), torch.tensor([[1, 3]])],
    ids=["4 axes", "1 axis", "smallest", "gaps"],
)
def test_a_pattern_that_is_none_raises(code: Tensor, tmp_path: Path) -> None:
    hdnn.save(hamiltonian("J2", [[1, 1, 1, 1]]), tmp_path / "net")
    about, tensors = contents(tmp_path / "net")
    (name,) = tensors.keys() - {THETA, BETA, J}
    tensors[name] = code.long()
    with pytest.raises(FileFormatError):
        hdnn.load(write(about, tensors, tmp_path / "bad"))


# --- descriptions that ask for much ---------------------------------------------------------------


def weights(**changes: Any) -> Callable[[Any, dict[str, Tensor]], Any]:
    return lambda about, tensors: arguments(about, "field", "weights").update(changes)


def many_networks(about: Any, tensors: dict[str, Tensor]) -> None:
    modules = arguments(about, "network")["modules"]
    net = modules[0]
    net["arguments"]["field"]["arguments"]["weights"]["arguments"].update(features=256, layers=0)
    modules.extend(copy.deepcopy(net) for _ in range(2000))


def no_parameters(about: Any, tensors: dict[str, Tensor]) -> None:
    """A pattern of zeros only, so that any number of layers has no parameters."""
    pattern = {"class": "Pattern", "arguments": {"code": {"tensor": "code"}}}
    weights(structure=pattern, layers=10**9)(about, tensors)
    tensors["code"] = torch.zeros(4, 4, dtype=torch.int64)
    tensors[THETA] = torch.zeros(10**9, 0)


def wide_pattern(about: Any, tensors: dict[str, Tensor]) -> None:
    """A pattern that has rows, but no columns."""
    pattern = {"class": "Pattern", "arguments": {"code": {"tensor": "code"}}}
    weights(structure=pattern)(about, tensors)
    tensors["code"] = torch.zeros(10**9, 0, dtype=torch.int64)


def named_interconnection(about: Any, tensors: dict[str, Tensor]) -> None:
    """A wide map with few parameters, and a J that only its name describes."""
    arguments(about, "field").update(J="J2")
    weights(features=10**5, layers=1)(about, tensors)
    arguments(about, "field", "weights", "structure").update(width=10**5)
    tensors[THETA] = torch.zeros(1, 2 * 10**5)
    tensors[BETA] = torch.zeros(1, 10**5)
    del tensors[J]


GREEDY: dict[str, tuple[Callable[[], Any], Callable[[Any, dict[str, Tensor]], Any]]] = {
    "layers": (lambda: build("ResNet"), weights(layers=10**8)),
    "width": (lambda: build("ResNet"), weights(features=10**5)),
    "width, without layers": (lambda: build("ResNet", layers=0), weights(features=10**5)),
    "kernel": (lambda: build("FCNN", channels=2, kernel=3), weights(kernel=99_999)),
    "ensemble": (lambda: build("MS2", ensemble=2), weights(ensemble=10**8)),
    "pattern without parameters": (lambda: build("ResNet"), no_parameters),
    "pattern without columns": (lambda: build("ResNet"), wide_pattern),
    "J": (
        lambda: hamiltonian(Learned(4)),
        lambda about, t: arguments(about, "field", "J").update(width=10**5),
    ),
    "J(t)": (
        lambda: hamiltonian(Learned(4, layers=3)),
        lambda about, t: arguments(about, "field", "J").update(layers=10**8),
    ),
    "head": (table, lambda about, t: arguments(about).update(outputs=10**8)),
    "projection": (
        lambda: Model(build("H1"), 1, projection=Projection(4, 4)),
        lambda about, t: arguments(about, "stem", "projection").update(features=10**8),
    ),
    "images": (images, lambda about, t: arguments(about, "stem").update(channels=10**8)),
    "many networks": (lambda: Model(build("ResNet"), 1), many_networks),
    "named J": (lambda: hamiltonian("J2", LowRank(4, 1)), named_interconnection),
    "map": (
        lambda: Net(
            hdnn.fields.ActivationField(Weights(LowRank(4, 1), features=4, layers=2)), T=1.0
        ),
        lambda about, t: arguments(about, "field", "weights", "structure").update(rank=10**8),
    ),
    "wide map, without layers": (
        lambda: hamiltonian("J2", LowRank(4, 1)),
        lambda about, t: (
            weights(features=10**9, layers=0)(about, t),
            arguments(about, "field", "weights", "structure").update(width=10**9),
        ),
    ),
}


@pytest.mark.parametrize("name", GREEDY)
def test_a_small_file_cannot_ask_for_much(name: str, tmp_path: Path) -> None:
    make, change = GREEDY[name]
    hdnn.save(make(), tmp_path / "net")
    about, tensors = contents(tmp_path / "net")
    change(about, tensors)
    path = write(about, tensors, tmp_path / "greedy")
    with little_memory(), pytest.raises(FileFormatError):
        hdnn.load(path)


def test_many_layers_that_share_their_weights_are_not_unrolled(tmp_path: Path) -> None:
    hdnn.save(build("H1", "RK4", time_invariant=True), tmp_path / "net")
    about, tensors = contents(tmp_path / "net")
    arguments(about).update(layers=10**9)
    arguments(about, "field", "weights").update(layers=10**9)
    path = write(about, tensors, tmp_path / "deep")
    with little_memory():
        assert hdnn.load(path).layers == 10**9


@contextmanager
def little_memory() -> Iterator[None]:
    """Neither Python nor numpy nor torch (but on the device meta) takes much memory."""
    given = Largest()
    tracemalloc.start()
    try:
        with given:
            yield
        _, peak = tracemalloc.get_traced_memory()  # numpy tells it, too
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    assert given.elements < 10**6


class Largest(torch.overrides.TorchFunctionMode):
    """The most elements of a tensor outside of the device meta that torch was asked for."""

    elements = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and not found.is_meta:
            self.elements = max(self.elements, found.untyped_storage().nbytes() // 8)
        return found


def leaves(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a description, as the container and the key in it."""
    children = list(value.items()) if isinstance(value, dict) else []
    children = list(enumerate(value)) if isinstance(value, list) else children
    return [(value, key) for key, _ in children] + [p for _, c in children for p in leaves(c)]


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    names = ("ensemble with steps", "damped", "graph", "J(t) learned", "table", "images, stages")
    folder = tmp_path_factory.mktemp("saved")
    for name in names:
        hdnn.save(THINGS[name](), folder / name)
    return {name: folder / name for name in names}


def loaded(path: Path) -> Any:
    """What a file holds, or None where it is an error of at most a few lines."""
    try:
        return hdnn.load(path)
    except FileFormatError as error:
        if len(str(error)) > 1000:
            pytest.fail(f"a long message: {str(error)[:100]}")
        return None


@settings(max_examples=200)
@given(data=st.data())
def test_any_value_in_a_description_is_what_is_built_or_raises(
    data: st.DataObject, saved: dict[str, Path]
) -> None:
    path = saved[data.draw(st.sampled_from(sorted(saved)))]
    about, tensors = contents(path)
    place, key = data.draw(st.sampled_from(leaves(about)))
    place[key] = data.draw(JSON)
    changed = write(about, tensors, path.with_suffix(".changed"))
    thing = loaded(changed)
    if thing is not None:
        hdnn.save(thing, path.with_suffix(".again"))
        assert contents(path.with_suffix(".again"))[0] == about


@settings(max_examples=200)
@given(data=st.data())
def test_any_bytes_are_read_or_raise(data: st.DataObject, saved: dict[str, Path]) -> None:
    path = saved[data.draw(st.sampled_from(sorted(saved)))]
    whole = path.read_bytes()
    start, cut = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 20))
    fresh = data.draw(st.binary(max_size=20))
    path.with_suffix(".other").write_bytes(whole[:start] + fresh + whole[start + cut :])
    loaded(path.with_suffix(".other"))
