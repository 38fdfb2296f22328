"""The demo: a real model forgets a class, beside a retrained one, with the proof printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from torch import nn

from purge.api import audit
from purge.audit_report import Report
from purge.auditor import Auditor
from purge.core.files import out_folder
from purge.core.folders import claims_out
from purge.data.images import Images
from purge.data.load import load
from purge.data.sources import DataSource
from purge.data.split import split
from purge.metrics.registry import number
from purge.metrics.value import Value
from purge.report.tables import plain_table
from purge.result import Result
from purge.runs.evidence import write_report
from purge.runs.folder import RunFile
from purge.runs.make import facts_for, fresh_model, train_run, unlearn_run
from purge.runs.requests import Request
from purge.training import train

DATA, MODEL, FORGET = "digits", "small-resnet", 0
REPORT = "report.html"

# Published settings, except for the number of epochs: the forget set has about 140 samples, so an epoch
# is two or three steps. Both methods stop by themselves long before.
PAPER_ON_DIGITS: dict[str, Any] = {"epochs": 200}
ASCENT_ON_DIGITS: dict[str, Any] = {"epochs": 100, "batch_size": 64, "forget_target": 0.0}
METHODS = {"purge": {}, "purge-paper": PAPER_ON_DIGITS, "gradient-ascent": ASCENT_ON_DIGITS}

COLUMNS = (
    ("TA", "ta"), ("TA retained", "ta_retain"), ("FA", "fa_test"), ("RA", "ra"), ("MIA", "mia"),
    ("FA after recal.", "bn_recal.after"), ("agreement", "agreement"),
)  # fmt: skip


def example(*, epochs: int = 10, seed: int = 0) -> tuple[nn.Module, Images, Images]:
    """A small trained classifier with its training and test data: something to try things on."""
    data, test = load(DATA)
    return train(fresh_model(MODEL, data, seed=seed), data, epochs=epochs, seed=seed).model, data, test


def kept(out: Path) -> str:
    """After an interruption: what is there, and how to go on."""
    runs = len([*out.glob("*/run.json")])
    return (
        f"{runs} models are in {out}; start again with --out {out} --force." if runs else "Nothing is kept."
    )


class ModelRow(NamedTuple):
    """One model of the demo."""

    name: str
    seconds: float
    stopped_by: str
    report: Report
    folder: Path


@claims_out
def run_demo(
    *, out: Path, quick: bool, seed: int, force: bool, progress: bool, say: Callable[[str], None]
) -> list[ModelRow]:
    """Train, retrain, unlearn in three ways and audit all; one row and one folder per model."""
    out_folder(out, force=force)
    choice, request = DataSource(DATA), Request({"forget_classes": [FORGET]})
    data, test = load(DATA, progress=progress)
    forget, retain = split(data, classes=[FORGET])
    say(f"Data: {DATA}, {len(data)} training images, {len(test)} test images, {len(data.names)} classes.")

    trained: dict[str, Result] = {}
    for name, without in {"base": {}, "retrain": request, "retrain-2": request}.items():
        trained[name] = train_run(
            out / name, MODEL, choice, data, without, seed=seed + len(trained), test=test, force=force,
            recipe={"epochs": 10 if quick else 25}, progress=progress, title=name,
        )  # fmt: skip
    base, retrained = trained["base"], trained["retrain"]
    say(f"Base model: trained in {base.seconds:.1f} s. Reference: retrained without class {FORGET}.")
    say("A second retraining shows how far apart two such references are.")

    unlearned: dict[str, Result] = {}
    for name, settings in METHODS.items():
        unlearned[name] = done = unlearn_run(
            base.model, MODEL, forget, retain, facts=RunFile(), method=name, settings=settings, test=None,
            seed=seed, progress=progress,
        )  # fmt: skip
        facts = facts_for(MODEL, choice, data, request, original=out / "base")
        done.save(out / name, force=force, **facts)
        say(
            f"{name}: {len(forget)} images of class {FORGET} to forget, {done.steps} steps in "
            f"{done.seconds:.1f} s, stopped by {done.stopped_by}."
        )

    shown = [key.split(".")[0] for _, key in COLUMNS]
    panel: str | list[str] = ["quick", "bn_recal"] if quick else "standard"
    sets = (forget, retain, test)
    others = [retrained.model, trained["retrain-2"].model]
    auditor = Auditor(*sets, original=base.model, retrained=others, seed=seed)  # measures the others once
    rows = []
    for name, result in {**trained, **unlearned}.items():
        if name in unlearned:
            report = auditor.audit(result, metrics=panel if name == "purge" else shown, progress=progress)
        else:
            report = audit(
                result.model, *sets, original=base.model if result is not base else None, metrics=shown,
                retrained=retrained.model if result is not retrained else None, seed=seed, progress=progress,
            )  # fmt: skip
        report.to_json(out / name / "audit.json")
        rows.append(ModelRow(name, result.seconds, result.stopped_by, report, out / name))
    write_report({"purge": out / "purge"}, out / REPORT)
    return rows


def as_record(row: ModelRow) -> dict[str, Any]:
    """A row as plain JSON values."""
    numbers = {key: row.report[key].value for _, key in COLUMNS}
    how = {"method": row.name, "seconds": row.seconds, "stopped_by": row.stopped_by}
    return {**how, **numbers, "folder": str(row.folder)}


def table(rows: list[ModelRow]) -> Table:
    """The rows as a table."""
    body = [
        [row.name, f"{row.seconds:.1f}", *(number(key, row.report[key].value) for _, key in COLUMNS)]
        for row in rows
    ]
    return plain_table(["method", "seconds", *(title for title, _ in COLUMNS)], body)


def sentences(rows: list[ModelRow]) -> list[str]:
    """Three sentences that say what the table shows, from its numbers alone."""
    at = {row.name: row for row in rows}

    def value(name: str, key: str) -> float:
        number: Value = at[name].report[key]
        assert number.value is not None, number.why
        return 100 * number.value

    def beside_retrained(name: str) -> str:
        points = value(name, "ta_retain") - value("retrain", "ta_retain")
        side = "above" if points >= 0 else "below"
        return f"{abs(points):.1f} points {side} the retrained model on the classes that stay"

    both, ascent = ("purge", "purge-paper"), "gradient-ascent"
    before, after = "bn_recal.before", "bn_recal.after"
    back = ", ".join(f"{n} {value(n, before):.1f} % → {value(n, after):.1f} %" for n in both)
    survivors = " and ".join(n for n in both if value(n, "bn_recal.delta") <= 2)
    return [
        f"purge took the accuracy on unseen images of the forgotten class from "
        f"{value('base', 'fa_test'):.1f} % to {value('purge', 'fa_test'):.1f} % (retrained: "
        f"{value('retrain', 'fa_test'):.1f} %) and is {beside_retrained('purge')}, in "
        f"{at['purge'].seconds:.1f} s against {at['retrain'].seconds:.1f} s.",
        f"Re-estimating BatchNorm on retained images changes the accuracy on the forgotten class: {back}; "
        f"the forgetting survives it with {survivors or 'neither'}.",
        f"Plain gradient ascent takes the forgotten class to {value(ascent, 'fa_test'):.1f} %, is "
        f"{beside_retrained(ascent)}, and is back at {value(ascent, after):.1f} % on the class "
        f"after recalibration.",
    ]
