"""purge request: the ledger of deletion requests. What carries them out is in request_run.py."""

from __future__ import annotations

import os
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from purge.cli import options as opt
from purge.cli.printing import say, show
from purge.core.errors import Exit, FileError

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

app = typer.Typer(rich_markup_mode=None)

LedgerAt = Annotated[
    str | None,
    Option("--ledger", metavar="FILE|URL", help="The ledger; default: $PURGE_LEDGER, then requests.db."),
]
KeyAt = Annotated[
    Path | None,
    Option(
        "--key", metavar="FILE", help="The key that hashes ids; default: $PURGE_LEDGER_KEY, then LEDGER.key."
    ),
]
OrganisationIs = Annotated[
    str | None,
    Option("--organisation", metavar="NAME", envvar="PURGE_ORGANISATION", help="Who signs certificates."),
]
SignAt = Annotated[
    Path | None, Option("--sign", metavar="FILE", help="Sign with the Ed25519 key in this file.")
]
PublicAt = Annotated[
    Path | None, Option("--public", metavar="FILE", help="Check signatures with this public key.")
]
Number = Annotated[int, Argument(metavar="N", help="The number of a request.")]


def ledger_place(ledger: str | None) -> str:
    """The file or URL of the ledger that the option or the environment names."""
    return ledger or os.environ.get("PURGE_LEDGER") or "requests.db"


def open_ledger(
    ledger: str | None, key: Path | None = None, sign: Path | None = None, **options: Any
) -> Ledger:
    """The ledger that the options name; ``options``: of :class:`purge.Ledger`."""
    from purge.ledger.ledger import Ledger

    return Ledger(ledger_place(ledger), key, sign=sign, **{"must_exist": True, **options})


@app.callback(invoke_without_command=True)
def top(context: typer.Context) -> None:
    """Keep a ledger of deletion requests: what was asked, when it is due, what was done."""
    if context.invoked_subcommand is None:
        say(context.get_help())


@app.command("add")
def add(
    received: Annotated[str, Option(metavar="DATE", help="The day it came, as 2026-11-01.")],
    ids: Annotated[
        Path | None, Option(metavar="FILE", help="Ids, one a line, as the data has them; - reads stdin.")
    ] = None,
    classes: Annotated[
        list[str] | None, Option("--class", metavar="NAME", help="A whole class; repeatable.")
    ] = None,
    due: Annotated[str | None, Option(metavar="DATE", help="Default: one month after.")] = None,
    basis: Annotated[str, Option(help="On which ground.")] = "erasure request",
    note: Annotated[str | None, Option(help="A remark, kept for good: put in no name and no id.")] = None,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write down a deletion request; the ledger is made if there is none.

    For example: purge request add --ids ids.txt --received 2026-11-01

    Of ids only keyed hashes are kept. Remove the file with the ids when you no longer need it.
    """
    from purge.ledger.intake import checked_request, id_texts

    names = None if ids is None else ids_in(ids)
    new = {"ids": names, "classes": classes or None, "received": received, "due": due}
    new |= {"basis": basis, "note": note}
    checked_request(new, id_texts)  # a bad request makes no ledger
    with open_ledger(ledger, key, sign, must_exist=False) as book:
        request = book.add_many([new])[0]
        show(request.to_dict(), f"Request {request.number} is due on {request.due}.", json_)


@app.command("list")
def list_(
    state: Annotated[
        str | None, Option(help="Only those that are open, held, running, done or withdrawn.")
    ] = None,
    due_by: Annotated[str | None, Option(metavar="DATE", help="Only those due by this day.")] = None,
    ledger: LedgerAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List deletion requests, with the days that are left."""
    from purge.ledger.words import about, days_left, shown
    from purge.report import listing

    with open_ledger(ledger) as book:
        requests, today = book.requests(state=state, due_by=due_by), date.today()
        records = [shown(one, today) for one in requests]
        rows = [
            [
                str(one.number), str(one.received), str(one.due), days_left(record), one.state, about(record),
                one.hold or one.why or one.note or "",
            ]
            for one, record in zip(requests, records, strict=True)
        ]  # fmt: skip
        head = ["request", "received", "due", "days left", "state", "about", "remark"]
        late = sum(one.waits() and one.days_left(today) < 0 for one in requests)
        show(records, listing(head, rows) if requests else "No such requests.", json_)
        if not json_ and late:
            say(f"{late} overdue.")


@app.command("show")
def show_(number: Number, ledger: LedgerAt = None, json_: opt.Json = False, debug: opt.Debug = False) -> None:
    """Show one request: how it stands, and every entry about it."""
    from purge.ledger.words import history, shown
    from purge.report import listing

    with open_ledger(ledger) as book:
        content = shown(book.request(number), date.today())
        entries = history(book, number)
        rows = [
            [name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)]
            for name, value in content.items()
            if value not in (None, [])
        ]
        show({**content, "history": entries}, listing(["request", str(number)], rows), json_)
        if not json_:
            happened = [[one["at"], one["kind"], one["payload"].get("reason", "")] for one in entries]
            show(None, listing(["at", "what", "reason"], happened), False)


@app.command("hold")
def hold(
    number: Number,
    reason: Annotated[str, Option(help="Why it must wait; kept for good.")],
    ledger: LedgerAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Let a request wait, for a legal hold say. Its deadline stays."""
    with open_ledger(ledger, sign=sign) as book:
        request = book.hold(number, reason)
        show(request.to_dict(), f"Request {number} is held; it is due on {request.due}.", json_)


@app.command("release")
def release(
    number: Number, ledger: LedgerAt = None, sign: SignAt = None, json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:  # fmt: skip
    """Let a request that was held go on."""
    with open_ledger(ledger, sign=sign) as book:
        request = book.release(number)
        show(request.to_dict(), f"Request {number} is open; it is due on {request.due}.", json_)


@app.command("withdraw")
def withdraw(
    number: Number,
    reason: Annotated[str, Option(help="Why it shall not be done; kept for good.")],
    ledger: LedgerAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Take back a request that shall not be done. It stays in the ledger, as withdrawn."""
    with open_ledger(ledger, sign=sign) as book:
        request = book.withdraw(number, reason)
        show(request.to_dict(), f"Request {number} is withdrawn.", json_)


@app.command("verify")
def verify(
    export: Annotated[Path | None, Argument(help="An export to check instead of the ledger.")] = None,
    head: Annotated[
        str | None, Option(metavar="COUNT:HASH", help="The end of the chain, as it was told before.")
    ] = None,
    witness: Annotated[
        Path | None, Option(metavar="FILE", help="The ends of the chain that runs wrote into this file.")
    ] = None,
    public: PublicAt = None,
    ledger: LedgerAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Say whether anything in the ledger was touched since it was written; exits 1 if so.

    Keep the end of the chain that it prints somewhere else: --head then shows that nothing was cut off. Runs
    with --witness FILE do that by themselves.
    """
    from purge.ledger.words import verified

    if export is not None:
        from purge.ledger.ledger import verify_export

        verdict = verify_export(export, public=public, head=head, witness=witness)
    else:
        with open_ledger(ledger) as book:
            verdict = book.verify(public=public, head=head, witness=witness)
    show(verdict.to_dict(), verified(verdict), json_)
    if not verdict.ok:
        raise typer.Exit(Exit.MISSED)


@app.command("export")
def export(
    file: Annotated[Path, Argument(help="Where to write it.")],
    force: Annotated[bool, Option("--force", help="Overwrite the file.")] = False,
    ledger: LedgerAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write the chain to a file of JSON lines, which purge request verify FILE checks without the ledger."""
    with open_ledger(ledger) as book:
        end = book.export(file, force=force)
        text = f"{end.entries} entries in {file}. The end of the chain is {end}"
        show({"file": str(file), "head": str(end), **end.to_dict()}, text, json_)


def ids_in(file: Path) -> list[str]:
    """The ids in a file, one a line."""
    from purge.ledger.intake import ids_from

    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise FileError(f"a file of ids at {file}", error.strerror or "an error", "check the path") from None
    return ids_from(raw, str(file))
