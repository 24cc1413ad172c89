"""The command line: `hdnn` and `python -m hdnn`."""

from hdnn.cli import animate, data, demo, gradients, report, reproduce, theory, tools, train, use
from hdnn.cli.base import app

__all__ = [
    "animate",
    "app",
    "data",
    "demo",
    "gradients",
    "report",
    "reproduce",
    "theory",
    "tools",
    "train",
    "use",
]
