"""`python -m hdnn` is the command `hdnn`."""

import sys

from hdnn.errors import MissingPackageError


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from hdnn.cli import app
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
