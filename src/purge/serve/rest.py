"""The REST API: the same as the pages, as JSON, for programs with a token."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from purge.ledger.words import shown
from purge.serve.answers import API, needs
from purge.serve.desk import LONGEST_PAGE, MOST_IDS, PAGE, SHOWN, Desk

Number = Annotated[int, Path(description="The number of a request or version.", lt=2**31)]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=10**6, description="Which page, from 1.")]
Json = dict[str, Any]


class Sent(BaseModel):
    """What a program sends: keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewRequest(Sent):
    """A deletion request: ids or classes, and the day it came."""

    ids: list[str] | None = Field(
        default=None, max_length=MOST_IDS, description="As the data has them; only keyed hashes are kept."
    )
    classes: list[str] | None = Field(
        default=None, max_length=10_000, description="Names of whole classes, instead of ids."
    )
    received: str = Field(description="The day it came, as 2026-11-01.")
    due: str | None = Field(default=None, description="The day it must be done by; default: one month later.")
    basis: str = Field(default="erasure request", description="On which ground.")
    note: str | None = Field(default=None, description="A remark, kept for good: put in no name and no id.")


class Reason(Sent):
    """Why a request is held or withdrawn."""

    reason: str = Field(description="Kept for good: put in no name and no id.")


class NewRun(Sent):
    """What a run takes."""

    due: int = Field(default=7, ge=0, lt=10**6, description="Take what is due within so many days.")
    everything: bool = Field(default=False, description="Take all open requests.")
    at_most: int | None = Field(default=None, ge=1, lt=10**6, description="Take no more than so many.")
    retrain: bool = Field(default=False, description="Train anew, whatever the policy says.")


def _route(role: str, words: str) -> dict[str, Any]:
    return {"dependencies": [needs(role)], "summary": words, "openapi_extra": {"x-role": role}}


def routes(desk: Desk) -> APIRouter:
    """All routes of the API."""
    router = APIRouter(prefix=API, dependencies=[Depends(desk.check)])

    @router.get("/requests", **_route("read", "List requests, the newest first."))
    def list_requests(
        show: Annotated[Literal[SHOWN], Query(description="Which of them.")] = "all",  # type: ignore[valid-type]
        due_by: Annotated[date | None, Query(description="Only those due by this day.")] = None,
        page: PageNumber = 1,
        size: Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="How many on a page.")] = PAGE,
    ) -> Json:
        return desk.listed(show, due_by, page, size)

    @router.get("/requests/{number}", **_route("read", "Show one request, with its history."))
    def show_request(number: Number) -> Json:
        return desk.one(number)

    @router.get("/requests/{number}/certificate", **_route("read", "The certificate of a request."))
    def certificate(number: Number) -> Json:
        return desk.certificate(number)

    @router.get("/due", **_route("read", "What is due, the nearest deadline first."))
    def due(days: Annotated[int, Query(ge=0, lt=10**5, description="Within so many days.")] = 7) -> Json:
        return desk.due(days)

    @router.get("/versions", **_route("read", "List versions of the model, the newest first."))
    def versions() -> Json:
        return {"versions": desk.versions()}

    @router.get("/verify", **_route("read", "Was anything in the ledger touched?"))
    def verify() -> Json:
        return desk.verdict().to_dict()

    @router.get("/run", **_route("read", "How the run that was started here stands."))
    def run_state() -> Json:
        return desk.runner.state()

    @router.post("/requests", status_code=201, **_route("ask", "Write a request down."))
    def add(request: NewRequest) -> Json:
        return shown(desk.add(**request.model_dump()), date.today())

    @router.post("/requests/{number}/hold", **_route("ask", "Let an open request wait."))
    def hold(number: Number, why: Reason) -> Json:
        return shown(desk.step(number, "hold", why.reason), date.today())

    @router.post("/requests/{number}/release", **_route("ask", "Let a held request go on."))
    def release(number: Number) -> Json:
        return shown(desk.step(number, "release", None), date.today())

    @router.post("/requests/{number}/withdraw", **_route("ask", "Take a request back."))
    def withdraw(number: Number, why: Reason) -> Json:
        return shown(desk.step(number, "withdraw", why.reason), date.today())

    @router.post("/run", status_code=202, **_route("run", "Carry out what is due, in the background."))
    def run(wanted: Annotated[NewRun, Body()] = NewRun()) -> Json:  # noqa: B008
        return desk.runner.start(**wanted.model_dump())

    return router


# -- the page about it -------------------------------------------------------------------------


def described(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an OpenAPI schema says, as rows of a page."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            rows.append({
                "method": method.upper(), "path": path, "words": about["summary"], "role": about["x-role"],
                "fields": [_field(one["name"], one["schema"], one.get("required"), one.get("description"))
                           for one in about.get("parameters", ())],
                "body": _body(schema, body),
            })  # fmt: skip
    return rows


def _body(schema: Mapping[str, Any], body: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if body is None:
        return []
    name = (body.get("$ref") or body["allOf"][0]["$ref"]).rsplit("/", 1)[-1]
    model = schema["components"]["schemas"][name]
    needed = model.get("required", ())
    return [
        _field(key, one, key in needed, one.get("description")) for key, one in model["properties"].items()
    ]


def _field(name: str, kind: Mapping[str, Any], needed: Any, words: Any) -> dict[str, Any]:
    kinds = [one for one in kind.get("anyOf", [kind]) if one.get("type") != "null"]
    one = kinds[0] if kinds else {}
    text = " | ".join(one["enum"]) if "enum" in one else one.get("format") or one.get("type", "")
    return {"name": name, "type": text, "needed": bool(needed), "words": words or ""}
