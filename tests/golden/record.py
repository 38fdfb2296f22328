"""Record what purge computes on digits, so that a change of its structure cannot change its numbers.

uv run python -m tests.golden.record       # writes methods.json, audit.json and bench.txt beside this file

Everything runs on the CPU with one thread. Digests of weights are compared exactly where torch and the
processor are those of the recording, and everywhere else the numbers are compared with a tolerance.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import purge
from purge.methods.registry import METHODS
from purge.models.checkpoint import digest

HERE = Path(__file__).parent
CLASS = 0
SETTINGS: dict[str, dict[str, Any]] = {  # short runs; a method that is not named here runs as it is
    "purge": {"steps": 12},
    "purge-close": {"steps": 12},
    "purge-paper": {"epochs": 4},
    "retrain": {"epochs": 2},
    "finetune": {"epochs": 1},
    "l1-sparse": {"epochs": 2},
    "not": {"epochs": 1},
    "gradient-ascent": {"batch_size": 64, "lr": 1e-3},
    "neggrad-plus": {"epochs": 1},
    "neggrad-plus-small": {"epochs": 1},
    "random-label": {"epochs": 2},
    "salun": {"epochs": 2},
    "salun-soft": {"epochs": 2},
    "amnesiac-relabel": {"epochs": 1},
    "scrub": {"epochs": 2, "max_steps": 1, "batch_size": 256},
    "scrub-small": {"epochs": 2, "max_steps": 1},
    "scrub-r": {"epochs": 2, "max_steps": 1},
    "delete": {"epochs": 4, "lr": 1e-3},
    "boundary-expand": {"epochs": 3, "lr": 1e-3},
    "boundary-shrink": {"epochs": 3, "lr": 1e-3},
    "influence": {"samples": 40},
    "fisher": {"samples": 40, "batch_size": 20},
    "fisher-large": {"samples": 40, "batch_size": 20},
    "ssd": {"per_sample": False, "alpha": 5.0},
    "unsir": {"noise_steps": 3, "noise_repeats": 4, "per_class": 30},
    "iewp": {"epochs": 2},
    "munba": {"epochs": 1},
    "sfron": {"steps": 10},
    "msg": {"epochs": 1},
    "convolution-transpose": {"epochs": 1},
    "lotus": {"epochs": 2},
    "coun": {"epochs": 1},
    "amun": {"epochs": 1},
    "mu-mis": {"epochs": 2},
    "trw": {"epochs": 2},
    "scissorhands": {"epochs": 1},
    "rum": {"methods": ("finetune epochs=1", "salun epochs=1")},
    "amnesiac": {"epochs": 1},
}
# single samples too
SAMPLES = {"purge", "purge-close", "finetune", "salun", "random-label", "bad-teacher"}


def small_net(seed: int) -> nn.Module:
    """A small convolutional network with BatchNorm for the digits."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip


def scene() -> dict[str, Any]:
    """The digits, a trained network, and one that was trained without class 0."""
    train, test = purge.load("digits")
    forget, retain = purge.split(train, classes=[CLASS])
    return {
        "train": train, "test": test, "forget": forget, "retain": retain,
        "base": purge.train(small_net(0), train, epochs=5, progress=False).model,
        "retrained": purge.train(small_net(1), retain, epochs=5, seed=1, progress=False).model,
    }  # fmt: skip


def unlearned(found: dict[str, Any], name: str, *, samples: bool, folder: Path) -> purge.Result:
    """The result of a method on a class, or on fifty single samples."""
    base, settings = found["base"], dict(SETTINGS.get(name, {}))
    forget, retain = found["forget"], found["retain"]
    if samples:
        forget, retain = purge.split(found["train"], indices=range(0, 500, 10))
    if name == "sisa":
        base = purge.train_sharded(
            small_net(0), found["train"], shards=2, slices=2, epochs=3, progress=False
        ).model
        forget, retain = purge.split(found["train"], indices=[3, 40])
    if name == "amnesiac":
        log = folder / "updates"
        base = purge.train(
            small_net(0), found["train"], epochs=2, log_updates=log, log_only=forget, progress=False
        ).model
        settings["log"] = str(log)
    return purge.unlearn(
        base, forget, retain, test=found["test"], method=name, seed=3, progress=False, **settings
    )


def of_methods(found: dict[str, Any]) -> dict[str, Any]:
    """For each method the digest of the weights it delivers and the last row of its history."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            for samples in (False, True) if name in SAMPLES else (False,):
                result = unlearned(found, name, samples=samples, folder=Path(folder))
                norm = sum(float(p.double().norm()) for p in result.model.state_dict().values())
                key = f"{name}, samples" if samples else name
                rows[key] = {"digest": digest(result.model), "norm": norm, "last": result.history[-1]}
    return rows


def of_audit(found: dict[str, Any]) -> dict[str, Any]:
    """The values of a standard audit of three models."""
    purged = unlearned(found, "purge", samples=False, folder=HERE)
    report = purge.audit(
        purged.model, found["forget"], found["retain"], found["test"], original=found["base"],
        retrained=found["retrained"], progress=False,
    ).to_dict()  # fmt: skip
    return {part: report[part] for part in ("values", "retrained", "original")}


def of_bench(folder: Path) -> str:
    """The text of all tables of a small bench, without the machine and the commit."""
    from typer.testing import CliRunner

    from purge.cli.app import app

    out = folder / "out"
    done = CliRunner().invoke(
        app, ["bench", str(HERE / "bench.yaml"), "--out", str(out), "--device", "cpu", "--quiet"]
    )
    if done.exit_code:
        raise RuntimeError(done.output)
    files = sorted((out / "tables").iterdir())
    text = "\n".join(f"=== {file.name}\n{file.read_text(encoding='utf-8')}" for file in files)
    return re.sub(r"jobs; .*?; commit [\w-]+", "jobs; MACHINE; commit COMMIT", text)


def machine() -> dict[str, str]:
    """What exact digests depend on."""
    return {"torch": str(torch.__version__), "cpu": torch.backends.cpu.get_cpu_capability()}


def main() -> None:
    """Write the three files."""
    torch.set_num_threads(1)
    os.environ["PURGE_COMMIT"] = "COMMIT"
    found = scene()
    content = {"machine": machine(), "methods": of_methods(found)}
    (HERE / "methods.json").write_text(json.dumps(content, indent=1) + "\n")
    (HERE / "audit.json").write_text(json.dumps(of_audit(found), indent=1, ensure_ascii=False) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        (HERE / "bench.txt").write_text(of_bench(Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
