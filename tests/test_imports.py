"""Imports point one way only, the core needs three packages, and `import hdnn` is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hdnn

ROOT = Path(hdnn.__file__).parent
CORE = (
    *("errors", "notebooks", "progress", "testing", "files", "threads", "program", "fields"),
    *(
        "ode",
        "schemes",
        "kernels",
        "backends",
        "networks",
        "zoo",
        "statespace",
        "control",
        "models",
        "refinement",
    ),
    "analysis",
)
APPLICATION = (
    *("application", "config", "data", "robots", "training"),
    *("identification", "estimators"),
    *("plots", "reports", "playground", "paper", "cli"),
)
LEVEL = {name: level for level, name in enumerate((*CORE, *APPLICATION))}
PACKAGES = {"torch", "numpy", "safetensors", "hdnn", *sys.stdlib_module_names}
OPTIONAL = {
    "models/onnx_export.py": {"onnx", "onnx_ir", "onnxruntime"},
    "models/onnx_graph.py": {"onnx"},  # itself imported where it is used
}
"""What these files import where it is used, beyond what their level may."""
MODULES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent != ROOT or not path.name.startswith("__")
}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that is executed: not what is for types only."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from statements(child)


def imported(code: str, package: list[str]) -> set[str]:
    """What code of a package imports: packages, and parts of hdnn as ``hdnn.part``."""
    names: set[str] = set()
    for node in statements(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            parts = [f"{module}.{alias.name}" for alias in node.names]
            names.update(parts if module == "hdnn" else [module])
    return {".".join(n.split(".")[:2]) if n.startswith("hdnn.") else n.split(".")[0] for n in names}


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_to_lower_levels_only(name: str) -> None:
    path = MODULES[name]
    here = path.relative_to(ROOT).with_suffix("").parts[0]
    names = imported(path.read_text(), ["hdnn", *path.relative_to(ROOT).parent.parts])
    names -= {f"hdnn.{here}", *OPTIONAL.get(name, ())}
    parts = {name.removeprefix("hdnn.") for name in names if name.startswith("hdnn.")}
    assert parts <= {other for other in LEVEL if LEVEL[other] < LEVEL[here]}
    if here in CORE:
        assert {name for name in names if "." not in name} <= PACKAGES


def printed(code: str) -> list[str]:
    call = [sys.executable, "-c", code]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.splitlines()


def test_import_hdnn_and_help_are_light() -> None:
    heavy = ["torch", "sklearn", "matplotlib", "pandas", "pydantic", "typer", "rich"]
    code = (
        f"import sys, hdnn; print([m for m in {heavy} if m in sys.modules]); "
        "import hdnn.cli; from typer.testing import CliRunner; "
        "print(CliRunner().invoke(hdnn.cli.app, ['train', '--help']).exit_code); "
        f"print([m for m in {heavy[:4]} if m in sys.modules])"
    )
    assert printed(code) == ["[]", "0", "[]"]


@pytest.mark.slow
def test_a_report_does_not_wait_for_the_compiler_of_torch() -> None:
    heavy = ["torch._dynamo", "sympy"]
    code = (
        "import sys, torch, hdnn; net = hdnn.network('H1', features=4, layers=3, T=1.0); "
        "model = hdnn.Model(net, 1, hdnn.Padding(2, 4)); "
        "hdnn.report(model, torch.randn(20, 2), torch.arange(20) % 2); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert printed(code) == ["[]"]


def test_every_public_name_is_there() -> None:
    assert len(set(hdnn.__all__)) == len(hdnn.__all__)
    for name in (*hdnn.__all__, "analysis", "data", "training"):
        assert getattr(hdnn, name) is not None
        assert name in dir(hdnn)
    internal = {"Any", "annotations", "importlib", "application", "cli", "errors", "kernels"}
    assert not internal & {*dir(hdnn)}  # which is what tab completion shows
    with pytest.raises(AttributeError, match="netwrok"):
        _ = hdnn.netwrok
    for part in (hdnn.fields, hdnn.backends, hdnn.models):
        assert all(hasattr(part, name) for name in part.__all__)
