"""The command line: `hdnn` and `python -m hdnn`."""

import hdnn.application  # noqa: F401
from hdnn.cli import data, demo, export, look, predict, reproduce, theory, train  # noqa: F401
from hdnn.cli.base import app

__all__ = ["app"]
