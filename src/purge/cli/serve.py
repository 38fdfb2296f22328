"""purge serve: the ledger as a page and a REST API."""

from __future__ import annotations

import ipaddress
import logging
import socket
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Option

from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import complain, say, show
from purge.cli.request import KeyAt, LedgerAt, OrganisationIs, SignAt, ledger_place, open_ledger
from purge.core.errors import DataError, FileError, LedgerError
from purge.serve.sessions import Once
from purge.serve.tokens import Token, Tokens, add_token, hashed, new_secret


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
    organisation: OrganisationIs = None,
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
    if new_token is not None:
        if tokens is None:
            raise DataError("--tokens FILE for a new token", "none", "add --tokens tokens.yaml")
        secret = add_token(tokens, new_token, role)
        show({"name": new_token, "role": role, "token": secret, "file": str(tokens)}, secret, json_)
        if not json_:
            complain(f"This is the only time it is shown; {tokens} keeps its hash. {new_token} may {role}.")
        return
    _check_reach(host, tokens, public_url)
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        fix = "pip install 'purge-unlearning[serve]'"
        raise LedgerError(f"the package {error.name}, for the page", "none", fix) from None
    from purge.serve.app import make_app
    from purge.serve.background import Runner
    from purge.serve.connections import BACKLOG, Connection
    from purge.serve.desk import Desk
    from purge.serve.guard import Doors

    named: dict[str, list[Any]] = {"method": [method], "set": set_ or [], "fail-if": fail_if or []}
    named |= {"policy": [policy], "device": [device], "sign": [sign]}
    options = [f"--{name}={value}" for name, values in named.items() for value in values if value is not None]
    options += ["--trust"] * trust
    with open_ledger(ledger, key, sign, patience=5) as book:
        environment = {"PURGE_LEDGER": ledger_place(ledger)}
        environment |= {"PURGE_LEDGER_KEY": str(key)} if key else {}
        runner = Runner(book, environment, options)
        with _listening(host, port) as listener:
            host, port = listener.getsockname()[:2]
            where = public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
            if tokens is not None:
                doors = Doors(Tokens(tokens), public=public_url and public_url.rstrip("/"))
            else:
                secret = new_secret()
                own = Token("local", "run", hashed(secret))
                once = Once(own.sha256)
                doors = Doors(Tokens(tokens=(own,)), once)
                where += f"/login?once={once.key}\nThis address opens one browser, once. "
                where += f"For others, and the API, until the page is closed: {secret}"
            say(f"The page of {book.name} is at {where}")
            if not quiet:
                logging.basicConfig(format="%(asctime)s %(message)s")
                logging.getLogger("purge.serve").setLevel(logging.INFO)
            running_in(context).kept = lambda: "The page is closed."
            app = make_app(Desk(book, runner, organisation), doors)
            config = uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False,
                proxy_headers=public_url is not None, limit_concurrency=1000, timeout_graceful_shutdown=5,
                ws="none", lifespan="on", http=Connection, backlog=BACKLOG,
            )  # fmt: skip
            uvicorn.Server(config).run(sockets=[listener])


def _check_reach(host: str, tokens: Path | None, public_url: str | None) -> None:
    """Refuse what would let strangers in, before anything is opened."""
    try:
        private = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = False
    if tokens is None and (public_url is not None or not private):
        got = "none, though others could reach the page"
        raise DataError("--tokens FILE", got, "purge serve --new-token NAME --role ask --tokens tokens.yaml")
    parts = urlsplit("https://here" if public_url is None else public_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        fix = "https://purge.example.org, say"
        raise DataError("a URL without a path as --public-url", repr(public_url), fix)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        got, fix = f"{host}:{port}, {error.strerror or error}", "choose another --port or --host"
        raise FileError("an address that is free to listen at", got, fix) from None
