"""`python -m hdnn` is the command `hdnn`."""

import atexit
import gc
import signal

# While modules are imported, Ctrl-C ends the process without a traceback; a command that starts
# restores Python's handler (`hdnn.cli.base`). A background job that ignores Ctrl-C still does.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from hdnn.errors import MissingPackageError


def main() -> None:
    """Run the command line, or say what to install for it."""
    # Importing torch, pandas and scikit-learn makes 250,000 objects that stay. Searching
    # them for cycles, again and again while they are made and once more at exit, is a fifth of the
    # time of a short command (`hdnn train iris`): so search less often, and not at exit.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    try:
        from hdnn.cli import app
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
