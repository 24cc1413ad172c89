"""Serves the page, and nothing else, on the loopback interface."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from hdnn.errors import HdnnError
from hdnn.playground.page import make_page

HOST = "127.0.0.1"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD with the page."""

    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """The page with its headers."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The headers alone."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if urlsplit(self.path).path not in ("/", "/index.html"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = make_page()
        content = page.html.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        # The page says the same in a meta element; only a header can forbid frames.
        self.send_header("Content-Security-Policy", f"{page.policy}; frame-ancestors 'none'")
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
