"""Files: what is saved comes back, and loading a file executes no code."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import hdnn
from catalog import EACH, build, skew
from hdnn.errors import FileFormatError, HdnnError
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
from hdnn.models import Blocks, Model, Padding, Projection, Scaler, image_model, model_files
from hdnn.schemes import ImplicitMidpoint, Scheme, Splitting
from processes import memory_growth, on_linux

Net = hdnn.HamiltonianNetwork


def hamiltonian(J: Any, structure: Any = "dense", **options: Any) -> Net:
    return Net(HamiltonianField(J, Weights(structure, features=4, layers=3), **options), T=1.0)


class LowRank(LinearMap):
    """K = U V' of rank r: a custom map."""

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


def table() -> Model:
    scaler = Scaler(torch.randn(3), torch.rand(3) + 1)
    labels = {"classes": ["a", 2, 2.5], "feature_names": ["x", "y", "ü"]}
    return Model(build("MS1"), 3, Padding(3, 4), scaler, **labels)


def images(**options: Any) -> Model:
    shape = {"channels": 1, "size": (4, 4), "widths": 2, "layers": 2} | options
    return image_model(**shape, classes=["cat", "dog"])


COLUMNS = [
    {"name": "age", "kind": "number"},
    {"name": "city", "kind": "category", "levels": ["Rome", "Bern"], "indicator": True},
]
THINGS: dict[str, Callable[[], Any]] = {
    **{" ".join(pair): lambda pair=pair: build(*pair) for pair in EACH},
    "channels": lambda: build("H2", channels=4),
    "convolution": lambda: build("HS", channels=4, kernel=3),
    "ensemble with steps": lambda: build("H1", ensemble=2, step=torch.rand(2, 3) + 0.1),
    "ensemble, J learned": lambda: build("HS", ensemble=2, X="learned"),
    "half, time-invariant": lambda: build("MS2", time_invariant=True).half(),
    "no layers": lambda: build("MS3", layers=0),
    "learned steps": lambda: build("MS3", learn_steps=True),
    "learned steps, time-invariant": lambda: build("H1", learn_steps=True, time_invariant=True),
    "reference, lean": lambda: build("H1", backend="reference", memory="lean"),
    "X": lambda: build("HS", X=torch.randn(2, 2)),
    "J(t)": lambda: hamiltonian(skew(4, 3)),
    "J(t) learned": lambda: hamiltonian(Learned(4, layers=3, init=skew(4))),
    "damped": lambda: hamiltonian("J1", dissipation=torch.eye(4)),
    "graph": lambda: hamiltonian("J2", [[1, 0, 1, 0], [0, 1, 1, 0]]),
    "blocks of maps": lambda: hamiltonian(
        "J1", BlockDiagonal(LowRank(2, 1), Matrix(STRUCTURES["skew"](2)))
    ),
    "coefficients": lambda: hdnn.network(
        "MS1", features=4, layers=3, T=1.0, scheme=Splitting((0.3, 0.4, 0.7, 0.6))
    ),
    "units": lambda: build("H1", units=6),
    "signs": lambda: build("MS3", units=6, signs=[1, -1, 1, 1, -1, -1]),
    "signs of channels": lambda: build("HS", channels=4, kernel=3, signs=[1, -1, 1, 1]),
    "discrete gradient": lambda: build("H2", "DiscreteGradient"),
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
        architecture="MS1", widths=(2, 4), layers=(1, 0), kernel=3, norm="batch"
    ),
    "images, plain": lambda: images(block="convolution", kernel=3, dtype=torch.float32),
}


def batch_for(thing: Any) -> Tensor:
    dtype = next(thing.parameters()).dtype
    if isinstance(thing, Model) and thing.stem.takes_images:
        return torch.randint(0, 256, (3, *thing.stem.shape), dtype=torch.uint8)
    if isinstance(thing, Model):
        return torch.randn(3, thing.features, dtype=dtype)
    shape = (3, 4, 5, 6) if thing.channels else (3, 4)
    return torch.randn(*(1,) * (thing.ensemble is not None), *shape).to(dtype)


@pytest.mark.parametrize("name", THINGS)
def test_everything_comes_back(name: str, tmp_path: Path) -> None:
    thing, path = THINGS[name]().eval(), tmp_path / "thing.safetensors"
    hdnn.save(thing, path)
    before = torch.get_rng_state()
    other = hdnn.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(other) == repr(thing)
    mine, theirs = thing.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for key, tensor in mine.items():
        torch.testing.assert_close(theirs[key], tensor, rtol=0, atol=0)
    for key in ("classes", "feature_names", "target_names", "columns", "task", "backend"):
        assert getattr(other, key, None) == getattr(thing, key, None)
    x = batch_for(thing)
    if x.dtype != torch.float16:
        assert torch.equal(other(x), thing(x))
    hdnn.save(other, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


# --- what cannot be saved -------------------------------------------------------------------------


class Bent(HamiltonianField):
    """A field that a file would not know from its parent."""


class Forgetful(LowRank):
    """A map whose description is wrong."""

    def arguments(self) -> dict[str, Any]:
        return {"width": self.width, "rank": self.rank + 1}


class Still(Scheme):
    """A scheme that is not in the catalog."""

    order = 1

    def lower(self, field: Any) -> Any:
        return (field.stage(),)


class Silent(LowRank):
    """A map that does not say what its arguments are."""

    arguments = LinearMap.arguments


UNSAVED: dict[str, tuple[Callable[[], Any], str]] = {
    "energy": (
        lambda: Net(EnergyField("J1", lambda x, t: (x**2).sum(-1), features=2), layers=2, T=1.0),
        "EnergyField may hold code",
    ),
    "subclass": (lambda: Net(Bent("J1", Weights(features=4, layers=3)), T=1.0), "Bent may hold"),
    "activation": (
        lambda: build("H1", activation=hdnn.fields.Activation("mine", torch.tanh, torch.cosh)),
        "Activation may hold code",
    ),
    "scheme": (lambda: Net(build("H1").field, Still(), T=1.0), r"SCHEMES\['Still'\] = Still"),
    "map": (lambda: hamiltonian("J2", Forgetful(4, 1)), "not saved.*size mismatch.*theta"),
    "silent map": (lambda: hamiltonian("J2", Silent(4, 1)), "Silent: give it a method arguments"),
    "module": (lambda: Model(Blocks(build("H1"), nn.Tanh(), features=4), 1), "Tanh"),
    "no network": (
        lambda: nn.Linear(2, 2),
        "save takes a network, a model or a fitted estimator, got Linear",
    ),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_what_could_not_be_loaded_raises_and_leaves_no_file(name: str, tmp_path: Path) -> None:
    make, message = UNSAVED[name]
    with pytest.raises(HdnnError, match=f"(?s){message}"):
        hdnn.save(make(), tmp_path / "net")
    assert not list(tmp_path.iterdir())


# --- damaged and foreign files --------------------------------------------------------------------


def test_foreign_files_raise(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    hdnn.save(build("H1"), tmp_path / "net")
    whole = (tmp_path / "net").read_bytes()
    for k in range(20):
        (tmp_path / f"truncated{k}").write_bytes(whole[: k * len(whole) // 20])
    (tmp_path / "net").unlink()
    (tmp_path / "text").write_text("a,b\n1,2\n")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Payload()))
    torch.save(Payload(), tmp_path / "torch")
    save_file({"x": torch.ones(3)}, tmp_path / "plain")
    scheme = {"class": "ForwardEuler", "arguments": {}}
    newer, other = ({"format": number, "thing": scheme} for number in (2, 1))
    texts = "null", '{"kind": "cat"}', "[" * 10**5, json.dumps(newer), json.dumps(other)
    for number, text in enumerate(texts):
        save_file({"x": torch.ones(3)}, tmp_path / f"text{number}", metadata={"hdnn": text})
    for path in list(tmp_path.iterdir()):
        with pytest.raises(FileFormatError, match=f"cannot load {path}"):
            hdnn.load(path)
    assert not (tmp_path / "executed").exists()
    for name, message in (
        ("plain", "hdnn did not write it"),
        ("text3", "it has format 2, this hdnn reads 1"),
        ("text4", "it holds a ForwardEuler, no network"),
    ):
        with pytest.raises(FileFormatError, match=message):
            hdnn.load(tmp_path / name)


THETA, BETA, J = "field.weights.theta", "field.weights.beta", "field.interconnection.J"
LIES: dict[str, tuple[Callable[[Any, dict[str, Tensor]], Any], str]] = {
    "tensor missing": (lambda a, t: t.pop(BETA), f"Missing key.*{BETA}"),
    "tensor extra": (lambda a, t: t.update(more=torch.ones(1)), "Unexpected key.*more"),
    "other shape": (lambda a, t: t.update({THETA: torch.ones(2, 16)}), f"mismatch.*{THETA}"),
    "J not skew": (lambda a, t: t.update({J: torch.ones(4, 4)}), "skew"),
    "unknown class": (lambda a, t: a["scheme"].update({"class": "Popen"}), "unknown class 'Popen'"),
    "unknown argument": (lambda a, t: a.update(more=1), "more"),
    "wrong type": (lambda a, t: a["field"]["arguments"]["weights"].update(arguments=3), "items"),
    "a function": (lambda a, t: a["field"]["arguments"].update(activation="eval"), "activation"),
}


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a file, and its tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["hdnn"]), tensors


@pytest.mark.parametrize("name", LIES)
def test_a_description_that_does_not_fit_raises(name: str, tmp_path: Path) -> None:
    change, message = LIES[name]
    hdnn.save(build("H1"), tmp_path / "net")
    about, tensors = parts(tmp_path / "net")
    change(about["thing"]["arguments"], tensors)
    save_file(tensors, tmp_path / "lie", metadata={"hdnn": json.dumps(about)})
    with pytest.raises(FileFormatError, match=f"(?s){message}"):
        hdnn.load(tmp_path / "lie")


def numbers(node: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers in a description, and of what is None."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from numbers(value, *path, key)
    elif node is None or isinstance(node, int | float):
        yield path


def put(node: Any, path: tuple[Any, ...], value: int) -> None:
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value


SIZES = ("features", "channels", "width", "layers", "ensemble", "outputs", "num_features")
DESCRIBED = (
    *("channels", "convolution", "ensemble with steps", "ensemble, J learned", "learned steps"),
    *(
        "learned steps, time-invariant",
        "half, time-invariant",
        "graph",
        "blocks of maps",
        "table",
        "regression",
        "images, stages",
    ),
)


@on_linux
@pytest.mark.parametrize("name", DESCRIBED)
def test_no_number_of_a_description_costs_memory(name: str, tmp_path: Path) -> None:
    """Every number alone, those of the same name, and all sizes at once."""
    hdnn.save(THINGS[name](), tmp_path / "thing")
    about, tensors = parts(tmp_path / "thing")
    paths = list(numbers(about["thing"]))
    groups = [[path] for path in paths]
    groups += [[path for path in paths if path[-1] == last] for last in {p[-1] for p in paths}]
    groups.append([path for path in paths if path[-1] in SIZES])
    lie = copy.deepcopy(about)

    def load() -> None:
        with suppress(FileFormatError):
            hdnn.load(tmp_path / "lie")

    for group in groups:
        for value in (300, 10_000, 10**7, 10**18):
            lie = copy.deepcopy(about)
            for path in group:
                put(lie["thing"], path, value)
            save_file(tensors, tmp_path / "lie", metadata={"hdnn": json.dumps(lie)})
            assert memory_growth(load) < 20e6, (group, value)


@pytest.mark.parametrize("name", [name for name in THINGS if name != "no layers"])
def test_the_numbers_of_a_description_are_counted_exactly_enough(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdnn.save(THINGS[name](), tmp_path / "thing")
    monkeypatch.setattr(model_files, "FREE", 0)
    hdnn.load(tmp_path / "thing")


def test_parts_and_tensors_are_counted_as_often_as_they_are_named(tmp_path: Path) -> None:
    hdnn.save(images(widths=(16, 16), layers=(0, 0)), tmp_path / "thing")
    about, tensors = parts(tmp_path / "thing")
    modules = about["thing"]["arguments"]["network"]["arguments"]["modules"]
    modules += [modules[1]] * 100  # 2320 numbers each
    save_file(tensors, tmp_path / "lie", metadata={"hdnn": json.dumps(about)})
    with pytest.raises(FileFormatError, match="more numbers than its tensors have"):
        hdnn.load(tmp_path / "lie")
    hdnn.save(hamiltonian(skew(4, 3)), tmp_path / "thing")
    about, tensors = parts(tmp_path / "thing")
    about["thing"] = [about["thing"]["arguments"]["field"]["arguments"]["J"]] * 1000
    save_file(tensors, tmp_path / "lie", metadata={"hdnn": json.dumps(about)})
    with pytest.raises(FileFormatError, match="more numbers than its tensors have"):
        hdnn.load(tmp_path / "lie")


def test_numbers_of_one_byte_count_half(tmp_path: Path) -> None:
    hdnn.save(build("H1", features=400, layers=1), tmp_path / "thing")
    about, tensors = parts(tmp_path / "thing")
    save_file(tensors, tmp_path / "same", metadata={"hdnn": json.dumps(about)})
    hdnn.load(tmp_path / "same")
    small = {name: tensor.to(torch.int8) for name, tensor in tensors.items()}
    save_file(small, tmp_path / "lie", metadata={"hdnn": json.dumps(about)})
    with pytest.raises(FileFormatError, match="more numbers than its tensors have"):
        hdnn.load(tmp_path / "lie")


def test_a_matrix_that_is_made_by_its_name_is_counted(tmp_path: Path) -> None:
    hdnn.save(hamiltonian("J1", [[1, 0, 1, 0]]), tmp_path / "thing")
    about, tensors = parts(tmp_path / "thing")
    field = about["thing"]["arguments"]["field"]["arguments"]
    width = field["weights"]["arguments"]["features"] = 10_000
    field["J"], tensors["arguments.0"] = "J1", torch.ones(1, width, dtype=torch.int64)
    save_file(tensors, tmp_path / "lie", metadata={"hdnn": json.dumps(about)})
    with pytest.raises(FileFormatError, match="more numbers than its tensors have"):
        hdnn.load(tmp_path / "lie")


def test_missing_memory_is_no_damage_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise MemoryError

    hdnn.save(build("H1"), tmp_path / "net")
    monkeypatch.setitem(model_files._CONSTRUCTORS, "HamiltonianNetwork", fail)
    for work in (lambda: hdnn.load(tmp_path / "net"), lambda: hdnn.save(build("H1"), tmp_path)):
        with pytest.raises(MemoryError):
            work()
