"""What forgetting a class costs, beside retraining and a plain loop: results/speed.json.

uv run python benchmarks/speed.py --data-dir DIR              # CIFAR-10 at 32×32; needs a GPU; minutes
uv run python benchmarks/speed.py --data-dir DIR --size 224   # the rows of the other size stay
uv run python benchmarks/speed.py --table                     # print the tables

ResNet-18, class 0. Base model and Retrain are trained by the default recipe, at 224×224 for fewer epochs:
only their cost and rough quality count there. All times are of whole calls, model and images being on the
device: medians after one warm-up. ``plain`` and ``retrain`` are run once, after what they need is warm.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from base_models import commit
from baselines import FORGET, MODEL, recipe, trained, untrained
from plain import Pictures, plain
from scene import options, prepare
from torch import nn

import purge
from purge.core.files import write_json
from purge.methods.registry import METHODS
from purge.models.checkpoint import save_weights
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "speed.json"
OURS: dict[str, dict[str, Any]] = {
    "purge": {},
    "purge eager": {"graph": False},
    "purge float32": {"precision": "float32", "graph": False},
    "purge-close": {"method": "purge-close"},
    "purge-paper": {"method": "purge-paper"},
}
METRICS = (
    "fa_test", "ra", "ta_retain", "bn_recal", "agreement", "kl_retrain", "mia_loss", "mia_confidence",
    "destinations_tv",
)  # fmt: skip
SLOW, FEW = 5.0, 3  # seconds from which on a row gets only so many runs
BATCH = 256  # of the training step whose memory is compared: unlearning has 128 of each set


def clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds, the device's work included."""
    settle()
    started = time.perf_counter()
    found = call()
    settle()
    return found, time.perf_counter() - started


def settle() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak(call: Callable[[], Any]) -> tuple[Any, dict[str, int] | None]:
    """What a call returns, and the most device memory it held beyond what was held before, in bytes."""
    if not torch.cuda.is_initialized():
        return call(), None
    gc.collect()
    settle()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    found = call()
    settle()
    most = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return found, {"allocated": most[0] - before[0], "reserved": most[1] - before[1]}


def measured(call: Callable[[], purge.Result], runs: int) -> tuple[purge.Result, dict[str, Any]]:
    """The median over runs after a warm-up, and the memory of one more, whose result is returned."""
    warm_up, seconds = clocked(call)[1], []
    while len(seconds) < (runs if max(seconds, default=0) <= SLOW else min(runs, FEW)):
        seconds.append(clocked(call)[1])
    result, memory = peak(call)
    facts = {"steps": result.steps, "stopped_by": result.stopped_by, "memory": memory}
    found = {"seconds": statistics.median(seconds), "seconds_all": seconds, "seconds_warm_up": warm_up}
    return result, {**found, **facts}


def training_step(model: nn.Module, images: purge.Images) -> None:
    """Two steps as purge.train takes them; in the second, momentum is there too."""
    gpu = images.device.type == "cuda"
    model = copy.deepcopy(model).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True, fused=gpu)
    for _ in range(2):
        x, y = images.take(torch.arange(min(BATCH, len(images))))
        with torch.autocast(images.device.type, torch.bfloat16, enabled=gpu):
            z = model(x).float()
        optimizer.zero_grad()
        F.cross_entropy(z, y).backward()
        optimizer.step()


def cold(options: list[str]) -> dict[str, float]:
    """The first call in a fresh process, which has imported and loaded everything."""
    command = [sys.executable, __file__, *options, "--cold", repr(time.time())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = options(__doc__.splitlines()[0], OUT)
    parser.add_argument("--runs", type=int, default=10, help=f"per row; {FEW} where one takes over {SLOW} s")
    parser.add_argument("--audit-samples", type=int, default=10_000, help="retain samples of the audit")
    parser.add_argument("--no-retrain", action="store_true", help="compare with the kept one, if any")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain implementation out")
    parser.add_argument("--plain-steps", type=int, help="end the plain implementation after so many steps")
    parser.add_argument("--cold", type=float, help=argparse.SUPPRESS)  # when this process was started
    asked = parser.parse_args()
    began = time.time()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    device = torch.device(asked.device)
    loaded, train, test, forget, retain, base, suffix = prepare(asked)
    size = train.shape[1]

    def unlearn(**settings: Any) -> purge.Result:
        return purge.unlearn(base, forget, retain, progress=False, **settings)

    if asked.cold is not None:
        _, seconds = clocked(unlearn)
        print(json.dumps({"seconds": seconds, "seconds_imports": began - asked.cold}))
        return

    about = {"size": size, "data": asked.data, "model": MODEL, "class": FORGET, "forget": len(forget),
             "retain": len(retain), "audit_samples": min(asked.audit_samples, len(retain)),
             "commit": commit(), **environment()}  # fmt: skip
    about["cold"] = cold(sys.argv[1:])
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.type == "cuda"):
        training_step(base, train)
        about["training_step"] = {"batch": BATCH, "memory": peak(lambda: training_step(base, train))[1]}
    old = json.loads(asked.out.read_text())["sizes"] if asked.out.is_file() else []
    few = torch.randperm(len(retain), generator=torch.Generator().manual_seed(0))[: asked.audit_samples]
    rows: list[dict[str, Any]] = []

    def keep(name: str, model: nn.Module, facts: dict[str, Any]) -> None:
        """Audit a model and write its row, with all ratios that can be had by now."""
        report = purge.audit(
            model, forget, retain.select(few), test, metrics=METRICS, progress=False,
            retrained=None if model is reference else reference,
        )  # fmt: skip
        rows.append({"name": name, **facts, "quality": {k: v.value for k, v in report.values.items()}})
        print({k: v for k, v in rows[-1].items() if k != "seconds_all"}, flush=True)
        entry = {**about, "ratios": ratios(rows), "rows": rows}
        write_json(asked.out, {"sizes": sorted([entry, *others], key=lambda e: e["size"])})

    others = [entry for entry in old if entry["size"] != size]
    kept = asked.models / f"retrain{suffix}.json"
    if asked.no_retrain:
        reference = trained(asked, kept.stem, retain, 1)[0] if kept.is_file() else None
    else:  # measured here and now, whatever is kept; two steps first, so that it does not start cold
        start, how = untrained(retain, 1), {"device": device, "progress": False, **recipe(asked)}
        two = retain.select(torch.arange(min(2 * how.get("batch_size", 128), len(retain))))
        purge.train(start, two, **{**how, "epochs": 1})
        result, seconds = clocked(lambda: purge.train(start, retain, seed=1, **how))
        reference = result.model
        if not kept.is_file():
            save_weights(reference, kept.with_suffix(".safetensors"))
            write_json(kept, {"seconds": seconds})
        keep(
            "retrain", reference, {"seconds": seconds, "steps": result.steps, "epochs": result.method.epochs}
        )
    for name, settings in OURS.items():
        result, facts = measured(lambda settings=settings: unlearn(**settings), asked.runs)
        keep(name, result.model, {"settings": settings, **facts})
        del result
    if not asked.no_plain:
        parts = [Pictures(part) for part in purge.split(loaded[0], classes=[FORGET])]
        settings = METHODS["purge-paper"].method
        done, seconds = clocked(lambda: plain(base, *parts, settings, device=device, most=asked.plain_steps))
        facts = {k: v for k, v in done._asdict().items() if k != "model"}
        keep("plain", done.model, {"seconds": seconds, **facts})
    print(table(json.loads(asked.out.read_text())))


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many times longer retraining and the plain implementation took than `purge`, in one call."""
    seconds = {row["name"]: row["seconds"] for row in rows}
    if "purge" not in seconds:
        return {}
    return {name: seconds[name] / seconds["purge"] for name in ("retrain", "plain") if name in seconds}


def table(content: dict) -> str:
    """A Markdown table per size; a plain implementation that was ended early gives a lower bound."""
    parts = []
    for entry in content["sizes"]:
        lines = [
            f"| {entry['size']}×{entry['size']} | seconds | range | steps | times `purge` | memory (GB) | FA "
            "| RA | TA_r | FA, recal. | agreement | MIA |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in entry["rows"]:
            early = row.get("stopped_by") == "limit"
            called = f"`{row['name']}`" if row["name"] not in ("retrain", "plain") else row["name"]
            called += f", {row['epochs']} epochs" if "epochs" in row else ""
            called += f", ended after {row['steps']} of {row['of']} steps" if early else ""
            ratio = entry["ratios"].get(row["name"])
            every, memory, found = row.get("seconds_all"), row.get("memory"), row["quality"]
            keys = ("fa_test", "ra", "ta_retain", "bn_recal.after", "agreement")
            cells = [
                called,
                f"{row['seconds']:.2f}",
                f"{min(every):.2f}–{max(every):.2f}" if every else "once",
                str(row["steps"]),
                f"{'≥ ' * early}{ratio:.{0 if ratio >= 10 else 1}f}" if ratio else "–",
                f"{memory['allocated'] / 1e9:.2f}" if memory else "–",
                *("–" if found[key] is None else f"{100 * found[key]:.1f}" for key in keys),
                "–" if found["mia_loss"] is None else f"{found['mia_loss']:.3f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        first, step = entry["cold"], entry["training_step"]
        held = ""
        if step["memory"]:
            gigabytes = step["memory"]["allocated"] / 1e9
            held = f"; a training step of {step['batch']} images holds {gigabytes:.2f} GB"
        parts.append(
            "\n".join(lines) + f"\n\nFirst call in a fresh process: {first['seconds']:.2f} s after "
            f"{first['seconds_imports']:.1f} s of imports{held}. "
            f"{entry['hardware']['gpu'] or 'CPU'}, commit {entry['commit']}."
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
