"""Run folders and requests: which data and model a run has, and what was to be forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purge.models.zoo import build
from purge.models.zoo import known_name
from purge.data.catalog import DATASETS
from purge.data.load import load
from purge.core.errors import DataError
from purge.core.errors import FileError
from purge.core.errors import ModelError
from purge.core.errors import did_you_mean
from purge.core.errors import expected
from purge.core.files import read_json
from purge.data.images import Images
from purge.models.checkpoint import load_weights
from purge.data.prefetch import say_once
from purge.methods.sisa_model import SisaModel
from purge.data.split import rows_of_classes
from purge.data.split import rows_of_indices

Request = dict[str, list[int]]  # {"forget_classes": […]}, {"forget_ids": […]} or both; empty: nothing


@dataclass(frozen=True)
class DataChoice:
    """Which data, and how to read it: what is written into run.json to read it again."""

    data: str  # a name, or an absolute path
    data_dir: str | None = None
    size: int | None = None
    split_seed: int = 0
    skip_bad: bool = False

    def load(self, *, progress: bool) -> tuple[Images, Images]:
        """The training and test images."""
        return load(
            self.data,
            data_dir=self.data_dir,
            size=self.size,
            split_seed=self.split_seed,
            skip_bad=self.skip_bad,
            progress=progress,
        )


KINDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "data": (str,),
    "data_dir": (str,),
    "size": (int,),
    "split_seed": (int,),
    "skip_bad": (bool,),
    "original": (str,),
    "source": (str,),
    "settings": (dict,),
    "seed": (int,),
    "shards": (int,),
    "slices": (int,),
    "log_updates": (str,),
}


def read_facts(folder: Path) -> dict[str, Any]:
    """What run.json says, each value that is used later of the right kind."""
    facts = read_json(folder / "run.json")
    sound = all(facts.get(k) is None or isinstance(facts[k], kind) for k, kind in KINDS.items())
    for request in (facts.get("request") or {}, facts.get("gone") or {}):
        sound = sound and isinstance(request, dict) and set(request) <= {"forget_classes", "forget_ids"}
        sound = sound and all(isinstance(v, list) and v for v in request.values())
        sound = sound and all(type(i) is int for v in request.values() for i in v)
    if not sound:
        raise FileError(f"model, data, request and original in {folder / 'run.json'}", "values of another kind", "use the run.json that purge wrote")
    return facts


def choose_data(
    facts: dict[str, Any],
    *,
    data: str | None,
    data_dir: Path | None,
    size: int | None,
    split_seed: int | None,
    skip_bad: bool,
) -> DataChoice:
    """The data that is named, or the run's; paths become absolute."""
    name = data or facts.get("data")
    if name is None:
        raise DataError("the name of the training data", "none", "pass --data; see purge list datasets")
    if data is not None and data not in DATASETS and Path(data).exists():
        name = str(Path(data).absolute())
    at = facts.get("data_dir") if data_dir is None else str(data_dir.absolute())
    seed = facts.get("split_seed") if split_seed is None else split_seed
    size = facts.get("size") if size is None else size
    return DataChoice(name, at, size, seed or 0, skip_bad or bool(facts.get("skip_bad")))


def facts_of(checkpoint: Path) -> dict[str, Any]:
    """What is known about a checkpoint: run.json of a run folder, nothing about a file of weights."""
    if checkpoint.is_dir():
        return read_facts(checkpoint)
    if not checkpoint.exists():
        raise FileError(f"a run folder or a file at {checkpoint}", "nothing there", "check the path")
    return {}


def choose_model(facts: dict[str, Any], name: str | None) -> str:
    """The architecture that is named, or the run's; a folder in it becomes absolute."""
    found = name or facts.get("model")
    if found is None:
        raise ModelError("the name of the architecture", "none", "pass --model; see purge list models")
    known_name(str(found))
    form, _, path = str(found).partition(":")
    return f"hf:{Path(path).absolute()}" if form == "hf" and Path(path).is_dir() else str(found)


def recipe_of(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that was trained."""
    if facts.get("method", "Recipe") != "Recipe":
        raise FileError(f"a run of purge train in {run}", "one of purge unlearn", "name the run it began with")
    return facts.get("settings") or {}


def read_model(checkpoint: Path, name: str | None, images: Images) -> nn.Module:
    """Build the model that is named, or the one of the run, for these images; load its weights."""
    facts = facts_of(checkpoint)
    built = build_for(choose_model(facts, name), images)
    if facts.get("shards") is not None:
        return SisaModel.load(checkpoint, built)
    load_weights(built, checkpoint / "model.safetensors" if checkpoint.is_dir() else checkpoint)
    return built


def build_for(name: str, images: Images, *, pretrained: bool = False) -> nn.Module:
    """A model with an output for each class of the images and an input of their shape."""
    channels, height, width = images.shape
    return build(
        name,
        classes=len(images.names),
        channels=channels,
        size=min(height, width),
        pretrained=pretrained,
    )


def same_data(facts: dict[str, Any], choice: DataChoice, images: Images) -> None:
    """Say so where a run's sample numbers may by now mean other images."""
    others = (
        facts.get("source") not in (None, images.source)
        or (facts.get("split_seed") or 0) != choice.split_seed
    )
    if others and "forget_ids" in gone_of(facts):
        say_once(
            "The data is not what it was when the run was made (files, or how they are split): the "
            "numbers of its samples may now mean other images. Give --forget-ids again to be sure."
        )


def same_kind(facts: dict[str, Any], choice: DataChoice, gone: Request, what: str) -> None:
    """A model to compare with must have got the same images; say so if it never saw other ones."""
    if facts and (facts.get("size"), facts.get("data")) != (choice.size, choice.data):
        kind = f"{facts.get('data')} at size {facts.get('size') or 'of the data'}"
        raise DataError(f"{choice.data} at size {choice.size or 'of the data'} for the {what} model too", kind, "train it like the other: purge train --like RUN")
    if facts and what == "retrained" and gone_of(facts) != gone:
        say_once(
            "The retrained model was trained without other data than the audited one is to have forgotten."
        )


# -- requests ---------------------------------------------------------------------------------


def request_of(train: Images, classes: Sequence[str], ids: Path | None, *, words: str) -> Request:
    """What must go, as it is written into run.json; ``words``: the stem of the two options."""
    if classes and ids is not None:
        raise DataError(f"either --{words}-class or --{words}-ids", "both", "say in one way what must be forgotten")
    if classes:
        return {"forget_classes": sorted({_class_number(c, train.names) for c in classes})}
    return {} if ids is None else {"forget_ids": _read_ids(ids, train)}


def gone_of(facts: dict[str, Any]) -> Request:
    """All that a model is to know nothing of: what its run forgot, and what was gone before."""
    return both(facts.get("gone") or {}, facts.get("request") or {})


def both(a: Request, b: Request) -> Request:
    """Two requests as one."""
    return {key: sorted({*a.get(key, []), *b.get(key, [])}) for key in sorted({*a, *b})}


def cut(train: Images, request: Request, before: Request | None = None) -> tuple[Images, Images]:
    """Divide training images into what must go and what must stay; what was gone ``before`` does not stay."""
    forget, gone = _rows(train, request), _rows(train, before or {})
    retain = ~forget & ~gone
    if not forget.any() or not retain.any():
        raise DataError("something to forget and something to retain", f"{int(forget.sum())} of {len(train)} samples to forget", "choose fewer or more of them")
    return train.select(forget), train.select(retain)


def _rows(train: Images, request: Request) -> Tensor:
    found = torch.zeros(len(train), dtype=torch.bool)
    if "forget_classes" in request:
        found |= rows_of_classes(train.labels, request["forget_classes"])
    if "forget_ids" in request:
        found |= rows_of_indices(len(train), request["forget_ids"])
    return found


def _class_number(given: str, names: Sequence[str]) -> int:
    """A class by its name or its number; the name wins where a class is called by another's number."""
    if given in names:
        return names.index(given)
    if given.lstrip("-").isascii() and given.lstrip("-").isdigit():
        return int(given)
    raise DataError("the number or the name of a class", repr(given), did_you_mean(given, list(names)))


def _read_ids(path: Path, train: Images) -> list[int]:
    """Positions in the training data: numbers, or paths as the data has them, one per line."""
    if not path.is_file():
        raise FileError(f"a file of sample numbers at {path}", "nothing there", "check the path")
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    position = {train.paths[id]: i for i, id in enumerate(train.ids.tolist())} if train.paths else {}
    found = set[int]()
    for line in filter(None, lines):
        numbers = line.replace(",", " ").split()
        if line in position:
            found.add(position[line])
        elif all(word.isascii() and word.isdigit() for word in numbers):
            found.update(map(int, numbers))
        else:
            raise _not_an_id(path, line if position else _first_wrong(numbers), train)
    if not found:
        raise DataError(f"sample numbers in {path.name}", "none", "write one number per line")
    return sorted(found)


def _first_wrong(words: list[str]) -> str:
    return next(word for word in words if not (word.isascii() and word.isdigit()))


def _not_an_id(path: Path, line: str, train: Images) -> DataError:
    if not train.paths:
        return DataError(f"whole numbers in {path.name}", repr(line), "write one sample number per line")
    held_out = line in train.paths
    return DataError(f"numbers or paths of training images in {path.name}", f"{line!r}, " + ("which is held out for testing" if held_out else "which is not there"), f"write paths as the data has them, such as {train.paths[int(train.ids[0])]}")
