"""Small and large requests beside two retrainings: results/sizes.json.

uv run python benchmarks/sizes.py                     # digits, minutes on two cores
uv run python benchmarks/sizes.py --data cifar10 --data-dir DIR --device cuda --epochs 24   # needs a GPU
uv run python benchmarks/sizes.py --only "1 sample"   # some rows; those of the others stay
uv run python benchmarks/sizes.py --table             # print the table of docs/results.md

How far the original, `purge` and a second retraining are from Retrain on what was forgotten: by KL, and by
the AUROC of the attack on the loss against unseen samples of the same classes. A method must not end further
away than the model that it started from. Few samples say little about that: the smallest requests are
drawn several times for each seed (``draws``) and averaged, and two retrainings differ too. So a
row is called worse only if the mean over seeds of its difference to the original exceeds the standard error
of that mean and its distance exceeds that of the second retraining.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cases import (
    AGAIN,
    OURS,
    RETRAINED,
    File,
    Found,
    Setup,
    mean,
    mislabelled,
    options,
    plan,
    prepare,
    rows_by_case,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

import purge
from purge.models.forward import logits

OUT = Path(__file__).parents[1] / "results" / "sizes.json"
EPOCHS = 40
METRICS = ["kl_retrain", "mia_loss", "agreement", "fa_train", "ra", "ta_retain", "odds_correlation"]
DISTANCES = {"kl_retrain": "KL", "mia_gap": "MIA distance"}
MEMORISED = 37
Request = tuple[purge.Images, Tensor]  # training data, and the rows to be forgotten


class Case(NamedTuple):
    """A kind of request."""

    make: Callable[[Setup, int], Request]  # from a seed
    draws: int = 1  # how often it is drawn for each seed
    whole: bool = True  # is the training data the whole data set, so that cases can share an original?


def samples(n: int) -> Callable[[Setup, int], Request]:
    """Some samples of the whole data, drawn at random."""

    def make(setup: Setup, seed: int) -> Request:
        return setup.train, _drawn(len(setup.train), n, seed)

    return make


def classes(*gone: int) -> Callable[[Setup, int], Request]:
    """Whole classes; for each seed the next ones."""

    def make(setup: Setup, seed: int) -> Request:
        k = len(setup.train.names)
        return setup.train, _of(setup.train, [(c + seed) % k for c in gone])

    return make


def hard(setup: Setup, seed: int) -> Request:
    """Samples that a model which never saw them gets most wrong: a model knows them only by heart."""
    return setup.train, _unseen(setup, seed)[0].topk(MEMORISED).indices.sort().values


def easy(setup: Setup, seed: int) -> Request:
    """As many that it gets right."""
    right = _unseen(setup, seed)[1].nonzero()[:, 0]
    return setup.train, right[_drawn(len(right), MEMORISED, seed)]


def rare(n: int) -> Callable[[Setup, int], Request]:
    """A class that has only n samples in the training data."""

    def make(setup: Setup, seed: int) -> Request:
        gone = _of(setup.train, [seed % len(setup.train.names)])
        kept = torch.ones(len(setup.train), dtype=torch.bool)
        kept[gone[_drawn(len(gone), len(gone) - n, seed)]] = False
        train = setup.train.select(kept)
        return train, _of(train, [seed % len(setup.train.names)])

    return make


def little(then: Callable[[purge.Images, int], Tensor]) -> Callable[[Setup, int], Request]:
    """A tenth of each class as training data, and what of it must go."""

    def make(setup: Setup, seed: int) -> Request:
        each = [_of(setup.train, [c]) for c in range(len(setup.train.names))]
        some = torch.cat([at[_drawn(len(at), math.ceil(len(at) / 10), seed)] for at in each]).sort().values
        train = setup.train.select(some)
        return train, then(train, seed)

    return make


def wrong(setup: Setup, seed: int) -> Request:
    """A tenth of the labels is wrong."""
    return mislabelled(setup.train, 0.1, seed)


CASES: dict[str, dict[str, Case]] = {
    "digits": {
        "1 sample": Case(samples(1), 5),
        "12 samples": Case(samples(12), 2),
        "37 samples": Case(samples(37)),
        "150 samples": Case(samples(150)),
        "700 samples": Case(samples(700)),
        "37 memorised samples": Case(hard),
        "37 easy samples": Case(easy),
        "one class": Case(classes(0)),
        "three classes": Case(classes(1, 4, 8)),
        "a class of 20 samples": Case(rare(20), whole=False),
        "little data, 14 samples": Case(little(lambda t, s: _drawn(len(t), 14, s)), 2, whole=False),
        "little data, one class": Case(little(lambda t, s: _of(t, [s % len(t.names)])), whole=False),
        "wrong labels, a tenth": Case(wrong, whole=False),
    },
    "cifar10": {
        "1 sample": Case(samples(1)),
        "12 samples": Case(samples(12)),
        "500 samples": Case(samples(500)),
        "5,000 samples": Case(samples(5000)),
        "25,000 samples": Case(samples(25_000)),
        "one class": Case(classes(3)),
        "three classes": Case(classes(1, 4, 8)),
    },
}


def _drawn(of: int, n: int, seed: int) -> Tensor:
    return torch.randperm(of, generator=torch.Generator().manual_seed(seed))[:n].sort().values


def _of(data: purge.Images, gone: list[int]) -> Tensor:
    return torch.isin(data.labels, torch.tensor(gone)).nonzero()[:, 0]


@cache
def _unseen(setup: Setup, seed: int) -> tuple[Tensor, Tensor]:
    """Loss of each sample, and whether it is answered rightly, by a model trained on the other half."""
    order = torch.randperm(len(setup.train), generator=torch.Generator().manual_seed(seed))
    loss, right = torch.zeros(len(order)), torch.zeros(len(order), dtype=torch.bool)
    for ours, theirs in (order.chunk(2), order.chunk(2)[::-1]):
        data = setup.train.select(ours)
        z = logits(setup.trained(setup.train.select(theirs), seed + 50).model, data).cpu()
        loss[ours], right[ours] = cross_entropy(z, data.labels, reduction="none"), z.argmax(1) == data.labels
    return loss, right


# -- measuring -----------------------------------------------------------------------------------


class Originals:
    """Trained models to start from; cases on the same data share one for each seed."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.kept = setup, dict[int, purge.Result]()

    def get(self, case: Case, train: purge.Images, seed: int) -> purge.Result:
        """The model for a case."""
        if not case.whole:
            return self.setup.trained(train, seed)
        if seed not in self.kept:
            self.kept[seed] = self.setup.trained(train, seed)
        return self.kept[seed]


def measured(setup: Setup, name: str, seeds: Iterable[int], originals: Originals) -> Iterable[dict[str, Any]]:
    """A row for each seed: the numbers of each model, the mean over draws."""
    case = CASES[setup.data][name]
    for seed in seeds:
        found: list[Found] = []
        start = 100 * seed  # of all seeds for this row
        for draw in range(case.draws):
            train, rows = case.make(setup, seed + 1000 * draw)
            original = originals.get(case, train, start)
            found.append(setup.measured(train, rows, original, OURS, METRICS, start + 3 * draw))
        models = {model: _mean_of([each[model] for each in found]) for model in found[0]}
        yield {"case": name, "seed": seed, "samples": len(rows), "draws": case.draws, "models": models}


def _mean_of(draws: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: None if None in (v := [each[key] for each in draws]) else statistics.fmean(v) for key in draws[0]
    }


class Judged(NamedTuple):
    """A distance to Retrain beside the original's: means over seeds."""

    distance: float
    original: float
    floor: float  # of the second retraining
    error: float  # standard error of the mean difference to the original; 0 for one seed

    @property
    def worse(self) -> bool:
        """Further from Retrain than the original, by more than noise between seeds or retrainings."""
        return self.distance - self.original > self.error and self.distance > self.floor


def judged(rows: list[dict[str, Any]], model: str, key: str) -> Judged:
    """One model's distance, judged over the seeds of a case."""
    ours, before, floor = ([r["models"][m][key] for r in rows] for m in (model, "original", AGAIN))
    apart = [a - b for a, b in zip(ours, before, strict=True)]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
    return Judged(*map(statistics.fmean, (ours, before, floor)), error)


def table(content: Mapping[str, Any]) -> str:
    """The table of docs/results.md: a row for each request."""
    ours = [*OURS]
    heads = ["data", "forgotten", *(f"KL: {m}" for m in ("original", *ours, AGAIN)),
             *(f"MIA distance: {m}" for m in ("original", *ours, AGAIN)),
             "seconds: purge", *(f"{m}" for m in ours[1:]), RETRAINED]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (data, case), rows in rows_by_case(content).items():
        cells = [data, case]
        for key, digits in (("kl_retrain", 3), ("mia_gap", 3)):
            for model in ("original", *ours, AGAIN):
                bad = model in ours and judged(rows, model, key).worse
                cells.append(f"{mean(rows, model, key):.{digits}f}{' ✗' if bad else ''}")
        cells += [f"{mean(rows, model, 'seconds'):.2f}" for model in (*ours, RETRAINED)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__.splitlines()[0], OUT, epochs=EPOCHS)
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    setup = prepare(asked)
    cases = CASES[setup.data]
    if unknown := set(asked.only or []) - set(cases):
        parser.error(f"no row {unknown.pop()!r}; there are {', '.join(cases)}")
    names = asked.only or list(cases)
    trainings = asked.seeds * sum(2 * cases[n].draws + (not cases[n].whole) * cases[n].draws for n in names)
    print(plan(setup, trainings + asked.seeds))
    if asked.plan:
        return
    file, originals = File(asked.out, setup), Originals(setup)
    for name in names:
        rows = []
        for row in measured(setup, name, range(asked.seeds), originals):
            file.add(row)
            rows.append(row)
        for model in OURS:
            for key, called in DISTANCES.items():
                found = judged(rows, model, key)
                said = "worse than" if found.worse else "not worse than"
                print(
                    f"{name}: {model}: {called} {found.distance:.4f} is {said} the original's "
                    f"{found.original:.4f} (standard error {found.error:.4f}, floor {found.floor:.4f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
