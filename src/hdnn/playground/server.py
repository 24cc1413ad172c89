"""Serves the page, and nothing else, on the loopback interface."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hdnn.errors import HdnnError

FOLDER = Path(__file__).parent / "static"
"""The page: plain files, which any static host serves as well."""

HOST = "127.0.0.1"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# The page says the same in a meta element, for other hosts; only a header can forbid frames.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "worker-src 'self'; connect-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_files() -> dict[str, Path]:
    """Every file of the page by its address; what is not among them does not exist."""
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix in TYPES]
    return {f"/{path.relative_to(FOLDER).as_posix()}": path for path in files}


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD with the files of the page."""

    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """A file with its headers."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The headers alone."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        address = unquote(urlsplit(self.path).path)
        # Addresses are looked up, never joined to a folder, so that none leads out of it.
        path = page_files().get("/index.html" if address == "/" else address)
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = path.read_bytes()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[path.suffix])
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Be silent: the terminal belongs to the command."""


class Server(ThreadingHTTPServer):
    """A server whose open connections do not keep the process alive."""

    daemon_threads = True

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"


def make_server(port: int = 0) -> Server:
    """Bind to the loopback interface; `serve_forever` then serves the page.

    Args:
        port: 0 takes a free one.

    Raises:
        HdnnError: the port is not free.
    """
    try:
        return Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise HdnnError(f"cannot listen on port {port}: {error}; use --port 0") from error
