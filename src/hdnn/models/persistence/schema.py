"""The mechanism: a thing is described by the arguments of its constructor, and built from them.

A `Schema` lists the arguments once, each with how to get it from a thing and how to read it from a
file; `Schema.describe` and `Schema.build` are the two ways through that list. A `Choice` is a list
of schemas by name, where a thing may be of several types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from hdnn.errors import FileFormatError, HdnnError
from hdnn.models.persistence.checks import Description, Tensors, short, text


class Part(Protocol):
    """Describes the value of an argument that is a thing itself."""

    def describe(self, thing: Any, tensors: Tensors) -> Description: ...

    def build(self, description: Description, tensors: Tensors) -> Any: ...


def as_is(value: Any, name: str) -> Any:
    """The value of a file, which the constructor checks."""
    return value


class Argument(NamedTuple):
    """An argument of a constructor.

    Args:
        of: its value, of a thing that was built.
        read: checks what a file says, given that and the name of the argument.
        part: describes the value, where it is no plain one.
        prefix: with which the names of the tensors of the part begin.
        optional: whether None is left out.
    """

    of: Callable[[Any], Any]
    read: Callable[[Any, str], Any] = as_is
    part: Part | None = None
    prefix: str = ""
    optional: bool = False


def attribute(name: str, read: Callable[[Any, str], Any] = as_is, **options: Any) -> Argument:
    """The argument that a thing keeps as an attribute (of an attribute, with a dot)."""
    return Argument(attrgetter(name), read, **options)


@dataclasses.dataclass(frozen=True)
class Schema:
    """What things of a type are described by.

    Args:
        make: builds one of the tensors of a file and the arguments, those by name.
        arguments: by name, in the order of the file.
        tables: tensors of a thing that are no part of its state.
    """

    make: Callable[..., Any]
    arguments: Mapping[str, Argument]
    tables: Callable[[Any], Tensors] = lambda thing: {}

    def describe(self, thing: Any, tensors: Tensors) -> Description:
        """The arguments of a thing as plain values; its tables are added to the tensors."""
        tensors.update(self.tables(thing))
        description: Description = {}
        for name, argument in self.arguments.items():
            value = argument.of(thing)
            if value is not None and argument.part is not None:
                value = argument.part.describe(value, tensors)
            if value is not None or not argument.optional:
                description[name] = value
        return description

    def build(self, description: Description, tensors: Tensors) -> Any:
        """The thing of a description, with weights still to be loaded."""
        values = {}
        for name, argument in self.arguments.items():
            if name in description:
                values[name] = _read(argument, name, description[name], tensors)
            elif not argument.optional:
                raise FileFormatError(f"{name} is absent")
        return self.make(tensors, **values)


def _read(argument: Argument, name: str, value: Any, tensors: Tensors) -> Any:
    if argument.part is None:
        return argument.read(value, name)
    if value is None:
        return None
    inner = {
        key.removeprefix(argument.prefix): tensor
        for key, tensor in tensors.items()
        if key.startswith(argument.prefix) or is_table(key)
    }
    return argument.part.build(value, inner)


def is_table(name: str) -> bool:
    """Whether a tensor of a file is a table of parameter numbers, no part of the state."""
    return name.startswith("pattern.")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Things of several types, each with a schema.

    Args:
        title: what they are, for messages.
        schemas: type and schema by the name that a file has for them.
        refuse: says why a thing of another type cannot be saved.
    """

    title: str
    schemas: Callable[[], Mapping[str, tuple[type, Schema]]]
    refuse: Callable[[Any], str]

    def describe(self, thing: Any, tensors: Tensors) -> Description:
        """The name of the type and the arguments."""
        for name, (kind, schema) in self.schemas().items():
            if type(thing) is kind:  # of a subclass only its own code would know
                return {"type": name, **schema.describe(thing, tensors)}
        raise HdnnError(self.refuse(thing))

    def build(self, description: Description, tensors: Tensors) -> Any:
        """The thing of a description, with weights still to be loaded."""
        name, schemas = description["type"], self.schemas()
        if not isinstance(name, str) or name not in schemas:
            known = ", ".join(schemas)
            raise FileFormatError(f"unknown {self.title} {short(name)}; known are {known}")
        return schemas[name][1].build(description, tensors)


def of_dataclass(kind: Any, *, optional: bool = False) -> Schema:
    """The schema of a dataclass: its fields; lists of a file become tuples."""

    def make(_: Tensors, **values: Any) -> Any:
        tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return kind(**tuples)

    return Schema(
        make,
        {
            field.name: attribute(
                field.name, text if field.type in ("str", str) else as_is, optional=optional
            )
            for field in dataclasses.fields(kind)
        },
    )
