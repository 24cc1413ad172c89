"""The C file computes what the network does."""

import ctypes
import shutil
import subprocess

import pytest
import torch

import hdnn
from hdnn import HdnnError
from hdnn.models import export_c

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def run(path, x, inputs, outputs, real):
    """The outputs of the compiled file for inputs ``(time, inputs)``, and its first state."""
    library = path.with_suffix(".so")
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    command = [COMPILER, *warnings, "-O1", "-shared", "-fPIC", path, "-o", library, "-lm"]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    first = (real * len(x)).in_dll(loaded, "hdnn_x0")
    state, y, found = (real * len(x))(*first), (real * outputs)(), []
    for u in inputs.tolist():
        loaded.hdnn_step(state, (real * len(u))(*u), y)
        found.append(list(y))
    return torch.tensor(found, dtype=inputs.dtype), torch.tensor(list(first), dtype=inputs.dtype)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(
    "options",
    [
        {"outputs": 1, "units": 5},
        {"outputs": 3, "units": 4, "layers": 3, "activation": "softsign"},
        {"outputs": 1, "units": 0},
        {"units": 4, "passive": True, "gain": 2.0, "activation": "sigmoid"},
        {"outputs": 2, "units": 4, "activation": "arctan", "learn_initial": True},
        {"outputs": 2, "units": 4, "activation": "relu", "dtype": torch.float32},
    ],
)
def test_the_file_is_the_network(tmp_path, options):
    draw = torch.Generator().manual_seed(0)
    dtype = options.setdefault("dtype", torch.float64)
    model = hdnn.StateSpace(inputs=2, states=3, generator=draw, **options)
    with torch.no_grad():
        if model.learn_initial:
            model.x0.normal_(generator=draw)
    u = torch.randn(50, 2, generator=draw).to(dtype)
    path = tmp_path / "model.c"
    export_c(model, path)
    real = ctypes.c_float if dtype is torch.float32 else ctypes.c_double
    expected = model(u)[0]
    found, first = run(path, model.x0, u, model.outputs, real)
    close = (
        {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    )
    torch.testing.assert_close(found, expected.detach().to(dtype), **close)
    torch.testing.assert_close(first, model.x0.detach(), rtol=0, atol=0)


def test_what_is_not_written(tmp_path):
    path = tmp_path / "model.c"
    with pytest.raises(HdnnError, match="ensemble"):
        export_c(hdnn.StateSpace(inputs=1, states=2, units=2, ensemble=3), path)
    broken = hdnn.StateSpace(inputs=1, states=2, units=2)
    with torch.no_grad():
        broken.weights[0].b.fill_(torch.nan)
    with pytest.raises(HdnnError, match="not finite"):
        export_c(broken, path)
    assert not path.exists()
