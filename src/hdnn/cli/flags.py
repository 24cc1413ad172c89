"""Flags of the command line, made from the definitions of the settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from hdnn.errors import HdnnError
from hdnn.training.run_config import all_settings
from hdnn.training.schema import GROUPS, Setting, shown

Tables = dict[str, dict[str, Any]]
"""Settings as a config file has them: by table and name."""


class Flag(NamedTuple):
    """A flag: the settings that it sets, as (table, definition); the first one describes it."""

    names: tuple[str, ...]
    sets: list[tuple[str, Setting]]

    @property
    def parameter(self) -> str:
        """Its name in Python."""
        return self.names[0].removeprefix("--").replace("-", "_")

    @property
    def kind(self) -> Any:
        """The type that the command line reads: integers in a row are text, as in 4,4,4."""
        first = self.sets[0][1]
        if first.constant is not None:
            return bool
        if any(given.item is int for _, given in self.sets):
            return str
        return list[str] if first.item is str else first.kind

    @property
    def option(self) -> Any:
        """What typer is told of it."""
        first = self.sets[0][1]
        names = self.names
        if self.kind is bool and first.constant is None:
            names = tuple(f"{name}/--no-{name.removeprefix('--')}" for name in names)
        words = first.help
        if first.range:
            words = f"{words.removesuffix('.')}; {first.range.removeprefix('of ')}."
        return typer.Option(
            *names, help=words, rich_help_panel=first.group, show_default=self._default() or False
        )

    def _default(self) -> str:
        """Its default in words, and that for images where it is another."""
        table, first = self.sets[0]
        if first.constant is not None or table == "record":  # no flag: nothing is recorded
            return ""
        texts = dict.fromkeys(given.default_text.strip("[]") for _, given in self.sets)
        mine, *others = texts
        return mine + "".join(f"; images: {text}" for text in others if mine and text)

    def read(self, value: Any) -> dict[str, Any]:
        """What a value on the command line means, by table; nothing where there is none."""
        first = self.sets[0][1]
        if value is None or value == [] or (first.constant is not None and not value):
            return {}
        if first.constant is not None:
            value = first.constant
        elif any(given.item is int for _, given in self.sets):
            value = _integers(self.names[0], value)
            # One depth is that of a network; a list is for the stages of one for images.
            value = value[0] if len(value) == 1 else value
        return {table: {given.name: value} for table, given in self.sets}


def _integers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise HdnnError(f"{flag} takes integers, as in 4 or 4,4,4; got {shown(text)}") from None


@functools.cache
def setting_flags() -> tuple[Flag, ...]:
    """The flags of all settings; one flag may set several, as --seed does."""
    found: dict[tuple[str, ...], Flag] = {}
    for table, names in all_settings().items():
        for definitions in names.values():
            for given in definitions:
                if given.flags:
                    flag = found.setdefault(given.flags, Flag(given.flags, []))
                    flag.sets.append((table, given))
    return tuple(found.values())


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every setting; its parameter ``settings`` gets those given.

    Args:
        command: takes ``settings``, a `Tables` without the settings that were not given.
    """
    ordered = sorted(setting_flags(), key=lambda flag: GROUPS.index(flag.sets[0][1].group))
    flags = {flag.parameter: flag for flag in ordered}
    signature = inspect.signature(command, eval_str=True)
    own = [given for name, given in signature.parameters.items() if name != "settings"]
    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if flag.sets[0][1].constant is None else False,
            annotation=Annotated[
                flag.kind if flag.sets[0][1].constant else flag.kind | None, flag.option
            ],
        )
        for name, flag in flags.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        settings: Tables = {table: {} for table in all_settings()}
        for name, flag in flags.items():
            for table, given in flag.read(values.pop(name)).items():
                settings[table].update(given)
        command(settings=settings, **values)

    changed: Any = wrapper
    parameters = [*made, *(given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in own)]
    changed.__signature__ = inspect.Signature(parameters)
    changed.__annotations__ = {given.name: given.annotation for given in parameters}
    return wrapper
