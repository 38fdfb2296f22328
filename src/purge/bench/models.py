"""The data and the models of a bench: loaded from where they are, or made."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

import purge
from purge import load
from purge.bench.jobs import Data, Forget, Job, Shard, Training
from purge.bench.results import result_in
from purge.core.errors import DataError, FileError
from purge.core.files import below, read_json
from purge.core.schema import fit
from purge.core.settings import replace
from purge.core.store import Store, digest_of
from purge.data import DataSource, Samples
from purge.engine import STATE, Recipe
from purge.methods import SISA_INDEX, ShardPlan, train_part
from purge.models import file_digest, read_tensors
from purge.runs import WEIGHTS, Request, build_for, cut, read_facts, train_run

logger = logging.getLogger("purge")

SHARD = "shard.safetensors"
FIX = "choose another folder with --models"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a bench runs, reads and writes."""

    out: Path
    models: Path
    device: str | None = None
    data_dir: str | None = None
    commit: str = ""
    at_once: int = 1  # jobs that run in parallel

    @property
    def kept(self) -> Store:
        """The trained models by their key."""
        return Store(self.models, FIX)

    def file(self, job: Job) -> Path:
        """The file with the result of a job."""
        return below(self.out / "jobs", job.id, ending=".json")


@lru_cache(maxsize=2)
def images(data: Data, data_dir: str | None, device: str | None) -> tuple[Samples, Samples]:
    """The training images and the others, on the device."""
    train, test = load(data.name, data_dir=data_dir, size=data.size, progress=False)
    if data.per_class is not None:
        train = train.select(drawn_per_class(train.labels, data.per_class))
    if data.holdout is not None:
        if int(train.labels.unique(return_counts=True)[1].min()) < 2:
            got = f"1 of a class of {data.name}"
            raise DataError("two training images of each class to hold one out", got, "raise per_class")
        held = drawn_per_class(train.labels, data.holdout)
        train, test = train.select(~held), train.select(held)
    return train.to(device or "cpu"), test.to(device or "cpu")


def drawn_per_class(labels: Tensor, wanted: int | float) -> Tensor:
    """A mask (N,) of so many samples of each class, or of a share of them, the same in every run."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for c in labels.unique():
        rows = order[labels[order] == c]
        k = max(1, round(wanted * len(rows))) if wanted < 1 else int(wanted)
        if k > len(rows):
            got = f"{len(rows)} of class {int(c)}"
            raise DataError(f"{k} training images of each class", got, "lower per_class")
        mask[rows[:k]] = True
    return mask


def request_of(forget: Forget, train: Samples) -> Request:
    """A request in the form of run.json; a fraction of the images is drawn now."""
    if "classes" in forget:
        return {"forget_classes": forget["classes"]}
    if "fraction" not in forget:
        return {"forget_ids": forget["ids"]} if forget else {}
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(forget["seed"]))
    return {"forget_ids": sorted(order[: max(1, round(forget["fraction"] * len(train)))].tolist())}


def trained(training: Training, place: Place) -> Path:
    """The run folder of a model; trains it if nobody has, and resumes an interrupted training."""
    data, test = images(training.data, place.data_dir, place.device)
    key = _key(training, data)
    parts = [place.kept.path(_part(key, i)) for i in range(training.shards)]

    def make(folder: Path) -> None:
        if finished(folder):  # and yet it has to be trained
            words = "The weights in %s are not those that its run.json recorded: trained again."
            logger.warning(words, folder)
        (folder / "run.json").unlink(missing_ok=True)  # a folder with it is taken for finished
        logged = None
        if training.logged:
            shutil.rmtree(folder, ignore_errors=True)  # a logged training cannot resume
            logged = cut(data, request_of(training.logged, data))[0]
        train_run(
            folder, training.model, DataSource(training.data.name, place.data_dir, training.data.size), data,
            request_of(training.forget, data), seed=training.seed, recipe=training.recipe, test=test,
            shards=training.shards or None, slices=training.slices, vote=training.vote,
            parts=lambda shard: parts[shard] / SHARD,
            log_updates=folder / "updates" if logged is not None else None, log_only=logged,
            device=place.device, progress=False, resume=logged is None, force=True,
            more={"per_class": training.data.per_class, "holdout": training.data.holdout,
                  "at_once": place.at_once},
        )  # fmt: skip
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)

    return place.kept.get(key, lambda folder: folder if sound(folder) else None, make)


def train_shard(shard: Shard, place: Place) -> None:
    """Train one shard of a model, which :func:`trained` will find; nothing if that model is there."""
    training = shard.training
    data, _ = images(training.data, place.data_dir, place.device)
    key = _key(training, data)
    if sound(place.kept.path(key)):
        return

    def make(part: Path) -> None:
        request = request_of(training.forget, data)
        kept = cut(data, request)[1] if request else data
        recipe = replace(Recipe(), training.recipe)
        plan = ShardPlan(training.shards, training.slices, training.seed, training.vote, recipe)
        build = partial(build_for, training.model, data)
        train_part(build, kept, plan, shard.number, part / SHARD, device=place.device)

    place.kept.get(_part(key, shard.number), lambda part: read_tensors(part / SHARD), make)


def _key(training: Training, data: Samples) -> str:
    return f"{training.spec}-{digest_of(data.source, purge.__version__)}"


def _part(key: str, shard: int) -> str:
    """The key of a shard that was trained before the rest of its model."""
    return f"{key}.shard{shard}"


def _digests(folder: Path) -> dict[Path, str | None]:
    """The files of weights of a training, as it recorded them."""
    facts = read_facts(folder)
    files: dict[str, str | None] = {WEIGHTS: facts.digest}
    if facts.shards is not None:
        files |= fit(read_json(folder / SISA_INDEX).get("files"), dict[str, str], "files", SISA_INDEX)
    return {below(folder, name): digest for name, digest in files.items()}


def finished(folder: Path) -> bool:
    """Whether the training in a folder has finished and its files are complete."""
    try:
        for file in _digests(folder):
            with safe_open(file, framework="pt"):  # reads the header and compares it with the length
                pass
    except (FileError, OSError, SafetensorError):
        return False
    return not (folder / STATE).is_file()


def sound(folder: Path) -> bool:
    """Whether a finished training still has the weights that it recorded, which takes reading them."""
    return finished(folder) and all(
        digest in (None, file_digest(file)) for file, digest in _digests(folder).items()
    )


def cached(training: Training, models: Path) -> Path | None:
    """A sound model of this training; :func:`trained` also checks that the images are the same."""
    return next((f for f in sorted(models.glob(f"{training.spec}-*")) if sound(f)), None)


def missing(trainings: Sequence[Training], place: Place) -> list[Training]:
    """Those that have no model yet."""
    return [t for t in trainings if not cached(t, place.models)]


def is_done(file: Path) -> bool:
    """Whether there is the result of a job that succeeded."""
    result = result_in(file)
    return result is not None and not {"error", "skipped"} & result.keys()
