"""`python -m hdnn` is the command `hdnn`."""

from hdnn.cli import app

app()
