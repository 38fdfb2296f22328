"""A page under test: in this process, or as a server of its own that a browser can open."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from purge.ledger.ledger import Ledger
from purge.serve.app import make_app
from purge.serve.background import Runner
from purge.serve.desk import Desk
from purge.serve.guard import Doors
from purge.serve.sessions import Once, Sessions
from purge.serve.tokens import ROLES, Token, Tokens, hashed

ROOT = Path(__file__).parents[2]
SECRETS = {role: f"purge_secret-of-{role}" for role in ROLES}
OWN = tuple(Token(f"who may {role}", role, hashed(secret)) for role, secret in SECRETS.items())


@dataclass
class Site:
    """A page, the ledger behind it, and clients that ask it."""

    app: Any
    ledger: Ledger
    desk: Desk
    doors: Doors

    def anew(self, ledger: Ledger) -> Site:
        """The same application for another ledger, with nobody logged in."""
        self.ledger.close()
        self.desk.__init__(ledger, Runner(ledger, {"PURGE_LEDGER": ledger.name}))  # type: ignore[misc]
        self.doors.sessions.__init__()  # type: ignore[misc]
        self.ledger = ledger
        return self

    def client(self, *, host: str = "127.0.0.1") -> TestClient:
        return TestClient(self.app, base_url=f"http://{host}", follow_redirects=False)

    def api(self, role: str) -> TestClient:
        made = self.client()
        made.headers["authorization"] = f"Bearer {SECRETS[role]}"
        return made

    def browser(self, role: str) -> TestClient:
        made = self.client()
        answer = made.post("/login", data={"token": SECRETS[role]})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        return made


def site(ledger: Ledger, clock: Any = time.monotonic, **doors: Any) -> Site:
    """The page of a ledger, in this process."""
    desk = Desk(ledger, Runner(ledger, {"PURGE_LEDGER": ledger.name}))
    made = Doors(Tokens(tokens=OWN), sessions=Sessions(clock), **doors)
    return Site(make_app(desk, made), ledger, desk, made)


def once() -> Once:
    return Once(OWN[-1].sha256)


def csrf(client: TestClient, path: str = "/requests") -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', client.get(path).text)
    assert found
    return found[1]


@dataclass
class Server:
    """purge serve in a process of its own."""

    url: str  # that opens a browser, once
    token: str
    log: Path

    @property
    def base(self) -> str:
        return self.url.partition("/login")[0]


@contextmanager
def served(folder: Path, *options: str, told: int = 2) -> Iterator[Server]:
    """``purge serve`` for the ledger in a folder, which prints so many lines; it is ended with the block."""
    log = folder / "serve.log"
    argv = [
        sys.executable,
        "-m",
        "purge",
        "serve",
        "--port",
        "0",
        "--ledger",
        folder / "requests.db",
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as err:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=err, cwd=ROOT, env=environment, text=True
        )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(told)]
        assert lines[0], log.read_text()
        yield Server(lines[0].split()[-1], lines[-1].split()[-1], log)
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def load(
    base: str, path: str, headers: str, *, rate: int, seconds: float, connections: int = 20
) -> dict[str, Any]:
    """Ask for a page at a steady rate, whether or not earlier answers have come."""
    host, _, port = base.removeprefix("http://").partition(":")
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}\r\n\r\n".encode()
    begin, answers = time.perf_counter() + 0.2, []

    async def visitor(i: int) -> None:
        """One connection that stays open."""
        reader, writer = await asyncio.open_connection(host, int(port))
        due = begin + i / rate
        while due < begin + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.I)
            await reader.readexactly(int(length[1]) if length else 0)
            answers.append((int(head.split(b" ", 2)[1]), time.perf_counter() - due))  # waiting counts, too
            due += connections / rate
        writer.close()
        await writer.wait_closed()

    async def visitors() -> None:
        await asyncio.gather(*(visitor(i) for i in range(connections)))

    asyncio.run(visitors())
    times = sorted(took for _, took in answers)
    return {
        "asked": len(answers), "statuses": sorted({status for status, _ in answers}),
        "rate": len(answers) / (time.perf_counter() - begin), "p95": times[int(0.95 * len(times))],
    }  # fmt: skip
