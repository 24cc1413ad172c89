"""State-space networks as C: one file with the weights and the function of a step."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.statespace import Cell, Layer, StateSpace

_SIGMA = {
    "tanh": "tanh{f}(z)",
    "sigmoid": "1 / (1 + exp{f}(-z))",
    "relu": "z > 0 ? z : 0",
    "identity": "z",
    "arctan": "atan{f}(z)",
    "softsign": "z / (1 + fabs{f}(z))",
}

_FILE = """\
/* A state-space network, written by hdnn. Begin with x = hdnn_x0; then, at every sampling time,

       hdnn_step(x, u, y);

   gives the {outputs} outputs y of the state x ({states} numbers) and of the {inputs} inputs u, and
   then takes x to the next time. */
#include <math.h>

const {real} hdnn_x0[{states}] = {{{x0}}};

{arrays}
static {real} sigma({real} z) {{ return {sigma}; }}

/* out = M v + b */
static void affine(const {real} *M, const {real} *b, const {real} *v, int rows, int columns,
                   {real} *out) {{
  for (int i = 0; i < rows; i++) {{
    {real} sum = b[i];
    for (int j = 0; j < columns; j++) sum += M[i * columns + j] * v[j];
    out[i] = sum;
  }}
}}

void hdnn_step({real} *x, const {real} *u, {real} *y) {{
  {real} v[{longest}], s[{widest}]; /* v: state, input, hidden units; s: from layer to layer */
  for (int j = 0; j < {inputs}; j++) s[j] = u[j];
{steps}
  for (int j = 0; j < {outputs}; j++) y[j] = s[j];
}}
"""


@torch.no_grad()
def export_c(model: StateSpace | Cell, path: str | os.PathLike[str]) -> None:
    """Write a state-space network as one C file, as for a microcontroller; it needs math.h only.

    Args:
        model: the network, or its cell.
        path: the file; an existing one is replaced.

    Raises:
        HdnnError: it is an ensemble, or a weight is not finite.
        StorageError: the file cannot be written.

    >>> import hdnn, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.c"
    >>> export_c(hdnn.StateSpace(inputs=1, outputs=1, states=2, units=4), path)
    >>> "void hdnn_step(float *x, const float *u, float *y) {" in path.read_text()
    True
    """
    cell = model.assemble() if isinstance(model, StateSpace) else model
    if cell.x0.ndim > 1:
        raise HdnnError("a C file holds one network, got an ensemble")
    real, f = ("float", "f") if cell.x0.dtype is torch.float32 else ("double", "")
    arrays, steps = list[str](), list[str]()

    def array(name: str, values: Tensor) -> str:
        if not bool(values.isfinite().all()):
            raise HdnnError("a weight is not finite, so there is no C file of it")
        arrays.append(f"static const {real} {name}[] = {{{_numbers(values)}}};")
        return name

    def affine(name: str, M: Tensor, b: Tensor, out: str) -> None:
        rows, columns = M.shape
        if rows:
            M_b = f"{array(f'{name}_M', M)}, {array(f'{name}_b', b)}"
            steps.append(f"  affine({M_b}, v, {rows}, {columns}, {out});")

    def put(count: int, source: str, at: int = 0) -> None:
        steps.append(f"  for (int j = 0; j < {count}; j++) v[{at} + j] = {source};")

    def units(name: str, W: Tensor, b: Tensor) -> None:
        first, last = W.shape[1], W.shape[1] + len(W)
        affine(name, W, b, f"v + {first}")
        steps.append(f"  for (int j = {first}; j < {last}; j++) v[j] = sigma(v[j]);")

    sizes = [_sizes(layer) for layer in cell.layers]
    for k, (layer, (n, inputs, _, _)) in enumerate(zip(cell.layers, sizes, strict=True)):
        x = f"x + {k * n}"
        put(n, f"x[{k * n} + j]")
        if layer.damp is not None:  # from x to q, of which y and the next x are linear
            units(f"damp{k}", layer.damp.K, layer.damp.b)
            affine(f"q{k}", layer.damp.P, layer.damp.p, x)
            put(n, f"x[{k * n} + j]")
        put(inputs, "s[j]", at=n)
        if layer.turn is None:
            units(f"units{k}", layer.W, layer.b)
        affine(f"y{k}", layer.Y, layer.c, "s")
        if layer.turn is None:
            affine(f"x{k}", layer.A, layer.a, x)
        else:
            affine(f"x{k}", layer.turn, layer.turn.new_zeros(n), x)
    text = _FILE.format(
        real=real,
        sigma=_SIGMA[cell.layers[0].activation.name].format(f=f),
        states=len(cell.x0),
        inputs=sizes[0][1],
        outputs=sizes[-1][3],
        x0=_numbers(cell.x0),
        longest=max(n + inputs + units for n, inputs, units, _ in sizes),
        widest=max(max(inputs, outputs) for _, inputs, _, outputs in sizes),
        arrays="\n".join(arrays),
        steps="\n".join(steps),
    )
    with atomic(path) as temporary:
        temporary.write_text(text)


def _sizes(layer: Layer) -> tuple[int, int, int, int]:
    """States, inputs, units and outputs."""
    n, (outputs, width) = len(layer.A), layer.Y.shape
    return n, width - n, len(layer.W), outputs


def _numbers(values: Tensor) -> str:
    digits = 9 if values.dtype is torch.float32 else 17
    return ", ".join(f"{value:.{digits}g}" for value in values.flatten().tolist())
