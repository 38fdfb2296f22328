"""What stands before every route: host, size, who asks, headers, and what is logged.

It is plain ASGI, and comes before a body is read: somebody without a token sends nothing that is parsed.
"""

from __future__ import annotations

import ipaddress
import logging
import time
import traceback
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purge.core.errors import PurgeError, expected
from purge.serve.answers import API, Visitor, by_program, refused, status_of
from purge.serve.sessions import Once, Sessions
from purge.serve.tokens import Token, Tokens, hashed

LARGEST = 8 << 20  # bytes of a body
COOKIE = "purge_session"
PUBLIC = ("/login", "/static/")  # what can be seen without a token
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers would not say where our own forms are from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
log = logging.getLogger("purge.serve")


@dataclass(frozen=True)
class Doors:
    """Who is let in, and by which address the page is reached."""

    tokens: Tokens
    once: Once | None = None
    public: str | None = None  # the URL of a proxy in front, such as https://purge.example.org
    sessions: Sessions = field(default_factory=Sessions)

    def secure(self, request: Request) -> bool:
        """Does the browser come by HTTPS?"""
        return urlsplit(self.public or str(request.url)).scheme == "https"

    def cookie(self, request: Request) -> str:
        """The name of the cookie; by HTTPS browsers take it from this very host only."""
        return f"__Host-{COOKIE}" if self.secure(request) else COOKIE

    def known_host(self, host: str) -> bool:
        """Is this how we are called? A name of somebody else's that leads here is refused (DNS rebinding)."""
        try:
            parts = urlsplit(f"//{host}")
            _ = parts.port  # is it a number?
            name = parts.hostname
            if name is None or set(host) & set("@/?#\\ "):
                return False
            if name == "localhost" or (self.public and name == urlsplit(self.public).hostname):
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def own_origin(self, request: Request) -> bool:
        """Does a form come from a page of ours? Browsers say so; programs may say nothing."""
        site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
        if site not in (None, "same-origin", "none"):
            return False
        # "null" is none of ours: it is what a sandbox of anybody's says.
        ours = (f"{request.url.scheme}://{request.headers['host']}", origin_of(self.public or ""))
        return origin is None or origin in ours

    def visitor(self, request: Request) -> Visitor | None:
        """Who asks."""
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind:
            token = self.holder(secret.strip()) if kind.lower() == "bearer" else None
            return None if token is None else Visitor(token)
        cookie = request.cookies.get(self.cookie(request))
        if cookie is None or request.url.path.startswith(f"{API}/"):  # no cookie opens the API: no forgery
            return None
        session = self.sessions.of(cookie)
        token = None if session is None else self.tokens.of(session.token)
        return None if session is None or token is None else Visitor(token, session.csrf)

    def holder(self, secret: str, once: str = "") -> Token | None:
        """The holder of a token, or of the key that opens once.

        Wrong ones are not counted: there is nothing to guess in 256 random bits, and a limit would let
        anybody behind the same proxy keep the others out.
        """
        if not once:
            return self.tokens.of(hashed(secret))
        return self.tokens.of(self.once.token) if self.once and self.once.use(once) else None


def origin_of(url: str) -> str:
    """How browsers write where a URL leads: in lower case, without the port that goes without saying."""
    parts = urlsplit(url.lower())
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host.removesuffix(f':{usual}')}"


class Guard:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self.app, self.doors = app, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on to the routes."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        began, status, read = time.perf_counter(), 0, 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name.lower() for name, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        async def receive_on() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST:
                raise HTTPException(413, too_large())
            return message

        request = Request(scope, receive_on)
        try:
            answer = self._first(request, scope)
            if answer is None:
                await self.app(scope, receive_on, send_on)
            else:
                await answer(scope, receive_on, send_on)
        except ClientDisconnect:  # nobody is there any more
            pass
        except Exception as error:  # whatever it is: one line, and no traceback in a browser
            if isinstance(error, HTTPException):
                answer = refused(request, error.status_code, str(error.detail), dict(error.headers or {}))
            else:  # where it broke, without the message: that may quote what a user sent
                frames = reversed(traceback.extract_tb(error.__traceback__)[-3:])
                where = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in frames)
                log.error("something broke: %s at %s", type(error).__name__, where)
                answer = broke(request, error)
            if not status:
                await answer(scope, receive_on, send_on)
        finally:
            who = scope.get("purge.visitor")
            route = getattr(scope.get("route"), "path", None) or "-"  # not what was typed: it may hold an id
            name = who.token.name if isinstance(who, Visitor) else "-"
            took = 1000 * (time.perf_counter() - began)
            log.info("%s %s %s %d %.0f ms", name, scope["method"], route, status, took)

    def _first(self, request: Request, scope: Scope) -> Response | None:
        """Refuse what can be refused without reading on."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self.doors.known_host(hosts[0]):
            fix = "use its address, or name it with --public-url"
            return refused(request, 400, expected("a Host that this page is known by", "another", fix))
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > LARGEST:
            return refused(request, 413, too_large())
        try:
            who = scope["purge.visitor"] = self.doors.visitor(request)
        except PurgeError as error:
            return refused(request, status_of(error), str(error))
        if who is not None and (let_in := scope.get("state", {}).get("let_in")):
            let_in()  # the connection is no stranger's any more
        if who is not None or request.url.path.startswith(PUBLIC):
            return None
        if by_program(request) or "authorization" in request.headers:
            line = expected("a token", "none that is known", "send Authorization: Bearer TOKEN")
            return refused(request, 401, line, {"WWW-Authenticate": "Bearer"})
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        return RedirectResponse("/login", 303)


def broke(request: Request, _error: Exception) -> Response:
    """What is told of a mistake of ours."""
    return refused(request, 500, "Something broke. The log of the server says where.")


def too_large() -> str:
    """Why a body is refused."""
    return expected(f"at most {LARGEST >> 20} MB", "more", "split it, or use purge request add")
