"""purge request init, run, certificate, deliver and watch: what carries deletion requests out."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import complain, show
from purge.cli.request import (
    KeyAt,
    LedgerAt,
    Number,
    OrganisationIs,
    SignAt,
    Wait,
    app,
    open_ledger,
    people_in,
)
from purge.core.errors import Exit

if TYPE_CHECKING:
    from purge.ledger.plan import Outcome

__all__ = ["app"]


@app.command("init")
def init(
    run: Annotated[Path, typer.Argument(help="The run folder of the deployed model, made by purge train.")],
    versions: Annotated[
        Path | None, opt.place("Folder for later versions; default: versions beside the ledger.")
    ] = None,
    no_kept_samples: Annotated[
        bool, Option("--no-kept-samples", help="Forgotten samples may not be kept to test them later.")
    ] = False,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Name the model that requests begin with; the ledger is made if there is none.

    For example: purge request init runs/base
    """
    from purge.ledger.worker import init

    with open_ledger(ledger, key, sign, must_exist=False) as book:
        version = init(book, run, versions=versions, keep_for_audit=not no_kept_samples)
        show(version.to_dict(), f"Version {version.number} is {version.folder}.", json_)


@app.command("run")
def run(
    context: typer.Context,
    due: Annotated[int, Option(metavar="DAYS", help="Take what is due within so many days.", min=0)] = 7,
    everything: Annotated[bool, Option("--all", help="Take all open requests.")] = False,
    at_most: Annotated[int | None, Option(metavar="N", help="Take no more than so many.", min=1)] = None,
    every: Annotated[
        int | None,
        Option(metavar="DAYS", help="Take all, unless the last batch was done less than so long ago.", min=1),
    ] = None,
    method: opt.MethodName = "purge",
    set_: opt.Set = None,
    metrics: Annotated[
        str | None, Option(help="Of the audit: a panel, or names with commas; default: a few quick ones.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        Option(help="Keep the old version if any finding 'failed', or 'ta_retain<90' holds; repeatable."),
    ] = None,
    policy: Annotated[
        Path | None, Option(metavar="FILE", help="YAML that says when a retraining is due.")
    ] = None,
    retrain: Annotated[bool, Option("--retrain", help="Train anew, whatever the policy says.")] = False,
    before: Annotated[
        str | None, Option(metavar="COMMAND", help="Run this before a batch; if it fails, nothing begins.")
    ] = None,
    after: Annotated[str | None, Option(metavar="COMMAND", help="Run this after a batch.")] = None,
    witness: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write the end of the chain here, on another disk, say."),
    ] = None,
    wait: Wait = 0,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    trust: opt.Trust = False,
    record: Annotated[Path | None, Option(metavar="FILE", help="Write how it ended to a JSON file.")] = None,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Forget what is due, audit it, and only then mark it done.

    For example: purge request run --due 7 --fail-if failed --fail-if "ta_retain<90" --policy policy.yaml

    Exits 0 if it is done or nothing is due, 1 if something stays open: a gate or the policy was missed, then
    the old version stays; or an id is not in the data, then the other requests are done. 2 is a bad request
    or another worker, 3 something that broke.
    """
    running = running_in(context)
    from purge.core.files import write_json
    from purge.ledger import worker
    from purge.ledger.version_audits import METRICS
    from purge.metrics import PANELS

    outcome: Outcome | None = None
    if record is not None:
        running.tell = lambda ended: write_json(
            record, {**asdict(ended), "outcome": outcome and outcome.facts()}
        )
    running.kept = lambda: "The version before is still the current one; purge request run goes on."
    names: Any = METRICS
    if metrics is not None:
        names = metrics if metrics in PANELS else [m.strip() for m in metrics.split(",") if m.strip()]
    with open_ledger(ledger, key, sign) as book:
        outcome = worker.run(
            book, due=due, everything=everything, at_most=at_most, every=every, wait=wait, method=method,
            settings=opt.settings_from(set_), metrics=names, fail_if=fail_if or [], policy=policy,
            retrain=retrain, seed=seed, device=opt.pick_device(device), trust=trust, before=before,
            after=after, witness=witness, progress=not quiet,
        )  # fmt: skip
    show(outcome.facts(), _words(outcome), json_)
    if outcome.code:
        complain("\n".join(outcome.reasons))
        raise typer.Exit(Exit.MISSED)


def _words(outcome: Outcome) -> str:
    from purge.ledger.words import came_of

    first = came_of(outcome.facts())
    if outcome.version is None:
        return first
    stays = outcome.found["stays"]
    accuracy = "not measured" if "now" not in stays else f"{stays['now']['value']:.1%}"
    points = 100 * (stays["drift"] or 0.0)
    since = f", {abs(points):.1f} points {'less' if points > 0 else 'more'} than after the last training"
    earlier = {g["batch"] for g in outcome.found["groups"] if g["tested"]} - {outcome.batch}
    tested = f" Earlier batches tested: {len(earlier)}; none came back." if earlier else ""
    return (
        f"{first}\n"
        f"Accuracy on test data of the classes that stay: {accuracy}"
        f"{'' if stays['drift'] is None else since}.{tested}"
    )


@app.command("certificate")
def certificate(
    number: Number,
    out: Annotated[Path, opt.place("Folder for certificate-N.json and certificate-N.html.")],
    ids: Annotated[
        Path | None, Option(metavar="FILE", help="The request's own ids, if they shall stand in it.")
    ] = None,
    organisation: OrganisationIs = None,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write the certificate of one request. It names nobody else.

    For example: purge request certificate 17 --out certificates
    """
    from purge.ledger.certificate import write_certificate

    with open_ledger(ledger, key) as book:
        own = None if ids is None else [one["id"] for one in people_in(ids)]
        paths = write_certificate(book, number, out, ids=own, organisation=organisation)
    show({"files": [str(path) for path in paths]}, f"Written to {paths[0]} and {paths[1]}.", json_)


@app.command("deliver")
@opt.with_data
def deliver(
    data: Annotated[
        str, Option(help="The whole training data from now on: a name, folder, file or module:function.")
    ],
    options: opt.Given,
    leave_out: Annotated[
        bool, Option("--leave-out", help="Take the data; never use rows of people who asked to be forgotten.")
    ] = False,
    wait: Wait = 0,
    trust: opt.Trust = False,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write down that the training data has grown; people who come back in it are refused."""
    from purge.ledger.data import deliver

    with open_ledger(ledger, key, sign) as book:
        delivery = deliver(book, data, options=options, leave_out=leave_out, trust=trust, wait=wait)
    left = (
        f" {delivery.came_back} rows of {delivery.people} forgotten people are left out."
        if delivery.people
        else ""
    )
    text = f"The training data has {delivery.rows} rows now, {delivery.before} before.{left}"
    show(dataclasses.asdict(delivery), text, json_)


@app.command("check")
@opt.with_data
def check(
    data: Annotated[str, typer.Argument(help="A name, folder, file or module:function.")],
    options: opt.Given,
    trust: opt.Trust = False,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Say how many rows of forgotten people a table holds, a restored one, say; exits 1 if there are any.

    For example: purge request check customers.csv --label bought --id customer

    It names nobody. Rows of people whose request is not done yet are counted apart.
    """
    from purge.ledger.data import count_rows

    with open_ledger(ledger, key) as book:
        counted = count_rows(book, data, options)
    found = f"{counted.forgotten} of {counted.rows} rows are of people, or classes, that were forgotten"
    show(dataclasses.asdict(counted), f"{found}; {counted.asked} of some whose request is open.", json_)
    if counted.forgotten:
        raise typer.Exit(Exit.MISSED)


@app.command("watch")
def watch(
    folder: Annotated[Path, typer.Argument(help="Where request files are dropped.")],
    every: Annotated[
        float | None, Option(metavar="SECONDS", help="Look again and again; default: once.", min=0.1)
    ] = None,
    keep: Annotated[bool, Option("--keep", help="Leave the files there. They hold ids.")] = False,
    ledger: LedgerAt = None,
    key: KeyAt = None,
    sign: SignAt = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Take in request files that are dropped into a folder, once each.

    A file is YAML or JSON: ids or classes, received, and maybe due, basis and note. It is removed once the
    ledger has it. Name it by a ticket number, not by a person, and rename it when it is whole.

    Exits 2 if a file is no request; the others are taken in.
    """
    from purge.ledger.intake import take_in

    while True:
        with open_ledger(ledger, key, sign, must_exist=False) as book:
            taken = take_in(book, folder, keep=keep)
        numbers = ", ".join(map(str, taken.requests))
        if every is None or taken.requests:
            content = {"requests": taken.requests, "known": taken.known, "refused": taken.refused}
            show(content, f"Added request {numbers}." if numbers else "No new request.", json_)
        for name, why in taken.refused.items():
            complain(f"{name} is left where it is. {why}")
        if every is None:
            if taken.refused:
                raise typer.Exit(Exit.REFUSED)
            return
        time.sleep(every)
