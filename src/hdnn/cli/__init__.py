"""The command line: `hdnn` and `python -m hdnn`."""

from hdnn.cli import data, demo, gradients, play, reproduce, theory, tools, train, use
from hdnn.cli.base import app

__all__ = [
    "app",
    "data",
    "demo",
    "gradients",
    "play",
    "reproduce",
    "theory",
    "tools",
    "train",
    "use",
]
