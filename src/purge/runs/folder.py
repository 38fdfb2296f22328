"""Run folders: which data, model and weights a run has, what it had to forget, and the words for that."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from torch import nn

from purge.core.errors import DataError, FileError, ModelError
from purge.core.files import read_json
from purge.core.folders import WEIGHTS, recover
from purge.core.plugins import trusted
from purge.core.schema import build
from purge.data.augmented import Augmentation
from purge.data.load import read_source
from purge.data.prefetch import say_once
from purge.data.samples import Samples
from purge.data.sources import OPTIONS, DataSource, option_name
from purge.engine.trainer import Recipe
from purge.methods.sisa_model import SisaModel
from purge.models import builders, zoo
from purge.models.checkpoint import file_digest, load_weights
from purge.models.stored import weights_in
from purge.report.tables import class_words, whose_words
from purge.runs.requests import LeftOut, Request, both, check_request

MAKE = "purge train --data DATA --model MODEL"
# Of a model and its reference:
SAME = ("data", "size", "label_column", "text_column", "id_column", "test_file")


@dataclass(frozen=True)
class RunFile(DataSource, Mapping[str, Any]):
    """What run.json says: which data, the keys that are used later, and all of them as a mapping.

    Without keys it stands for a file of weights, about which nothing is known.
    """

    data: str | None = None  # type: ignore[assignment]
    model: str | None = None
    source: str | None = None  # a fingerprint of the data
    original: str | None = None  # the run folder that it began with
    original_digest: str | None = None
    deployed: str | None = None  # the one that the first of several requests began with
    deployed_digest: str | None = None
    digest: str | None = None
    model_class: str | None = None
    forget_classes: list[int] | None = None  # as the data says; a request from the shell is in ``request``
    forget_samples: int | None = None
    retain_samples: int | None = None
    test_samples: int | None = None
    forget_rows: list[int] | None = None  # of single samples, in the data that the caller had
    rows_of: int | None = None  # how many rows that data had
    forget_digest: str | None = None
    forget_content: str | None = None
    retain_content: str | None = None
    test_content: str | None = None
    train_content: str | None = None  # of a training
    deletion_request: dict[str, str] = field(default_factory=dict)
    request: Request = field(default_factory=dict)
    gone: Request = field(default_factory=dict)  # what the original had forgotten before
    preset: str | None = None
    took: str | None = None
    exact: dict[str, bool | float | str] | None = None  # what was verified about an exact deletion
    method: str = "Recipe"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    threads: int | list[int] | None = None  # of torch; several if a training was resumed with others
    precision: Literal["float32", "bf16"] | None = None
    shards: int | None = None
    slices: int | None = None
    vote: Literal["mean", "majority"] | None = None  # of the shards
    log_updates: str | None = None
    pretrained: bool = False
    stopped_by: str | None = None
    seconds: float | None = None
    steps: int | None = None
    flop: int | None = None  # operations of the run, as models/work.py counts them
    forget_target: float | None = None
    retain_budget: float | None = None
    finished: str | None = None
    names: list[str] | None = None  # of the classes
    test_accuracy: float | None = None
    class_accuracy: dict[str, float] = field(default_factory=dict)
    ledger: str | None = None  # its name, if a ledger says which rows no model is taught any more
    cache: list[str] | None = None  # copies of its data that are kept
    content: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


def read_facts(folder: Path) -> RunFile:
    """Read run.json; a key of the wrong type is refused, an unknown one is kept."""
    recover(folder)
    if not (folder / "run.json").is_file():
        got = "nothing there" if not folder.exists() else "nothing there that says what it is"
        raise FileError(f"a run folder with run.json at {folder}", got, f"make one: {MAKE} --out DIR")
    content = read_json(folder / "run.json")
    known = {key: value for key, value in content.items() if value is not None}
    facts = build(RunFile, {**known, "content": content}, str(folder / "run.json"), ignore_unknown=True)
    for key in ("request", "gone"):
        check_request(getattr(facts, key), f"{key} in {folder / 'run.json'}")
    return facts


def facts_of(checkpoint: Path) -> RunFile:
    """What is known about a checkpoint: run.json of a run folder, nothing about a file of weights.

    A folder of ``save_pretrained`` is its own architecture.
    """
    if is_pretrained(checkpoint):
        return RunFile(model=f"hf:{checkpoint.absolute()}")
    if checkpoint.is_dir():
        return read_facts(checkpoint)
    if not checkpoint.exists():
        fix = f"check the path, or make one: {MAKE} --out {checkpoint}"
        raise FileError(f"a run folder or a file at {checkpoint}", "nothing there", fix)
    return RunFile()


def is_pretrained(checkpoint: Path) -> bool:
    """Is it a folder that ``save_pretrained`` of Hugging Face wrote, and not a run folder?"""
    recover(checkpoint)
    return (checkpoint / "config.json").is_file() and not (checkpoint / "run.json").is_file()


def choose_model(facts: RunFile, name: str | None, trust: bool = False) -> str:
    """The architecture that is named, or else the run's; a folder in it becomes absolute.

    Code that run.json names is refused unless ``trust`` is true.
    """
    if name is None and facts.model is not None:
        name = trusted(facts.model, "run.json", trust, option="--model")
    if name is None:
        raise ModelError("the name of the architecture", "none", "pass --model; see purge list models")
    zoo.known_name(name)
    form, _, path = name.partition(":")
    return f"hf:{Path(path).absolute()}" if form == "hf" and Path(path).is_dir() else name


def read_data(source: DataSource, *, progress: bool) -> tuple[Samples, Samples | None]:
    """The training and test data of a source; None for the test data if all of it was trained on."""
    return read_source(source, progress=progress, tokenizer=builders.tokenizer)


def first_of(checkpoint: Path, facts: RunFile, digest: str | None = None) -> tuple[Path, str | None]:
    """The model that a chain of requests began with, and the digest of its weights, where it is known.

    ``digest``: of the weights in ``checkpoint``, which may be a file that says nothing about itself.
    """
    at, digest, seen = checkpoint.absolute(), facts.digest or digest, set[Path]()
    while facts.original is not None and at not in seen:
        if facts.deployed is not None:
            return Path(facts.deployed), facts.deployed_digest
        seen.add(at)
        at, digest = Path(facts.original), facts.original_digest
        facts = read_facts(at) if (at / "run.json").is_file() else RunFile()
    return at, digest or facts.digest


def export_form(checkpoint: Path, model: str, export: Path) -> Path | None:
    """The file or folder whose form an export has: that which the first request began with.

    If that was a run of purge, a new folder has the form of the folder of its ``model``, and a file none.
    """
    first = first_of(checkpoint, facts_of(checkpoint))[0]
    if first.exists() and not (first / "run.json").is_file():
        return first
    folder = Path(model.removeprefix("hf:"))
    return folder if model.startswith("hf:") and not export.suffix and weights_in(folder) else None


def shown_path(path: Path, run: Path) -> str:
    """A path as people are shown it: from the run folder if it is near, and its name otherwise."""
    near = os.path.relpath(path, run)
    return near if near.count("..") <= 3 else path.name


def recipe_of(run: Path | None, facts: RunFile) -> dict[str, Any]:
    """The settings of a training run; none without a run."""
    if run is not None and facts.method != "Recipe":
        got = "one of purge unlearn"
        raise FileError(f"a run of purge train in {run}", got, "name the run that it began with")
    return facts.settings


def augmentation_of(checkpoint: Path, facts: RunFile) -> Augmentation | None:
    """How the images that a model was trained on were changed at random; None where no run says so.

    For a model that was unlearned before, this is the training that the first request began with.
    """
    if facts.original is not None:
        checkpoint = first_of(checkpoint, facts)[0]
        facts = read_facts(checkpoint) if (checkpoint / "run.json").is_file() else RunFile()
    if facts.method != "Recipe" or "augment" not in facts.settings:
        return None
    own = {key: facts.settings[key] for key in ("augment", "colour") if key in facts.settings}
    return build(Recipe, own, f"settings of {checkpoint / 'run.json'}").augmentation


def read_model(checkpoint: Path, name: str | None, images: Samples, trust: bool = False) -> nn.Module:
    """Build the model that is named, or else the run's, for these images, and load its weights.

    Weights that are not those that run.json recorded are refused.
    """
    facts = facts_of(checkpoint)
    chosen = choose_model(facts, name, trust)
    ours = checkpoint.is_dir() and not is_pretrained(checkpoint)
    if ours:
        check_weights(checkpoint, facts.digest, whole=facts.shards is None)
    built = build_for(chosen, images)
    if facts.shards is not None:
        return SisaModel.load(checkpoint, built)
    load_weights(built, checkpoint / WEIGHTS if ours else checkpoint)
    return built


def build_for(name: str, images: Samples, *, pretrained: bool = False) -> nn.Module:
    """A model with an output for each class of the images and an input of their shape."""
    channels, *sides = images.shape if images.shape else (1,)  # of a table: how many columns
    size = min(sides) if sides else None
    return zoo.build(name, classes=len(images.names), channels=channels, size=size, pretrained=pretrained)


def same_data(facts: RunFile, source: DataSource, images: Samples) -> None:
    """Warn if the sample numbers of a run may no longer mean the same images."""
    split = (facts.split_seed, facts.held_out) == (source.split_seed, source.held_out is not False)
    changed = facts.source not in (None, images.source) or not split
    if changed and "forget_ids" in gone_of(facts):  # ids of people are looked up again
        say_once(
            "The files of the data, or how they are split, have changed since the run was made: its sample "
            "numbers may now mean other images. Pass --forget-ids again to be sure."
        )


def same_scale(facts: RunFile, source: DataSource, what: str) -> None:
    """Refuse images that are scaled otherwise than those that a model was trained on."""
    for key in ("mean", "std"):
        own, theirs = getattr(source, key), getattr(facts, key)
        if own and theirs and own != theirs:
            wanted, got = (f"{key} {', '.join(map(str, numbers))}" for numbers in (theirs, own))
            fix = f"leave out --{key}, or train the model with purge train --like RUN"
            raise DataError(f"images scaled as for the {what} model ({wanted})", got, fix)


def same_kind(facts: RunFile, source: DataSource, what: str) -> None:
    """Refuse a reference model that was trained on other data, or on data that was read otherwise."""
    same_scale(facts, source, what)
    if not facts:
        return
    if facts.held_out != (source.held_out is not False):
        whole, part = "all of the data", "a part of it"
        wanted, got, fix = (part, whole, "without") if facts.held_out is False else (whole, part, "with")
        expected = f"{wanted} as training data of the {what} model too"
        raise DataError(expected, got, f"train it {fix} --all-trained")
    for f in OPTIONS:
        own, theirs = getattr(source, f.name), getattr(facts, f.name)
        if f.name in SAME and own != theirs:
            wanted, got = (f"--{option_name(f)} {value or 'of the data'}" for value in (own, theirs))
            raise DataError(f"{wanted} for the {what} model too", got, "train it with purge train --like RUN")


def check_ledger(checkpoint: Path, facts: RunFile, left_out: LeftOut | None) -> None:
    """Refuse to go on from a model of a ledger without it: it would be taught forgotten people again."""
    if facts.ledger is not None and (left_out is None or left_out.ledger != facts.ledger):
        got = "none" if left_out is None else "another one"
        fix = "pass --ledger with it: it alone knows whose rows must not be taught again"
        raise FileError(f"the ledger that {checkpoint.name} was made with", got, fix)


def gone_of(facts: RunFile) -> Request:
    """Everything that a model should know nothing about: its run's request, and what was gone before."""
    return both(facts.gone, facts.request)


# -- weights ---------------------------------------------------------------------------------------


def check_weights(folder: Path, recorded: str | None, *, whole: bool = True) -> None:
    """Refuse weights with another digest than the recorded one; None: run.json is older than digests.

    ``whole``: the file is all that a command needs of the folder, so it can be named itself.
    """
    if recorded is None or (digest := file_digest(folder / WEIGHTS)) == recorded:
        return
    fix = (
        "restore that file"
        + ", or name it itself with --model and --data to go on without the record" * whole
    )
    raise FileError(
        f"the weights that {folder / 'run.json'} recorded (digest {recorded[:12]}…)",
        f"others in {WEIGHTS} ({digest[:12]}…)",
        fix,
    )


def other_than_audited(folder: Path, recorded: str | None, audited: str | None) -> str:
    """A sentence if an audit looked at other weights than those in the folder; empty if they are the same.

    Where the weights are gone, run.json tells what they were.
    """
    file = folder / WEIGHTS
    if file.is_file():
        check_weights(folder, recorded, whole=False)
    here = file_digest(file) if file.is_file() else recorded
    if here is None or audited is None or here == audited:
        return ""
    return (
        f"The audit of {folder.absolute().name} is of other weights than those in the folder: their digest "
        f"is {here[:12]}…, that of the audited ones {audited[:12]}…. To report on these: purge audit {folder}"
    )


# -- words -----------------------------------------------------------------------------------------


def reference_command(like: str, request: Request) -> str:
    """The command that trains a reference for what was forgotten, up to where it is written to."""
    options = [f"--without-class {c}" for c in request.get("forget_classes", [])]
    if "forget_subjects" in request or "forget_ids" in request:
        options = [*(options if "forget_ids" not in request else []), "--without-ids FILE"]
    return f"purge train {like} {' '.join(options)}"


def like_first(run: Path, facts: RunFile, source: DataSource, model: str) -> str:
    """The options of a training like that of the model which a chain of requests began with."""
    first = first_of(run, facts)[0]
    if (first / "run.json").is_file():
        here = first.relative_to(Path.cwd()) if first.is_relative_to(Path.cwd()) else first
        return f"--like {quote(str(here))}"
    return " ".join([*source.as_options(), f"--model {quote(model)}"])


def request_words(request: Request, names: Sequence[str]) -> str:
    """A request in words: the classes by name, and how many samples."""
    classes, ids = class_words(request.get("forget_classes") or [], names), request.get("forget_ids")
    whose = len(request.get("forget_subjects") or [])
    parts = (classes, f"{len(ids)} samples" if ids else "", whose_words(whose))
    return " and ".join(filter(None, parts))
