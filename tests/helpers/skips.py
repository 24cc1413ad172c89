"""What a test needs beside hdnn itself, and why it is skipped where that is missing."""

from __future__ import annotations

import os

import pytest

from hdnn.kernels import native

needs_kernels = pytest.mark.skipif(native.obstacle() is not None, reason=str(native.obstacle()))
"""The compiled kernels, which an installation without a C++ compiler does not have."""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in forked processes")
"""Processes that begin as copies, which Windows does not have."""
