"""The command line: `hdnn` and `python -m hdnn`."""

import hdnn.application  # noqa: F401
from hdnn.cli import (  # noqa: F401
    data,
    demo,
    evaluate,
    export,
    identify,
    look,
    predict,
    reproduce,
    theory,
    train,
)
from hdnn.cli.base import app

__all__ = ["app"]
