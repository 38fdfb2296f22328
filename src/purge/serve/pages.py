"""The pages. Each works as plain HTML; htmx only spares reloading the rest of one."""

from __future__ import annotations

import hmac
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData, UploadFile

from purge.core.errors import DataError, PurgeError, expected
from purge.ledger.certificate import certificate_page, hashes_of
from purge.ledger.intake import ids_from
from purge.ledger.words import verified
from purge.serve.answers import needs, page, refused, status_of, visitor
from purge.serve.desk import SHOWN, Desk, readable
from purge.serve.guard import LARGEST, Doors
from purge.serve.rest import Number, PageNumber, described

FIELDS = ("received", "due", "basis", "note", "label")
STEPS = {"hold": "reason", "release": None, "withdraw": "reason"}
# A certificate and a report bring their own styles. The sandbox gives them an origin of their own: nothing
# in one, whoever wrote it, can act in the name of the visitor.
SEALED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
SEALED += "frame-ancestors 'none'; sandbox allow-scripts; script-src "


def routes(desk: Desk, doors: Doors) -> APIRouter:
    """All pages of a desk."""
    router = APIRouter(include_in_schema=False)
    _entrance(router, doors)
    inside = APIRouter(dependencies=[Depends(desk.check)])
    _reading(inside, desk)
    _chain(inside, desk)
    _acting(inside, desk, doors)
    router.include_router(inside)
    return router


def went_to(request: Request, place: str) -> Response:
    """Go to another page after something was done."""
    if request.headers.get("hx-request"):
        return Response(headers={"HX-Redirect": place})
    return RedirectResponse(place, 303)


# -- coming and going --------------------------------------------------------------------------


def _entrance(router: APIRouter, doors: Doors) -> None:
    def begin(request: Request, token: str) -> Response:
        answer, name = RedirectResponse("/", 303), doors.cookie(request)
        session, secure = doors.sessions.begin(token), doors.secure(request)
        answer.set_cookie(name, session, httponly=True, samesite="strict", secure=secure)
        return answer

    def again(request: Request, what: str, got: str, fix: str) -> Response:
        return page(request, "login", 401, line=expected(what, got, fix), once="")

    def used(request: Request) -> Response:
        got = "one that was, or another"
        return again(request, "an address that was not used yet", got, "paste the token")

    @router.get("/login")
    async def login(request: Request, once: str = "") -> Response:
        # It changes nothing: any site can make a browser fetch it, as a picture, and programs preview links.
        if once and (doors.once is None or not doors.once.fits(once)):
            return used(request)
        return page(request, "login", line="", once=once)

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        if not doors.own_origin(request):
            raise HTTPException(403, expected("a form of this page", "one of another", "log in here"))
        form = await request.form(max_files=0, max_fields=5)
        once, secret = str(form.get("once", "")), str(form.get("token", "")).strip()
        token = doors.holder(secret, once)
        if token is None and once:
            return used(request)
        if token is None:
            return again(request, "a token that is known", "another", "check it, or ask for a new one")
        return begin(request, token.sha256)

    @router.post("/logout")
    async def log_out(request: Request) -> Response:
        await _form(request, doors)
        doors.sessions.end(request.cookies.get(doors.cookie(request), ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(doors.cookie(request), secure=doors.secure(request), httponly=True)
        return answer


async def _form(request: Request, doors: Doors) -> FormData:
    """A form that a page of ours has sent, for the session that it was made for."""
    who = visitor(request)
    if who is None or who.csrf is None:
        line = expected("a browser that has logged in", "something else", "programs use /api/v1")
        raise HTTPException(403, line)
    line = expected("a form of this page", "one of another, or of an earlier session", "load the page again")
    if not doors.own_origin(request):
        raise HTTPException(403, line)
    form = await request.form(max_files=1, max_fields=20, max_part_size=LARGEST)
    if not hmac.compare_digest(str(form.get("csrf", "")).encode("utf-8", "replace"), who.csrf.encode()):
        await form.close()
        raise HTTPException(403, line)
    return form


# -- reading -----------------------------------------------------------------------------------


def _reading(router: APIRouter, desk: Desk) -> None:
    read = needs("read")

    @router.get("/", dependencies=[read])
    def overview(request: Request) -> Response:
        versions = desk.ledger.versions()
        return page(
            request, "overview", here="overview", due=desk.due(), counts=desk.ledger.count(),
            run=desk.run(), version=versions[-1] if versions else None,
            batch=desk.ledger.unfinished_batch(), ledger=desk.title,
        )  # fmt: skip

    @router.get("/requests", dependencies=[read])
    def listed(
        request: Request, show: Annotated[str, Query(max_length=40)] = "all", page_: PageNumber = 1
    ) -> Response:
        return page(
            request, "requests", here="requests", show=show, kinds=SHOWN, found=desk.listed(show, None, page_)
        )

    @router.get("/requests/new", dependencies=[needs("ask")])
    def new(request: Request) -> Response:
        return page(request, "new", here="requests", line="", values={"received": date.today().isoformat()})

    @router.get("/requests/{number}", dependencies=[read])
    def one(request: Request, number: Number) -> Response:
        content = desk.one(number)
        batch = content["batch"] if content["state"] == "done" else None
        versions = desk.ledger.versions()
        made = next((v for v in versions if batch is not None and v.batch == batch), None)
        return page(
            request, "request", here="requests", one=content, hashes=hashes_of(desk.ledger, number),
            made=made, run=desk.run(),
        )  # fmt: skip

    @router.get("/requests/{number}/certificate", dependencies=[read])
    def certificate(number: Number) -> Response:
        return HTMLResponse(
            certificate_page(desk.certificate(number)), headers={"content-security-policy": f"{SEALED}'none'"}
        )

    @router.get("/versions", dependencies=[read])
    def versions(request: Request) -> Response:
        return page(request, "versions", here="versions", versions=desk.versions())

    @router.get("/versions/{number}/report", dependencies=[read])
    def report(number: Number) -> Response:
        from purge.report import script_digest  # draws figures: takes a second to import

        policy = f"{SEALED}'sha256-{script_digest()}'"
        return HTMLResponse(desk.report(number), headers={"content-security-policy": policy})


def _chain(router: APIRouter, desk: Desk) -> None:
    read = needs("read")

    @router.get("/chain", dependencies=[read])
    def chain(request: Request, before: Annotated[int | None, Query(ge=1, lt=2**31)] = None) -> Response:
        verdict = desk.verdict()
        entries, why = readable(lambda: desk.chain(before))  # what was touched may be unreadable
        return page(
            request, "chain", here="chain", verdict=verdict, words=verified(verdict), found=entries, why=why
        )

    @router.get("/chain/verdict", dependencies=[read])
    def verdict(request: Request) -> Response:
        verdict = desk.verdict()
        return page(request, "verdict", verdict=verdict, words=verified(verdict))

    @router.get("/api", dependencies=[read])
    def api(request: Request) -> Response:
        return page(request, "api", here="api", routes=described(request.app.openapi()))


# -- asking and running ------------------------------------------------------------------------


def _acting(router: APIRouter, desk: Desk, doors: Doors) -> None:
    @router.post("/requests", dependencies=[needs("ask")])
    async def add(request: Request) -> Response:
        form = await _form(request, doors)
        fields = {name: str(form.get(name, "")).strip() for name in FIELDS}
        try:
            classes = [line.strip() for line in str(form.get("classes", "")).splitlines() if line.strip()]
            ids = await _ids(form)
            made = await run_in_threadpool(desk.add, ids=ids, classes=classes or None, **fields)
        except PurgeError as error:
            if request.headers.get("hx-request"):  # the form stays as it was filled in
                return refused(request, status_of(error), str(error))
            return page(request, "new", status_of(error), here="requests", line=str(error), values=fields)
        finally:
            await form.close()
        return went_to(request, f"/requests/{made.number}")

    @router.post("/requests/{number}/{step}", dependencies=[needs("ask")])
    async def step(request: Request, number: Number, step: str) -> Response:
        form = await _form(request, doors)
        if step not in STEPS:
            raise HTTPException(404)
        await run_in_threadpool(desk.step, number, step, str(form.get("reason", "")).strip())
        return went_to(request, f"/requests/{number}")

    @router.get("/run", dependencies=[needs("read")])
    def state(request: Request) -> Response:
        run = desk.run()
        answer = page(request, "run", run=run)
        if run["state"] != "running":  # what the rest of the page says has changed, too
            answer.headers["HX-Refresh"] = "true"
        return answer

    @router.post("/run/stop", dependencies=[needs("run")])
    async def stop(request: Request) -> Response:
        await _form(request, doors)
        await run_in_threadpool(desk.ledger.stop)
        return went_to(request, "/")

    @router.post("/run", dependencies=[needs("run")])
    async def run(request: Request) -> Response:
        form = await _form(request, doors)
        chosen: dict[str, Any] = {
            "due": _whole(form, "due", 7), "at_most": _whole(form, "at_most", None, low=1),
            "everything": form.get("everything") == "yes", "retrain": form.get("retrain") == "yes",
        }  # fmt: skip
        await run_in_threadpool(desk.runner.start, **chosen)
        return went_to(request, "/")


async def _ids(form: FormData) -> list[str] | None:
    """Ids that were typed or uploaded, never shown again."""
    typed = str(form.get("ids", ""))
    file = form.get("file")
    raw = await file.read() if isinstance(file, UploadFile) and file.filename else None
    if raw is not None and typed.strip():
        raise DataError("ids that are typed or in a file", "both", "choose one of the two")
    if raw is not None:
        return ids_from(raw, "the file")
    return ids_from(typed.encode("utf-8", "replace"), "the form") if typed.strip() else None


def _whole(form: FormData, name: str, default: int | None, low: int = 0) -> int | None:
    text = str(form.get(name, "")).strip()
    if not text:
        return default
    if not text.isdecimal() or len(text) > 6 or int(text) < low:
        raise DataError(f"a whole number from {low} up as {name}", repr(text[:20]), "write 7, say")
    return int(text)
