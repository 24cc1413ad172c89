"""Imports point one way only, and `import hdnn` loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hdnn

ROOT = Path(hdnn.__file__).parent
CORE = [
    "errors",
    "notebook",
    "files",
    "program",
    "fields",
    "ode",
    "schemes",
    "kernels",
    "backends",
    "networks",
    "zoo",
    "models",
    "refinement",
    "analysis",
]
APPLICATION = [
    "application",
    "progress",
    "config",
    "data",
    "training",
    "estimators",
    "plots",
    "reports",
    "playground",
    "paper",
    "cli",
]
LEVEL = {name: level for level, name in enumerate((*CORE, *APPLICATION))}
TABLES = {"data"}
"""What `models` may import of the application where a model has the columns of a table."""
MODULES = sorted(
    path
    for path in ROOT.rglob("*.py")
    if path.relative_to(ROOT).as_posix() not in ("__init__.py", "__main__.py")
)


def place(path: Path) -> str:
    """The top-level part of the package that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def statements(node: ast.AST, depth: int = 0) -> Iterator[tuple[ast.AST, int]]:
    """All that is executed, and how many functions are around it; not what is for types only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child, depth
        yield from statements(child, depth + isinstance(child, ast.FunctionDef))


def imported(path: Path, lazily: bool | None = None) -> set[str]:
    """The top-level parts of hdnn that a file imports; "" is hdnn itself.

    Args:
        path: the file.
        lazily: only inside functions, or only outside; None: wherever.
    """
    found = set()
    package = ["hdnn", *path.relative_to(ROOT).parent.parts]
    for node, depth in statements(ast.parse(path.read_text())):
        names = []
        if lazily is not None and lazily != (depth > 0):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = (
                [f"{module}.{alias.name}" for alias in node.names] if module == "hdnn" else [module]
            )
        for name in names:
            head, _, rest = name.partition(".")
            if head == "hdnn":
                found.add(rest.partition(".")[0])
    return found


def test_every_module_has_a_place_in_the_order() -> None:
    assert {place(path) for path in MODULES} <= set(LEVEL)
    assert len(MODULES) > 10


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_to_lower_levels_only(path: Path) -> None:
    here = place(path)
    # Only the topmost may use the whole package, as its users do.
    whole = {""} if LEVEL[here] >= LEVEL["paper"] else set()
    if here == "models":
        # The module of columns is itself loaded only where there are some.
        whole = TABLES if path.name == "columns.py" else TABLES - imported(path, lazily=False)
    if path.name == "resolve.py":  # the settings of Table 1, for planar problems only
        whole = {"paper"} - imported(path, lazily=False)
    for other in imported(path) - {here} - whole:
        assert other in LEVEL, f"{here} imports hdnn.{other}, which has no place in the order"
        assert LEVEL[other] < LEVEL[here], f"{here} imports {other}, which is not below it"


def test_the_parser_sees_every_kind_of_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "fields").mkdir()
    file = tmp_path / "fields" / "one.py"
    file.write_text(
        "import hdnn.cli\nfrom hdnn import zoo, plots\nfrom hdnn.schemes import RK4\nimport torch\n"
        "def f():\n    from ..models import Augmentation\n    from .two import x\n"
        "    from hdnnx import y\nif TYPE_CHECKING:\n    from hdnn import data\n"
    )
    assert imported(file) == {"cli", "zoo", "plots", "schemes", "models", "fields"}
    assert imported(file, lazily=True) == {"models", "fields"}


def test_import_hdnn_and_help_are_light() -> None:
    heavy = ["torch", "sklearn", "matplotlib", "pandas", "pydantic", "typer", "rich"]
    code = (
        f"import sys, hdnn; print([m for m in {heavy} if m in sys.modules]); "
        "import hdnn.cli; from typer.testing import CliRunner; "
        "print(CliRunner().invoke(hdnn.cli.app, ['--help']).exit_code); "
        f"print([m for m in {heavy[:4]} if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:3] == ["[]", "0", "[]"]


def test_a_report_does_not_wait_for_the_compiler_of_torch() -> None:
    heavy = ["torch._dynamo", "sympy"]
    code = (
        "import sys, torch, hdnn; net = hdnn.network('H1', features=4, layers=3, T=1.0); "
        "model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4)); "
        "hdnn.report(model, torch.randn(20, 2), torch.arange(20) % 2); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    assert len(set(hdnn.__all__)) == len(hdnn.__all__)
    for name in hdnn.__all__:
        assert getattr(hdnn, name) is not None
        assert name in dir(hdnn)
    with pytest.raises(AttributeError, match="netwrok"):
        _ = hdnn.netwrok
    for part in (hdnn.fields, hdnn.backends):
        assert all(hasattr(part, name) for name in part.__all__)
