"""The playground's server serves one page, on the loopback interface."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import fails, record
from hdnn.errors import HdnnError
from hdnn.playground import make_page, make_server
from hdnn.playground.server import HEADERS, Server


@pytest.fixture
def server() -> Iterator[Any]:
    with make_server() as bound:
        thread = threading.Thread(target=bound.serve_forever)
        thread.start()
        yield bound
        bound.shutdown()
        thread.join()


def get(server: Any, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path)  # as it is: no client tidies the address
    connection.endheaders()
    answer = connection.getresponse()
    result = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return result


def test_the_server_serves_the_page_with_a_strict_policy(server: Any) -> None:
    page = make_page()
    for path in ("/", "/index.html", "/?v=1"):
        status, headers, body = get(server, path)
        assert (status, body) == (200, page.html.encode())
    assert headers.items() >= HEADERS.items()
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"] == f"{page.policy}; frame-ancestors 'none'"
    assert get(server, "/", "HEAD")[::2] == (200, b"")
    assert get(server, "/", "POST")[0] == 501


def test_nothing_but_the_page_is_served(server: Any) -> None:
    outside = ["/../server.py", "/js/../../server.py", "/%2e%2e/server.py", "/..%2fserver.py"]
    outside += ["/..\\server.py", "//etc/passwd", "/js", "/index.html/", "/%00", "/js/main.js"]
    assert {path: get(server, path)[0] for path in outside} == dict.fromkeys(outside, 404)


def test_the_server_binds_to_loopback_and_a_port_in_use_raises(server: Any) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        with pytest.raises(HdnnError, match="--port 0"):
            make_server(held.getsockname()[1])


def test_hdnn_play_prints_its_address_and_ends_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupted)
    place = record("play", "--no-open")
    assert place["url"] == f"http://127.0.0.1:{place['port']}/"


def test_hdnn_play_writes_the_page_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "playground.html"
    assert record("play", "--out", str(path)) == {"page": str(path)}
    assert path.read_text(encoding="utf-8") == make_page().html
    fails(2, ("play", "--out", tmp_path / "playground.txt"), "is no page")
