"""The demo: a real model forgets a class, beside a retrained one, with the proof printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from purge.api import Auditor, audit, train, unlearn
from purge.data.images import Images
from purge.data.load import load
from purge.data.split import split
from purge.engine.seeding import seeded
from purge.metrics.value import Value
from purge.models.zoo import build
from purge.result import Report, Result

DATA, MODEL, FORGET = "digits", "small-resnet", 0

# Published settings, but for the number of epochs: the forget set has about 140 samples, so an epoch
# is two or three steps. Both methods stop by themselves long before.
PAPER_ON_DIGITS: dict[str, Any] = {"epochs": 200}
ASCENT_ON_DIGITS: dict[str, Any] = {
    "epochs": 100,
    "batch_size": 64,
    "forget_target": 0.0,
}


def example(*, epochs: int = 10, seed: int = 0) -> tuple[nn.Module, Images, Images]:
    """A small trained classifier with its training and test data: something to try things on."""
    data, test = load(DATA)
    fresh = fresh_model(MODEL, len(data.names), data.channels, seed)
    return train(fresh, data, epochs=epochs, seed=seed).model, data, test


class Row(NamedTuple):
    """One model of the demo."""

    name: str
    seconds: float
    stopped_by: str
    report: Report
    folder: Path


def run_demo(
    out: Path, *, quick: bool, seed: int, force: bool, progress: bool, say: Callable[[str], None]
) -> list[Row]:
    """Train, retrain, unlearn three ways, audit all; one row per model, one folder each."""
    epochs = 10 if quick else 25
    data, test = load(DATA)
    classes, channels = len(data.names), data.channels
    forget, retain = split(data, classes=[FORGET])
    n, m = len(data), len(forget)
    say(f"Data: {DATA}, {n} training images, {len(test)} test images, {classes} classes.")

    recipe = {
        "model": MODEL, "classes": classes, "channels": channels, "data": DATA, "source": data.source
    }  # fmt: skip

    def trained(name: str, on: Any, its_seed: int, request: dict[str, Any]) -> Result:
        fresh = fresh_model(MODEL, classes, channels, its_seed)
        result = train(fresh, on, seed=its_seed, epochs=epochs, progress=progress, title=name)
        result.save(out / name, force=force, **recipe, request=request)
        return result

    base = trained("base", data, seed, {})
    retrained = trained("retrain", retain, seed + 1, {"forget_classes": [FORGET]})
    again = trained("retrain-2", retain, seed + 2, {"forget_classes": [FORGET]})
    say(f"Base model: trained in {base.seconds:.1f} s. Reference: retrained without class {FORGET}.")
    say("A second retraining shows how far apart two such references are.")

    results: dict[str, Result] = {}
    for name, changes in (
        ("purge", {}),
        ("purge-paper", PAPER_ON_DIGITS),
        ("gradient-ascent", ASCENT_ON_DIGITS),
    ):
        result = unlearn(base.model, forget, retain, method=name, seed=seed, progress=progress, **changes)
        result.save(
            out / name,
            force=force,
            **recipe,
            request={"forget_classes": [FORGET]},
            original=str((out / "base").absolute()),
        )
        results[name] = result
        say(
            f"{name}: {m} images of class {FORGET} to forget, {result.steps} steps in "
            f"{result.seconds:.1f} s, stopped by {result.stopped_by}."
        )

    rows = []
    shown = [key.split(".")[0] for _, key in COLUMNS]
    thorough: str | list[str] = ["quick", "bn_recal"] if quick else "standard"
    data_of = (forget, retain, test)
    others = [retrained.model, again.model]
    auditor = Auditor(*data_of, original=base.model, retrained=others, seed=seed)  # looks at them once
    for name, result in {"base": base, "retrain": retrained, "retrain-2": again, **results}.items():
        if name in results:
            wanted = thorough if name == "purge" else shown
            report = auditor.audit(result, metrics=wanted, progress=progress)
        else:
            report = audit(
                result.model,
                *data_of,
                original=base.model if result is not base else None,
                retrained=retrained.model if result is not retrained else None,
                metrics=shown,
                seed=seed,
                progress=progress,
            )
        report.to_json(out / name / "audit.json")
        rows.append(Row(name, result.seconds, result.stopped_by, report, out / name))
    return rows


def fresh_model(name: str, classes: int, channels: int, seed: int) -> nn.Module:
    """A model initialised from a seed; the caller's random numbers are not disturbed."""
    with seeded(seed, torch.device("cpu")):
        return build(name, classes=classes, channels=channels)


COLUMNS = (
    ("TA", "ta"),
    ("TA retained", "ta_retain"),
    ("FA", "fa_test"),
    ("RA", "ra"),
    ("MIA", "mia"),
    ("FA after recal.", "bn_recal.after"),
    ("agreement", "agreement"),
)


def as_record(row: Row) -> dict[str, Any]:
    """A row as plain JSON values."""
    numbers = {key: row.report[key].value for _, key in COLUMNS}
    how = {"method": row.name, "seconds": row.seconds, "stopped_by": row.stopped_by}
    return {**how, **numbers, "folder": str(row.folder)}


def sentences(rows: list[Row]) -> list[str]:
    """Three sentences that say what the table shows, from its numbers alone."""
    at = {row.name: row.report for row in rows}
    seconds = {row.name: row.seconds for row in rows}

    def percent(name: str, key: str) -> str:
        return f"{100 * number(name, key):.1f} %"

    def number(name: str, key: str) -> float:
        found: Value = at[name][key]
        assert found.value is not None, found.why
        return found.value

    kept = 100 * (number("purge", "ta_retain") - number("retrain", "ta_retain"))
    gained = {n: 100 * number(n, "bn_recal.delta") for n in ("purge", "purge-paper")}
    back = ", ".join(f"{n} {percent(n, 'bn_recal.before')} → {percent(n, 'bn_recal.after')}" for n in gained)
    survives = [n for n, points in gained.items() if points <= 2]
    verdict = f"survives it with {' and '.join(survives)}" if survives else "survives it with neither"
    lost = 100 * (number("retrain", "ta_retain") - number("gradient-ascent", "ta_retain"))
    return [
        f"purge took the accuracy on unseen images of the forgotten class from "
        f"{percent('base', 'fa_test')} to {percent('purge', 'fa_test')} (retrained: "
        f"{percent('retrain', 'fa_test')}) and is {_points(kept, 'above', 'below')} the retrained model "
        f"on the classes that stay, in {seconds['purge']:.1f} s against {seconds['retrain']:.1f} s.",
        f"Re-estimating BatchNorm on retained images changes the forgotten class's accuracy thus: "
        f"{back}; the forgetting {verdict}.",
        f"Plain gradient ascent takes the forgotten class to {percent('gradient-ascent', 'fa_test')}, is "
        f"{_points(-lost, 'above', 'below')} the retrained model on the classes that stay, and has the "
        f"class back at {percent('gradient-ascent', 'bn_recal.after')} after recalibration.",
    ]


def _points(difference: float, above: str, below: str) -> str:
    return f"{abs(difference):.1f} points {above if difference >= 0 else below}"


def free_folder(base: Path) -> Path:
    """``base``, or base-2, base-3 … if it is taken."""
    candidate, i = base, 1
    while candidate.exists() and any(candidate.iterdir()):
        i += 1
        candidate = base.with_name(f"{base.name}-{i}")
    return candidate
