"""purge serve: the ledger as a page and a REST API."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Option

from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import complain, say, show
from purge.cli.request import KeyAt, LedgerAt, SignAt
from purge.core.errors import DataError, FileError, LedgerError

if TYPE_CHECKING:
    from purge.serve.guard import Doors


def serve(
    context: typer.Context,
    ledger: LedgerAt = None,
    host: Annotated[
        str, Option(help="The address to listen at; others than 127.0.0.1 need --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    tokens: Annotated[
        Path | None, Option(metavar="FILE", help="Who may come in. Without it: one address, for this run.")
    ] = None,
    new_token: Annotated[
        str | None, Option(metavar="NAME", help="Make a token, keep its hash in --tokens, and print it once.")
    ] = None,
    role: Annotated[str, Option(help="Of the new token: read, ask (and read) or run (and ask).")] = "read",
    public_url: Annotated[
        str | None,
        Option(metavar="URL", help="How a proxy in front is reached, as https://purge.example.org."),
    ] = None,
    method: Annotated[str, Option(help="Of runs, as for purge request run.")] = "purge",
    set_: opt.Set = None,
    fail_if: Annotated[
        list[str] | None, Option(help="Of runs: keep the old version if this holds; repeatable.")
    ] = None,
    policy: Annotated[
        Path | None, Option(metavar="FILE", help="Of runs: YAML that says when a retraining is due.")
    ] = None,
    device: opt.Device = None,
    trust: opt.Trust = False,
    key: KeyAt = None,
    sign: SignAt = None,
    quiet: Annotated[bool, Option("--quiet", help="Log nothing to stderr but what breaks.")] = False,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Show a ledger in the browser, and take requests there and by a REST API.

    For example: purge serve --ledger requests.db

    With several people: purge serve --new-token clerk --role ask --tokens tokens.yaml, and then
    purge serve --tokens tokens.yaml. It listens at this machine only, unless --host says otherwise.
    """
    running = running_in(context)
    if new_token is not None:
        _make_token(tokens, new_token, role, json_)
        return
    _check(host, tokens, public_url)
    _needs_extra()
    from purge.ledger.ledger import Ledger
    from purge.serve.app import make_app
    from purge.serve.desk import Desk
    from purge.serve.runner import Runner

    place = ledger or os.environ.get("PURGE_LEDGER") or "requests.db"
    options = [f"--method={method}", *(f"--set={one}" for one in set_ or [])]
    options += [f"--fail-if={one}" for one in fail_if or []]
    options += [
        f"--{name}={value}"
        for name, value in (("policy", policy), ("device", device), ("sign", sign))
        if value
    ]
    options += ["--trust"] * trust
    with Ledger(place, key, sign=sign, must_exist=True, patience=5) as book:
        environment = {"PURGE_LEDGER": place} | ({"PURGE_LEDGER_KEY": str(key)} if key else {})
        runner = Runner(book, environment, options)
        with _listening(host, port) as listener:
            doors, told = _doors(tokens, public_url, _address(listener))
            say(f"The page of {book.name} is at {told}")
            if not quiet:
                _log()
            running.kept = lambda: "The page is closed."
            _run(make_app(Desk(book, runner), doors), listener, proxied=public_url is not None)


def _make_token(tokens: Path | None, name: str, role: str, json_: bool) -> None:
    from purge.serve.tokens import add_token

    if tokens is None:
        raise DataError("--tokens FILE for a new token", "none", "add --tokens tokens.yaml")
    secret = add_token(tokens, name, role)
    show({"name": name, "role": role, "token": secret, "file": str(tokens)}, secret, json_)
    if not json_:
        complain(f"This is the only time it is shown; {tokens} keeps its hash. {name} may {role}.")


def _check(host: str, tokens: Path | None, public_url: str | None) -> None:
    """Refuse what would let strangers in, before anything is opened."""
    if tokens is None and (not _loopback(host) or public_url is not None):
        got = "none, though others could reach the page"
        raise DataError("--tokens FILE", got, "purge serve --new-token NAME --role ask --tokens tokens.yaml")
    if public_url is not None:
        parts = urlsplit(public_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise DataError(
                "a URL without a path as --public-url", repr(public_url), "https://purge.example.org, say"
            )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _needs_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        fix = "pip install 'purge-unlearning[serve]'"
        raise LedgerError(f"the package {error.name}, for the page", "none", fix) from None


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        got = f"{host}:{port}, {error.strerror or error}"
        raise FileError(
            "an address that is free to listen at", got, "choose another --port or --host"
        ) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _doors(tokens: Path | None, public_url: str | None, address: str) -> tuple[Doors, str]:
    """Who may come in, and what is told about it."""
    from purge.serve.guard import Doors
    from purge.serve.sessions import Once
    from purge.serve.tokens import Token, Tokens, hashed, new_secret

    if tokens is not None:
        return Doors(Tokens(tokens), public=(public_url or "").rstrip("/") or None), public_url or address
    secret = new_secret()
    own = Token("local", "run", hashed(secret))
    doors = Doors(Tokens(tokens=(own,)), Once(own.sha256))
    told = f"{address}/login?once={doors.once.key if doors.once else ''}\n"
    told += (
        f"This address opens one browser, once. For others, and the API, until the page is closed: {secret}"
    )
    return doors, told


def _log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("purge.serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _run(app: Any, listener: socket.socket, *, proxied: bool) -> None:
    import uvicorn

    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=proxied,
        limit_concurrency=1000, timeout_graceful_shutdown=5, ws="none", lifespan="on",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])
