"""purge serve: it runs no file of the folder where it was started, and its address opens one browser."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import purge
from tests.cli.commands import ran

HOME = str(Path(purge.__file__).parents[1])
SCRIPT = Path(sys.executable).with_name("purge")
OTHERS = ("torch", "numpy", "sklearn", "yaml", "rich", "typer", "click", "sqlalchemy", "fastapi", "uvicorn",
          "starlette", "jinja2", "matplotlib", "safetensors", "filelock", "purge")  # fmt: skip
LIBRARIES = {*sys.stdlib_module_names, *OTHERS} - {*sys.builtin_module_names}
SAFE = "module, safe path"
STARTS = {  # with -m alone, Python itself imports importlib and what that needs, before any line of purge
    "script": ([str(SCRIPT)], LIBRARIES),
    SAFE: ([sys.executable, "-P", "-m", "purge"], LIBRARIES),
    "module": ([sys.executable, "-m", "purge"], {"json", "random", "multiprocessing", *OTHERS} - {"purge"}),
}
TRAP = "import builtins\nwith builtins.open({mark!r}, 'a') as f:\n    f.write({name!r} + '\\n')\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "base"
    ran("train", "--data", "digits", "--model", "mlp", "--set", "epochs=8", "--quiet", "--out", out)
    return out


@pytest.fixture
def ledger(base: Path, tmp_path: Path) -> Path:
    """A ledger with a model and a request for a class."""
    (tmp_path / "kept").mkdir()
    book = tmp_path / "kept" / "requests.db"
    ran("request", "init", base, "--ledger", book)
    ran("request", "add", "--class", "3", "--received", date.today(), "--ledger", book)
    return book


class Page(NamedTuple):
    """A server: where it is, the secret of its address, its token."""

    client: httpx.Client
    address: str
    once: str
    token: str

    @property
    def origin(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def another(self) -> httpx.Client:
        """A browser that has seen nothing of it."""
        return httpx.Client(base_url=self.client.base_url, timeout=30)


@contextmanager
def served(start: list[str], folder: Path, ledger: Path, *options: str) -> Iterator[Page]:
    """``purge serve`` as a server of its own, started in a folder."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    env |= {"PYTHONPATH": HOME, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    argv = [*start, "serve", "--port", "0", "--quiet", "--ledger", str(ledger), *options]
    log = ledger.with_name("serve.log")
    with log.open("wb") as err:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=err, cwd=folder, env=env, text=True)
    assert process.stdout is not None
    try:
        told = process.stdout.readline() + process.stdout.readline()
        found = re.search(r"http://\S+", told)
        assert found, told + log.read_text()
        parts, token = urlsplit(found[0]), told.split()[-1]
        secret = parse_qs(parts.query or parts.fragment)["once"][0]
        with httpx.Client(base_url=f"http://{parts.netloc}", timeout=30) as client:
            yield Page(client, found[0], secret, token)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def log_in(page: Page, client: httpx.Client, **headers: str) -> int:
    """What the form at the printed address does."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/login", data={"once": page.once}, headers=sent).status_code


def ended(page: Page) -> dict[str, Any]:
    """What came of the run that is under way."""
    holder, until = {"authorization": f"Bearer {page.token}"}, time.monotonic() + 120
    while (found := page.client.get("/api/v1/run", headers=holder).json())["state"] == "running":
        assert time.monotonic() < until
        time.sleep(0.1)
    return dict(found)


def inside(client: httpx.Client) -> bool:
    return client.get("/").status_code == 200


# -- the folder --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", [SAFE, *(pytest.param(s, marks=pytest.mark.slow) for s in STARTS if s != SAFE)]
)
def test_a_run_executes_no_file_of_the_folder(ledger: Path, tmp_path: Path, start: str) -> None:
    """Neither the page nor a run that it starts takes a library's namesake where somebody was standing."""
    argv, names = STARTS[start]
    if not Path(argv[0]).exists():
        pytest.skip("the command is not installed")
    folder, mark = tmp_path / "somewhere", tmp_path / "executed"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(TRAP.format(mark=str(mark), name=name) + "raise ImportError\n")
    with served(argv, folder, ledger, "--set", "steps=20") as page:
        assert page.client.post("/login", data={"token": page.token}).status_code == 303
        form = page.client.get("/").text
        csrf = re.search(r'name="csrf" value="([^"]+)"', form)
        assert csrf
        answer = page.client.post("/run", data={"csrf": csrf[1], "everything": "yes"})
        assert answer.status_code == 303
        found = ended(page)
    assert not mark.exists(), sorted(set(mark.read_text().split()))
    assert found["outcome"] is not None, found  # it went all the way, whatever it found
    assert found["outcome"]["requests"] == [1]
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{name}.py" for name in names)


@pytest.mark.slow
def test_code_that_was_named_is_still_found_in_the_folder(tmp_path: Path) -> None:
    """A ledger of a model whose data is a function: --trust says that it may be imported."""
    (tmp_path / "ours.py").write_text(
        "import purge\n\ndef data():\n    return purge.load('digits', progress=False)\n"
    )
    with contextlib.chdir(tmp_path):
        ran("train", "--data", "ours:data", "--model", "mlp", "--set", "epochs=1", "--quiet",
              "--out", "own")  # fmt: skip
        ran("request", "init", "own", "--ledger", "requests.db")
        ran("request", "add", "--class", "3", "--received", date.today(), "--ledger", "requests.db")
    start = [sys.executable, "-P", "-m", "purge"]
    with served(start, tmp_path, tmp_path / "requests.db", "--trust", "--set", "steps=20") as page:
        holder = {"authorization": f"Bearer {page.token}"}
        assert page.client.post("/api/v1/run", json={"everything": True}, headers=holder).status_code == 202
        found = ended(page)
    assert found["outcome"] is not None, found


# -- the address -------------------------------------------------------------------------------


def test_the_address_is_used_up_by_a_form_of_its_own_page_only(ledger: Path, tmp_path: Path) -> None:
    with served([sys.executable, "-P", "-m", "purge"], tmp_path, ledger) as page:
        for headers in (
            {},
            {"purpose": "prefetch", "sec-purpose": "prefetch"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        ):
            with page.another() as browser:
                answer = browser.get(page.address, headers=headers)
                assert answer.status_code == 200
                assert "<form" in answer.text
                assert 'method="post"' in answer.text
                assert "set-cookie" not in answer.headers
                assert not inside(browser)
        for _ in range(15):  # nor do wrong addresses, as pictures of another site, lock anybody out
            with page.another() as browser:
                assert browser.get("/login?once=wrong").status_code in (200, 401)
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},  # another port of this machine
            {"origin": "null"},  # a sandbox of whoever
        ):
            with page.another() as browser:
                assert log_in(page, browser, **headers) == 403, headers
                assert not inside(browser)
        with page.another() as first, page.another() as second:
            assert log_in(page, first, origin=page.origin, sec_fetch_site="same-origin") == 303
            assert inside(first)
            assert log_in(page, second, origin=page.origin, sec_fetch_site="same-origin") == 401
            assert second.get(page.address).status_code in (200, 401)
            assert not inside(second)


def test_a_token_is_not_taken_from_another_site(ledger: Path, tmp_path: Path) -> None:
    with served([sys.executable, "-P", "-m", "purge"], tmp_path, ledger) as page:
        for headers in (
            {"origin": "null"},
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
        ):
            with page.another() as browser:
                answer = browser.post("/login", data={"token": page.token}, headers=headers)
                assert answer.status_code == 403
                assert not inside(browser)
        with page.another() as browser:
            own = {"origin": page.origin, "sec-fetch-site": "same-origin"}
            assert browser.post("/login", data={"token": page.token}, headers=own).status_code == 303
            assert inside(browser)
