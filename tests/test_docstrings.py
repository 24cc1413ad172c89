"""Public functions, classes and methods say what they take and what they return."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

# A package joins when all of it is complete.
COMPLETE = (
    "hdnn.analysis",
    "hdnn.backends",
    "hdnn.networks",
    "hdnn.program",
    "hdnn.schemes",
    "hdnn.zoo",
)


def _names(module: ModuleType) -> list[str]:
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return [n for n in getattr(module, "__all__", own) if not n.startswith("_")]


def _documented(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Public functions and classes, and methods with a docstring of their own."""
    for name in _names(module):
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value
        for key, method in vars(value).items() if inspect.isclass(value) else ():
            if not key.startswith("_") and inspect.isfunction(method) and method.__doc__:
                yield f"{name}.{key}", method


def _lacking(value: object) -> list[str]:
    assert callable(value)
    text, signature = inspect.getdoc(value) or "", inspect.signature(value)
    described = "Args:" in text or "Attributes:" in text
    lacking = ["Args"] if set(signature.parameters) - {"self"} and not described else []
    returns = inspect.isfunction(value) and signature.return_annotation not in ("None", None)
    return lacking + (["Returns"] if returns and "Returns:" not in text else [])


@pytest.mark.parametrize("package", COMPLETE)
def test_public_names_say_args_and_returns(package):
    public = dict(_documented(importlib.import_module(package)))
    assert public
    lacking = {name: sections for name, value in public.items() if (sections := _lacking(value))}
    assert not lacking


def test_a_missing_section_is_noticed():
    def silent(x: int) -> int:
        """A function."""
        return x

    assert _lacking(silent) == ["Args", "Returns"]
