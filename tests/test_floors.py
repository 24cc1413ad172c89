"""Two floors: the core works with torch, numpy and safetensors, and never the application."""

from __future__ import annotations

import subprocess
import sys

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
net = hdnn.network("MS3", channels=4, kernel=3, layers=2, T=1.0, scheme=hdnn.schemes.Leapfrog())
net(torch.randn(2, 4, 5, 5)).sum().backward()
assert not {"hdnn.application", "hdnn.config", "hdnn.data"} & set(sys.modules)
"""
REST = """
import os, tempfile
net, y = hdnn.network("MS3", features=4, layers=8, T=0.5), torch.randn(10, 4)
assert hdnn.analysis.certify(net, y).ok
hdnn.analysis.norms(hdnn.analysis.sensitivities(net, y))
assert hdnn.coarsen(hdnn.refine(net, 16), 8).layers == 8
path = os.path.join(tempfile.mkdtemp(), "net")
model = hdnn.Model(net, 1, hdnn.Padding(2, 4))
hdnn.save(model, path)
x = torch.randn(5, 2)
assert torch.equal(hdnn.load(path)(x), model(x))
record = hdnn.analysis.profile(net, y)
assert "<table>" in record._repr_html_() + hdnn.analysis.certify(net, y)._repr_html_()
"""


def run(*parts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", "\n".join([ALONE, *parts])]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_core_works_where_nothing_else_can_be_imported() -> None:
    done = run(CORE_AT_WORK, REST)
    assert done.returncode == 0, done.stderr[-3000:]


MISSING = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: real(name) if name.partition(".")[0] in known else None
"""
NAMED = """
NAMES = "HDNNClassifier SystemIdentifier data training plots report estimators identification"
for name in NAMES.split():
    try:
        getattr(hdnn, name)
    except hdnn.HdnnError as error:
        assert isinstance(error, ImportError)
        assert "pandas" in str(error) and "pip install 'hdnn[app]'" in str(error), error
    else:
        raise AssertionError(name)
record = hdnn.analysis.norms(torch.eye(2))
net = hdnn.network("H1", features=2, layers=1, T=1.0)
for draw in (record.plot, hdnn.analysis.certify(net, torch.ones(1, 2)).plot):
    try:
        draw()
    except hdnn.HdnnError as error:
        assert "matplotlib" in str(error) and "pip install 'hdnn[app]'" in str(error), error
    else:
        raise AssertionError(draw)
"""


def test_the_application_is_missing_by_name() -> None:
    done = run(MISSING, "import hdnn", NAMED)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_command_line_is_missing_by_name() -> None:
    done = run(MISSING, "import hdnn.__main__", "hdnn.__main__.main()")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the command line, ")
    assert done.stderr.endswith("pip install 'hdnn[app]'\n")
    assert done.stderr.count("\n") == 1
