"""purge request: the ledger of deletion requests. What carries them out is in request_run.py."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from purge.cli import options as opt
from purge.cli.printing import say, show
from purge.core.errors import DataError, Exit, FileError, LedgerError

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

app = typer.Typer(rich_markup_mode=None)

LedgerAt = Annotated[
    str | None,
    Option("--ledger", metavar="FILE|URL", help="The ledger; default: $PURGE_LEDGER, then requests.db."),
]
KeyAt = opt.KeyAt
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
Wait = Annotated[
    float, Option(help="Seconds to wait for another worker; by default it is said at once.", min=0)
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
    received: Annotated[str | None, Option(metavar="DATE", help="The day it came, as 2026-11-01.")] = None,
    ids: Annotated[
        Path | None, Option(metavar="FILE", help="Ids, one a line, as the data has them; - reads stdin.")
    ] = None,
    id_column: Annotated[
        str | None, Option(metavar="NAME", help="The file is a table (CSV); the ids are in this column.")
    ] = None,
    received_column: Annotated[
        str | None, Option(metavar="NAME", help="A request for each id; the day it came is in this column.")
    ] = None,
    basis_column: Annotated[
        str | None, Option(metavar="NAME", help="A request for each id; its ground is in this column.")
    ] = None,
    classes: Annotated[
        list[str] | None, Option("--class", metavar="NAME", help="A whole class; repeatable.")
    ] = None,
    due: Annotated[str | None, Option(metavar="DATE", help="Default: one month after.")] = None,
    basis: Annotated[str, Option(help="On which ground.")] = "erasure request",
    note: Annotated[str | None, Option(help="A remark, kept for good: put in no name and no id.")] = None,
    label: Annotated[
        str | None, Option(metavar="CLASS", help="Correct, do not erase: the right label of these rows.")
    ] = None,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write down a deletion request, or one for each row of a table; the ledger is made if there is none.

    For example: purge request add --ids ids.txt --received 2026-11-01

    Of ids only keyed hashes are kept. Remove the file with the ids when you no longer need it.
    """
    from purge.ledger.intake import checked_request, id_texts, requests_of

    names = {"id": id_column, "received": received_column, "basis": basis_column}
    columns = {name: column for name, column in names.items() if column is not None}
    if columns and (ids is None or id_column is None):
        raise DataError(
            "columns of a table of people", "no table, or no --id-column", "pass --ids and --id-column"
        )
    if (received is None) == (received_column is None):
        fix = "pass --received DATE, or --received-column NAME for a table"
        raise DataError("the day on which it was received", "none or two of them", fix)
    people = [] if ids is None else people_in(ids, columns)
    listed = [one["id"] for one in people]
    rest = {"received": received, "due": due, "basis": basis, "note": note, "classes": classes or None}
    rest |= {"label": label}
    each = len(columns) > 1  # a request for each id
    new = requests_of(people, rest) if each else [{**rest, "ids": listed if ids else None}]
    for one in new:
        checked_request(one, id_texts)  # a bad request makes no ledger
    doubles = sum(n > 1 for n in Counter(listed).values())
    with open_ledger(ledger, key, sign, must_exist=False) as book:
        first, *more = book.add_many(new)
        text = f"Request {first.number} is due on {first.due}."
        if more:
            soonest = min(one.due for one in (first, *more))
            text = f"Requests {first.number} to {more[-1].number} are added, the first is due on {soonest}."
        if doubles:
            text += f" Listed more than once: {doubles} id{'s' * (doubles > 1)}."
        told = (
            first.to_dict() if len(columns) < 2 else {"requests": [one.to_dict() for one in (first, *more)]}
        )
        show({**told, "doubles": doubles}, text, json_)


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
    """List deletion requests, with the days that are left, and how far a worker is."""
    from purge.ledger.words import about, at_work, days_left, shown
    from purge.report import listing

    with open_ledger(ledger) as book:
        requests, today = book.requests(state=state, due_by=due_by), date.today()
        worker = book.worker()
        records = [shown(one, today, worker) for one in requests]
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
        if not json_ and worker is not None:
            say(at_work(worker))


@app.command("stop")
def stop(
    wait: Annotated[float, Option(help="Seconds to wait until it has ended.", min=0)] = 0,
    ledger: LedgerAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Ask the worker to end at its next step: nothing is certified, and its requests are open again."""
    with open_ledger(ledger) as book:
        worker = book.stop(wait)
        ends = "has ended" if wait else "ends at its next step"
        show(worker.to_dict(), f"The worker, {worker.who}, {ends}; its requests are open again then.", json_)


@app.command("show")
def show_(number: Number, ledger: LedgerAt = None, json_: opt.Json = False, debug: opt.Debug = False) -> None:
    """Show one request: how it stands, and every entry about it."""
    from purge.ledger.words import history, shown
    from purge.report import listing

    with open_ledger(ledger) as book:
        content, found = shown(book.request(number), date.today()), book.found(number)
        entries = history(book, number)
        rows = [
            [name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)]
            for name, value in content.items()
            if value not in (None, [])
        ]
        if found is not None:
            rows += [["rows that went", str(sum(found.rows.values()))]] * bool(found.rows)
            rows += [["in no data", str(len(found.unknown))]] * bool(found.unknown)
        content |= {"found": found and found.to_dict(), "history": entries}
        show(content, listing(["request", str(number)], rows), json_)
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


@app.command("accept")
def accept(
    number: Number,
    by: Annotated[str, Option(metavar="WHO", help="Who accepts it; kept for good.")],
    why: Annotated[str, Option(metavar="TEXT", help="On which ground; kept for good.")],
    unknown: Annotated[
        bool,
        Option("--unknown", help="The ids, or classes, that the last run did not find are in no data."),
    ] = False,
    ledger: LedgerAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Let a request go on although some of its ids are in no data.

    For example: purge request accept 3 --unknown --by "A. Smith" --why "was never a customer"
    """
    if not unknown:
        fix = "look for a typing error first; then pass --unknown"
        raise LedgerError("what is accepted", "nothing", fix)
    with open_ledger(ledger, sign=sign) as book:
        request = book.accept(number, by=by, why=why)
        show(
            request.to_dict(),
            f"Request {number} goes on with the next run; it is due on {request.due}.",
            json_,
        )


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


@app.command("recover")
def recover(
    wait: Wait = 0, ledger: LedgerAt = None, sign: SignAt = None, json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:  # fmt: skip
    """Go on after the newest copy of the ledger, or of the versions of the model, was lost.

    It names each request whose certificate may be wrong now, and opens it again. Nothing is removed.
    """
    from purge.ledger.words import recovered

    with open_ledger(ledger, sign=sign) as book:
        recovery = book.recover(wait)
        show(recovery.to_dict(), recovered(recovery), json_)


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


def people_in(file: Path, columns: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, str]]:
    """The people in a file: one id a line, or a table with these columns."""
    from purge.ledger.intake import ids_from, people_from

    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise FileError(f"a file of ids at {file}", error.strerror or "an error", "check the path") from None
    return (
        people_from(raw, str(file), columns) if columns else [{"id": one} for one in ids_from(raw, str(file))]
    )
