"""Connections that send half a request, and nothing more: the page stays usable."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from purge.serve.connections import OF_ALL, OF_ONE, SECONDS
from tests.serve.conftest import small
from tests.serve.pages import Server, served

HALVES = (
    b"", b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 60\r\n\r\ntoken=",
    b"POST /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60\r\n\r\n{",
)  # fmt: skip


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("attacked")
    small(folder).close()
    with served(folder) as page:
        yield page


def attack(serving: Server, stack: ExitStack, number: int, addresses: int = 1) -> list[socket.socket]:
    """So many connections, each with half of something, from some addresses of this machine."""
    host, _, port = serving.base.removeprefix("http://").partition(":")
    opened = []
    for i in range(number):
        whence = (f"127.0.0.{i % addresses + 1}", 0)
        one = stack.enter_context(socket.create_connection((host, int(port)), 30, whence))
        one.sendall(HALVES[i % len(HALVES)])
        opened.append(one)
    return opened


def is_open(one: socket.socket) -> bool:
    """Has the other side left the connection open? What it has answered is read on the way."""
    one.setblocking(False)
    try:
        while one.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.parametrize(
    ("addresses", "most"),
    [
        (1, OF_ONE),
        pytest.param(40, OF_ALL, marks=pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2")),
    ],
)
def test_a_thousand_half_requests_leave_the_page_usable(serving: Server, addresses: int, most: int) -> None:
    """They come from the address of the one who uses it, or from many."""
    holder = {"authorization": f"Bearer {serving.token}"}
    with ExitStack() as stack:
        opened = attack(serving, stack, 1000, addresses)
        took = []
        for _ in range(10):
            for path, headers in (("/login", {}), ("/static/style.css", {}), ("/api/v1/due", holder)):
                began = time.perf_counter()
                assert httpx.get(serving.base + path, headers=headers, timeout=10).status_code == 200
                took.append(time.perf_counter() - began)
        answer = httpx.post(f"{serving.base}/login", data={"token": serving.token}, timeout=10)
        assert answer.status_code == 303
        assert max(took) < 2.0, took
        assert sum(map(is_open, opened)) <= most
    assert "broke" not in serving.log.read_text()


@pytest.mark.slow
def test_who_is_slow_and_a_stranger_is_cut_off(serving: Server) -> None:
    """A byte now and then does not help; whoever has shown a token may take his time."""
    body = b'{"ids": ["slow@planted.example"], "received": "2026-01-01"}'
    head = "POST /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {serving.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    with ExitStack() as stack:
        (known,) = attack(serving, stack, 1)
        known.sendall(head.encode())
        strangers, began = attack(serving, stack, 2 * len(HALVES)), time.monotonic()
        while time.monotonic() < began + SECONDS + 2:
            time.sleep(1)
            for one in strangers[::2]:
                try:
                    one.sendall(b"x")
                except OSError:
                    break
        assert not any(map(is_open, strangers))
        known.sendall(body)
        assert known.recv(65536).startswith(b"HTTP/1.1 201")
