"""A device written in Python: its tensors are held on the CPU, but do not mix with the CPU's.

As on a GPU, an operation on tensors of both raises; only copies, and numbers (0-dimensional
tensors), may cross. So a training that ends here assumes nowhere that it is on the CPU. `install`
changes torch for the whole process: call it in a process of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

NAME = "elsewhere"
COPIES = ("aten::_to_copy", "aten::copy_")
libraries: list[Any] = []  # what is registered lives as long as these


class Elsewhere(Tensor):
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), options: Any = None):
        return compute(operation, args, options or {})


def compute(operation: Any, args: Any, options: dict[str, Any]) -> Any:
    given = [t for t in pytree.tree_leaves((args, options)) if isinstance(t, Tensor)]
    strange = [t for t in given if not isinstance(t, Elsewhere) and t.ndim]
    if strange and operation.name().split(".")[0] not in COPIES:
        shapes = [tuple(t.shape) for t in strange]
        raise RuntimeError(f"{operation.name()} here takes tensors {shapes} of the CPU")
    leaves = False
    if options.get("device") is not None:
        leaves = torch.device(options["device"]).type == "cpu"
        options = {**options, "device": torch.device("cpu")}
    held = {id(t.held): t for t in given if isinstance(t, Elsewhere)}
    found = operation(
        *pytree.tree_map_only(Elsewhere, lambda t: t.held, args),
        **pytree.tree_map_only(Elsewhere, lambda t: t.held, options),
    )
    if leaves:
        return found

    def wrapped(t: Tensor) -> Elsewhere:  # what was changed in place is the tensor it was
        return held[id(t)] if id(t) in held else Elsewhere(t)

    return pytree.tree_map_only(Tensor, wrapped, found)


def install() -> torch.device:
    """Make the device known to torch."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **options: compute(op, args, options), "PrivateUse1")
    libraries.append(library)
    return torch.device(NAME, 0)
