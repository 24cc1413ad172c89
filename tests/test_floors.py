"""Two floors: the core needs torch, numpy and safetensors, and never the application."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hdnn

ROOT = Path(hdnn.__file__).parent
CORE = {
    "analysis",
    "backends",
    "errors",
    "fields",
    "files",
    "kernels",
    "models",
    "networks",
    "notebook",
    "ode",
    "program",
    "refinement",
    "schemes",
    "zoo",
}
PACKAGES = {"torch", "numpy", "safetensors"}
OPTIONAL = {
    "models/export.py": {"onnx", "onnx_ir", "onnxruntime"},
    "models/onnx_columns.py": {"onnx"},
}
"""Extras, which these files import where they are used, and name where they are missing."""


def modules() -> list[Path]:
    found = [p for p in ROOT.rglob("*.py") if p.relative_to(ROOT).with_suffix("").parts[0] in CORE]
    return sorted(found)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that is executed: not what is for types only."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from statements(child)


def imported(path: Path) -> set[str]:
    """What a file imports, wherever in it: packages, and parts of hdnn as ``hdnn.part``."""
    names: set[str] = set()
    package = ["hdnn", *path.relative_to(ROOT).parent.parts]
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            parts = [f"{module}.{alias.name}" for alias in node.names]
            names.update(parts if module == "hdnn" else [module])
    return {".".join(n.split(".")[:2]) if n.startswith("hdnn.") else n.split(".")[0] for n in names}


COLUMNS = {"models/onnx_columns.py"}
"""Files that import hdnn.data where a model has the columns of a table."""


def allowed(path: Path) -> set[str]:
    name = path.relative_to(ROOT).as_posix()
    extra = (packages for place, packages in OPTIONAL.items() if name.startswith(place))
    return PACKAGES.union(sys.stdlib_module_names, {"hdnn"}, *extra)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_core_imports_its_three_packages_and_itself(path: Path) -> None:
    names = imported(path)
    parts = {name.removeprefix("hdnn.") for name in names if name.startswith("hdnn.")}
    columns = {"data"} if path.relative_to(ROOT).as_posix() in COLUMNS else set()
    assert parts <= CORE | columns
    assert {name for name in names if "." not in name} <= allowed(path)


def test_the_parser_sees_every_kind_of_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "fields").mkdir()
    file = tmp_path / "fields" / "one.py"
    file.write_text(
        "import hdnn.cli\nfrom hdnn import zoo, plots\nfrom hdnn.schemes import RK4\n"
        "import torch.nn\ndef f():\n    from ..models import Augmentation\n"
        "    from .two import x\n    import a.b\nif TYPE_CHECKING:\n    import typer\n"
    )
    parts = {"cli", "zoo", "plots", "schemes", "models", "fields"}
    assert imported(file) == {f"hdnn.{part}" for part in parts} | {"torch", "a"}


ALONE = """
import importlib.abc, importlib.metadata, re, sys
import torch, torch._dynamo, numpy, safetensors.torch  # torch looks for optional packages there

required, todo = set(), ["torch", "numpy", "safetensors"]  # and what these require themselves
while todo:
    required.add(name := todo.pop())
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # for another platform
        continue
    names = {re.match(r"[\\w-]+", need)[0].lower() for need in needs if "extra" not in need}
    todo += names - required
known = {"hdnn", *sys.stdlib_module_names, *(name.replace("-", "_") for name in required)}
known |= {name.partition(".")[0] for name in sys.modules}  # what these three have imported
assert not known & {"matplotlib", "pandas", "pydantic", "rich", "scipy", "sklearn", "typer"}

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in known:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""
CORE_AT_WORK = """
import hdnn
for name in ("MS1", "MS2", "MS3", "H1", "H2", "HS", "FCNN", "ResNet"):
    options = {} if name == "FCNN" else {"T": 1.2}
    net = hdnn.network(name, features=4, layers=8, **options)
    y = torch.randn(20, 4, requires_grad=True)
    net(y).sum().backward()
    assert y.grad is not None and all(p.grad is not None for p in net.parameters())
    net.vjp(y.detach(), torch.ones(20, 4))
    net.trajectory(y)
net = hdnn.network("MS3", channels=4, kernel=3, layers=2, T=1.0, scheme=hdnn.schemes.Leapfrog())
net(torch.randn(2, 4, 5, 5)).sum().backward()
assert not [name for name in sys.modules if name.startswith("hdnn.")
            and name.split(".")[1] not in CORE], sorted(sys.modules)
"""
REST = """
import os, tempfile
net, y = hdnn.network("MS3", features=4, layers=8, T=0.5), torch.randn(10, 4)
assert hdnn.analysis.certify(net, y).ok
hdnn.analysis.norms(hdnn.analysis.sensitivities(net, y))
assert hdnn.coarsen(hdnn.refine(net, 16), 8).layers == 8
path = os.path.join(tempfile.mkdtemp(), "net")
hdnn.save(net, path)
assert torch.equal(hdnn.load(path)(y), net(y))
model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
hdnn.save(model, path)
x = torch.randn(5, 2)
assert torch.equal(hdnn.load(path)(x), model(x))
"""


def run(*parts: str) -> None:
    code = "\n".join([ALONE, f"CORE = {sorted(CORE)}", *parts])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_networks_run_where_nothing_else_can_be_imported() -> None:
    run(CORE_AT_WORK)


def test_analysis_models_and_refinement_run_where_nothing_else_can_be_imported() -> None:
    run(CORE_AT_WORK, REST)


MISSING = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: found(name) if name.partition(".")[0] in known else None
"""
NAMED = """
for name in ("HDNNClassifier", "data", "training", "plots", "report", "estimators"):
    try:
        getattr(hdnn, name)
    except hdnn.HdnnError as error:
        assert isinstance(error, ImportError)
        assert "pandas" in str(error) and "pip install 'hdnn[app]'" in str(error), error
    else:
        raise AssertionError(name)
"""


def test_the_application_is_missing_by_name() -> None:
    run(MISSING, "import hdnn", NAMED)


def test_the_command_line_is_missing_by_name() -> None:
    code = "\n".join([ALONE, MISSING, "import hdnn.__main__", "hdnn.__main__.main()"])
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: the command line, ")
    assert done.stderr.endswith("pip install 'hdnn[app]'\n")
    assert done.stderr.count("\n") == 1
