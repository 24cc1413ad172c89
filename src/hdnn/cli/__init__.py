"""The command line: `hdnn` and `python -m hdnn`. A command's module is loaded when it is called."""

import hdnn.application  # noqa: F401
from hdnn.cli.base import app

__all__ = ["app"]
