"""The command line: `hdnn` and `python -m hdnn`."""

from hdnn.cli import demo, reproduce, tools, train, use
from hdnn.cli.base import app

__all__ = ["app", "demo", "reproduce", "tools", "train", "use"]
