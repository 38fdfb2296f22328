"""The data and the models of a bench: loaded from where they are, or made."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

import purge
from purge import load
from purge.bench.jobs import Data, Forget, Job, Training
from purge.core.errors import DataError, FileError
from purge.core.files import below, read_json
from purge.core.schema import fit
from purge.core.store import Store, digest_of
from purge.data import DataSource, Samples
from purge.methods import SISA_INDEX
from purge.models import file_digest
from purge.runs import WEIGHTS, Request, cut, read_facts, train_run

logger = logging.getLogger("purge")

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

    def make(folder: Path) -> None:
        if (folder / "run.json").is_file():  # and yet it has to be trained
            words = "The weights in %s are not those that its run.json recorded: trained again."
            logger.warning(words, folder)
            (folder / "run.json").unlink()
        logged = None
        if training.logged:
            shutil.rmtree(folder, ignore_errors=True)  # a logged training cannot resume
            logged = cut(data, request_of(training.logged, data))[0]
        train_run(
            folder, training.model, DataSource(training.data.name, place.data_dir, training.data.size), data,
            request_of(training.forget, data), seed=training.seed, recipe=training.recipe, test=test,
            shards=training.shards or None, slices=training.slices, vote=training.vote,
            log_updates=folder / "updates" if logged is not None else None, log_only=logged,
            device=place.device, progress=False, resume=logged is None, force=True,
            more={"per_class": training.data.per_class, "holdout": training.data.holdout,
                  "at_once": place.at_once},
        )  # fmt: skip

    key = f"{training.spec}-{digest_of(data.source, purge.__version__)}"
    return Store(place.models, FIX).get(key, lambda folder: folder if sound(folder) else None, make)


def sound(folder: Path) -> bool:
    """Whether the training in a folder has finished, and its weights are those that it recorded."""
    try:
        facts = read_facts(folder)
        files: dict[str, str | None] = {WEIGHTS: facts.digest}
        if facts.shards is not None:
            files |= fit(read_json(folder / SISA_INDEX).get("files"), dict[str, str], "files", SISA_INDEX)
        return all(file_digest(below(folder, name)) == digest for name, digest in files.items())
    except (FileError, OSError):
        return False


def cached(training: Training, models: Path) -> Path | None:
    """A sound model of this training; :func:`trained` also checks that the images are the same."""
    return next((f for f in sorted(models.glob(f"{training.spec}-*")) if sound(f)), None)


def missing(trainings: Sequence[Training], place: Place) -> list[Training]:
    """Those that have no model yet."""
    return [t for t in trainings if not cached(t, place.models)]
