"""What torch does around a call: transforms and tracers that see only plain torch, autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def active_transform() -> str | None:
    """What sees a call besides plain execution, in words, or None; values must not be read then."""
    if torch.compiler.is_compiling():
        return "torch.compile and torch.export see only plain torch here"
    if torch._C._are_functorch_transforms_active():
        return "torch.func transforms see only plain torch"
    if torch._C._is_tracing():
        return "torch.jit.trace records only plain torch"
    if torch._C._len_torch_dispatch_stack():
        return "a dispatch mode (fake tensors, a counter of operations) sees only plain torch"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation sees only plain torch"
    return None


def sees_operators() -> bool:
    """Whether torch.compile traces the call, which runs on this machine and may hold operators."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return not torch._C._are_functorch_transforms_active()


def without_autocast(kind: str) -> AbstractContextManager[None]:
    """A block in which autocast changes no dtypes on devices of a kind."""
    if not torch.amp.is_autocast_available(kind):  # "meta", for one
        return nullcontext()
    return torch.autocast(kind, enabled=False)
