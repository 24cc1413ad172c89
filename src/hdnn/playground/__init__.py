"""The playground: a static page that trains Hamiltonian networks in the browser, and its server."""

from hdnn.playground.server import FOLDER, make_server

__all__ = ["FOLDER", "make_server"]
