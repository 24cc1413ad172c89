"""Writes the pages of the API reference from what the packages say is public (`__all__`)."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import hdnn

PAGES = {
    "networks": (
        "Networks",
        "Networks by name, the torch module behind them, how time is discretized, and the ODE.",
        {
            "hdnn": ["network", "HamiltonianNetwork", "HdnnError", "refine", "coarsen"],
            "hdnn.zoo": ["Architecture", "register", "architecture"],
            "hdnn.schemes": None,
            "hdnn.ode": None,
        },
    ),
    "statespace": (
        "State-space networks and control",
        "Recurrent networks with guarantees; sampled plants, their gain limit, and loops.",
        {"hdnn.statespace": ["StateSpace", "Cell"], "hdnn.control": None},
    ),
    "fields": (
        "Fields",
        "The dynamics: J, the structure of K, the energy and its gradient.",
        {"hdnn.fields": None},
    ),
    "models": (
        "Models and files",
        "What you train, save and export: a stem, Hamiltonian stages and an output layer.",
        {"hdnn.models": None, "hdnn": ["export_onnx"]},
    ),
    "estimators": (
        "Estimators",
        "The networks as scikit-learn estimators.",
        {"hdnn.estimators": None},
    ),
    "identification": (
        "Identification",
        "State-space networks from recordings of inputs and outputs.",
        {"hdnn.identification": None},
    ),
    "analysis": (
        "Analysis",
        "How gradients behave: along depth, during training, in any PyTorch model.",
        {"hdnn.analysis": None},
    ),
    "testing": (
        "Testing",
        "Assertions of structure, for any module, function, field or step.",
        {"hdnn.testing": None},
    ),
    "training": ("Training", "How models are trained.", {"hdnn.training": None}),
    "data": (
        "Data",
        "Where data come from: planar problems, tables, images, recordings.",
        {"hdnn.data": None, "hdnn.data.images": ["load", "ImageSet"]},
    ),
    "plots": (
        "Figures and reports",
        "Figures for matplotlib, and HTML reports about models and runs.",
        {"hdnn.plots": None, "hdnn.reports": None},
    ),
    "program": (
        "Programs",
        "What a scheme turns a field into: stages, which every backend can run.",
        {"hdnn.program": None, "hdnn.backends": None},
    ),
}


def public(module: str) -> list[str]:
    """The public classes and functions of a module, by its `__all__` or by their names."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(loaded).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module
        ]
    values = {name: getattr(loaded, name) for name in names}
    return [name for name, v in values.items() if inspect.isclass(v) or inspect.isroutine(v)]


def imported_from(module: str, name: str) -> str:
    """Where users import a public name from: `hdnn` itself, if it has the name, or the module."""
    here = getattr(importlib.import_module(module), name)
    return "hdnn" if name in hdnn.__all__ and getattr(hdnn, name) is here else module


def write(folder: Path) -> None:
    """Write the pages; those that have not changed stay, so that builds are short."""
    folder.mkdir(exist_ok=True)
    listed = "".join(f"   {page}\n" for page in PAGES)
    contents = "".join(f"- :doc:`{PAGES[page][0]} <{page}>`: {PAGES[page][1]}\n" for page in PAGES)
    _write(
        folder / "index.rst",
        _title("API reference")
        + "All public classes and functions, grouped by what they are for. Each has an example.\n"
        "Most begin with :func:`hdnn.network`, :class:`hdnn.HDNNClassifier`,\n"
        ":func:`hdnn.analysis.watch` or :func:`hdnn.analysis.certify`.\n\n"
        f"{contents}\n.. toctree::\n   :hidden:\n\n{listed}",
    )
    stubs = set()
    for page, (title, about, modules) in PAGES.items():
        parts = [f"{_title(title)}{about}\n"]
        for module, names in modules.items():
            places: dict[str, list[str]] = {}
            for name in names or public(module):
                places.setdefault(imported_from(module, name), []).append(name)
            for place, members in places.items():
                stubs |= {f"{place}.{name}.rst" for name in members}
                lines = "".join(f"   {name}\n" for name in members)
                parts.append(
                    f".. rubric:: {place}\n\n.. currentmodule:: {place}\n\n.. autosummary::\n"
                    f"   :toctree: generated\n   :nosignatures:\n\n{lines}"
                )
        _write(folder / f"{page}.rst", "\n".join(parts))
    for stub in (folder / "generated").glob("*.rst"):  # of names that are no longer public
        if stub.name not in stubs:
            stub.unlink()


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
