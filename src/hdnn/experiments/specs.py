"""Which numbers of the paper: a frozen record for every cell of Table 1, and the protocols."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from hdnn.data import KINDS
from hdnn.errors import HdnnError, unknown_name
from hdnn.training import TrainingConfig
from hdnn.zoo import architecture


@dataclass(frozen=True)
class Cell:
    """A cell of Table 1.

    Args:
        data: the data set.
        architecture, layers: the network.
        published: test accuracy in per cent, as printed.
        row, column: its place in the table, counted from 1.
    """

    data: str
    architecture: str
    layers: int
    published: float
    row: int
    column: int

    @property
    def name(self) -> str:
        return f"{self.data}, {self.architecture}, {self.layers}"


@dataclass(frozen=True)
class Settings:
    """What a protocol leaves open and a cell fixes; chosen on validation data, see `tuning`.

    Args:
        T: final time.
        learning_rate: of Adam on the hidden layers.
        scale: of the initial weights.
        augmentation: "append" or "spread".
    """

    T: float
    learning_rate: float
    scale: float
    augmentation: str


@dataclass(frozen=True)
class Protocol:
    """How every cell is trained.

    Args:
        name: its name in records.
        summary: for people.
        training: settings that all cells share.
        choices: what tuning may choose from, by field of `Settings`; one value means that it is
            given.
        restarts: initialisations trained side by side, of which the one with the lowest training
            loss is kept.
    """

    name: str
    summary: str
    training: TrainingConfig
    choices: dict[str, tuple[Any, ...]]
    restarts: int = 1

    def config(self, settings: Settings) -> TrainingConfig:
        """The training of a cell."""
        return replace(self.training, learning_rate=settings.learning_rate)


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "paper",
            "appendix B.1 as written; T, which the paper does not state, by validation",
            TrainingConfig(),
            {
                "T": (0.3, 0.6, 1.2, 2.4, 4.8, 9.6),
                "learning_rate": (0.05,),
                "scale": (1.0,),
                "augmentation": ("append",),
            },
        ),
        Protocol(
            "tuned",
            "cosine schedule, alpha 5e-4, alpha_c 1e-6; T, learning rate and augmentation by "
            "validation",
            TrainingConfig(schedule="cosine", alpha=5e-4, alpha_c=1e-6),
            {
                "T": (0.1, 0.2, 0.4, 1.0, 2.5, 6.0),
                "learning_rate": (0.05, 0.1),
                "scale": (1.0,),
                "augmentation": ("append", "spread"),
            },
        ),
    )
}
PROTOCOLS["tuned-restarts"] = replace(
    PROTOCOLS["tuned"],
    name="tuned-restarts",
    summary="as tuned, and of 8 initialisations the one with the lowest training loss is kept",
    restarts=8,
)
"""The protocols; every deviation of `tuned` is a line in docs/reproducing.md."""


def _resource(name: str) -> dict[str, Any]:
    return tomllib.loads(files("hdnn.experiments").joinpath(name).read_text())


@functools.cache
def table1() -> tuple[Cell, ...]:
    """All 40 cells, row by row."""
    table = _resource("published.toml")["table1"]
    cells, row = [], 0
    for data in ("swiss-roll", "double-moons"):
        for layers, values in table[data].items():
            row += 1
            for column, (name, value) in enumerate(zip(table["columns"], values, strict=True), 1):
                cells.append(Cell(data, name, int(layers), value, row, column))
    return tuple(cells)


def select(
    data: Sequence[str] = (), architectures: Sequence[str] = (), layers: Sequence[int] = ()
) -> list[Cell]:
    """The cells that filters leave; none is all."""
    names = [architecture(name).name for name in architectures]
    found = [
        cell
        for cell in table1()
        if (not data or cell.data in data)
        and (not names or cell.architecture in names)
        and (not layers or cell.layers in layers)
    ]
    if not found:
        raise HdnnError(
            f"no cell of Table 1 has data {list(data) or 'any'}, architecture {names or 'any'}, "
            f"layers {list(layers) or 'any'}; swiss-roll has 4 8 16 32 64, double-moons 1 2 4"
        )
    return found


def protocol(name: str) -> Protocol:
    """A protocol by name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def check_split(name: str) -> str:
    """A split by name."""
    if name not in KINDS:
        raise unknown_name("split", name, KINDS)
    return name


def settings(name: str, cell: Cell) -> Settings:
    """The frozen settings of a cell under a protocol, from settings.toml."""
    table = _resource("settings.toml").get(name.removesuffix("-restarts"), {})
    key = f"{cell.data}/{cell.architecture}/{cell.layers}"
    if key not in table.get("cells", {}):
        raise HdnnError(f"no settings for {cell.name} under {name!r}; run: hdnn reproduce tune")
    return Settings(**table["cells"][key])
