"""The REST API: the same as the pages, as JSON, for programs with a token."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, HTTPException, Path, Query
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from purge.core.errors import DataError
from purge.ledger.intake import LONGEST
from purge.ledger.words import shown
from purge.serve.answers import API, needs
from purge.serve.desk import LONGEST_PAGE, MOST_IDS, PAGE, SHOWN, Desk

# Text that can be seen, and text that any database keeps, as JSON Schema and Python both read a pattern.
SEEN = r"[^\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
KEPT = rf"^[^\x00]*{SEEN}[^\x00]*$"


def _of_the_calendar(text: str) -> str:
    date.fromisoformat(text)
    return text


Day = Annotated[
    str,
    Field(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$", json_schema_extra={"format": "date"}),
    AfterValidator(_of_the_calendar),
]
# 7.0 is an integer to JSON Schema.
WHOLE = BeforeValidator(lambda x: int(x) if isinstance(x, float) and x.is_integer() else x)
Text = Annotated[str, Field(pattern=KEPT, min_length=1, max_length=LONGEST)]
Number = Annotated[int, Path(description="The number of a request or version.", lt=2**31)]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=10**6, description="Which page, from 1.")]
Json = dict[str, Any]


class Refused(BaseModel):
    """Why not, in one line."""

    error: str = Field(description="As “Expected …, got …. Fix: …”.")


WHY = {
    400: "The body or the Host header cannot be read.", 401: "No token that is known.",
    403: "A token with a lesser role.", 404: "No such number.",
    409: "It contradicts the ledger or the calendar: a request that may not take this step, a second run, a "
    "day to come, a deadline before the request.",
    413: "More than 8 MB.", 422: "Keys, types or values that are not described here.",
    500: "Something broke; the log of the server says where.",
    503: "The ledger cannot be read now.",
}  # fmt: skip
ALWAYS = set(WHY) - {404, 422}


class Sent(BaseModel):
    """What a program sends: keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewRequest(Sent):
    """A deletion request: ids or classes, and the day it came."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"properties": {"ids": {"type": "array"}, "classes": {"type": "null"}}, "required": ["ids"]},
                {
                    "properties": {
                        "classes": {"type": "array"},
                        "ids": {"type": "null"},
                        "label": {"type": "null"},
                    },
                    "required": ["classes"],
                },
            ]
        }
    )
    ids: list[Annotated[str, Field(pattern=SEEN, min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=MOST_IDS,
        description="As the data has them; only keyed hashes are kept.",
    )  # fmt: skip
    classes: list[Text] | None = Field(
        default=None, min_length=1, max_length=10_000, description="Names of whole classes, instead of ids."
    )
    received: Day = Field(description="The day it came, as 2026-11-01; not a day to come.")
    due: Day | None = Field(default=None, description="The day it must be done by; default: one month later.")
    basis: Text = Field(default="erasure request", description="On which ground.")
    note: Text | None = Field(default=None, description="A remark, kept for good: put in no name and no id.")
    label: Text | None = Field(
        default=None, description="To correct, not to erase: the right class of the rows of these ids."
    )

    @model_validator(mode="after")
    def _ids_or_classes(self) -> NewRequest:
        if (self.ids is None) == (self.classes is None):
            raise ValueError("neither ids nor classes" if self.ids is None else "both ids and classes")
        if self.ids is None and self.label is not None:
            raise ValueError("a label without ids")
        return self


class Reason(Sent):
    """Why a request is held or withdrawn."""

    reason: Text = Field(description="Kept for good: put in no name and no id.")


class NewRun(Sent):
    """What a run takes."""

    due: Annotated[int, Field(ge=0, lt=10**6), WHOLE] = Field(
        default=7, description="Take what is due within so many days."
    )
    everything: bool = Field(default=False, description="Take all open requests.")
    at_most: Annotated[int, Field(ge=1, lt=10**6), WHOLE] | None = Field(
        default=None, description="Take no more than so many."
    )
    retrain: bool = Field(default=False, description="Train anew, whatever the policy says.")


def _route(role: str, words: str, *more: int) -> dict[str, Any]:
    """What the description says of a route, with the codes of its errors: those of all, and ``more``."""
    errors: Any = {code: {"model": Refused, "description": WHY[code]} for code in sorted({*ALWAYS, *more})}
    about = {"x-role": role}
    return {"dependencies": [needs(role)], "summary": words, "openapi_extra": about, "responses": errors}


def routes(desk: Desk) -> APIRouter:
    """All routes of the API."""
    token = HTTPBearer(
        auto_error=False, description="Of purge serve --new-token."
    )  # the guard has checked it
    router = APIRouter(prefix=API, dependencies=[Depends(token), Depends(desk.check)])

    @router.get("/requests", **_route("read", "List requests, the newest first.", 422))
    def list_requests(
        show: Annotated[Literal[SHOWN], Query(description="Which of them.")] = "all",  # type: ignore[valid-type]
        due_by: Annotated[Day | None, Query(description="Only those due by this day.")] = None,
        page: PageNumber = 1,
        size: Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="How many on a page.")] = PAGE,
    ) -> Json:
        return desk.listed(show, due_by, page, size)

    @router.get("/requests/{number}", **_route("read", "Show one request, with its history.", 404, 422))
    def show_request(number: Number) -> Json:
        return desk.one(number)

    @router.get("/requests/{number}/certificate", **_route("read", "The certificate of a request.", 404, 422))
    def certificate(number: Number) -> Json:
        return desk.certificate(number)

    @router.get("/due", **_route("read", "What is due, the nearest deadline first.", 422))
    def due(days: Annotated[int, Query(ge=0, lt=10**5, description="Within so many days.")] = 7) -> Json:
        return desk.due(days)

    @router.get("/versions", **_route("read", "List versions of the model, the newest first."))
    def versions() -> Json:
        return {"versions": desk.versions()}

    @router.get("/verify", **_route("read", "Was anything in the ledger touched?"))
    def verify() -> Json:
        return desk.verdict().to_dict()

    @router.get(
        "/run", **_route("read", "How the run that was started here stands, and how far a worker is.")
    )
    def run_state() -> Json:
        return desk.run()

    @router.post("/run/stop", status_code=202, **_route("run", "Ask the worker to end at its next step."))
    def stop() -> Json:
        return desk.ledger.stop().to_dict()

    @router.post("/requests", status_code=201, **_route("ask", "Write a request down.", 422))
    def add(request: NewRequest) -> Json:
        try:
            return shown(desk.add(**request.model_dump()), date.today())
        except DataError as error:  # its form is right: it is the days that are not
            raise HTTPException(409, str(error)) from None

    @router.post("/requests/{number}/hold", **_route("ask", "Let an open request wait.", 404, 422))
    def hold(number: Number, why: Reason) -> Json:
        return shown(desk.step(number, "hold", why.reason), date.today())

    @router.post("/requests/{number}/release", **_route("ask", "Let a held request go on.", 404, 422))
    def release(number: Number) -> Json:
        return shown(desk.step(number, "release", None), date.today())

    @router.post("/requests/{number}/withdraw", **_route("ask", "Take a request back.", 404, 422))
    def withdraw(number: Number, why: Reason) -> Json:
        return shown(desk.step(number, "withdraw", why.reason), date.today())

    @router.post("/run", status_code=202, **_route("run", "Carry out what is due, in the background.", 422))
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
