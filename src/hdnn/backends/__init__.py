"""How a program is computed: `reference` (plain torch) and `fused` (numba kernels on the CPU)."""

from __future__ import annotations

from hdnn.backends import reference

__all__ = ["reference"]
