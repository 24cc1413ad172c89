"""Uses the core of an installed hdnn, in an environment with its three dependencies only.

An argument names the backend that must compute: fused, or reference where there are no kernels.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import torch

import hdnn

APPLICATION = ["matplotlib", "pandas", "PIL", "pydantic", "rich", "sklearn", "typer"]

assert Path(hdnn.__file__).is_relative_to(sys.prefix), f"not the installed package: {hdnn.__file__}"
assert [name for name in APPLICATION if importlib.util.find_spec(name)] == []

for name in ["MS1", "MS2", "MS3", "H1", "H2"]:
    net = hdnn.network(name, features=4, layers=64, T=1.2)
    y = torch.randn(125, 4, requires_grad=True)
    net(y).sum().backward()
    assert y.grad is not None
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert net.explain_backend(y).backend == sys.argv[1], net.explain_backend(y)
hdnn.save(net, "net.safetensors")
assert torch.equal(hdnn.load("net.safetensors")(y), net(y))
hdnn.analysis.certify(net, y.detach())

# The command line is the application's, and says so.
answer = subprocess.run(
    [sys.executable, "-m", "hdnn", "info"], capture_output=True, text=True, check=False
)
assert answer.returncode != 0
assert "hdnn[app]" in answer.stderr, answer.stderr
assert "Traceback" not in answer.stderr, answer.stderr
