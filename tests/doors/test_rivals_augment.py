"""Published methods train on augmented data where their authors do, and read it as it is where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purge
from tests.cli.commands import ran

BOTH = ("random-label", "salun", "salun-soft", "munba", "sfron", "scissorhands", "lotus")
RETAINED = ("finetune", "l1-sparse", "not")
FORGOTTEN_ALONE = ("gradient-ascent", "delete")
AUGMENTED = (*BOTH, *RETAINED, *FORGOTTEN_ALONE)
PLAIN = ("amnesiac-relabel", "scrub", "neggrad-plus", "bad-teacher", "boundary-shrink", "msg")
SHORT = {"sfron": {"steps": 10}, "lotus": {"epochs": 2, "share": 1.0}}  # the others: two epochs
FORGOTTEN, KEPT = 24, 72
Weights = dict[str, Tensor]


def points(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three clouds; no two points are the same."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(FORGOTTEN + KEPT) % 3
    return 2 * torch.eye(6)[y] + torch.randn(len(y), 6, generator=g), y


def pictures(seed: int = 0) -> purge.Images:
    """Noise of three kinds of brightness."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % 3
    pixels = torch.randint(0, 120, (60, 3, 12, 12), generator=g) + 60 * y[:, None, None, None]
    return purge.Images(pixels.byte(), y, mean=(0.5,) * 3, std=(0.25,) * 3)


def network(*first: nn.Module, width: int) -> nn.Module:
    """A small network with BatchNorm."""
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture(scope="module")
def learned() -> nn.Module:
    """A network that knows the points."""
    untrained = network(nn.Linear(6, 12), width=12)
    return purge.train(untrained, points(), epochs=6, batch_size=16, lr=0.1, progress=False).model


@pytest.fixture(scope="module")
def seeing() -> nn.Module:
    """A network for the pictures."""
    return network(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12), width=12)


def unlearned(model: nn.Module, make: Any, name: str, **settings: Any) -> tuple[Weights, purge.Result]:
    """What a short run delivers."""
    forget, retain = purge.split(make(), indices=range(FORGOTTEN))
    given = {"batch_size": 12, **SHORT.get(name, {"epochs": 2}), **settings}
    result = purge.unlearn(
        model, forget, retain, test=make(seed=1), method=name, progress=False, check=False, seed=1, **given
    )
    return {key: t.clone() for key, t in result.model.state_dict().items()}, result


def same(one: Weights, other: Weights) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


class Seen:
    """A change that changes nothing and writes down which points it was given."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.calls.append((x[:, None] == points()[0][None]).all(2).long().argmax(1).tolist())
        return x

    @property
    def batches(self) -> list[list[int]]:
        """Without the two looks at the door, which try the change on two samples of each set."""
        return self.calls[2:]

    def times(self, rows: range) -> list[int]:
        """How often each of these points was read."""
        flat = [row for batch in self.batches for row in batch]
        return [flat.count(row) for row in rows]


# -- what is read through augment= ------------------------------------------------------------------


@pytest.mark.parametrize("name", AUGMENTED)
def test_every_sample_is_read_as_in_training(name: str, learned: nn.Module) -> None:
    seen = Seen()
    changed, result = unlearned(learned, points, name, augment=seen)
    assert result.info["augment"] == "by Seen"
    forgotten, kept = seen.times(range(FORGOTTEN)), seen.times(range(FORGOTTEN, FORGOTTEN + KEPT))
    assert (min(forgotten) > 0) == (name not in RETAINED)
    assert (max(forgotten) > 0) == (name not in RETAINED)
    assert (min(kept) > 0) == (max(kept) > 0) == (name not in FORGOTTEN_ALONE)
    # A change that changes nothing: neither the order nor any draw depends on augmentation.
    plain, _ = unlearned(learned, points, name)
    assert same(changed, plain)
    assert not same(plain, learned.state_dict())


@pytest.mark.parametrize("name", AUGMENTED)
def test_pictures_are_moved_by_name(name: str, seeing: nn.Module) -> None:
    before = {key: t.clone() for key, t in seeing.state_dict().items()}
    plain, without = unlearned(seeing, pictures, name)
    moved, result = unlearned(seeing, pictures, name, augment="crop-flip")
    still, none = unlearned(seeing, pictures, name, augment="none")
    assert not same(moved, plain)
    assert same(still, plain)
    told = [one.info["augment"] for one in (without, result, none)]
    assert told == [None, "crop-flip", "none"]
    again, _ = unlearned(seeing, pictures, name, augment="crop-flip")
    assert same(moved, again), "the same seed moves the same pictures in the same way"
    assert same(before, seeing.state_dict())


@pytest.mark.parametrize("name", PLAIN)
def test_where_the_authors_do_not_it_is_refused(name: str, learned: nn.Module) -> None:
    with pytest.raises(purge.PurgeError, match="a method that augments its data, for augment="):
        unlearned(learned, points, name, augment=Seen())


def test_samples_that_wait_for_their_turn_are_moved_too(seeing: nn.Module) -> None:
    """RUM: what is to be forgotten later is retained meanwhile, beside the rest."""
    parts = ("finetune epochs=1 batch_size=60", "none")  # one step, on all that is retained
    forget, retain = purge.split(pictures(), indices=range(FORGOTTEN))
    found = [
        purge.unlearn(
            seeing, forget, retain, method="rum", methods=parts, augment=augment, progress=False, check=False
        ).model.state_dict()
        for augment in ("none", "crop-flip")
    ]
    assert not same(*found)


# -- in which order -------------------------------------------------------------------------------


def kinds(seen: Seen) -> list[bool]:
    """For each batch whether it is of forgotten points; those of SalUn's saliency are left out."""
    return [batch[0] < FORGOTTEN for batch in seen.batches]


@pytest.mark.parametrize("name", ["random-label", "salun", "salun-soft"])
def test_both_sets_are_mixed_as_in_the_published_runs(name: str, learned: nn.Module) -> None:
    given = {"batch_size": 48, "epochs": 10}  # two steps an epoch, each with some of both
    mixed, apart = Seen(), Seen()
    unlearned(learned, points, name, augment=mixed, **given)
    unlearned(learned, points, name, augment=apart, mixed=False, **given)
    order, later = kinds(mixed)[-40:], kinds(apart)[-30:]
    assert sum(order) == 20, "every step has forgotten points and retained ones"
    assert later == 10 * [True, False, False], "the authors' later order, epoch by epoch"


# -- at the shell -----------------------------------------------------------------------------------


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "base"
    how = ("--set", "epochs=1", "--set", "augment=crop", "--set", "colour=0.1")
    ran("train", "--data", "digits", "--model", "small-resnet", *how, "--quiet", "--out", out)
    return out


def test_a_run_folder_says_how(base: Path, tmp_path: Path) -> None:
    asked = ("unlearn", base, "--forget-class", 3, "--method", "salun", "--set", "epochs=1", "--quiet")
    ran(*asked, "--out", tmp_path / "as-trained")
    ran(*asked, "--augment", "none", "--out", tmp_path / "plain")
    one, two = record(tmp_path / "as-trained"), record(tmp_path / "plain")
    assert (one["augment"], two["augment"]) == ("crop, colour 0.1", "none")
    assert one["digest"] != two["digest"]


def bench(folder: Path, augment: str) -> dict[str, dict[str, Any]]:
    """The records of a small experiment, by their method."""
    folder.mkdir()
    lines = (
        "data: digits", "model: mlp", "per_class: 20", "retrains: 0", "forget: [3]", "metrics: [fa_test]",
        f"recipe: {{epochs: 1, augment: {augment}}}",
        "methods:", *(f"  - {{method: {name}, set: {{epochs: 1}}}}" for name in ("salun", "scrub")),
        "tables: [{name: one, rows: [label], columns: [fa_test]}]",
    )  # fmt: skip
    (folder / "plan.yaml").write_text("\n".join(lines))
    ran("bench", folder / "plan.yaml", "--out", folder / "out", "--device", "cpu", "--quiet")
    jobs = [(file.name, json.loads(file.read_text())) for file in (folder / "out" / "jobs").glob("*.json")]
    return {job["method"]: {"name": name, **job} for name, job in jobs}


def test_a_bench_takes_it_from_the_recipe(tmp_path: Path) -> None:
    plain, moved = bench(tmp_path / "plain", "none"), bench(tmp_path / "moved", "crop")
    told = [[jobs[name]["augment"] for name in ("salun", "scrub")] for jobs in (plain, moved)]
    assert told == [["none", None], ["crop", None]]
    assert plain["salun"]["name"] != moved["salun"]["name"], "another job, which no other one stands for"
