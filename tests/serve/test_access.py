"""Who is let in, and by which door."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.core.errors import FileError, PurgeError
from purge.serve.guard import HEADERS, LARGEST, origin_of
from purge.serve.sessions import IDLE, LONGEST
from purge.serve.tokens import ROLES, Tokens, add_token, hashed, read_tokens
from tests.cli.commands import command, good, refusal
from tests.serve.conftest import small
from tests.serve.pages import SECRETS, Site, csrf, once, site

# Every route of the page and of the API, and the least role that it needs; None: nobody is asked.
ROUTES = [
    ("GET", "/login", None), ("POST", "/login", None), ("GET", "/static/style.css", None),
    ("POST", "/logout", "read"), ("GET", "/", "read"), ("GET", "/requests", "read"),
    ("GET", "/requests/new", "ask"), ("GET", "/requests/{number}", "read"),
    ("GET", "/requests/{number}/certificate", "read"), ("GET", "/versions", "read"),
    ("GET", "/versions/{number}/report", "read"), ("GET", "/chain", "read"),
    ("GET", "/chain/verdict", "read"),
    ("GET", "/api", "read"), ("GET", "/run", "read"), ("POST", "/requests", "ask"),
    ("POST", "/requests/{number}/{step}", "ask"), ("POST", "/run", "run"), ("GET", "/openapi.json", "read"),
    ("POST", "/run/stop", "run"), ("POST", "/api/v1/run/stop", "run"),
    ("GET", "/api/v1/requests", "read"), ("GET", "/api/v1/requests/{number}", "read"),
    ("GET", "/api/v1/requests/{number}/certificate", "read"), ("GET", "/api/v1/due", "read"),
    ("GET", "/api/v1/versions", "read"), ("GET", "/api/v1/verify", "read"), ("GET", "/api/v1/run", "read"),
    ("POST", "/api/v1/requests", "ask"), ("POST", "/api/v1/requests/{number}/hold", "ask"),
    ("POST", "/api/v1/requests/{number}/release", "ask"),
    ("POST", "/api/v1/requests/{number}/withdraw", "ask"), ("POST", "/api/v1/run", "run"),
]  # fmt: skip


class Clock:
    """Time that passes when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def routes_of(app: Any) -> set[tuple[str, str]]:
    found = set()

    def walk(routes: Any) -> None:
        for route in routes:
            if hasattr(route, "methods") and route.methods:
                found.update((method, route.path) for method in route.methods - {"HEAD", "OPTIONS"})
            for name in ("original_router", "router", "app"):
                inner = getattr(getattr(route, name, None), "routes", None)
                if inner:
                    walk(inner)

    walk(app.app.routes)
    return found


def test_each_route_with_each_role(page: Site) -> None:
    body = {"reason": "r", "received": "2026-01-01", "classes": ["dog"]}
    programs_with = {role: page.api(role) for role in ROLES}
    browsers = {role: page.browser(role) for role in ROLES}
    forms = {role: csrf(browsers[role]) for role in ROLES}
    nobody = page.client()
    for method, path, least in ROUTES:
        address = path.replace("{number}", "2").replace("{step}", "hold")
        if address.startswith("/static") or address == "/login":
            assert page.client().request(method, address).status_code in (200, 401), path
            continue
        stranger = nobody.request(method, address)
        programs = path.startswith(("/api/v1", "/openapi"))
        assert stranger.status_code == (401 if programs else 303), path
        assert programs or stranger.headers["location"] == "/login"
        for role in ROLES:
            who = programs_with[role] if programs else browsers[role]
            data: dict[str, Any] = {}
            if method == "POST":
                data = {"json": body} if programs else {"data": {"csrf": forms[role], **body}}
            if path == "/logout":
                who, data = (leaves := page.browser(role)), {"data": {"csrf": csrf(leaves)}}
            status = who.request(method, address, **data).status_code
            enough = ROLES.index(role) >= ROLES.index(least or "read")
            assert (status == 403) == (not enough), (method, path, role, status)
            assert status != 500, (method, path, role)


def test_no_route_is_missing_above(page: Site) -> None:
    schema = page.api("read").get("/openapi.json").json()
    told = {(m.upper(), p) for p, methods in schema["paths"].items() for m in methods}
    assert told == {(m, p) for m, p, _ in ROUTES if p.startswith("/api/v1")}
    assert all(about["x-role"] == role for m, p, role in ROUTES if p.startswith("/api/v1")
               for about in [schema["paths"][p][m.lower()]])  # fmt: skip
    assert page.browser("run").get("/api/v1/requests").status_code == 401  # a cookie does not open the API
    known = {(m, p) for m, p, _ in ROUTES if not p.startswith("/static")}
    assert routes_of(page.app) == known


# -- tokens ------------------------------------------------------------------------------------


def test_a_file_keeps_hashes_only_and_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    secret = add_token(file, "clerk", "ask")
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = Tokens(file)
    assert tokens.of(hashed(secret)) == read_tokens(file)[0]
    assert tokens.of(hashed(secret + "x")) is None
    other = add_token(file, "boss", "run")
    assert [(one.name, one.role) for one in tokens.known()] == [("clerk", "ask"), ("boss", "run")]
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({"tokens": content["tokens"][1:]}))
    assert tokens.of(hashed(secret)) is None
    assert tokens.of(hashed(other)) is not None
    file.unlink()
    with pytest.raises(FileError, match="--new-token"):
        tokens.of(hashed(other))


@pytest.mark.parametrize(
    "text",
    ["", "tokens: 3", "tokens: [1]", "tokens: []\nmore: 1", "tokens: [{name: a, role: boss, sha256: b}]",
     "tokens: [{name: a, role: run, sha256: b}]", "tokens: [{name: a, role: run}]", "{"],
)  # fmt: skip
def test_a_bad_file_of_tokens_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(PurgeError):
        read_tokens(file)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    add_token(tmp_path / "t.yaml", "clerk", "ask")
    (tmp_path / "t.yaml").chmod(0o620)
    with pytest.raises(FileError, match="chmod 600"):
        Tokens(tmp_path / "t.yaml")


def test_sessions_end(tmp_path: Path) -> None:
    clock = Clock()
    made = site(small(tmp_path), clock)
    client = made.browser("read")
    clock.now += IDLE - 1
    assert client.get("/").status_code == 200
    clock.now += IDLE + 1
    assert client.get("/").status_code == 303
    client = made.browser("read")
    for _ in range(int(LONGEST // IDLE) + 2):
        clock.now += IDLE - 1
        last = client.get("/").status_code
    assert last == 303
    client = made.browser("read")
    assert client.post("/logout", data={"csrf": csrf(client)}).headers["location"] == "/login"
    assert client.get("/").status_code == 303


def test_a_session_ends_with_its_token_and_a_cookie_with_logging_out(tmp_path: Path) -> None:
    made = site(small(tmp_path))
    client, again = made.browser("read"), made.client()
    again.cookies.update(dict(client.cookies))  # somebody kept it
    client.post("/logout", data={"csrf": csrf(client)})
    assert again.get("/").status_code == 303
    client = made.browser("read")
    made.doors.tokens._known = ()
    assert client.get("/").status_code == 303


def test_wrong_tokens_and_keys_lock_nobody_out(tmp_path: Path) -> None:
    """That the printed address works once, and for whom, is tested with the doors."""
    made = site(small(tmp_path), once=(key := once()))
    for _ in range(50):
        assert made.client().get("/login?once=a-picture-elsewhere").status_code == 401
        assert made.client().post("/login", data={"token": "guess"}).status_code == 401
        assert made.client().post("/login", data={"once": "guess"}).status_code == 401
        guess = {"authorization": "Bearer guess"}
        assert made.client().get("/api/v1/due", headers=guess).status_code == 401
    assert made.browser("run").get("/").status_code == 200  # from the same address
    assert made.api("run").get("/api/v1/due").status_code == 200
    assert [made.client().post("/login", data={"once": key.key}).status_code for _ in (1, 2)] == [303, 401]


# -- forms, hosts and headers ------------------------------------------------------------------


def test_cookies_are_hard_to_steal(page: Site, tmp_path: Path) -> None:
    cookie = page.client().post("/login", data={"token": SECRETS["read"]}).headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert "secure" not in cookie
    (tmp_path / "s").mkdir()
    behind = site(small(tmp_path / "s"), public="https://purge.example.org")
    client = behind.client(host="purge.example.org")
    own = {"origin": "https://purge.example.org", "sec-fetch-site": "same-origin"}
    for foreign in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
                    {"origin": "null", "sec-fetch-site": "same-origin"}):  # fmt: skip
        assert client.post("/login", data={"token": SECRETS["run"]}, headers=foreign).status_code == 403
    cookie = client.post("/login", data={"token": SECRETS["read"]}, headers=own).headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert "Secure" in cookie


@pytest.mark.parametrize(
    ("headers", "token", "right"),
    [
        ({}, "own", True),
        ({"origin": "http://127.0.0.1"}, "own", True),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, "own", False),
        ({"origin": "null", "sec-fetch-site": "none"}, "own", False),
        ({"origin": "null"}, "own", False),
        ({"origin": "https://evil.example"}, "own", False),
        ({"origin": "http://127.0.0.1:9"}, "own", False),
        ({"sec-fetch-site": "cross-site"}, "own", False),
        ({"sec-fetch-site": "same-site"}, "own", False),
        ({}, "", False),
        ({}, "other", False),
        ({"hx-request": "true"}, "", False),
    ],
)
def test_forms_of_others_are_refused(page: Site, headers: dict[str, str], token: str, right: bool) -> None:
    client = page.browser("ask")
    value = {"own": csrf(client), "other": csrf(page.browser("ask")), "": ""}[token]
    data = {"reason": "because", "csrf": value}
    status = client.post("/requests/2/hold", data=data, headers=headers).status_code
    assert status == ((200 if "hx-request" in headers else 303) if right else 403)
    assert page.ledger.request(2).state == ("held" if right else "open")


@pytest.mark.parametrize(
    ("url", "origin"),
    [("https://purge.example.org", "https://purge.example.org"), ("http://[::1]:80", "http://[::1]"),
     ("https://Purge.Example.org:443/", "https://purge.example.org"), ("http://a:8000", "http://a:8000"),
     ("https://a:80", "https://a:80")],
)  # fmt: skip
def test_a_public_url_is_compared_as_browsers_write_it(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("host", "right"),
    [("127.0.0.1", True), ("127.0.0.1:8000", True), ("localhost:8000", True), ("[::1]:8000", True),
     ("192.168.1.5", True), ("evil.example", False), ("evil.example:8000", False), ("", False),
     ("127.0.0.1.evil.example", False), ("localhost@evil.example", False), ("a/b", False), ("x:y", False)],
)  # fmt: skip
def test_names_of_others_are_refused(page: Site, host: str, right: bool) -> None:
    answer = page.client().get("/login", headers={"host": host})
    assert answer.status_code == (200 if right else 400)


def test_every_answer_has_the_headers(page: Site) -> None:
    reader = page.browser("read")
    for client, path in ((reader, "/"), (reader, "/nothing"), (page.client(), "/login"), (page.client(), "/"),
                         (page.api("read"), "/api/v1/due"), (page.client(), "/api/v1/due")):  # fmt: skip
        found = client.get(path).headers
        assert all(found[name] == value for name, value in HEADERS.items()), path
    assert "unsafe" not in HEADERS["content-security-policy"]
    static = page.client().get("/static/style.css").headers
    assert (static["cache-control"], static["x-content-type-options"]) == ("no-cache", "nosniff")
    certificate = reader.get("/requests/1/certificate").headers["content-security-policy"]
    assert "sandbox" in certificate
    assert "script-src 'none'" in certificate


def test_bodies_are_limited(page: Site) -> None:
    client = page.api("ask")
    big = b'{"received": "' + b"x" * LARGEST + b'"}'
    answer = client.post("/api/v1/requests", content=big)
    assert (answer.status_code, "8 MB" in answer.json()["error"]) == (413, True)

    def parts() -> Any:
        for _ in range(LARGEST // 65536 + 2):
            yield b"x" * 65536

    assert client.post("/api/v1/requests", content=parts()).status_code == 413  # without a length
    browser = page.browser("ask")
    data = {"csrf": csrf(browser), "received": "2026-01-01"}
    files = {"file": ("ids.txt", b"x\n" * (LARGEST // 2))}
    assert browser.post("/requests", data=data, files=files).status_code == 413
    assert len(page.ledger.requests()) == 4
    lying = {"content-length": "-1"}
    assert page.client().get("/login", headers=lying).status_code in (400, 413)


def test_the_log_has_no_id_no_token_and_no_query(page: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="purge.serve")
    client = page.browser("ask")
    client.get("/requests/planted-id-in-a-path")
    client.get("/login?once=planted-key")
    client.get("/requests?show=planted-words")
    client.post("/requests", data={"csrf": csrf(client), "ids": "planted@id", "received": "2026-13-01"})
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "who may ask POST /requests 400" in logged
    assert not re.search("planted|secret|token", logged)


def test_nothing_is_handed_to_telemetry(page: Site) -> None:
    telemetry = getattr(page.app.app, "_native_telemetry", None)  # not in every version of FastAPI
    assert telemetry is None or not telemetry.enabled()


# -- the command -------------------------------------------------------------------------------


def test_a_token_from_the_shell(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    done = good(command("serve", "--new-token", "clerk", "--role", "ask", "--tokens", file))
    assert Tokens(file).of(hashed(done.out.strip())) == read_tokens(file)[0]
    assert "only time" in done.err
    small(tmp_path).close()
    before = sorted(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = ("--ledger", tmp_path / "requests.db", "--port", taken.getsockname()[1])
        for argv, words in (
            (("--new-token", "clerk", "--tokens", file), "which has one"),
            (("--new-token", "x", "--role", "admin", "--tokens", file), "a role"),
            (("--new-token", "x"), "--tokens"),
            (("--new-token", "<b>", "--tokens", file), "name of a token"),
            (("--host", "0.0.0.0"), "--tokens FILE"),
            (("--public-url", "https://x.example"), "--tokens FILE"),
            (("--tokens", file, "--public-url", "purge.example"), "--public-url"),
            (("--ledger", tmp_path / "none.db"), "a ledger at"),
            (there, "free to listen at"),
            ((*there[:2], "--port", 0, "--tokens", tmp_path / "no"), "--new-token"),
        ):
            assert words in refusal(command("serve", *argv))
    assert sorted(tmp_path.iterdir()) == before


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'purge-unlearning[serve]'" in refusal(command("serve", "--ledger", tmp_path / "r.db"))
