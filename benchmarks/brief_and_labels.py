"""Brief trainings, wrong labels and some samples, on networks of others: results/brief_and_labels.json.

uv run python benchmarks/brief_and_labels.py              # digits, minutes on one core
uv run python benchmarks/brief_and_labels.py --as before  # with another purge on PYTHONPATH, to compare with
uv run python benchmarks/brief_and_labels.py --table      # print the tables of docs/methods/purge.md

Five kinds of networks, each trained by AdamW in a loop of its own as users have them. ``brief``: one epoch.
``labels``: 60 of 1,200 labels are wrong, and these samples must go. ``samples``: 60 samples drawn at random.
A seed is a model, a request and two retrainings; ``--models`` keeps them for a second call.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from cases import AGAIN, RETRAINED, mean, rounded
from torch import Tensor, nn

import purge
from purge.core.files import write_json
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "brief_and_labels.json"
SEEDS, MORE = (10, 11, 12), (13, 14, 15, 16, 17, 18)  # more of them where differences are small
SAMPLES, FORGOTTEN, BATCH, LR = 1200, 60, 32, 3e-3
BUDGETS = ("fast", "close")
METRICS = ["fa_train", "ra", "ta", "kl_retrain", "agreement", "mia_entropy", "mia_loss"]
SHOWN = {"ra": "RA", "fa_train": "forgotten", "kl_retrain": "KL", "mia_entropy": "MIA entropy"}
# The aims: AUROC beside Retrain's, RA beside a second retraining's, KL no further from Retrain than before.
ENTROPY, POINTS, KL = 0.07, 0.06, 0.001


def convolutions(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Two convolutions, each with a normalisation."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1), norm(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


class ViT(nn.Module):
    """A small Vision Transformer for 8×8 images: 16 patches of 2×2."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, 8, 8) → (B, 10)."""
        h = self.patch(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(h).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    ),
    "convolutions": partial(convolutions, lambda width: nn.Identity()),
    "BatchNorm": partial(convolutions, nn.BatchNorm2d),
    "GroupNorm": partial(convolutions, partial(nn.GroupNorm, 4)),
    "ViT": ViT,
}


class Kind(NamedTuple):
    """A kind of request."""

    title: str
    epochs: int  # of each training
    networks: tuple[str, ...]
    wrong: bool = False  # are the labels of what must go wrong?
    seeds: tuple[int, ...] = SEEDS


KINDS = {
    "brief": Kind("one epoch, 60 samples", 1, ("GroupNorm", "MLP", "BatchNorm")),
    "labels": Kind("60 wrong labels", 60, ("MLP", "BatchNorm"), wrong=True),
    "samples": Kind("60 samples", 30, tuple(NETWORKS), seeds=SEEDS + MORE),
}

Pair = tuple[Tensor, Tensor]


def request(data: purge.Images, seed: int, *, wrong: bool) -> tuple[Pair, Pair]:
    """What must go and what stays; with ``wrong``, another label than its own on each sample that must go."""
    x, y = data.take(torch.arange(SAMPLES))
    g = torch.Generator().manual_seed(seed)
    rows = torch.randperm(SAMPLES, generator=g)[:FORGOTTEN]
    if wrong:
        y = y.clone()
        y[rows] = (y[rows] + torch.randint(1, 10, (FORGOTTEN,), generator=g)) % 10
    return purge.split((x, y), indices=rows)


def trained(network: str, data: Pair, epochs: int, seed: int) -> nn.Module:
    """A network by a plain training loop."""
    torch.manual_seed(seed)
    model, (x, y) = NETWORKS[network](), data
    optimizer = torch.optim.AdamW(model.parameters(), LR)
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def models(
    kind: str, network: str, forget: Pair, retain: Pair, seed: int, kept: Path | None
) -> list[nn.Module]:
    """The original and two retrainings; found again in the folder ``kept``."""
    file = None if kept is None else kept / f"{kind}-{network}-{seed}.pt"
    if file is not None and file.is_file():
        found = [NETWORKS[network]().eval() for _ in range(3)]
        for model, state in zip(found, torch.load(file), strict=True):
            model.load_state_dict(state)
        return found
    whole = tuple(torch.cat(parts) for parts in zip(forget, retain, strict=True))
    sets = [whole, retain, retain]
    found = [trained(network, d, KINDS[kind].epochs, 100 * seed + i) for i, d in enumerate(sets)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save([model.state_dict() for model in found], file)
    return found


def measured(
    kind: str, network: str, data: purge.Images, test: purge.Images, kept: Path | None
) -> Iterator[dict[str, Any]]:
    """A row for each seed: the numbers of each model."""
    for seed in KINDS[kind].seeds:
        forget, retain = request(data, seed, wrong=KINDS[kind].wrong)
        original, *again = models(kind, network, forget, retain, seed, kept)
        found: dict[str, Any] = {"original": {}}
        unseen = test.take(torch.arange(len(test)))
        for budget in BUDGETS:
            ours = purge.unlearn(original, forget, retain, budget=budget, seed=seed, progress=False)
            report = purge.audit(
                ours, forget, retain, unseen, original=original, retrained=again, metrics=METRICS,
                progress=False,
            )  # fmt: skip
            found[budget] = {**numbers(report.values), "steps": ours.steps, "seconds": ours.seconds}
        others = {"original": report.original, RETRAINED: report.retrained, AGAIN: report.floor}
        found |= {name: numbers(values) for name, values in others.items()}
        yield {"case": kind, "network": network, "seed": seed, "models": found}


def numbers(values: Any) -> dict[str, Any]:
    """The number of each metric that was asked for."""
    return {name: values[name].value for name in METRICS if name in values}


def table(content: dict[str, Any]) -> str:
    """What each budget did, before and after, beside Retrain: means over seeds."""
    heads = ["trained, forgotten", "network", "model", *SHOWN.values()]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    runs = content["runs"]
    for kind, about in KINDS.items():
        for network in about.networks:
            rows = {
                name: [r for r in run["rows"] if (r["case"], r["network"]) == (kind, network)]
                for name, run in runs.items()
            }
            shown = [(m, m, "after") for m in ("original", RETRAINED, AGAIN)]
            shown += [(f"`{b}`, {when}", b, when) for b in BUDGETS for when in runs]
            for called, model, when in shown:
                cells = [about.title, network, called, *(cell(rows[when], model, key) for key in SHOWN)]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(rows: list[dict[str, Any]], model: str, key: str) -> str:
    """A mean over seeds, as it is printed."""
    value = mean(rows, model, key)
    if value is None:
        return "–"
    return f"{value:.3f}" if key in ("kl_retrain", "mia_entropy") else f"{100 * value:.1f} %"


def missed(content: dict[str, Any]) -> list[str]:
    """Which aims the purge called ``after`` misses, in words: means over seeds.

    The KL of samples is compared with that of the purge called ``before``, on the same models; it is
    worse if the mean difference exceeds its standard error and what a table shows.
    """
    found, runs = [], content["runs"]

    def of(kind: str, network: str, run: str = "after") -> list[dict[str, Any]]:
        return [r for r in runs[run]["rows"] if (r["case"], r["network"]) == (kind, network)]

    for network in KINDS["labels"].networks:
        ours, theirs = (mean(of("labels", network), m, "mia_entropy") for m in ("close", RETRAINED))
        if abs(ours - theirs) > ENTROPY:
            found.append(f"labels, {network}: AUROC of the entropy {ours:.3f}, of Retrain {theirs:.3f}")
    for network, budget in product(KINDS["brief"].networks, BUDGETS):
        ours, theirs = (mean(of("brief", network), m, "ra") for m in (budget, AGAIN))
        if abs(ours - theirs) > POINTS:
            found.append(f"brief, {network}: RA of {budget} {ours:.3f}, of a second retraining {theirs:.3f}")
    for network, budget in product(KINDS["samples"].networks if "before" in runs else (), BUDGETS):
        after, before = (
            {row["seed"]: row["models"][budget]["kl_retrain"] for row in of("samples", network, run)}
            for run in ("after", "before")
        )
        apart = [after[seed] - before[seed] for seed in after if seed in before]
        more, error = statistics.fmean(apart), statistics.stdev(apart) / len(apart) ** 0.5
        if more > max(error, KL):
            found.append(f"samples, {network}: KL of {budget} {more:.3f} higher (standard error {error:.3f})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--as", dest="name", choices=("before", "after"), default="after")
    parser.add_argument("--models", type=Path, help="a folder where trained models are kept")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    asked = parser.parse_args()
    if not asked.table:
        logging.getLogger("purge").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        source = ["git", "-C", str(Path(purge.__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(source, capture_output=True, text=True, check=True).stdout.strip()
        data, test = purge.load("digits", progress=False)
        run = {"commit": commit, "seeds": SEEDS + MORE, **environment(), "rows": []}
        for kind, about in KINDS.items():
            for network in about.networks:
                for row in measured(kind, network, data, test, asked.models):
                    run["rows"].append(rounded(row))
                    print(kind, network, row["seed"], flush=True)
        runs = json.loads(asked.out.read_text())["runs"] if asked.out.is_file() else {}
        write_json(asked.out, {"runs": runs | {asked.name: run}})
    content = json.loads(asked.out.read_text())
    print(table(content))
    if "after" in content["runs"]:
        print("\n".join(missed(content)) or "every aim is met")


if __name__ == "__main__":
    main()
