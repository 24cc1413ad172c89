"""What a setting is: `setting` defines one, `record` makes a checked class of several.

A record is a frozen pydantic dataclass with strict types ("4" is no integer, true is no number).
What pydantic raises becomes an `HdnnError` here and nowhere else. `settings_of` lists the
definitions for whoever needs them: the flags of ``hdnn train``, the estimators, the documentation.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from hdnn.errors import HdnnError, unknown_name
from hdnn.training import toml

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
MOST = 2**63 - 1
"""The largest integer that a setting may be: TOML and torch have no larger ones."""
MOST_SHOWN = 80
"""Characters of a value in a message."""

SettingGroup = Literal["Data", "Network", "Training", "Images", "Run"]
GROUPS: tuple[SettingGroup, ...] = get_args(SettingGroup)
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Annotates a text that is one of these names."""

    names: Sequence[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if value not in self.names:
            raise ValueError("no such name")  # `_explain` names the setting and the nearest name
        return value


LISTED = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Annotates a tuple that may be given as a list, as TOML has them."""


def setting(
    default: Any,
    help: str,
    group: SettingGroup,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    allowed: str | None = None,
    flags: Sequence[str] | None = None,
    constant: str | None = None,
) -> Any:
    """Define a setting of a record.

    Args:
        default: its value where none is given.
        help: one line.
        group: where ``hdnn train --help`` and the documentation list it.
        ge, gt, le, lt: its range; integers are at most 2^63 - 1.
        allowed: what it may be, in words, where type and range do not say it.
        flags: of the command line, where they are not the name; empty for a config file only.
        constant: what the flag, which then takes no value, sets.
    """
    extra: dict[str, Any] = {
        "group": group,
        "allowed": allowed,
        "flags": None if flags is None else list(flags),
        "constant": constant,
    }
    if le is None and allowed is None and type(default) is int:
        le = MOST
    return Field(default, description=help, ge=ge, gt=gt, le=le, lt=lt, json_schema_extra=extra)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[R]) -> type[R]:
    """Make a class of settings a frozen dataclass that checks its values.

    Raises:
        HdnnError: when an instance is made with a name or a value that is not allowed.
    """
    made: Any = pydantic_dataclass(frozen=True, config=STRICT)(cls)
    check = made.__init__

    @functools.wraps(check)
    def initialize(self: Any, *args: Any, **values: Any) -> None:
        try:
            check(self, *args, **values)
        except ValidationError as error:
            names = [field.name for field in dataclasses.fields(made)]
            raise _explain(
                made, error, {**dict(zip(names, args, strict=False)), **values}
            ) from None

    made.__init__ = initialize
    return made


def _explain(cls: Any, error: ValidationError, values: dict[str, Any]) -> HdnnError:
    """Say which setting is wrong, what was given (cut) and what is allowed."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, HdnnError):  # of a check of several settings together
        return cause
    known = [field.name for field in dataclasses.fields(cls)]
    place = first["loc"][0] if first["loc"] else ""
    name = known[place] if isinstance(place, int) and place < len(known) else str(place)
    if name not in known:
        return unknown_name("setting", name, known)
    return _complaint(_read(cls, name), name, values.get(name), first["type"])


def _complaint(
    given: Setting, name: str, value: object, kind: str, besides: str | None = None
) -> HdnnError:
    if given.choices:
        return unknown_name(name, value, [*([besides] if besides else []), *given.choices])
    allowed = f"an integer of at most {given.most}" if kind == "less_than_equal" else given.allowed
    other = "" if besides is None else f", or {besides!r}"
    return HdnnError(f"{name} is {allowed}{other}, got {shown(value)}")


def check_value(
    cls: Any, setting: str, value: Any, name: str = "", besides: str | None = None
) -> Any:
    """Check a value for one setting of a record, as the record would.

    Args:
        cls: the record.
        setting: the setting's name.
        value: to check.
        name: what the setting is called in messages, where it is not its name.
        besides: a word that is allowed too.

    Returns:
        The value, as the record would have it.

    Raises:
        HdnnError: it is not allowed.
    """
    if besides is not None and isinstance(value, str) and value == besides:
        return value
    try:
        return _adapter(cls, setting).validate_python(value)
    except ValidationError as error:
        kind = error.errors(include_url=False)[0]["type"]
        raise _complaint(_read(cls, setting), name or setting, value, kind, besides) from None


@functools.cache
def _adapter(cls: Any, name: str) -> TypeAdapter[Any]:
    info = cls.__pydantic_fields__[name]
    annotation: Any = Annotated[info.annotation, info]
    return TypeAdapter(annotation, config=STRICT)


def shown(value: object) -> str:
    """A value as it stands in a message: the whole, or its beginning.

    >>> shown("short"), shown(10**5000)
    ("'short'", 'a number of thousands of digits')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no such integers
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


# --- the definitions, as others read them ---------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Setting:
    """The definition of a setting.

    Args:
        name, default, help, group: as defined; the default is None where it depends on the rest.
        kind: its type, without None: str, int, float, bool or tuple.
        item: the type of the items of a tuple, else None.
        allowed: what it may be, in words.
        choices: its names, where it is one of several; else empty.
        range: of a number, in words; else empty.
        most: the largest integer it may be.
        flags: of the command line; empty for none.
        constant: what its flag, if that takes no value, sets.
    """

    name: str
    default: Any
    help: str
    group: SettingGroup
    kind: type
    item: type | None
    allowed: str
    choices: tuple[str, ...]
    range: str
    most: int
    flags: tuple[str, ...]
    constant: str | None

    @property
    def default_text(self) -> str:
        """The default; empty where it depends on the rest."""
        if isinstance(self.default, str):
            return self.default
        return "" if self.default in (None, ()) else toml.dump_value(self.default)


@functools.cache
def settings_of(cls: Any) -> tuple[Setting, ...]:
    """List the settings of a record, in order."""
    return tuple(_read(cls, field.name) for field in dataclasses.fields(cls))


def _read(cls: Any, name: str) -> Setting:
    info: FieldInfo = cls.__pydantic_fields__[name]
    extra: Any = info.json_schema_extra or {}
    kind, item, choices = _taken_apart(info.annotation, info.metadata)
    bounds = {
        name: getattr(each, name)
        for each in info.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(each, name)
    }
    flags = extra.get("flags")
    return Setting(
        name=name,
        default=info.default,
        help=info.description or "",
        group=extra.get("group", "Run"),
        kind=kind,
        item=item,
        allowed=extra.get("allowed") or _in_words(kind, choices, _range(bounds)),
        choices=choices,
        range=_range(bounds),
        most=bounds.get("le", MOST),
        flags=(f"--{name.replace('_', '-')}",) if flags is None else tuple(flags),
        constant=extra.get("constant"),
    )


def _taken_apart(annotation: Any, metadata: list[Any]) -> tuple[type, type | None, tuple[str, ...]]:
    """Type, type of items, and names; of several types the last, which is the most general."""
    parts = _alternatives(annotation)
    kind, more = _bare(parts[-1])
    names = [m.names for m in (*metadata, *more) if isinstance(m, OneOf)] if len(parts) == 1 else []
    item = _bare(get_args(kind)[0])[0] if get_origin(kind) is tuple else None
    return get_origin(kind) or kind, item, tuple(names[0]) if names else ()


def _alternatives(annotation: Any) -> list[Any]:
    """The types of a union, without None; one inside another counts by its types."""
    bare = _bare(annotation)[0]
    if get_origin(bare) not in (types.UnionType, Union):
        return [] if bare is types.NoneType else [annotation]
    return [part for each in get_args(bare) for part in _alternatives(each)]


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    if get_origin(annotation) is not Annotated:
        return annotation, []
    kind, *metadata = get_args(annotation)
    return kind, metadata


def _in_words(kind: type, choices: tuple[str, ...], bounds: str) -> str:
    if choices:
        return f"one of {', '.join(choices)}"
    noun = {bool: "true or false", str: "a text", int: "an integer", float: "a number"}[kind]
    return f"{noun} {bounds}".strip()


def _range(bounds: dict[str, Any]) -> str:
    match bounds:
        case {"ge": low, "lt": high}:
            return f"in [{low:g}, {high:g})"
        case {"gt": low, "lt": high}:
            return f"in ({low:g}, {high:g})"
        case {"ge": low, "le": high} if high < MOST:
            return f"from {low} to {high}"
        case {"ge": low}:
            return f"of at least {low:g}"
        case {"gt": low}:
            return f"above {low:g}"
    return ""
