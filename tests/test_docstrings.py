"""Public functions, classes and methods say what they take, return and raise, with an example."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

PUBLIC = (
    *("hdnn", "hdnn.analysis", "hdnn.backends", "hdnn.data", "hdnn.data.images", "hdnn.estimators"),
    *("hdnn.fields", "hdnn.models", "hdnn.models.onnx_export", "hdnn.networks", "hdnn.ode"),
    *("hdnn.plots", "hdnn.program", "hdnn.refinement", "hdnn.reports", "hdnn.schemes"),
    *("hdnn.testing", "hdnn.training", "hdnn.zoo"),
)
ARGUMENT = re.compile(r"    ([\w*]+(?:, [\w*]+)*):")


def _names(module: ModuleType) -> list[str]:
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return [n for n in getattr(module, "__all__", own) if not n.startswith("_")]


def _documented(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Public functions and classes, and methods with a docstring of their own."""
    for name in _names(module):
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value
        for key, own in vars(value).items() if inspect.isclass(value) else ():
            method = own if inspect.isfunction(own) else getattr(value, key, None)
            ours = callable(method) and getattr(method, "__module__", "").startswith("hdnn")
            if ours and not key.startswith("_") and method.__doc__:
                yield f"{name}.{key}", method


def _described(value: object) -> set[str]:
    """The arguments that the docstring names; those of settings are described by their help."""
    names: set[str] = set()
    inside = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line.strip() and not line.startswith(" "):
            inside = line in ("Args:", "Attributes:")
        elif inside and (entry := ARGUMENT.match(line)):
            names.update(name.lstrip("*") for name in entry[1].split(", "))
    if hasattr(value, "__pydantic_fields__"):
        names.update(k for k, info in value.__pydantic_fields__.items() if info.description)
    return names


def _lacking(value: object) -> list[str]:
    """What the docstring leaves out: itself, arguments, or what comes back."""
    assert callable(value)
    text = inspect.getdoc(value)
    if not text:
        return ["docstring"]
    if inspect.isclass(value) and issubclass(value, Exception):
        return []  # they take what Python's take: a message
    signature = inspect.signature(value)
    described = _described(value)
    lacking = [
        name
        for name, parameter in signature.parameters.items()
        if name not in {"self", *described}
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    returns = not inspect.isclass(value) and signature.return_annotation not in ("None", None)
    if returns and not re.search(r"^(Returns|Yields):", text, re.MULTILINE):
        lacking.append("Returns")
    return lacking + (["Raises"] if _raises(value) and "Raises:" not in text else [])


def _raises(value: Any) -> bool:
    """Whether the code of a function, or of a class's own constructor, raises an error of use."""
    makers = [vars(value).get(name) for name in ("__init__", "__post_init__")]
    functions = makers if inspect.isclass(value) else [inspect.unwrap(value)]
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    sources = [inspect.getsource(c) for c in codes if not c.co_filename.startswith("<")]
    return any(re.search(r"\braise (?!NotImplementedError|AttributeError)\w", s) for s in sources)


@pytest.mark.parametrize("package", PUBLIC)
def test_docstrings_say_args_returns_and_raises_and_show_an_example(package: str) -> None:
    public = dict(_documented(importlib.import_module(package)))
    assert public
    lacking = {name: sections for name, value in public.items() if (sections := _lacking(value))}
    assert not lacking
    examples = {name: ">>>" in (value.__doc__ or "") for name, value in public.items()}
    assert all(shown for name, shown in examples.items() if "." not in name), examples
