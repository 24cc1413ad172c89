"""Files: what is saved comes back, and nothing that comes from a file can do harm."""

from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import hdnn
from catalogue import OWN, PAIRS, build, every_pair, skew
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.fields import ACTIVATIONS, STRUCTURES, HamiltonianField, Learned, Weights
from hdnn.files import atomic
from hdnn.schemes import ImplicitMidpoint, Leapfrog, Splitting

Net = hdnn.HamiltonianNetwork


def hamiltonian(J: Any, structure: Any = "dense", **options: Any) -> Net:
    return Net(HamiltonianField(J, Weights(structure, features=4, layers=3), **options), T=1.0)


VARIANTS: dict[str, Any] = {
    "channels": lambda: build("H2", channels=4),
    "ensemble": lambda: build("MS1", ensemble=2),
    "ensemble with steps": lambda: build("H1", ensemble=2, step=torch.rand(2, 3) + 0.1),
    "time-invariant": lambda: build("MS2", time_invariant=True),
    "float32": lambda: build("H1", dtype=torch.float32),
    "no layers": lambda: build("MS3", layers=0),
    "steps": lambda: build("MS3", step=[0.1, 0.2, 0.3]),
    "learned steps": lambda: build("MS3", learn_steps=True),
    "reference": lambda: build("H1", backend="reference"),
    "X given": lambda: build("HS", X=torch.randn(2, 2)),
    "X learned": lambda: build("HS", X="learned"),
    "J given": lambda: hamiltonian(skew(4)),
    "J(t)": lambda: hamiltonian(skew(4, 3)),
    "J learned": lambda: hamiltonian(Learned(4, init=skew(4))),
    "J(t) learned": lambda: hamiltonian(Learned(4, layers=3, init=skew(4))),
    "damped": lambda: hamiltonian("J1", dissipation=torch.eye(4)),
    "graph": lambda: hamiltonian("J2", [[1, 0, 1, 0], [0, 1, 1, 0]]),
    "leapfrog z": lambda: hdnn.network("HS", features=4, layers=3, T=1.0, scheme=Leapfrog("z")),
    "coefficients": lambda: hdnn.network(
        "MS1", features=4, layers=3, T=1.0, scheme=Splitting((0.3, 0.4, 0.7, 0.6))
    ),
    "midpoint": lambda: hdnn.network(
        "H1", features=4, layers=3, T=0.1, scheme=ImplicitMidpoint("fixed-point", 1e-10, 77)
    ),
}
VARIANTS |= {a: lambda a=a: build("H1", activation=a) for a in ACTIVATIONS}
VARIANTS |= {s: lambda s=s: hamiltonian("J2", s) for s in STRUCTURES}


def assert_same(net: Net, path: Path) -> None:
    hdnn.save(net, path)
    before = torch.get_rng_state()
    other = hdnn.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(other) == repr(net)
    assert (other.scheme, other.backend, other.name) == (net.scheme, net.backend, net.name)
    mine, theirs = net.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[k], theirs[k]) and mine[k].dtype == theirs[k].dtype for k in mine)
    assert [p.requires_grad for p in net.parameters()] == [
        p.requires_grad for p in other.parameters()
    ]
    shape = (3, 4, 2) if net.channels else (3, 4)
    y = torch.randn(*shape, dtype=net.K.dtype)
    y = y if net.ensemble is None else y.unsqueeze(0)
    assert torch.equal(other(y), net(y))
    assert torch.equal(torch.as_tensor(other.h), torch.as_tensor(net.h))


@every_pair()
def test_every_architecture_comes_back(name: str, scheme: str, tmp_path: Path) -> None:
    assert_same(build(name, scheme), tmp_path / "net.safetensors")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_comes_back(variant: str, tmp_path: Path) -> None:
    assert_same(VARIANTS[variant](), tmp_path / "net.safetensors")


def test_what_holds_code_is_not_saved(tmp_path: Path) -> None:
    energy = hdnn.fields.EnergyField("J1", lambda x, t: (x**2).sum(-1), features=2)
    moving = HamiltonianField(lambda y, t: skew(4), Weights("dense", features=4, layers=3))

    class Bent(HamiltonianField):
        """A field that a file would not know from its parent."""

    bent = Bent("J1", Weights("dense", features=4, layers=3))
    nets = [Net(energy, layers=2, T=1.0), Net(moving, T=1.0), Net(bent, T=1.0)]
    for thing in (*nets, torch.nn.Linear(2, 2)):
        with pytest.raises(HdnnError):
            hdnn.save(thing, tmp_path / "net")
    assert not list(tmp_path.iterdir())


# --- the format -----------------------------------------------------------------------------------

H1: dict[str, Any] = {
    "name": "H1",
    "layers": 1,
    "step": 0.5,
    "learn_steps": False,
    "backend": "auto",
    "memory": "fast",
    "scheme": {"type": "ForwardEuler"},
    "field": {
        "type": "hamiltonian",
        "activation": "tanh",
        "structure": "dense",
        "features": 2,
        "kernel": 1,
        "layers": 1,
        "time_invariant": False,
        "ensemble": None,
        "J": {"type": "fixed", "name": "J1"},
    },
}
TABLE = {
    "format": 1,
    "kind": "model",
    "network": H1,
    "outputs": 1,
    "task": "regression",
    "classes": None,
    "feature_names": ["a", "b"],
    "augmentation": None,
}
IMAGES = {
    "format": 1,
    "kind": "images",
    "config": {
        "architecture": "H1",
        "widths": [2],
        "layers": [1],
        "step": 0.5,
        "kernel": 1,
        "block": "hamiltonian",
        "connector": "pool",
        "norm": "none",
        "head": "linear",
        "scale": 1.0,
        "time_invariant": False,
        "channels": 1,
        "size": [1, 1],
        "classes": 2,
        "mean": [],
        "std": [],
    },
    "classes": ["cat", "dog"],
}


def test_a_file_written_by_hand_is_what_it_says(tmp_path: Path) -> None:
    """Format 1, word for word: files from before this line was written stay readable."""
    K, b, J = torch.randn(1, 2, 2), torch.randn(1, 2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    W, mu = torch.randn(2, 2), torch.randn(2)
    block = {
        "field.weights.theta": K.reshape(1, 4),
        "field.weights.beta": b,
        "field.interconnection.J": J,
    }

    def last(y: torch.Tensor) -> torch.Tensor:
        return y + 0.5 * (J @ K[0].mT @ torch.tanh(K[0] @ y + b[0]))

    mean, scale = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    table = {f"network.{name}": t for name, t in block.items()}
    table |= {"scaler.mean": mean, "scaler.scale": scale}
    table |= {"head.weight": W[:1].clone(), "head.bias": mu[:1].clone()}
    save_file(table, tmp_path / "table", metadata={"hdnn": json.dumps(TABLE)})
    x = torch.randn(2)
    expected = W[:1] @ last((x - mean) / scale) + mu[:1]
    torch.testing.assert_close(hdnn.load(tmp_path / "table")(x), expected)

    opening = torch.randn(2, 1, 3, 3)
    images = {f"blocks.0.{name}": t for name, t in block.items()}
    images |= {"opening.0.weight": opening, "opening.0.bias": torch.ones(2)}
    images |= {"head.weight": W, "head.bias": mu}
    save_file(images, tmp_path / "images", metadata={"hdnn": json.dumps(IMAGES)})
    image = torch.full((1, 1, 1, 1), 51, dtype=torch.uint8)
    expected = W @ last(opening[:, 0, 1, 1] * 0.2 + 1) + mu
    torch.testing.assert_close(hdnn.load(tmp_path / "images")(image), expected[None])


# --- damaged files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def contents(folder: Path) -> bytes:
    hdnn.save(build("MS1", layers=2, step=[0.1, 0.2]), folder / "whole")
    return (folder / "whole").read_bytes()


def test_a_file_cut_anywhere_is_refused(folder: Path, contents: bytes) -> None:
    path = folder / "cut"
    for end in range(len(contents)):
        path.write_bytes(contents[:end])
        with pytest.raises(FileFormatError):
            hdnn.load(path)


def read_or_refuse(path: Path) -> None:
    with contextlib.suppress(FileFormatError):
        assert isinstance(hdnn.load(path), Net)


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x10, 0x80], ids=hex)
def test_a_flipped_bit_is_read_or_refused(flip: int, folder: Path, contents: bytes) -> None:
    path = folder / "flipped"
    header = 8 + int.from_bytes(contents[:8], "little")
    for k in range(header):
        path.write_bytes(contents[:k] + bytes([contents[k] ^ flip]) + contents[k + 1 :])
        read_or_refuse(path)


@settings(max_examples=200)
@given(data=st.data())
def test_rewritten_bytes_are_read_or_refused(
    data: st.DataObject, folder: Path, contents: bytes
) -> None:
    start = data.draw(st.integers(0, len(contents)))
    cut = data.draw(st.integers(0, 20))
    words = st.text('0123456789-eE.,:[]{}"', max_size=9).map(str.encode)
    fresh = data.draw(st.binary(max_size=20) | words)
    (folder / "rewritten").write_bytes(contents[:start] + fresh + contents[start + cut :])
    read_or_refuse(folder / "rewritten")


def test_foreign_files_are_refused(folder: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("a,b\n1,2\n")
    (folder / "pickle").write_bytes(pickle.dumps(Payload()))
    torch.save(Payload(), folder / "torch")
    save_file({"x": torch.ones(3)}, folder / "plain")
    save_file({"x": torch.ones(3)}, folder / "other", metadata={"hdnn": '{"kind": "cat"}'})
    for name in ("empty", "text", "pickle", "torch", "plain", "other"):
        with pytest.raises(FileFormatError):
            hdnn.load(folder / name)
    assert not (tmp_path / "executed").exists()
    for missing in (folder / "nothing", folder):
        with pytest.raises(HdnnError, match="no file"):
            hdnn.load(missing)


# --- atomic writing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OSError(5, "Input/output error"),
        MemoryError(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_a_failed_write_leaves_the_old_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net"
    net = build("H1")
    hdnn.save(net, path)
    before = path.read_bytes()

    def fail(target: Path, content: bytes) -> None:
        target.write_text(content[: len(content) // 2].decode("latin-1"))
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", fail)
        expected = StorageError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            hdnn.save(build("H2"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("old")
    with atomic(path) as temporary:
        temporary.write_text("n")
        assert path.read_text() == "old"
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match="nowhere"):
        hdnn.save(build("H1"), tmp_path / "nowhere" / "net")


def test_the_own_schemes_are_all_walked() -> None:
    assert {name for name, scheme in PAIRS if scheme == OWN} == set(hdnn.zoo.ARCHITECTURES)
