"""Every method at its published defaults on CIFAR-10, class 0: results/baselines_cifar10.json.

uv run python benchmarks/baselines.py --data-dir DIR                 # needs a GPU; about 20 minutes
uv run python benchmarks/baselines.py --data-dir DIR scrub delete    # some; the others' rows stay

Base model, Retrain and a second Retrain are trained by the default recipe (ResNet-18 at 32×32) and
kept in --models, so that a further call goes on with them. A method that lost more than ten points
on the retained classes is run once more with gradients clipped to norm 1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from base_models import commit
from torch import nn

import purge
from purge.datasets import DATASETS
from purge.files import write_json
from purge.methods import METHODS
from purge.models import load_weights, save_weights
from purge.result import environment
from purge.runs import build_for
from purge.runtime import seeded
from purge.settings import flat_fields

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "baselines_cifar10.json"
FORGET, MODEL = 0, "resnet18"
KEYS = (
    "ta", "ta_retain", "fa_train", "fa_test", "ra", "mia_loss", "mia_confidence", "mia",
    "bn_recal.before", "bn_recal.after", "bn_recal.delta", "agreement", "kl_retrain", "retrain_gap",
)  # fmt: skip
OTHERWISE = {"sisa", "amnesiac"}  # need a training of their own kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--data-dir")
    parser.add_argument("--models", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=int, help="of the base model; for a quick try")
    asked = parser.parse_args()
    train, test = (part.to(asked.device) for part in purge.load(asked.data, data_dir=asked.data_dir))
    forget, retain = purge.split(train, classes=[FORGET])
    base, base_s = trained(asked, "base", train, 0)
    reference, reference_s = trained(asked, "retrain", retain, 1)
    second, second_s = trained(asked, "retrain-2", retain, 2)

    names = asked.methods or [n for n in METHODS if n not in OTHERWISE | {"retrain"}]
    old = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    models = ("base", "retrain", "retrain-2")
    rows = [row for row in old if row["method"] not in (*names, *models)]

    def audited(name: str, model: nn.Module, seconds: float, **facts: object) -> dict:
        report = purge.audit(
            model, forget, retain, test, original=base if model is not base else None,
            retrained=reference if model is not reference else None, progress=False,
        )  # fmt: skip
        values = {key: report[key].value for key in KEYS}
        row = {"method": name, "seconds": seconds, **facts, **values}
        rows.append(row)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        about = {"data": asked.data, "model": MODEL, "class": FORGET, "seed": 0, "commit": commit()}
        write_json(asked.out, {**about, **environment(), "rows": rows})
        return row

    def attempt(name: str, changes: dict) -> bool:
        """Run a method; did it lose the retained classes, or fail?"""
        try:
            result = purge.unlearn(
                base, forget, retain, method=name, test=test, fresh=untrained(train, 9), **changes
            )
        except purge.PurgeError as error:
            rows.append({"method": name, "changes": changes, "error": str(error)})
            print(rows[-1], flush=True)
            return True
        row = audited(
            name, result.model, result.seconds, changes=changes, steps=result.steps,
            stopped_by=result.stopped_by,
        )  # fmt: skip
        return row["ta_retain"] < at_start - 0.1

    for name, model, seconds in zip(
        models, (base, reference, second), (base_s, reference_s, second_s), strict=True
    ):
        audited(name, model, seconds)
    at_start = next(row["ta_retain"] for row in rows if row["method"] == "base")
    for name in names:
        lost = attempt(name, {})
        if lost and "clip" in {f.name for f, _ in flat_fields(METHODS[name].method)}:
            attempt(name, {"clip": 1.0})


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
    recipe = {**DATASETS[asked.data].recipe, **({"epochs": asked.epochs} if asked.epochs else {})}
    result = purge.train(model, data, seed=seed, device=asked.device, **recipe)
    save_weights(result.model, weights)
    write_json(facts, {"seconds": result.seconds})
    return result.model, result.seconds


if __name__ == "__main__":
    main()
