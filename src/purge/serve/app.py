"""The application: routes, errors, and the guard around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import purge
from purge.core.errors import PurgeError, expected
from purge.serve import pages, rest
from purge.serve.answers import STATIC, refused, status_of
from purge.serve.desk import Desk
from purge.serve.guard import Doors, Guard, broke

# Newer versions of FastAPI hand what breaks, with its messages, to OpenTelemetry where that is set up.
SILENT: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
UNKNOWN = {
    404: expected("an address that is here", "another", "go back to the overview, /"),
    405: expected("another method for this address", "this one", "see /api"),
}


def make_app(desk: Desk, doors: Doors) -> Guard:
    """The page of a ledger, for any ASGI server."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        desk.runner.stop()

    app = FastAPI(
        title="purge", version=purge.__version__, summary="Deletion requests of a ledger.", lifespan=lifespan,
        docs_url=None, redoc_url=None, openapi_url="/openapi.json", redirect_slashes=False,
        telemetry=SILENT,
    )  # fmt: skip
    app.include_router(rest.routes(desk))
    app.include_router(pages.routes(desk, doors))
    app.mount("/static", Static(directory=STATIC), name="static")
    app.add_exception_handler(PurgeError, _purge_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, broke)  # it is raised again, for the guard to log
    return Guard(app, doors)


class Static(StaticFiles):
    """Files of the package: not private, and asked for anew when the package has changed."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """A file, which browsers may keep and must ask about."""
        answer = super().file_response(*args, **kwargs)
        answer.headers["cache-control"] = "no-cache"
        return answer


def _purge_error(request: Request, error: Any) -> Response:
    return refused(request, status_of(error), str(error))


def _invalid(request: Request, error: Any) -> Response:
    """What does not fit the schema, without what was sent: that may be an id."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:3] if part != "__root__") or str(first["loc"][0])
    why = first["msg"].removeprefix("Value error, ")
    if first["type"] == "string_pattern_mismatch":  # the pattern itself helps nobody
        why = "blank, or not in the form that is described"
    got = f"{where[:40]}: {why[:1].lower()}{why[1:]}"
    return refused(request, 422, expected("what /api describes", got, "see /api"))


def _http_error(request: Request, error: Any) -> Response:
    line = str(error.detail)
    if line in ("Not Found", "Method Not Allowed"):
        line = UNKNOWN[error.status_code]
    elif not line.startswith("Expected"):
        line = expected("a body that can be read", line.rstrip("."), "see /api")
    headers = dict(error.headers or {})
    route = getattr(request.scope.get("route"), "path", None)
    if error.status_code == 405 and (described := request.app.openapi()["paths"].get(route)):
        headers["Allow"] = ", ".join(
            sorted(map(str.upper, described))
        )  # not those of one of its routes alone
    return refused(request, error.status_code, line, headers)
