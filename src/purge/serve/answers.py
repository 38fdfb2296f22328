"""Answers: pages from templates, JSON, and one line for whatever was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

import purge
from purge.core.errors import BusyError, DataError, FileError, LedgerError, NumberError, PurgeError, expected
from purge.ledger import words
from purge.serve.tokens import ROLES, Token

STATIC = Path(__file__).with_name("static")
API = "/api/v1"
# What an error of the library means on the web; the first that fits.
STATUS: tuple[tuple[type[PurgeError], int], ...] = (
    (NumberError, 404), (BusyError, 409), (LedgerError, 409), (DataError, 400), (FileError, 503),
    (PurgeError, 400),
)  # fmt: skip
PAGES = (
    ("overview", "/", "Overview"), ("requests", "/requests", "Requests"),
    ("versions", "/versions", "Versions"), ("chain", "/chain", "Chain"), ("api", "/api", "API"),
)  # fmt: skip


class Visitor(NamedTuple):
    """Who asks: the holder of a token, and of a session if it is a browser."""

    token: Token
    csrf: str | None = None


def visitor(request: Request) -> Visitor | None:
    """Who asks, as the guard has recorded."""
    who = request.scope.get("purge.visitor")
    return who if isinstance(who, Visitor) else None


def needs(role: str) -> Any:
    """A dependency of a route that refuses everybody with a lesser role; each route says its own."""

    async def check(request: Request) -> None:
        who = visitor(request)
        if who is None:
            raise HTTPException(401, expected("a token", "none", "log in"))
        if not who.token.may(role):
            got = f"one with the role {who.token.role}"
            raise HTTPException(403, expected(f"a token with the role {role}", got, "ask for another"))

    return Depends(check)


ENVIRONMENT = Environment(
    loader=PackageLoader("purge", "serve/templates"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, auto_reload=False,
)  # fmt: skip
ENVIRONMENT.globals |= {
    "about": words.about, "days_left": words.days_left, "pages": PAGES, "release": purge.__version__,
}  # fmt: skip


def page(request: Request, template: str, status: int = 200, **content: Any) -> Response:
    """A page from a template."""
    who = visitor(request)
    csrf = (who.csrf if who else None) or ""
    may = {role: who is not None and who.token.may(role) for role in ROLES}
    made = ENVIRONMENT.get_template(f"{template}.html.j2")
    return HTMLResponse(made.render(who=who.token if who else None, csrf=csrf, may=may, **content), status)


def by_program(request: Request) -> bool:
    """Does a program ask, which wants JSON?"""
    path = request.url.path
    return path.startswith(f"{API}/") or path in (API, "/openapi.json")


def refused(request: Request, status: int, line: str, headers: dict[str, str] | None = None) -> Response:
    """One line that says why not, in the form that was asked for."""
    if by_program(request):
        return JSONResponse({"error": line}, status, headers)
    if request.headers.get("hx-request"):  # a part of a page that is already there
        answer = page(request, "said", status, line=line)
        answer.headers.update({"HX-Retarget": "#said", "HX-Reswap": "innerHTML", **(headers or {})})
        return answer
    answer = page(request, "error", status, line=line, code=status)
    answer.headers.update(headers or {})
    return answer


def status_of(error: PurgeError) -> int:
    """What an error of the library is called on the web."""
    return next(status for kind, status in STATUS if isinstance(error, kind))
