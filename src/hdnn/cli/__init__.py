"""The command line: `hdnn` and `python -m hdnn`."""

from hdnn.cli import data, demo, export, gradients, reproduce, theory, tools, train, use
from hdnn.cli.base import app

__all__ = [
    "app",
    "data",
    "demo",
    "export",
    "gradients",
    "reproduce",
    "theory",
    "tools",
    "train",
    "use",
]
