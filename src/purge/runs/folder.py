"""Run folders and requests: which data and model a run has, and what it had to forget."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from purge.core.errors import DataError, FileError, ModelError, brief, did_you_mean
from purge.core.files import read_json
from purge.core.folders import recover
from purge.core.schema import build
from purge.data.augmented import Augmentation
from purge.data.catalog import DATASETS
from purge.data.formats.tables import ENDINGS, is_table, read_table
from purge.data.images import Images
from purge.data.load import load
from purge.data.own import from_function, is_function
from purge.data.prefetch import say_once
from purge.data.samples import GivenLabels
from purge.data.split import rows_of_classes, rows_of_indices
from purge.data.table import Encode, load_table
from purge.engine.trainer import Recipe
from purge.methods.sisa_model import SisaModel
from purge.models import builders, zoo
from purge.models.checkpoint import load_weights
from purge.runs.weights import WEIGHTS, check_weights

# {"forget_classes": […]}, {"forget_ids": […]} (positions), {"forget_subjects": […]} (the user's own ids as
# text) or several of them; empty: nothing
Request = dict[Literal["forget_classes", "forget_ids", "forget_subjects"], list[Any]]


OF_TABLES = ("label_column", "text_column", "id_column", "test_file")
NOT_OF_FUNCTIONS = ("size", "mean", "std", "transform", *OF_TABLES)
MOST_IDS_SHOWN = 3  # in a message: they are personal data
DIGITS = 100  # of a sample or class number in a file; Python itself reads no more than 4,300


@dataclass(frozen=True)
class DataChoice:
    """Which data, and how to read it: run.json says so, and the data can be read again."""

    data: str  # a name, an absolute path, or module:function
    data_dir: str | None = None
    size: int | None = None
    split_seed: int = 0
    skip_bad: bool = False
    mean: tuple[float, ...] | None = None  # None: that of the data
    std: tuple[float, ...] | None = None
    label_column: str | None = None  # of a table
    text_column: str | None = None  # None: all other columns, which are numbers
    id_column: str | None = None  # whose each row is
    test_file: str | None = None  # None: a fifth is held out
    tokenizer: str | None = None  # the folder that makes tokens of the texts
    transform: str | None = None  # module:function, applied to batches of images

    def load(self, *, progress: bool) -> tuple[Images, Images]:
        """The training and test data."""
        if is_function(self.data):
            return self._from_function()
        images = self.data in DATASETS or not is_table(Path(self.data)) or self.data.endswith(".parquet")
        if self.label_column is not None or not images:
            return self._from_table()
        self._refuse(f"a table with --{{}}, a file of {', '.join(ENDINGS)}", OF_TABLES)
        return load(
            self.data, data_dir=self.data_dir, size=self.size, split_seed=self.split_seed,
            skip_bad=self.skip_bad, mean=self.mean, std=self.std, progress=progress,
        )  # fmt: skip

    def _from_table(self) -> tuple[Images, Images]:
        """Rows of a file."""
        path = Path(self.data)
        if not is_table(path):
            fix = "leave it out, or name a table"
            raise DataError(f"a file of {', '.join(ENDINGS)} for --label", brief(path.name), fix)
        if self.label_column is None:
            fix = f"pass --label with one of {', '.join([*read_table(path).columns][:20])}"
            raise DataError(f"the column of the classes in {path.name}", "no --label", fix)
        self._refuse("a table without --{}, which is for images", ("size", "transform"))
        encode: Encode | None = None
        names: tuple[str, ...] = ()
        if self.text_column is not None:
            self._refuse("texts without --{}", ("mean", "std"))
            if self.tokenizer is None:
                fix = "pass --model hf:DIR, or leave out --text"
                raise DataError(
                    "a model of Hugging Face for --text, whose tokenizer is in DIR", "another", fix
                )
            encode, names = builders.tokenizer(self.tokenizer)
        found = load_table(
            path, label=self.label_column, text=self.text_column, id=self.id_column, encode=encode,
            test=None if self.test_file is None else Path(self.test_file), names=names,
            split_seed=self.split_seed, mean=self.mean, std=self.std,
        )  # fmt: skip
        return cast("tuple[Images, Images]", found)

    def _refuse(self, what: str, fields: Sequence[str]) -> None:
        """Refuse options that this kind of data does not have."""
        for name in fields:
            if getattr(self, name) is not None:
                option = name.partition("_")[0]
                raise DataError(what.format(option), f"--{option} for {Path(self.data).name}", "leave it out")

    def _from_function(self) -> tuple[Images, Images]:
        self._refuse(f"data of a function without --{{}}; prepare it in {self.data}", NOT_OF_FUNCTIONS)
        return cast("tuple[Images, Images]", from_function(self.data))  # Rows has all that is used below


@dataclass(frozen=True)
class RunFile(Mapping[str, Any]):
    """What run.json says: the keys that are used later by their types, and all of them as a mapping.

    Without keys it stands for a file of weights, about which nothing is known.
    """

    model: str | None = None
    data: str | None = None
    data_dir: str | None = None
    size: int | None = None
    split_seed: int = 0
    skip_bad: bool = False
    mean: list[float] | None = None
    std: list[float] | None = None
    label_column: str | None = None
    text_column: str | None = None
    id_column: str | None = None
    test_file: str | None = None
    transform: str | None = None
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
    content = read_json(folder / "run.json")
    given = {key: value for key, value in content.items() if value is not None}
    return build(RunFile, {**given, "content": content}, str(folder / "run.json"), ignore_unknown=True)


def facts_of(checkpoint: Path) -> RunFile:
    """What is known about a checkpoint: run.json of a run folder, nothing about a file of weights.

    A folder of ``save_pretrained`` is its own architecture.
    """
    if is_pretrained(checkpoint):
        return RunFile(model=f"hf:{checkpoint.absolute()}")
    if checkpoint.is_dir():
        return read_facts(checkpoint)
    if not checkpoint.exists():
        raise FileError(f"a run folder or a file at {checkpoint}", "nothing there", "check the path")
    return RunFile()


def is_pretrained(checkpoint: Path) -> bool:
    """Is it a folder that ``save_pretrained`` of Hugging Face wrote, and not a run folder?"""
    recover(checkpoint)
    return (checkpoint / "config.json").is_file() and not (checkpoint / "run.json").is_file()


def trusted(name: str, where: str, trust: bool, *, option: str = "") -> str:
    """A name out of a file, if it imports no code: ``module:name`` needs ``--trust``, or its own option.

    ``option``: what would name it on the command line, such as ``--model``.
    """
    form, colon, _ = name.partition(":")
    if colon and form not in ("timm", "hf") and not trust:
        what = f"{option} on this command line or --trust" if option else "--trust on this command line"
        fix = f"pass {option or '--trust'}" + (f" {name}" if option else "")
        raise FileError(what, f"{name!r} from {where}", f"{fix} if its code may run")
    return name


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


def choose_data(
    facts: RunFile, *, data: str | None, data_dir: Path | None, size: int | None, split_seed: int | None,
    skip_bad: bool, mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
    trust: bool = False, label: str | None = None, text: str | None = None, id: str | None = None,
    test: Path | None = None, transform: str | None = None, model: str = "",
) -> DataChoice:  # fmt: skip
    """The data that is named, or else the run's; paths become absolute.

    Inputs are scaled, and columns of a table chosen, as the run did. Code that run.json names is refused
    unless ``trust`` is true. ``model``: the architecture, whose folder has the tokenizer of texts.
    """
    name = data or facts.data
    if data is None and name is not None and is_function(name):
        trusted(name, "run.json", trust, option="--data")
    if name is None:
        raise DataError("the name of the training data", "none", "pass --data; see purge list datasets")
    if data is not None and data not in DATASETS and Path(data).exists():
        name = str(Path(data).absolute())
    same = name == facts.data and not is_function(name)  # other data has another mean
    mean, std = mean or (facts.mean if same else None), std or (facts.std if same else None)
    known = facts if same else RunFile()
    if transform is None and known.transform is not None:
        trusted(known.transform, "run.json", trust, option="--transform")
    text = text or (known.text_column if label is None else None)
    return DataChoice(
        name,
        facts.data_dir if data_dir is None else str(data_dir.absolute()),
        facts.size if size is None else size,
        facts.split_seed if split_seed is None else split_seed,
        skip_bad or facts.skip_bad,
        None if mean is None else tuple(mean),
        None if std is None else tuple(std),
        label or known.label_column,
        text,
        id or known.id_column,
        known.test_file if test is None else str(test.absolute()),
        model.removeprefix("hf:") if text is not None and model.startswith("hf:") else None,
        transform or known.transform,
    )


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


def export_form(checkpoint: Path) -> Path | None:
    """The file or folder whose form an export has: that which the first request began with, if it was not
    a run of purge."""
    first = first_of(checkpoint, facts_of(checkpoint))[0]
    return first if first.exists() and not (first / "run.json").is_file() else None


def shown_path(path: Path, run: Path) -> str:
    """A path as people are shown it: from the run folder if it is near, and its name otherwise."""
    near = os.path.relpath(path, run)
    return near if near.count("..") <= 3 else path.name


def recipe_of(run: Path, facts: RunFile) -> dict[str, Any]:
    """The settings of a training run."""
    if facts.method != "Recipe":
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
    given = {key: facts.settings[key] for key in ("augment", "colour") if key in facts.settings}
    return build(Recipe, given, f"settings of {checkpoint / 'run.json'}").augmentation


def read_model(checkpoint: Path, name: str | None, images: Images, trust: bool = False) -> nn.Module:
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


def build_for(name: str, images: Images, *, pretrained: bool = False) -> nn.Module:
    """A model with an output for each class of the images and an input of their shape."""
    channels, *sides = images.shape if images.shape else (1,)  # of a table: how many columns
    size = min(sides) if sides else None
    return zoo.build(name, classes=len(images.names), channels=channels, size=size, pretrained=pretrained)


def same_data(facts: RunFile, choice: DataChoice, images: Images) -> None:
    """Warn if the sample numbers of a run may no longer mean the same images."""
    changed = facts.source not in (None, images.source) or facts.split_seed != choice.split_seed
    if changed and "forget_ids" in gone_of(facts):  # ids of people are looked up again
        say_once(
            "The files of the data, or how they are split, have changed since the run was made: its sample "
            "numbers may now mean other images. Pass --forget-ids again to be sure."
        )


def same_scale(facts: RunFile, choice: DataChoice, what: str) -> None:
    """Refuse images that are scaled otherwise than those that a model was trained on."""
    for key in ("mean", "std"):
        own, theirs = getattr(choice, key), getattr(facts, key)
        if own and theirs and own != tuple(theirs):
            wanted, got = (f"{key} {', '.join(map(str, numbers))}" for numbers in (theirs, own))
            fix = f"leave out --{key}, or train the model with purge train --like RUN"
            raise DataError(f"images scaled as for the {what} model ({wanted})", got, fix)


def same_kind(facts: RunFile, choice: DataChoice, what: str) -> None:
    """Refuse a reference model trained on other images."""
    same_scale(facts, choice, what)
    columns = [(c.label_column, c.text_column, c.id_column, c.test_file) for c in (facts, choice)]
    if facts and columns[0] != columns[1]:
        wanted, got = (", ".join(f"{c}" for c in column) for column in reversed(columns))
        raise DataError(f"the columns {wanted} for the {what} model too", got, "train it with --like RUN")
    if facts and (facts.size, facts.data) != (choice.size, choice.data):
        wanted, got = (f"{d} at size {s or 'of the data'}" for d, s in
                       ((choice.data, choice.size), (facts.data, facts.size)))  # fmt: skip
        raise DataError(f"{wanted} for the {what} model too", got, "train it with purge train --like RUN")


# -- requests ---------------------------------------------------------------------------------


def request_of(train: Images, classes: Sequence[str], ids: Path | None, *, words: str) -> Request:
    """What to forget, as run.json has it; ``words``: the stem of the two options that say so.

    A model may be trained without classes and samples, as the reference for several requests.
    """
    if classes and ids is not None and words != "without":
        raise DataError(f"either --{words}-class or --{words}-ids", "both", "leave one of them out")
    found: Request = {}
    if classes:
        found["forget_classes"] = sorted({_class_number(c, train.names) for c in classes})
    if ids is not None and subjects_in(train):
        found["forget_subjects"] = _read_subjects(ids, train)
    elif ids is not None:
        found["forget_ids"] = _read_ids(ids, train)
    return found


def gone_of(facts: RunFile) -> Request:
    """Everything that a model should know nothing about: its run's request, and what was gone before."""
    return both(facts.gone, facts.request)


def both(a: Request, b: Request) -> Request:
    """Two requests as one."""
    return {key: sorted({*a.get(key, []), *b.get(key, [])}) for key in sorted({*a, *b})}


def cut(train: Images, request: Request, before: Request | None = None) -> tuple[Images, Images]:
    """Split training images into forget and retain; what was gone ``before`` is not retained."""
    forget, gone = rows_of(train, request), rows_of(train, before or {})
    retain = ~forget & ~gone
    if not forget.any() or not retain.any():
        got = f"{int(forget.sum())} of {len(train)} samples to forget"
        raise DataError("something to forget and something to retain", got, "choose fewer or more of them")
    return train.select(forget), train.select(retain)


def rows_of(train: Images, request: Request) -> Tensor:
    """A mask (N,) of the training images that a request names."""
    found = torch.zeros(len(train), dtype=torch.bool)
    if "forget_classes" in request:
        found |= rows_of_classes(train.labels, request["forget_classes"])
    if "forget_ids" in request:
        found |= rows_of_indices(len(train), request["forget_ids"])
    if "forget_subjects" in request:
        found |= _rows_of_subjects(train, request["forget_subjects"])
    return found


def subjects_in(train: Images) -> tuple[str, ...]:
    """Whose each sample is, as text; empty where nobody said so."""
    return tuple(getattr(train, "subjects", ()))


def _rows_of_subjects(train: Images, wanted: Sequence[str]) -> Tensor:
    """A mask (N,) of the samples of these people; one who is no longer in the data has none."""
    if not (known := subjects_in(train)):
        got, fix = "data without ids", "name their column with --id"
        raise DataError("ids of the samples, as the run forgot some by their ids", got, fix)
    asked = set(wanted)
    return torch.tensor([subject in asked for subject in known])


def _read_subjects(path: Path, train: Images) -> list[str]:
    """The user's own ids, one per line."""
    found, known = set(_lines_of(path, "ids")), set(subjects_in(train))
    if absent := sorted(found - known):
        more = f" and {len(absent) - MOST_IDS_SHOWN} more" if len(absent) > MOST_IDS_SHOWN else ""
        got = ", ".join(map(brief, absent[:MOST_IDS_SHOWN])) + more
        fix = (
            "write one id per line, as the column of --id has it; those held out for testing were not learned"
        )
        raise DataError(f"ids of training data in {path.name}", got, fix)
    if not found:
        raise DataError(f"ids in {path.name}", "none", "write one id per line")
    return sorted(found)


def _lines_of(path: Path, what: str) -> list[str]:
    """The lines of a file that are not empty."""
    if not path.is_file():
        raise FileError(f"a file of {what} at {path}", "nothing there", "check the path")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in map(str.strip, text.splitlines()) if line]


def _class_number(given: str, names: Sequence[str]) -> int:
    """A class by its name or its number; the name wins if a class is named like another's number."""
    if (count := list(names).count(given)) > 1:
        same = ", ".join(str(i) for i, name in enumerate(names) if name == given)
        got = f"{brief(given)}, the name of {count} classes ({same})"
        raise DataError("the name of one class", got, "name the class by its number")
    if count:
        return names.index(given)
    if given.lstrip("-").isascii() and given.lstrip("-").isdigit() and len(given) <= DIGITS:
        return int(given)
    raise DataError("the number or the name of a class", brief(given), did_you_mean(given, list(names)))


def _read_ids(path: Path, train: Images) -> list[int]:
    """Positions in the training data: numbers, or paths as the data has them, one per line."""
    position = _positions(train)
    found = set[int]()
    for line in _lines_of(path, "sample numbers"):
        words = line.replace(",", " ").split()
        wrong = [w for w in words if not (w.isascii() and w.isdigit() and len(w) <= DIGITS)]
        if line in position:
            found.add(position[line])
        elif wrong:
            raise _not_an_id(path, line if position else wrong[0], train)
        else:
            found.update(map(int, words))
    if not found:
        raise DataError(f"sample numbers in {path.name}", "none", "write one number per line")
    return sorted(found)


def _positions(train: Images) -> dict[str, int]:
    """Paths of training images, as the data has them → positions; empty if they have none."""
    return {train.paths[id]: i for i, id in enumerate(train.ids.tolist())} if train.paths else {}


def _not_an_id(path: Path, line: str, train: Images) -> DataError:
    if not train.paths:
        return DataError(f"whole numbers in {path.name}", brief(line), "write one sample number per line")
    why = "which is held out for testing" if line in train.paths else "which is not there"
    fix = f"write paths as the data has them, such as {train.paths[int(train.ids[0])]}"
    return DataError(f"numbers or paths of training images in {path.name}", f"{brief(line)}, {why}", fix)


# -- right labels of mislabelled samples --------------------------------------------------------


def read_truth(path: Path, train: Images, forget: Tensor) -> GivenLabels:
    """The right labels of the forget samples, which a mask (N,) of the training data names, in its order.

    A line of the file is a label, by number or name, for the next of these samples; or ``SAMPLE,LABEL``, in
    any order, with samples by number or path as in a file of ids. A .npy file is an array of labels.
    """
    if not path.is_file():
        raise FileError(f"a file of right labels at {path}", "nothing there", "check the path")
    if path.suffix == ".npy":
        return _array(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    names, rows = train.names, forget.nonzero()[:, 0].tolist()
    if len(lines) != len(rows):
        raise _not_truth(path, len(rows), f"{len(lines)} lines")
    pairs = [line.rpartition(",") for line in lines]
    if any(line in names or not comma for line, (_, comma, _) in zip(lines, pairs, strict=True)):
        return [_class_number(line, names) for line in lines]
    known = _positions(train) | {str(row): row for row in rows}
    found = {known.get(sample.strip()): _class_number(label.strip(), names) for sample, _, label in pairs}
    if missing := [row for row in rows if row not in found]:
        raise _not_truth(path, len(rows), f"none for sample {missing[0]}")
    return [found[row] for row in rows]


def _not_truth(path: Path, n: int, got: str) -> DataError:
    fix = "write a label per line in the order of the training data, or SAMPLE,LABEL"
    return DataError(f"a label for each of {n} forget samples in {path.name}", got, fix)


def _array(path: Path) -> GivenLabels:
    try:
        found: GivenLabels = np.load(path, allow_pickle=False)
    except Exception:  # numpy raises many kinds of errors on a damaged file
        got, fix = "a damaged file, or pickled objects", "save it again with numpy.save"
        raise FileError(f"a plain array in {path}", got, fix) from None
    return found
