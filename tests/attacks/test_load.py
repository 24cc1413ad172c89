"""`hdnn.load` of any bytes: a model that is what the file says, or a short FileFormatError.

Never an allocation above ten times the file's size and 64 MB.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import hdnn
from catalogue import build, skew
from hdnn.errors import FileFormatError
from hdnn.fields import HamiltonianField, Learned, Weights
from hdnn.models import Augmentation, ImageClassifier, ImageConfig, Model, Scaler

Tensors = dict[str, torch.Tensor]
Contents = tuple[dict[str, Any], Tensors]


def field(J: Any, structure: Any = "dense", **options: Any) -> hdnn.HamiltonianNetwork:
    weights = Weights(structure, features=4, layers=2)
    return hdnn.HamiltonianNetwork(HamiltonianField(J, weights, **options), T=1.0)


def table(name: str, **options: Any) -> Model:
    scaler = Scaler(torch.zeros(3), torch.ones(3))
    labels = {"classes": ["a", 2, 2.5], "feature_names": ["x", "y", "ü"]}
    return Model(build(name, layers=2), 3, Augmentation(3, 4), scaler, **labels, **options)


def images(**options: Any) -> ImageClassifier:
    given = {"size": (4, 4), "widths": (2,), "layers": (2,), "classes": 2} | options
    return ImageClassifier(ImageConfig(**given), classes=["cat", "dog"])


SAMPLES: dict[str, Callable[[], Any]] = {
    "H1": lambda: build("H1", layers=2),
    "MS1": lambda: build("MS1", layers=2, step=[0.1, 0.2]),
    "MS2 shared": lambda: build("MS2", layers=2, time_invariant=True),
    "MS3 learned steps": lambda: build("MS3", layers=2, learn_steps=True),
    "HS learned X": lambda: build("HS", layers=2, X="learned"),
    "ensemble": lambda: build("H2", layers=2, ensemble=2),
    "midpoint": lambda: build("H1", "ImplicitMidpoint", layers=2),
    "convolution": lambda: build("H2", channels=2, kernel=3, layers=2),
    "float32": lambda: build("ResNet", layers=2, dtype=torch.float32),
    "J(t) learned": lambda: field(Learned(4, layers=2)),
    "J given": lambda: field(skew(4)),
    "graph, damped": lambda: field("J1", [[1, 0, 1, 0]], dissipation=torch.eye(4)),
    "table": lambda: table("MS1"),
    "table FCNN": lambda: table("FCNN", task="regression"),
    "images": images,
    "images, stages": lambda: images(
        architecture="MS1", widths=(2, 4), layers=(1, 1), kernel=3, norm="batch", head="pool"
    ),
    "images, shared": lambda: images(time_invariant=True, connector="stride", mean=(0.5,)),
    "images, plain": lambda: images(block="convolution"),
}
every_sample = pytest.mark.parametrize("sample", SAMPLES)


def contents(path: Path) -> Contents:
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["hdnn"])
        return description, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(description: Any, tensors: Tensors, path: Path) -> Path:
    save_file(tensors, path, metadata={"hdnn": json.dumps(description)})
    return path


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Contents]]:
    """Every sample as a file, and as a description without its checksum, and tensors."""
    folder, found = tmp_path_factory.mktemp("samples"), {}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    for number, (name, make) in enumerate(SAMPLES.items()):
        path = folder / f"{number}.safetensors"
        hdnn.save(make(), path)
        description, tensors = contents(path)
        del description["sha256"]
        found[name] = path, (description, tensors)
    torch.set_default_dtype(before)
    return found


def assert_exact_or_refused(path: Path) -> bool:
    """What is loaded saves itself as the file is; errors are short. Whether it was loaded."""
    try:
        thing = hdnn.load(path)
    except FileFormatError as error:
        if len(str(error)) > 1000:
            pytest.fail(f"a long message: {str(error)[:100]}")
        return False
    again = path.with_suffix(".again")
    hdnn.save(thing, again)
    (mine, tensors), (theirs, others) = contents(path), contents(again)
    mine.pop("sha256", None), theirs.pop("sha256")
    assert json.dumps(mine, sort_keys=True) == json.dumps(theirs, sort_keys=True)
    assert list(tensors) == list(others)
    for name, tensor in tensors.items():
        assert tensor.dtype == others[name].dtype
        assert torch.equal(tensor.nan_to_num(7.0), others[name].nan_to_num(7.0))
    return True


# --- damage ---------------------------------------------------------------------------------------


@every_sample
def test_every_flipped_bit_and_every_cut_is_detected(sample: str, samples: Any) -> None:
    path, _ = samples[sample]
    whole, damaged = path.read_bytes(), path.with_suffix(".damaged")
    choose = random.Random(0)
    for place in choose.sample(range(8 * len(whole)), 150):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        damaged.write_bytes(flipped)
        if assert_exact_or_refused(damaged):  # 1e-9 and 1E-9 are the same number
            assert chr(whole[place // 8]) in "eE"
    for end in choose.sample(range(len(whole)), 20):
        damaged.write_bytes(whole[:end])
        assert not assert_exact_or_refused(damaged)


@every_sample
def test_files_without_a_checksum_are_read(sample: str, samples: Any, tmp_path: Path) -> None:
    _, (description, tensors) = samples[sample]
    assert assert_exact_or_refused(write(description, tensors, tmp_path / "old"))
    bad = description | {"sha256": None}
    assert not assert_exact_or_refused(write(bad, tensors, tmp_path / "none"))


@every_sample
def test_the_same_thing_is_the_same_bytes(sample: str, samples: Any, tmp_path: Path) -> None:
    path, _ = samples[sample]
    hdnn.save(hdnn.load(path), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@every_sample
def test_loading_draws_no_random_numbers(sample: str, samples: Any) -> None:
    before = torch.get_rng_state()
    hdnn.load(samples[sample][0])
    assert torch.equal(torch.get_rng_state(), before)


# --- descriptions and tensors that do not fit -----------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else ()
    children = enumerate(value) if isinstance(value, list) else children
    for key, child in children:
        yield (*path, key)
        yield from leaves(child, (*path, key))


def edited(description: Any, keys: tuple[Any, ...], value: Any) -> Any:
    changed = place = copy.deepcopy(description)
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return changed


EXTREME: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    3.0,
    0.5,
    999,
    4001,
    199_999,
    2**31,
    10**9,
    10**18,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "custom",
    "skew",
    "J2",
    [],
    [[]],
    {},
    [1] * 99,
    [8, 20_000, 8],
    [10**9],
    [0],
    [1e9],
    ["a", "b"],
    {"type": "learned"},
    {"type": "inverse"},
]
DTYPES = [torch.float16, torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64]


def mutate(choose: random.Random, given: Contents) -> Contents:
    """Some of: another value, another key, a key less; tensors exchanged, converted, cut, added."""
    description, tensors = given[0], dict(given[1])
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        keys, name = choose.choice(list(leaves(description))), choose.choice(list(tensors))
        tensor = tensors[name]
        match choose.randrange(9):
            case 0 | 1 | 2 | 3:
                description = edited(description, keys, choose.choice(EXTREME))
            case 4:
                description = edited(description, (*keys[:-1], "more")[-1:], 1)
            case 5:
                tensors[name] = tensors[choose.choice(list(tensors))].clone()
            case 6:
                real = tensor.real if tensor.is_complex() else tensor
                tensors[name] = real.to(choose.choice(DTYPES))
            case 7:
                fewer = tuple(tensor.shape)[:-1] if tensor.numel() else (3,)
                shapes = [(0,), (10**9, 0), (1, *tensor.shape), fewer]
                tensors[name] = torch.zeros(choose.choice(shapes), dtype=tensor.dtype)
            case _:
                fill = choose.choice([torch.nan, torch.inf, 1e300, 1.0, 0.0])
                tensors[name] = torch.full(tensor.shape, fill).to(tensor.dtype)
    return description, tensors


@every_sample
def test_a_mutant_is_exactly_what_it_says_or_refused(
    sample: str, samples: Any, tmp_path: Path
) -> None:
    choose, loaded = random.Random(sample), 0
    for _ in range(60):
        mutant = mutate(choose, samples[sample][1])
        loaded += assert_exact_or_refused(write(*mutant, tmp_path / "mutant"))
    assert loaded > 0  # weights that are other numbers are no lie


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=200)
@given(data=st.data())
def test_any_value_is_exactly_what_is_built_or_refused(data: st.DataObject, samples: Any) -> None:
    path, (description, tensors) = samples[data.draw(st.sampled_from(list(SAMPLES)))]
    keys = data.draw(st.sampled_from(list(leaves(description))))
    changed = edited(description, keys, data.draw(JSON))
    assert_exact_or_refused(write(changed, tensors, path.with_suffix(".other")))


@settings(max_examples=200)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject, samples: Any) -> None:
    path, _ = samples[data.draw(st.sampled_from(list(SAMPLES)))]
    whole = path.read_bytes()
    start, cut = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 20))
    fresh = data.draw(st.binary(max_size=20))
    path.with_suffix(".other").write_bytes(whole[:start] + fresh + whole[start + cut :])
    assert_exact_or_refused(path.with_suffix(".other"))


LIES: dict[str, tuple[str, Callable[[dict[str, Any], Tensors], Any]]] = {
    "unknown key": ("H1", lambda d, t: d.update(more=1)),
    "unknown key of a field": ("H1", lambda d, t: d["field"].update(more=1)),
    "unknown key of a model": ("table", lambda d, t: d["network"].update(more=1)),
    "layers as a text": ("images", lambda d, t: d["config"].update(layers=2)),
    "an architecture in small letters": (
        "images",
        lambda d, t: d["config"].update(architecture="h2"),
    ),
    "labels that are lists": ("images", lambda d, t: d.update(classes=[["cat"], ["dog"]])),
    "an integer for true": ("MS2 shared", lambda d, t: d["field"].update(time_invariant=1)),
    "weights in single precision": ("H1", lambda d, t: convert(t, "field.weights.theta")),
    "biases in single precision": ("H1", lambda d, t: convert(t, "field.weights.beta")),
    "head in single precision": ("table", lambda d, t: convert(t, "head.bias")),
    "J of an image model not skew": ("images", lambda d, t: J_of_images(t, torch.ones(2, 2))),
    "J of an image model not finite": ("images", lambda d, t: J_of_images(t, torch.nan)),
    "J of an image model another": ("images", lambda d, t: J_of_images(t, skew(2))),
    "J1 by name, another by numbers": (
        "H1",
        lambda d, t: t.update({"field.interconnection.J": skew(4)}),
    ),
}


def convert(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].to(torch.float32)


def J_of_images(tensors: Tensors, J: Any) -> None:
    tensors["blocks.0.field.interconnection.J"] = torch.as_tensor(J) * torch.ones(2, 2)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(lie: str, samples: Any, tmp_path: Path) -> None:
    sample, change = LIES[lie]
    description, tensors = copy.deepcopy(samples[sample][1])
    change(description, tensors)
    with pytest.raises(FileFormatError):
        hdnn.load(write(description, tensors, tmp_path / "lie"))


def test_a_key_that_occurs_twice_is_refused(samples: Any, tmp_path: Path) -> None:
    _, (description, tensors) = samples["H1"]
    text = json.dumps(description).replace('"name":', '"name": "H2", "name":', 1)
    save_file(tensors, tmp_path / "twice", metadata={"hdnn": text})
    with pytest.raises(FileFormatError, match="twice"):
        hdnn.load(tmp_path / "twice")


# --- memory ---------------------------------------------------------------------------------------

CHILD = """
import json, resource, sys
from pathlib import Path
import torch, hdnn
from hdnn.errors import FileFormatError

torch.set_num_threads(1)
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))  # a hang ends here

def mapped():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

first, *paths = sys.argv[1:]
hdnn.load(first)
for path in paths:
    room = 10 * Path(path).stat().st_size + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + room, resource.RLIM_INFINITY))
    try:
        hdnn.load(path)
        outcome = "loaded"
    except FileFormatError as error:
        # A refusal comes before the memory is asked for, not because there is none.
        cause, outcome = error, "refused"
        while cause is not None:
            if isinstance(cause, MemoryError) or "alloc" in str(cause):
                outcome = f"out of memory: {cause}"
            cause = cause.__cause__ or cause.__context__
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(outcome)
"""
linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measured by /proc")


def outcomes(first: Path, paths: list[Path]) -> list[str]:
    """What loading does in a process with ten times a file's size and 64 MB of memory."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(first), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.splitlines()


DEEP = [10**5, 10**6, 10**9, 10**18]
BOMBS: list[tuple[str, dict[tuple[Any, ...], Any]]] = [
    *(("images", {("config", "kernel"): k}) for k in (999, 9_999, 199_999, 10**9 + 1)),
    *(("images, plain", {("config", "kernel"): k}) for k in (999, 199_999)),
    *(("images, shared", {("config", "layers"): [n]}) for n in DEEP),
    *(
        ("images, plain", {("config", "layers"): [n], ("config", "time_invariant"): True})
        for n in DEEP
    ),
    ("images, stages", {("config", "widths"): [8, 20_000, 8], ("config", "layers"): [1, 1, 1]}),
    ("images, stages", {("config", "widths"): [2, 20_000], ("config", "layers"): [1, 0]}),
    (
        "images, stages",
        {
            ("config", "widths"): [2] * 10**5,
            ("config", "layers"): [0] * 10**5,
            ("config", "connector"): "stride",
        },
    ),
    ("images", {("config", "channels"): 10**9}),
    ("images", {("config", "size"): [10**5, 10**5]}),
    ("images", {("config", "classes"): 10**9, ("classes",): None}),
    *(("MS2 shared", {("layers",): n, ("field", "layers"): n}) for n in DEEP),
    *(
        (
            "MS3 learned steps",
            {
                ("layers",): n,
                ("field", "layers"): n,
                ("field", "time_invariant"): True,
                ("step",): step,
            },
        )
        for n in DEEP
        for step in (None, 0.1)
    ),
    *(
        (
            "J(t) learned",
            {
                ("layers",): n,
                ("field", "layers"): n,
                ("field", "J", "layers"): n,
                ("field", "time_invariant"): True,
            },
        )
        for n in DEEP
    ),
    *(("H1", {("field", "features"): n}) for n in (5_000, 50_000, 10**9)),
    ("HS learned X", {("field", "features"): 20_000}),
    ("convolution", {("field", "kernel"): 9_999}),
    ("ensemble", {("field", "ensemble"): 10**9}),
    ("ensemble", {("field", "ensemble"): 10**9, ("layers",): 0, ("field", "layers"): 0}),
    ("table", {("outputs",): 10**9}),
    ("table", {("augmentation", "width"): 10**9, ("network", "field", "features"): 10**9}),
]


@linux
def test_no_description_is_a_bomb(samples: Any, tmp_path: Path) -> None:
    paths = []
    for number, (sample, edits) in enumerate(BOMBS):
        description, tensors = samples[sample][1]
        for keys, value in edits.items():
            description = edited(description, keys, value)
        paths.append(write(description, tensors, tmp_path / str(number)))
    found = outcomes(samples["H1"][0], paths)
    for (sample, edits), outcome in zip(BOMBS, found, strict=True):
        assert outcome == "refused", (sample, edits, outcome)


@linux
def test_no_header_is_a_bomb(samples: Any, tmp_path: Path) -> None:
    description, tensors = samples["H1"][1]
    empty = {f"{k}": torch.zeros(0) for k in range(60_000)}
    paths = [write(description, tensors | empty, tmp_path / "tensors")]
    for name, text in {
        "lists": "[" + "[]," * 10**6 + "0]",
        "objects": "[" + "{}," * 10**6 + "0]",
        "numbers": "[" + "999," * 10**6 + "0]",
        "nested": "[" * 10**6,
        "text": '"' + "x" * 4 * 10**6 + '"',
    }.items():
        save_file(tensors, tmp_path / name, metadata={"hdnn": text})
        paths.append(tmp_path / name)
    long = edited(description, ("name",), "x" * 10**5)
    wide = {"x": torch.zeros(2 * 10**6)}
    paths.append(write(edited(long, ("field", "structure"), "y" * 10**6), wide, tmp_path / "long"))
    (tmp_path / "sparse").touch()
    with open(tmp_path / "sparse", "r+b") as file:
        file.truncate(2**40)
    found = outcomes(samples["H1"][0], [*paths, tmp_path / "sparse"])
    assert found == ["refused"] * len(found)


@linux
def test_mutants_stay_within_the_bound(samples: Any, tmp_path: Path) -> None:
    choose, paths = random.Random(1), []
    for number in range(400):
        mutant = mutate(choose, samples[choose.choice(list(SAMPLES))][1])
        paths.append(write(*mutant, tmp_path / str(number)))
    found = outcomes(samples["H1"][0], paths)
    assert set(found) == {"loaded", "refused"}


WIDE: dict[str, Callable[[], Any]] = {
    "H1": lambda: build("H1", features=1500, layers=1),
    "H1 float32": lambda: build("H1", features=1500, layers=1, dtype=torch.float32),
    "MS1": lambda: build("MS1", features=1100, layers=1, dtype=torch.float32),
    "MS2": lambda: build("MS2", features=1100, layers=1, dtype=torch.float32),
    "MS3": lambda: build("MS3", features=1500, layers=1),
    "ResNet": lambda: build("ResNet", features=1500, layers=1),
    "X learned": lambda: build("HS", features=800, layers=1, X="learned"),
    "J learned": lambda: hdnn.HamiltonianNetwork(
        HamiltonianField(Learned(800), Weights("skew", features=800, layers=1)), T=1.0
    ),
    "damped": lambda: hdnn.HamiltonianNetwork(
        HamiltonianField(
            "J1", Weights("dense", features=800, layers=1), dissipation=torch.eye(800)
        ),
        T=1.0,
    ),
    "graph": lambda: hdnn.HamiltonianNetwork(
        HamiltonianField("J1", Weights(torch.eye(900).numpy(), features=900, layers=1)), T=1.0
    ),
    "convolution": lambda: build("MS2", channels=200, kernel=5, layers=1),
    "images": lambda: images(widths=(300,), layers=(2,), kernel=3),
    "images, plain": lambda: images(widths=(64,), layers=(20,), kernel=5, block="convolution"),
    "deep": lambda: build("H1", layers=100_000),
    "deep, shared": lambda: build("H1", layers=50_000, time_invariant=True),
}


@linux
def test_what_is_wide_or_deep_is_loaded_within_the_bound(samples: Any, tmp_path: Path) -> None:
    """The estimate is neither too small, nor so large that honest files are refused."""
    paths = []
    for number, make in enumerate(WIDE.values()):
        hdnn.save(make(), tmp_path / str(number))
        paths.append(tmp_path / str(number))
    found = dict(zip(WIDE, outcomes(samples["H1"][0], paths), strict=True))
    assert found == dict.fromkeys(WIDE, "loaded")


def test_a_limit_can_be_given(tmp_path: Path) -> None:
    hdnn.save(build("MS1", features=2000, layers=1, dtype=torch.float32), tmp_path / "wide")
    with pytest.raises(FileFormatError, match="limit="):
        hdnn.load(tmp_path / "wide")
    assert hdnn.load(tmp_path / "wide", limit=10**9).features == 2000
    hdnn.save(build("H1"), tmp_path / "net")
    with pytest.raises(FileFormatError):
        hdnn.load(tmp_path / "net", limit=1000)
