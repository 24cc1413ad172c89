"""A run config: data, model and training as one record that a run can be repeated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import Any

from hdnn.errors import HdnnError, unknown_name
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


@record
class RunConfig:
    """Data, model and training, and what is recorded of its gradients, if anything is."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig | ImageModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    record: RecordConfig | None = None

    @property
    def identity(self) -> RunConfig:
        """The same without the place of its data, where their digest says what they are."""
        if self.data.digest is None:
            return self
        return replace(self, data=replace(self.data, source=""))

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
