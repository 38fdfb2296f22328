"""What pages and the API say and do, without a browser."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
import threading
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from purge.ledger.batches import add_version
from purge.ledger.journal import progress, record
from purge.ledger.ledger import Ledger
from purge.ledger.worker import init
from purge.serve import desk as desk_module
from purge.serve.background import Runner, read_end
from purge.serve.desk import MOST_IDS, SHOWN
from tests.cli.commands import command
from tests.serve.conftest import TODAY
from tests.serve.pages import ROOT, Site, csrf, site

EVIL = "<img src=x onerror=\"document.title='ha'+'cked'\">{{ 'zz' ~ 'qq' }}"


def text_of(answer: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


def touch(ledger: Ledger, statement: str) -> None:
    """Change a ledger behind its back, as somebody would who can write the file."""
    with closing(sqlite3.connect(ledger.name)) as connection:
        for name in ("update", "delete"):
            connection.execute(f"DROP TRIGGER IF EXISTS purge_entries_no_{name}")
        connection.execute(statement)
        connection.commit()


# -- requests ----------------------------------------------------------------------------------


def test_the_overview_says_what_is_due(page: Site) -> None:
    answer = page.browser("read").get("/")
    said = text_of(answer)
    assert "1 overdue 3 open 1 held" in said
    assert '<strong class="late">' in answer.text
    assert re.search(r"overdue by \d+ days", said)
    assert "3 days left" in said
    assert "Run" not in re.findall(r"<button>(\w+)", answer.text)  # not with this role
    assert "no model yet" in text_of(page.browser("run").get("/"))


def test_the_list_is_filtered_and_paged(page: Site) -> None:
    page.ledger.add_many([{"ids": [f"p{i}"], "received": TODAY} for i in range(120)])
    client = page.browser("read")
    numbers = [int(n) for n in re.findall(r'<a href="/requests/(\d+)">', client.get("/requests").text)]
    assert numbers == list(range(124, 74, -1))
    last = client.get("/requests?page=3").text
    assert re.findall(r'<a href="/requests/(\d+)">', last)[-1] == "1"
    assert "page 3 of 3" in last
    assert "Older" not in last
    assert client.get("/requests?page=9").status_code == 200
    for show, count in {"held": 1, "overdue": 1, "done": 0, "waiting": 124, "open": 123}.items():
        assert f"{count} request" in text_of(client.get(f"/requests?show={show}")), show
    api = page.api("read")
    assert api.get("/api/v1/requests", params={"size": 2, "page": 2}).json()["pages"] == 62
    before = {"due_by": str(TODAY - timedelta(days=1))}
    assert [r["number"] for r in api.get("/api/v1/requests", params=before).json()["requests"]] == [1]
    assert client.get("/requests?show=evil").status_code == 400
    assert [client.get(f"/requests?page={n}").status_code for n in (0, -1, "x", 10**9)] == [422] * 4
    assert {api.get(f"/api/v1/requests?show={one}").status_code for one in SHOWN} == {200}


def test_the_list_is_never_stale(page: Site) -> None:
    api = page.api("read")
    with Ledger(page.ledger.name) as elsewhere:  # another process, say
        for n in range(5, 12):
            elsewhere.add(ids=["x"], received=TODAY)
            assert [api.get("/api/v1/requests").json()["total"] for _ in range(2)] == [n, n]


def test_a_request_by_the_form(page: Site) -> None:
    client = page.browser("ask")
    form = {"csrf": csrf(client), "received": str(TODAY), "note": "by phone"}
    answer = client.post("/requests", data={**form, "ids": "zoe@planted.example\r\n\r\n zac \r\n"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/requests/5")
    assert page.ledger.request(5).subjects == 2
    assert page.ledger.suppressed(["zoe@planted.example", "zac", "zo"]) == [True, True, False]
    file = {"file": ("ids.txt", "\ufeffyan\nyve\n".encode())}
    answer = client.post("/requests", data=form, files=file, headers={"hx-request": "true"})
    assert answer.headers["hx-redirect"] == "/requests/6"
    assert page.ledger.suppressed(["yan", "yve"]) == [True, True]
    classes = {"classes": "dog\ncow", "due": str(TODAY)}
    assert client.post("/requests", data={**form, **classes}).status_code == 303
    assert page.ledger.request(7).classes == ("dog", "cow")
    shown = client.get("/requests/5").text
    assert page.ledger.hashes(["zac"])[0] in shown
    assert "planted" not in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "neither"),
        ({"ids": "planted-id", "classes": "cat"}, "both"),
        ({"ids": "planted-id", "received": "tomorrow"}, "a date"),
        ({"ids": "planted-id", "received": str(TODAY + timedelta(days=9))}, "received by now"),
        ({"ids": "planted-id", "due": "1999-01-01"}, "due later"),
        ({"ids": "planted-id", "note": "x" * 1001}, "text as note"),
        ({"ids": "planted-id\n" * 3, "file": b"more"}, "both"),
        ({"file": b"\xff\xfe\x00"}, "something else"),
        ({"file": b"\n \n"}, "none"),
        ({"ids": "planted\n" * 4}, "at most 3 ids"),
    ],
)
def test_a_bad_form_is_told_in_one_line(
    page: Site, given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "MOST_IDS", 3)
    client = page.browser("ask")
    file = {"file": ("planted-name.txt", given["file"])} if "file" in given else None
    data = {"csrf": csrf(client), "received": str(TODAY), **{k: v for k, v in given.items() if k != "file"}}
    for headers in ({}, {"hx-request": "true"}):
        answer = client.post("/requests", data=data, files=file, headers=headers)
        assert answer.status_code == 400
        assert words in text_of(answer)
        assert "planted" not in answer.text  # no id comes back
        assert ("<form" in answer.text) == (not headers)  # plain: filled in again; htmx: the line alone
    assert answer.headers["hx-retarget"] == "#said"
    assert len(page.ledger.requests()) == 4


def test_hold_release_withdraw(page: Site) -> None:
    client = page.browser("ask")
    token = csrf(client)

    def step(number: int, kind: str, reason: str = "") -> int:
        return client.post(f"/requests/{number}/{kind}", data={"csrf": token, "reason": reason}).status_code

    assert step(2, "hold") == 400
    assert step(2, "hold", "claim") == 303
    assert step(2, "hold", "again") == 409
    assert "claim" in text_of(client.get("/requests/2"))
    assert step(2, "release") == 303
    assert step(2, "withdraw", "a mistake") == 303
    assert step(2, "withdraw", "a mistake") == 409
    assert step(2, "destroy") == 404
    assert step(99, "hold", "claim") == 404
    said = text_of(client.get("/requests/2"))
    assert all(word in said for word in ("withdrawn", "hold", "release", "claim", "a mistake"))
    assert "Withdraw" not in client.get("/requests/2").text


def test_the_api_does_the_same(page: Site) -> None:
    ask, read = page.api("ask"), page.api("read")
    body = {"ids": ["'; DROP TABLE purge_requests;--"], "received": str(TODAY)}
    made = ask.post("/api/v1/requests", json=body)
    assert (made.status_code, made.json()["number"], made.json()["subjects"]) == (201, 5, 1)
    assert ask.post("/api/v1/requests/5/hold", json={"reason": "x' OR '1'='1"}).json()["state"] == "held"
    assert ask.post("/api/v1/requests/5/release").json()["state"] == "open"
    assert ask.post("/api/v1/requests/5/release").status_code == 409
    found = read.get("/api/v1/requests/5").json()
    assert [one["kind"] for one in found["history"]] == ["request", "hold", "release"]
    assert "subjects" not in found["history"][0]["payload"]
    assert read.get("/api/v1/due", params={"days": 0}).json()["overdue"] == 1
    assert read.get("/api/v1/verify").json()["ok"] is True
    assert read.get("/api/v1/versions").json() == {"versions": []}
    assert read.get("/api/v1/requests/1/certificate").json()["request"]["number"] == 1
    assert read.get("/api/v1/run").json() == {"state": "idle", "worker": None, "progress": ""}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/requests/99", None, 404, "number of a request"),
        ("GET", "/requests/0", None, 404, "number of a request"),
        ("GET", "/requests/planted", None, 422, "what /api describes"),
        ("GET", f"/requests/{'9' * 5000}", None, 422, "what /api describes"),
        ("GET", "/requests?due_by=planted", None, 422, "due_by"),
        ("GET", "/requests?show=planted", None, 422, "show"),
        ("GET", "/nothing", None, 404, "an address that is here"),
        ("DELETE", "/requests/1", None, 405, "another method"),
        ("POST", "/requests", {"ids": ["planted"]}, 422, "received"),
        ("POST", "/requests", {"ids": "planted", "received": "2026-01-01"}, 422, "ids"),
        ("POST", "/requests", {"ids": [17], "received": "2026-01-01"}, 422, "ids.0"),
        ("POST", "/requests", {"ids": ["planted"], "received": "2026-01-01", "x": 1}, 422, "x: extra"),
        ("POST", "/requests", {"ids": ["planted"], "received": "planted"}, 422, "received: blank, or not"),
        ("POST", "/requests", {"ids": ["planted"], "received": "2026-02-30"}, 422, "received: day is out"),
        ("POST", "/requests", {"ids": ["planted"], "received": "2999-01-01"}, 409, "received by now"),
        ("POST", "/requests", {"ids": [" "], "received": "2026-01-01"}, 422, "ids.0: blank"),
        ("POST", "/requests", {"received": "2026-01-01"}, 422, "body: neither ids nor"),
        ("POST", "/requests/2/hold", {}, 422, "reason"),
        ("POST", "/requests/2/hold", {"reason": " "}, 422, "reason: blank"),
        ("POST", "/requests/3/hold", {"reason": "again"}, 409, "which is held"),
        (
            "POST",
            "/requests",
            {"classes": ["cat"], "label": "dog", "received": "2026-01-01"},
            422,
            "body: a label without ids",
        ),
        ("POST", "/run/stop", None, 409, "there is nothing to stop"),
        ("POST", "/run", {}, 409, "purge request init"),
        ("POST", "/run", {"due": -1}, 422, "due"),
    ],
)
def test_errors_of_the_api_are_one_line(
    page: Site, method: str, path: str, body: Any, status: int, words: str
) -> None:
    answer = page.api("run").request(method, f"/api/v1{path}", json=body)
    said = answer.json()["error"]
    assert (answer.status_code, list(answer.json())) == (status, ["error"]), said
    assert words in said
    assert said.startswith("Expected ")
    assert "\n" not in said
    assert "planted" not in said.replace("'planted'", "") or path.endswith("hold")
    assert len(page.ledger.requests()) == 4


def test_json_that_is_none_too_deep_or_too_long(page: Site) -> None:
    long = json.dumps({"ids": ["x"] * (MOST_IDS + 1), "received": str(TODAY)}).encode()
    for raw in (b"{", b"[" * 100_000, b"\xff", b'{"received": NaN}', long):
        answer = page.api("ask").post("/api/v1/requests", content=raw)
        assert answer.status_code in (400, 422)
        assert list(answer.json()) == ["error"]


def test_names_and_notes_are_text(page: Site) -> None:
    page.ledger.add(classes=[EVIL], received=TODAY, basis=EVIL, note=EVIL)
    page.ledger.hold(5, EVIL)
    client = page.browser("ask")
    for path in ("/", "/requests", "/requests/5", "/chain", "/requests/5/certificate"):
        answer = client.get(path)
        assert "<img" not in answer.text
        assert "zzqq" not in answer.text
    assert client.get("/requests/5").text.count("&lt;img") >= 4
    bad = client.post("/requests", data={"csrf": csrf(client), "received": EVIL, "note": EVIL})
    assert (bad.status_code, "<img" in bad.text) == (400, False)
    assert "<img" not in client.get("/requests", params={"show": EVIL[:30]}).text


# -- the chain ---------------------------------------------------------------------------------


def test_a_whole_chain_and_a_broken_one(page: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "FRESH", 0.0)
    client = page.browser("read")
    assert "The chain is whole" in text_of(client.get("/chain"))
    touch(page.ledger, "UPDATE purge_entries SET payload = replace(payload, 'letter', 'phone') WHERE seq = 2")
    for path in ("/chain", "/chain/verdict"):
        answer = client.get(path)
        assert 'class="verdict alarm"' in answer.text
        assert "first at entry 2" in text_of(answer)
    assert "touched" in client.get("/chain").text
    found = page.api("read").get("/api/v1/verify").json()
    assert (found["ok"], found["first_bad"]) == (False, 2)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE purge_entries SET payload = '{' WHERE seq = 3", "DELETE FROM purge_entries WHERE seq = 4",
     "UPDATE purge_entries SET at = x'ff'", "UPDATE purge_requests SET due = 'soon'",
     "DELETE FROM purge_head"],
)  # fmt: skip
def test_a_chain_that_cannot_be_read_is_shown_as_broken(page: Site, statement: str) -> None:
    touch(page.ledger, statement)
    client = page.browser("read")
    answer = client.get("/chain")
    assert (answer.status_code, 'class="verdict alarm"' in answer.text) == (200, True)
    for path in ("/", "/requests", "/requests/2", "/versions"):
        answer = client.get(path)
        assert answer.status_code in (200, 409, 500, 503)
        assert "Traceback" not in answer.text


def test_the_chain_is_paged(page: Site) -> None:
    page.ledger.add_many([{"ids": [f"p{i}"], "received": TODAY} for i in range(60)])
    client = page.browser("read")
    newest = client.get("/chain").text
    assert "/chain?before=17" in newest
    older = re.findall(r'<th scope="row">(\d+)', client.get("/chain?before=17").text)
    assert older == [str(n) for n in range(16, 0, -1)]
    assert client.get("/chain?before=1").status_code == 200
    assert client.get("/chain?before=x").status_code == 422


def test_a_ledger_that_is_gone_or_locked(page: Site, tmp_path: Path) -> None:
    client, place = page.browser("read"), Path(page.ledger.name)
    place.rename(tmp_path / "away.db")
    for answer in (client.get("/"), client.get("/requests"), page.api("read").get("/api/v1/requests")):
        assert answer.status_code == 503
        assert "a ledger at" in answer.text
    assert not place.exists()  # not made by asking
    (tmp_path / "away.db").rename(place)
    assert client.get("/").status_code == 200
    with Ledger(place, patience=0.1) as impatient, closing(sqlite3.connect(place)) as other:
        other.execute("BEGIN EXCLUSIVE")
        locked = site(impatient)
        answer = locked.api("ask").get("/api/v1/due")
        assert (answer.status_code, "locked" in answer.json()["error"]) == (503, True)
        other.rollback()
        assert locked.api("ask").get("/api/v1/due").status_code == 200


def test_what_breaks_shows_no_traceback(page: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("planted words")

    monkeypatch.setattr(page.desk, "due", broken)
    for answer in (page.browser("read").get("/"), page.api("read").get("/api/v1/due")):
        assert answer.status_code == 500
        assert "Something broke" in answer.text
        assert "planted" not in answer.text
        assert "Traceback" not in answer.text


# -- versions, reports, runs -------------------------------------------------------------------


def fake_version(made: Site, place: Path, name: str = "version-0001") -> None:
    """A version whose audit is that of a report in the repository's own tests."""
    from tests.report.test_figures import full_report

    folder = place / name
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(json.dumps(full_report()))
    record(made.ledger, "settings", {"versions": str(place), "keep_for_audit": True})
    add_version(made.ledger, folder, "ab" * 32, None, kind="base")


@pytest.mark.slow
def test_reports_come_by_number_and_from_the_folder_of_versions_only(page: Site, tmp_path: Path) -> None:
    fake_version(page, tmp_path / "versions")
    outside = tmp_path / "outside"
    shutil.copytree(tmp_path / "versions" / "version-0001", outside)
    add_version(page.ledger, outside, "cd" * 32, "ab" * 32)
    (tmp_path / "versions" / "version-0003").symlink_to(outside)
    add_version(page.ledger, tmp_path / "versions" / "version-0003", "ef" * 32, "ab" * 32)
    (tmp_path / "versions" / "version-0004").mkdir()
    (tmp_path / "versions" / "version-0004" / "audit.json").write_text('{"values": 3}')
    add_version(page.ledger, tmp_path / "versions" / "version-0004", "aa" * 32, "ab" * 32)
    add_version(page.ledger, f"{tmp_path}/versions/../outside", "bb" * 32, "ab" * 32)
    client = page.browser("read")
    good = client.get("/versions/1/report")
    assert good.status_code == 200
    assert "Unlearning report: version 1" in good.text
    assert "sandbox" in good.headers["content-security-policy"]
    assert {n: client.get(f"/versions/{n}/report").status_code for n in (2, 3, 4, 5, 9)} == {
        2: 404, 3: 404, 4: 503, 5: 404, 9: 404,
    }  # fmt: skip
    for path in ("..%2f..%2fetc%2fpasswd", "../outside", "1/../../outside", "%2e%2e", "1%00", "-1"):
        assert client.get(f"/versions/{path}/report").status_code in (303, 404, 422), path
    for path in ("/static/../guard.py", "/static/%2e%2e/guard.py", "/static/..%2fguard.py", "/static/"):
        assert client.get(path).status_code == 404, path
    shown = client.get("/versions").text
    assert re.findall(r"/versions/(\d)/report", shown) == ["4", "1"]
    assert str(tmp_path) not in shown


SLEEPER = "import time; time.sleep(60)"


class Stub(Runner):
    """Starts another program instead of purge request run: what happens around it is under test."""

    code = SLEEPER

    def argv(self, **_: Any) -> list[str]:
        return [sys.executable, "-c", self.code]


def running(made: Site, tmp_path: Path, code: str) -> Site:
    fake_version(made, tmp_path / "versions")
    stub = Stub(made.ledger, {})
    stub.code = code
    made.desk.runner = stub
    return made


def wait_for_the_run() -> None:
    for thread in threading.enumerate():
        if thread.name == "purge run":
            thread.join(300)


def test_how_far_a_worker_is_stands_on_the_page_where_it_can_be_stopped(page: Site) -> None:
    """Also one that somebody has started in the shell."""
    api, browser, reader = page.api("run"), page.browser("run"), page.browser("read")
    with Ledger(page.ledger.name) as other, other.working():
        far = {"doing": "unlearning", "batch": 1, "step": 40, "steps": 80, "seconds_left": 12.0}
        assert not progress(other, far)
        said = text_of(browser.get("/"))
        assert "batch 1, unlearning, step 40 of 80, about 0:00:12 left" in said
        assert "Stop it" in said
        assert "Stop it" not in text_of(reader.get("/"))
        found = api.get("/api/v1/run").json()["worker"]
        assert (found["step"], found["seconds_left"], found["stopping"]) == (40, 12.0, False)
        assert browser.post("/run/stop", data={"csrf": csrf(browser)}).status_code == 303
        assert progress(other, far), "it is told at its next step"
        assert "asked to stop" in text_of(browser.get("/run"))
        assert api.post("/api/v1/run/stop").json()["stopping"] is True
    assert "Stop it" not in text_of(browser.get("/"))


def test_a_label_can_be_corrected_from_the_page(page: Site) -> None:
    browser = page.browser("ask")
    form = {"csrf": csrf(browser), "ids": "ada", "label": "cat", "received": "2026-01-05"}
    made = browser.post("/requests", data=form)
    assert made.status_code == 303
    assert "right label cat for 1 id" in text_of(browser.get(made.headers["location"]))
    asked = {"ids": ["bob"], "label": "dog", "received": "2026-01-05"}
    assert page.api("ask").post("/api/v1/requests", json=asked).json()["label"] == "dog"


def test_two_runs_at_once_are_refused(page: Site, tmp_path: Path) -> None:
    made = running(page, tmp_path, SLEEPER)
    try:
        api, browser = made.api("run"), made.browser("run")
        assert api.post("/api/v1/run").status_code == 202
        again = api.post("/api/v1/run", json={"everything": True})
        assert (again.status_code, "one that runs since" in again.json()["error"]) == (409, True)
        assert browser.post("/run", data={"csrf": csrf(browser)}).status_code == 409
        assert "A run is under way" in text_of(browser.get("/"))
        assert "every 2s" in browser.get("/run").text
        assert api.get("/api/v1/run").json()["state"] == "running"
    finally:
        made.desk.runner.stop()
    with Ledger(made.ledger.name) as other, other.working():  # another worker, of the shell say
        answer = made.api("run").post("/api/v1/run")
    assert (answer.status_code, "at work since" in answer.json()["error"]) == (409, True)


OUTCOME = {"state": "nothing", "requests": [], "batch": None, "not_found": []}


@pytest.mark.parametrize(
    ("code", "record", "words"),
    [
        (2, {"error": "LedgerError", "message": "Expected a key, got none. Fix: name it."}, "Expected a key"),
        (3, {"error": "KeyError", "log": "/tmp/x.log"},
         "Something broke: KeyError. Its traceback is in /tmp/x.log."),
        (3, {"error": "OSError", "message": "planted"}, "Something broke: OSError. The version"),
        (3, None, "Something broke. The version"),
        (-9, None, "signal SIGKILL"), (137, None, "exit code 137"), (0, None, "exit code 0"),
        (0, {"outcome": OUTCOME}, "Nothing is due."),
        (1, {"outcome": {**OUTCOME, "state": "missed", "requests": [1], "batch": 2}}, "Batch 2 was not"),
        (1, {"outcome": {**OUTCOME, "state": "not-found", "not_found": [3, 4]}}, "2 requests left open: not"),
    ],
)  # fmt: skip
def test_how_a_run_ended_is_one_line(
    tmp_path: Path, code: int, record: dict[str, Any] | None, words: str
) -> None:
    file = tmp_path / "ended.json"
    if record is not None:
        file.write_text(json.dumps({"code": code, **record}))
    found = read_end(code, file)
    assert words in found["words"]
    assert "\n" not in found["words"]
    assert "planted" not in found["words"]
    assert (found["state"] == "done") == (code == 0 and record is not None)
    file.write_text("half a rec")
    assert read_end(code, file)["state"] == "failed"


def test_a_run_writes_down_how_it_ended(tmp_path: Path) -> None:
    record = tmp_path / "ended.json"
    done = command("request", "run", "--ledger", tmp_path / "none.db", "--record", record, "--quiet")
    found = json.loads(record.read_text())
    assert (done.code, found["code"], found["error"], found["outcome"]) == (2, 2, "FileError", None)
    assert done.err == f"Error: {found['message']}\n"
    assert read_end(2, record)["words"] == found["message"]


def test_a_run_that_is_killed_is_shown(page: Site, tmp_path: Path) -> None:
    made = running(page, tmp_path, "import os; os.kill(os.getpid(), 9)")
    client = made.browser("run")
    assert client.post("/run", data={"csrf": csrf(client)}).status_code == 303
    wait_for_the_run()
    answer = client.get("/")
    assert "The run ended by signal SIGKILL" in text_of(answer)
    assert 'class="verdict alarm"' in answer.text
    assert client.get("/run").headers["hx-refresh"] == "true"


@pytest.mark.slow
def test_a_real_run_by_the_api(base: Path, tmp_path: Path) -> None:
    from tests.ledger.people import person

    ledger = Ledger(tmp_path / "requests.db")
    init(ledger, base)
    ledger.add(ids=[person(1), person(2)], received=TODAY)
    made = site(ledger)
    made.desk.runner = Runner(ledger, {"PURGE_LEDGER": ledger.name}, ["--trust", "--set=steps=4"])
    assert made.api("run").post("/api/v1/run", json={"everything": True}).status_code == 202
    wait_for_the_run()
    found = made.api("read").get("/api/v1/run").json()
    assert found["state"] in ("done", "failed"), found
    assert found["outcome"]["requests"] == [1], found


# -- how it looks ------------------------------------------------------------------------------


def test_the_colours_are_those_of_a_report() -> None:
    here = (ROOT / "src/purge/serve/static/style.css").read_text()
    report = (ROOT / "src/purge/report/page.html.j2").read_text()
    shared = {pair for pair in re.findall(r"(--\w+): (#\w+)", here) if not pair[0].endswith(("alarm", "on"))}
    assert len(shared) >= 18
    assert shared <= set(re.findall(r"(--\w+): (#\w+)", report))


def test_htmx_is_as_it_was_published() -> None:
    folder = ROOT / "src/purge/serve/static"
    assert 'version:"2.0.' in (folder / "htmx.min.js").read_text()
    assert (folder / "htmx-LICENSE.txt").read_text().startswith("Zero-Clause BSD")
    for file in folder.parent.glob("templates/*"):
        assert not re.search(r"(src|href)=\"(https?:)?//", file.read_text()), file  # nothing from elsewhere
        assert not re.search(r"<script>|style=| on\w+=", file.read_text()), file  # the policy forbids it


def test_today_is_asked_each_time(page: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    api = page.api("read")
    assert api.get("/api/v1/requests?show=overdue").json()["total"] == 1
    later = type("Later", (date,), {"today": classmethod(lambda cls: TODAY + timedelta(days=400))})
    monkeypatch.setattr(desk_module, "date", later)
    assert api.get("/api/v1/requests?show=overdue").json()["total"] == 4
