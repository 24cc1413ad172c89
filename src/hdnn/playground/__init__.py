"""The playground: a page that trains Hamiltonian networks in the browser, and its server."""

from hdnn.playground.page import FOLDER, make_page
from hdnn.playground.server import make_server

__all__ = ["FOLDER", "make_page", "make_server"]
