"""Flags of the command line, made from the definitions of the settings."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args

import typer

from hdnn.config import TABLES, Setting, all_settings
from hdnn.errors import HdnnError, shown

Tables = dict[str, Any]
"""Settings as a config file has them: tables by name, and the protocol."""

PANELS = {"data": "Data", "model": "Network", "training": "Training", "": "Training"}
"""Where help lists the flags of a table; the others, seed and device among them, are of the run."""
NUMBERS = ("layers", "width")
"""Settings that are a number, or several as in 4,4,4."""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of the settings; its parameter ``settings`` gets their values.

    Args:
        command: takes ``settings``, a `Tables` without the settings that were not set.
    """
    flags = {_parameter(first): (first, *more) for first, *more in _flags()}
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "settings"]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_kind(first) | None, _option(first)],
        )
        for name, (first, *_) in flags.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        settings: Tables = {table: {} for table in TABLES}
        for name, definitions in flags.items():
            value = values.pop(name)
            if value is not None and value != []:
                for each in definitions:
                    _put(settings, each.table, each.name, _read(each, value))
        command(settings=settings, **values)

    changed: Any = wrapper  # typer reads the flags from the signature and the annotations
    parameters = [*options, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)]
    changed.__signature__ = inspect.Signature(parameters)
    changed.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _flags() -> list[list[Setting]]:
    """The settings that have flags, in the order of the help; --seed sets several."""
    by_flag: dict[str, list[Setting]] = {}
    for each in all_settings():
        if each.flag:
            by_flag.setdefault(each.flag, []).append(each)
    order = [*PANELS.values(), "Run"]
    return sorted(by_flag.values(), key=lambda same: order.index(_panel(same[0])))


def _panel(setting: Setting) -> str:
    return "Run" if setting.name in ("seed", "device") else PANELS.get(setting.table, "Run")


def _parameter(setting: Setting) -> str:
    return setting.flag.removeprefix("--").replace("-", "_")


def _kind(setting: Setting) -> Any:
    """The type that the command line reads; a number or a list of numbers is text, as in 4,4,4."""
    if setting.name == "class_weight":
        return bool
    if setting.name in ("drop", "categorical", "numeric", "target"):
        return list[str]
    for part in (setting.annotation, *get_args(setting.annotation)):
        bare = get_args(part)[0] if hasattr(part, "__metadata__") else part
        if bare in (int, float, bool):
            return str if setting.name in NUMBERS else bare
    return str


def _option(setting: Setting) -> Any:
    words, default = setting.help, ""
    if setting.depends:
        default = f"depends on the data: {setting.depends}"
    elif setting.default not in (None, (), False) and setting.table != "record":
        default = f"default: {setting.default}"
    if default:
        words += f" [dim]\\[{default}][/dim]"  # rich reads help as markup
    kind = _kind(setting)
    shown_type = {list[str]: "<str>"}.get(kind, "<int>" if setting.name in NUMBERS else None)
    return typer.Option(
        setting.flag,
        help=words,
        metavar=shown_type,
        rich_help_panel=_panel(setting),
        show_default=False,
    )


def _read(setting: Setting, value: Any) -> Any:
    """A value of the command line as a config file would have it."""
    if setting.name == "class_weight":
        return "balanced"
    if setting.name not in NUMBERS:
        return value
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        raise HdnnError(
            f"{setting.flag} takes integers, as in 4 or 4,4,4; got {shown(value)}"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _put(settings: Tables, table: str, name: str, value: Any) -> None:
    (settings.setdefault(table, {}) if table else settings)[name] = value


def add_assignments(settings: Tables, assignments: Sequence[str]) -> None:
    """Add what ``--set TABLE.NAME=VALUE`` gives.

    Args:
        settings: where to add it.
        assignments: with values in TOML; what is not TOML is a string.

    Raises:
        HdnnError: one is not of this form.
    """
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        table, _, name = key.strip().rpartition(".")
        if not equals or (table not in TABLES and (table or not name)):
            raise HdnnError(
                f"--set takes TABLE.NAME=VALUE, as training.warmup=2; got {shown(assignment)}"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        _put(settings, table, name, value)
