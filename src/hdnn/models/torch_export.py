"""Export by `torch.export`: a network or a model as a file that runs in torch without hdnn."""

from __future__ import annotations

import copy
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from hdnn.backends import scanned
from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models.export import Export, difference, expected_of, metadata_of, number_type
from hdnn.models.model import Model
from hdnn.models.onnx.interface import interface_of
from hdnn.networks import HamiltonianNetwork


class _Outputs(nn.Module):
    """What an exported file computes: the final state, probabilities or predictions."""

    def __init__(self, thing: HamiltonianNetwork | Model) -> None:
        super().__init__()
        self.thing = thing

    def forward(self, x: Tensor) -> Tensor:
        return expected_of(self.thing, x)


@torch.no_grad()
def export_torch(
    thing: HamiltonianNetwork | Model, path: str | os.PathLike[str], *, check: bool = True
) -> Export:
    """Write a network or a model as a program of `torch.export`, which torch runs without hdnn.

    Depth is one loop operator (`scan`, a prototype of torch) where layers are stages, so that the
    graph has the same size at any depth; a scheme whose layers are functions is unrolled. Inputs
    and outputs are those of `hdnn.export_onnx` with ``encoded=True``: a table goes in as the
    model's encoder gives it. Labels and names of columns are in the file's extra files, as JSON.

        program = torch.export.load("model.pt2").module()
        probabilities = program(columns)

    Args:
        thing: a network or a model, in float32 or float64; it is exported as in evaluation mode.
        path: the file to write, "model.pt2".
        check: compare the file with hdnn on a batch.

    Returns:
        Names, shapes and size of what was written, and the deviation that was measured.

    Raises:
        HdnnError: torch cannot export it, or the file computes something else.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("MS1", features=4, layers=256, T=1.2)
    >>> export = export_torch(net, Path(tempfile.mkdtemp()) / "net.pt2")
    >>> export.outputs, export.deviation < 1e-5
    ({'final_state': ('batch', 4)}, True)
    """
    if not isinstance(thing, HamiltonianNetwork | Model):
        raise HdnnError(
            f"export_torch takes a network or a model, got {type(thing).__name__}; "
            "of an estimator, its model_"
        )
    thing = copy.deepcopy(thing).cpu().eval().requires_grad_(False)  # a file to predict with
    interface = interface_of(thing, number_type(thing), encoded=True)
    example, (name, shape) = interface.example, interface.output
    (entering,) = interface.inputs.values()
    expected = expected_of(thing, example)
    networks = [thing] if isinstance(thing, HamiltonianNetwork) else list(thing.networks)
    for net in networks:
        if net.program().stages is not None:
            # This copy only: forward is what a module's call looks up in the instance first.
            net.forward = partial(_scan, net)  # type: ignore[method-assign]
    axes = {k: torch.export.Dim.AUTO for k, size in enumerate(entering) if isinstance(size, str)}
    axes[entering.index("batch")] = torch.export.Dim("batch", min=2)
    with _quiet():
        try:
            program = torch.export.export(_Outputs(thing), (example,), dynamic_shapes=({**axes},))
        except Exception as error:  # whatever torch meets while it traces
            raise HdnnError(f"torch.export cannot take it: {str(error)[:300]}") from error
        content = io.BytesIO()
        torch.export.save(program, content, extra_files=metadata_of(thing, None))
        deviation = None
        if check:
            content.seek(0)
            found = torch.export.load(content).module()(example)
            deviation = difference(found, expected)
    tolerance = torch.finfo(expected.dtype).eps ** 0.5
    if deviation is not None and not deviation <= tolerance:
        raise HdnnError(
            f"the exported program and hdnn differ by {deviation:.2g} on a batch, more than "
            f"{tolerance:.2g}, so that nothing was written; check=False writes it all the same"
        )
    with atomic(path) as temporary:
        temporary.write_bytes(content.getvalue())
    size = len(content.getvalue())
    return Export(Path(path), size, dict(interface.inputs), {name: shape}, deviation)


def _scan(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    return scanned.run(net.program(), y)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of its own serialization and prototypes."""
    log = logging.getLogger("torch._export.serde.serialize")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
