"""Every method at its published defaults on CIFAR-10, class 0: results/baselines_cifar10.json.

uv run python benchmarks/baselines.py --data-dir DIR                 # needs a GPU; about 15 minutes
uv run python benchmarks/baselines.py --data-dir DIR scrub delete    # some; the others' rows stay
uv run python benchmarks/baselines.py --table                        # print the table of docs/baselines.md

Base model, Retrain and a second Retrain are trained by the default recipe (ResNet-18 at 32×32) and
kept in --models, so that a further call goes on with them. A method that lost more than ten points
on the retained classes is run once more with gradients clipped to norm 1. SISA and Amnesiac start
from base models of their own, as they must: see ``sharded`` and ``logged``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from base_models import commit
from torch import nn

import purge
from purge.core.files import write_json
from purge.core.settings import flat_fields
from purge.data.catalog import DATASETS
from purge.engine.seeding import seeded
from purge.methods.registry import METHODS
from purge.models.checkpoint import load_weights, save_weights
from purge.result import environment
from purge.runs.folder import build_for

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "baselines_cifar10.json"
FORGET, MODEL = 0, "resnet18"
METRICS = [
    "ta", "ta_retain", "fa_train", "fa_test", "ra", "ua", "mia_loss", "mia_confidence", "mia", "mia_svc",
    "bn_recal", "agreement", "kl_retrain", "retrain_gap", "destinations_tv",
]  # fmt: skip
KEYS = (
    "ta", "ta_retain", "fa_train", "fa_test", "ra", "ua", "mia_loss", "mia_confidence", "mia",
    "mia_svc.confidence", "bn_recal.before", "bn_recal.after", "bn_recal.delta", "agreement",
    "kl_retrain", "retrain_gap", "destinations_tv",
)  # fmt: skip
MODELS = ("base", "retrain", "retrain-2")

# What others report for one class of CIFAR-10 and ResNet-18, in percent. UA is 100 − accuracy on the
# forget set; TA leaves the forgotten class out; MIA is the share of the forget set that an SVC on the
# probability of the true class calls non-members. The first column says who.
SALUN = "Fan et al., arXiv:2310.12508, table A2 (10 epochs; as cited by later work, not checked by us)"
COUN = "CoUn, NeurIPS 2025, table 8 (class truck, 50 epochs, learning rate tuned)"
TORCHUNLEARN = "torchunlearn, README (5 epochs; TA above 90 % with the class gone: it leaves the class out)"
LOTUS = "LoTUS, notebook (mean of four differences to Retrain, in points)"
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "retrain": [
        {"by": SALUN, "ua": 100.0, "ra": 100.0, "ta": 92.47, "mia": 100.0},
        {"by": COUN, "ua": 100.0, "ra": 100.0, "ta": 95.14, "mia": 100.0},
    ],
    "finetune": [
        {"by": SALUN, "ua": 31.69, "ra": 99.92, "ta": 94.78, "mia": 93.53},
        {"by": COUN, "ua": 100.0, "ra": 99.97, "ta": 94.99, "mia": 100.0},
        {"by": TORCHUNLEARN, "ua": 4.83, "ra": 100.0, "ta": 94.24},
    ],
    "random-label": [{"by": SALUN, "ua": 89.33, "ra": 99.92, "ta": 94.52, "mia": 100.0}],
    "gradient-ascent": [{"by": SALUN, "ua": 99.91, "ra": 38.92, "ta": 38.18, "mia": 99.98}],
    "influence": [{"by": SALUN, "ua": 97.02, "ra": 94.78, "ta": 89.10, "mia": 99.13}],
    "boundary-expand": [{"by": SALUN, "ua": 79.13, "ra": 97.71, "ta": 91.88, "mia": 93.60}],
    "boundary-shrink": [
        {"by": SALUN, "ua": 79.60, "ra": 97.79, "ta": 91.94, "mia": 93.42},
        {"by": TORCHUNLEARN, "ua": 100, "ra": 98.41, "ta": 91.52},
    ],
    "l1-sparse": [
        {"by": SALUN, "ua": 100.0, "ra": 97.92, "ta": 92.29, "mia": 100.0},
        {"by": COUN, "ua": 100.0, "ra": 100.0, "ta": 95.10, "mia": 100.0},
    ],
    "salun": [
        {"by": SALUN, "ua": 99.91, "ra": 99.93, "ta": 94.56, "mia": 100.0},
        {"by": COUN, "ua": 100.0, "ra": 100.0, "ta": 95.11, "mia": 100.0},
        {"by": TORCHUNLEARN, "ua": 100, "ra": 99.60, "ta": 92.66},
    ],
    "salun-soft": [{"by": SALUN, "ua": 97.13, "ra": 99.88, "ta": 94.64, "mia": 100.0}],
    "neggrad-plus": [{"by": COUN, "ua": 100.0, "ra": 99.98, "ta": 95.10, "mia": 100.0}],
    "not": [{"by": COUN, "ua": 100.0, "ra": 100.0, "ta": 95.14, "mia": 100.0}],
    "scrub": [
        {"by": TORCHUNLEARN, "ua": 100, "ra": 14.31, "ta": 14.27},
        {"by": LOTUS, "gap": 41.75},
    ],
    "bad-teacher": [
        {"by": TORCHUNLEARN, "ua": 84.46, "ra": 99.41, "ta": 92.70},
        {"by": LOTUS, "gap": 17.5},
    ],
    "fisher": [{"by": TORCHUNLEARN, "ua": 98.76, "ra": 97.34, "ta": 90.62}],
    "delete": [
        {"by": "shaaaaron/DELETE, issue 1 (a user)", "ua": 99.70, "ra": 100.0, "ta": 94.79, "fa_test": 3.40}
    ],
    "ssd": [{"by": LOTUS, "gap": 37.5}],
    "unsir": [{"by": LOTUS, "gap": 5.75}],
    "amnesiac-relabel": [{"by": LOTUS, "gap": 10.25}],
    "lotus": [{"by": LOTUS, "gap": 14.25}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--data-dir")
    parser.add_argument("--models", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=int, help="of the base model; for a quick try")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    train, test = (part.to(asked.device) for part in purge.load(asked.data, data_dir=asked.data_dir))
    forget, retain = purge.split(train, classes=[FORGET])
    data = {"base": train, "retrain": retain, "retrain-2": retain}
    models = {name: trained(asked, name, data[name], seed) for seed, name in enumerate(MODELS)}
    base, reference = models["base"][0], models["retrain"][0]
    names = asked.methods or [n for n in METHODS if n != "retrain"]
    old = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    rows = [
        {**row, "published": PUBLISHED.get(row["method"], [])}
        for row in old
        if row["method"] not in (*names, *MODELS)
    ]

    def keep(row: dict) -> None:
        rows.append({**row, "published": PUBLISHED.get(row["method"], []), "commit": commit()})
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        about = {"data": asked.data, "model": MODEL, "class": FORGET, "seed": 0, "commit": commit()}
        write_json(asked.out, {**about, **environment(), "rows": sorted(rows, key=place)})

    def audited(name: str, model: nn.Module, seconds: float, **facts: object) -> dict:
        report = purge.audit(
            model, forget, retain, test, original=base if model is not base else None,
            retrained=reference if model is not reference else None, metrics=METRICS, progress=False,
        )  # fmt: skip
        row = {"method": name, "seconds": seconds, **facts, **{key: report[key].value for key in KEYS}}
        keep(row)
        return row

    def attempt(name: str, start: nn.Module, changes: dict, log: str | None = None, **facts: object) -> bool:
        """Run a method; did it lose the retained classes, or fail?"""
        fresh = untrained(train, 9) if "fresh" in METHODS[name].method.needs else None
        settings = changes if log is None else {**changes, "log": log}
        try:
            result = purge.unlearn(
                start, forget, retain, method=name, test=test, fresh=fresh, progress=False, **settings
            )
        except (purge.PurgeError, torch.OutOfMemoryError) as error:
            keep({"method": name, "changes": changes, "error": str(error).splitlines()[0]})
            return True
        row = audited(
            name, result.model, result.seconds, changes=changes, steps=result.steps,
            stopped_by=result.stopped_by, **facts,
        )  # fmt: skip
        return row["ta_retain"] < models_rows["base"]["ta_retain"] - 0.1

    models_rows = {name: audited(name, *models[name]) for name in MODELS}
    for name in names:
        if name == "sisa":
            started = sharded(train, asked)
            attempt(name, started.model, {}, base_seconds=started.seconds, base="5 shards")
        elif name == "amnesiac":
            with tempfile.TemporaryDirectory() as log:
                started = logged(train, forget, log, asked)
                attempt(name, started.model, {}, log=log, base_seconds=started.seconds, base="2 epochs")
        elif name.startswith("fisher"):  # a fifth of the retain set: all of it takes minutes
            attempt(name, base, {"samples": 9000})
        elif attempt(name, base, {}) and "clip" in {f.name for f, _ in flat_fields(METHODS[name].method)}:
            attempt(name, base, {"clip": 1.0})


def place(row: dict) -> int:
    """Where a row stands, whenever it was measured: the trained models, then as METHODS has them."""
    return [*MODELS, *METHODS].index(row["method"])


def sharded(train: purge.Images, asked: argparse.Namespace) -> purge.Result:
    """Five models, each trained on a fifth of the data, by the same recipe."""
    return purge.train_sharded(
        lambda: build_for(MODEL, train), train, shards=5, device=asked.device, progress=False, **recipe(asked)
    )


def logged(train: purge.Images, forget: purge.Images, log: str, asked: argparse.Namespace) -> purge.Result:
    """A base model of two epochs: of 58, the log would take 250 GB, as every batch has the class."""
    short = {**recipe(asked), "epochs": 2}
    return purge.train(
        untrained(train, 0), train, device=asked.device, log_updates=log, log_only=forget, progress=False,
        **short,
    )  # fmt: skip


def recipe(asked: argparse.Namespace) -> dict:
    return {**DATASETS[asked.data].recipe, **({"epochs": asked.epochs} if asked.epochs else {})}


def untrained(train: purge.Images, seed: int) -> nn.Module:
    with seeded(seed, torch.device("cpu")):
        return build_for(MODEL, train)


def trained(asked: argparse.Namespace, name: str, data: purge.Images, seed: int) -> tuple[nn.Module, float]:
    """A model by the default recipe, from --models if it is there."""
    asked.models.mkdir(parents=True, exist_ok=True)
    weights, facts = asked.models / f"{name}.safetensors", asked.models / f"{name}.json"
    model = untrained(data, seed)
    if facts.is_file():
        load_weights(model, weights)
        return model.to(asked.device).eval(), json.loads(facts.read_text())["seconds"]
    result = purge.train(model, data, seed=seed, device=asked.device, progress=False, **recipe(asked))
    save_weights(result.model, weights)
    write_json(facts, {"seconds": result.seconds})
    return result.model, result.seconds


def table(content: dict) -> str:
    """A Markdown table: ours in percent, what others report beside it."""
    lines = [
        "| | seconds | UA | RA | TA_r | MIA (SVC) | FA | FA after recal. | agreement |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in content["rows"]:
        called = f"`{row['method']}`" if row["method"] not in MODELS else row["method"]
        changed = ", ".join(f"{k} {v:g}" for k, v in (row.get("changes") or {}).items())
        called += f", {changed}" if changed else ""
        if "error" in row:
            lines.append(f"| {called} | {row['error']} |  |  |  |  |  |  |  |")
            continue
        others = {
            key: "/".join(f"{p[theirs]:g}" for p in row["published"] if theirs in p)
            for key, theirs in (
                ("ua", "ua"),
                ("ra", "ra"),
                ("ta_retain", "ta"),
                ("mia_svc.confidence", "mia"),
            )
        }
        shown = ("ua", "ra", "ta_retain", "mia_svc.confidence", "fa_test", "bn_recal.after", "agreement")
        ours = {key: "–" if row[key] is None else f"{100 * row[key]:.1f}" for key in shown}
        cells = [ours[key] + (f" ({others[key]})" if others.get(key) else "") for key in shown]
        lines.append(f"| {called} | {row['seconds']:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
