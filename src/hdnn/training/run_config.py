"""A run config: data, model and training as one record that a run can be repeated from.

The config file in a run folder holds the digest of the data and a path relative to the folder,
never an absolute one: a shared folder tells nothing of its owner's disk, and folder and data that
are moved together stay together. Where data were read last is remembered by their digest, in the
user's cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import platformdirs

from hdnn.errors import HdnnError, unknown_name
from hdnn.files import atomic
from hdnn.training import toml
from hdnn.training.presets import PRESETS, with_preset
from hdnn.training.schema import Setting, record, settings_of, shown
from hdnn.training.settings import (
    DataConfig,
    ImageModelConfig,
    ModelConfig,
    RecordConfig,
    TrainingConfig,
    is_image,
)

LONGEST = 400
"""Characters of a message about a value, which may be of any length itself."""
PLACES = Path(platformdirs.user_cache_dir("hdnn", appauthor=False)) / "places"
"""Where it is remembered where data are: a file for every digest, which holds a path."""


@record
class RunConfig:
    """Data, model and training, and what is recorded of its gradients, if anything is."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig | ImageModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    record: RecordConfig | None = None

    @property
    def identity(self) -> RunConfig:
        """The same without the places where it is trained and where its data are.

        What the data are, their digest says; the device changes no more than rounding.
        """
        training = replace(self.training, device="cpu")
        data = self.data if self.data.digest is None else replace(self.data, source="")
        return replace(self, data=data, training=training)

    def to_toml(self) -> str:
        """The run config as TOML, which `from_toml` reads."""
        tables = {
            "data": asdict(self.data),
            "model": asdict(self.model),
            "training": self.training.to_dict(),
        }
        if self.record is not None:
            tables["record"] = asdict(self.record)
        return toml.dumps(tables)

    @classmethod
    def from_toml(cls, text: str, where: str = "the config") -> RunConfig:
        """The run config of a TOML text; an `HdnnError` for anything else."""
        return cls.from_tables(toml.loads(text, where), where)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], where: str = "the config") -> RunConfig:
        """The run config of plain values in tables data, model, training, record.

        Raises:
            HdnnError: an unknown table or setting, or a value that is not allowed.
        """
        check_tables(tables, where)
        try:
            images = _of_images(tables)
            tables = with_preset(tables) if images else tables
            kinds = {**TABLES, "model": ImageModelConfig if images else ModelConfig}
            return cls(
                **{
                    name: kind(**tables.get(name, {}))
                    for name, kind in kinds.items()
                    if name in tables or name != "record"
                }
            )
        except HdnnError as error:
            message = str(error)
            if len(message) > LONGEST:
                message = f"{message[:LONGEST]}..."
            raise type(error)(f"{where}: {message}") from error


TABLES: dict[str, Any] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "record": RecordConfig,
}
"""The tables of a config file; the model of images is `ImageModelConfig`."""

PRESET = Setting(
    name="preset",
    default="paper",
    help="Defaults of network and training for images.",
    group="Images",
    kind=str,
    item=None,
    allowed=f"one of {', '.join(PRESETS)}",
    choices=tuple(PRESETS),
    range="",
    most=0,
    flags=("--preset",),
    constant=None,
)
"""Stands for the settings of other tables, so it is in no record."""


def all_settings() -> dict[str, dict[str, tuple[Setting, ...]]]:
    """Every setting of every table: ``[table][name]``, its definitions for tables and images."""
    found: dict[str, dict[str, tuple[Setting, ...]]] = {}
    kinds = [*TABLES.items(), ("model", ImageModelConfig)]
    for table, kind in kinds:
        for given in settings_of(kind):
            known = found.setdefault(table, {})
            known[given.name] = (*known.get(given.name, ()), given)
    found["model"]["preset"] = (PRESET,)
    return found


def check_tables(tables: Mapping[str, Any], where: str) -> None:
    """Raise `HdnnError` for unknown tables, and for what is no table."""
    for name, table in tables.items():
        if name not in TABLES:
            raise unknown_name(f"table in {where}", name, TABLES)
        if not isinstance(table, Mapping):
            raise HdnnError(f"{name} in {where} is a table, got {shown(table)}")


def _of_images(tables: Mapping[str, Any]) -> bool:
    """Whether tables are of a run on images, even where their folder is gone."""
    return "widths" in tables.get("model", {}) or is_image(
        str(tables.get("data", {}).get("source", ""))
    )


# --- where the data of a run are ------------------------------------------------------------------


def portable_path(source: str, folder: Path) -> str:
    """The path of data as a run stores it.

    Relative to the folder of the run where both are in a common place; where they share no more
    than the disk, or a folder above the user's home, only the name.

    Args:
        source: an absolute path.
        folder: of the run.
    """
    home = Path(os.path.expanduser("~")).resolve()
    try:
        common = Path(os.path.commonpath([source, folder.resolve()]))
    except ValueError:  # two drives of Windows
        return Path(source).name
    if common == Path(common.anchor) or (common != home and home.is_relative_to(common)):
        return Path(source).name
    return Path(os.path.relpath(source, folder.resolve())).as_posix()


def locate_data(source: str, folder: Path, digest: str) -> str:
    """The path where stored data are, or would be expected.

    Args:
        source: as `portable_path` gave it; an absolute path is good as well.
        folder: of the run.
        digest: of the data.
    """
    near = os.path.normpath(folder.resolve() / source)
    remembered = _place(digest)
    if os.path.exists(near) or remembered is None:
        return near
    with suppress(OSError, ValueError):
        last = remembered.read_text(encoding="utf-8")
        return last if os.path.exists(last) else near
    return near


def remember_data(source: str, digest: str) -> None:
    """Remember where data are; a cache that cannot be written is no obstacle."""
    place = _place(digest)
    with suppress(OSError, HdnnError):
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic(place) as temporary:
                temporary.write_text(source, encoding="utf-8")


def _place(digest: str) -> Path | None:
    if not re.fullmatch("[0-9a-f]{64}", digest):
        return None
    return PLACES / digest
