"""Checkpoints as others keep them: where the weights lie in a file or folder. No code in it is ever run."""

from __future__ import annotations

import pickle
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from purge.core.errors import FileError, brief
from purge.core.files import below, read_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in a folder that save_pretrained wrote
INDEX = ".index.json"  # after one of these names: which file each weight of a sharded model is in
TRUNKS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params")
COMPILED = "_orig_mod."
PREFIXES = ("module.", "model.", "net.", "network.", COMPILED)  # usual ones of the names of weights
DEEPEST = 4  # dicts within each other that are searched for weights
MOST_NAMED = 5  # names in a message


class Inert:
    """Stands for an object of a class that is not loaded: it takes whatever it is given and does nothing."""

    def __new__(cls, *_args: Any, **_more: Any) -> Inert:
        """Make it without a look at the arguments."""
        return object.__new__(cls)

    def __init__(self, *_args: Any, **_more: Any) -> None: ...

    def __setstate__(self, _state: Any) -> None: ...


@dataclass(frozen=True)
class Stored:
    """The content of a checkpoint: nested dicts of a file of torch, or all tensors by name."""

    path: Path
    content: Mapping[str, Any]
    metadata: dict[str, str] = field(default_factory=dict)  # of a file of safetensors
    files: tuple[str, ...] = ()  # of a sharded model
    refused: tuple[str, ...] = ()  # classes in it that stand as Inert objects


class Placement(NamedTuple):
    """Where in a checkpoint the weights of a model are, and what does not fit."""

    way: tuple[str, ...]  # the keys of nested dicts that lead to them
    prefix: str  # of their names there
    names: dict[str, str]  # the model's own names → those in the checkpoint
    odd: dict[str, list[str]]  # what does not fit → the names
    beside: list[str]  # tensors without the prefix that the model's have

    @property
    def fits(self) -> bool:
        """Has the model all of these weights and no others?"""
        return not any(self.odd.values())

    @property
    def rank(self) -> int:
        """Usual keys first."""
        usual = self.way and self.way[-1] in TRUNKS
        return TRUNKS.index(self.way[-1]) if usual else len(TRUNKS) * bool(self.way)

    def __str__(self) -> str:
        return ".".join([*self.way, self.prefix]).strip(".")


def read(path: Path) -> Stored:
    """Read a file of weights, or a folder of ``save_pretrained``, whole or in shards."""
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise FileError(f"a checkpoint at {path}", "no such file", "check the path")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return Stored(path, tensors, dict(file.metadata() or {}))
        except (SafetensorError, OSError, ValueError):
            raise damaged(path) from None
    content, refused = _torch(path)
    if isinstance(content, Inert):
        raise _would_run(path, refused)
    if not isinstance(content, Mapping):
        raise _no_weights(path, type(content).__name__)
    return Stored(path, content, refused=refused)


def weights_in(folder: Path) -> Path | None:
    """The file of weights in a folder of ``save_pretrained``, or its index if there are several."""
    names = [name + end for name in WEIGHTS for end in ("", INDEX)]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def inside(content: Any, way: tuple[str, ...]) -> dict[str, Any]:
    """The dict that the keys of ``way`` lead to."""
    for key in way:
        content = content[key]
    return dict(content)


def place(stored: Stored, own: Mapping[str, Tensor], what: str) -> Placement:
    """Where the weights of a model with the tensors ``own`` are; refused if they are not all there.

    ``what`` names the model in the message. Of several places that fit, one under a usual key is taken.
    """
    name = stored.path.name
    places = [p for way in _ways(stored.content) for p in _places(way, inside(stored.content, way), own)]
    if not places and stored.refused:
        raise _would_run(stored.path, stored.refused)
    if not places:
        keys = sorted(brief(key) for key in stored.content)
        raise _no_weights(stored.path, f"a dict of {_first(keys)}" if keys else "an empty one")
    # One that fits, under a usual key; else the one with most of the names, so that the message tells most.
    places.sort(key=lambda p: (not p.fits, -len(own.keys() & p.names.keys()) * (not p.fits), p.rank))
    best, *others = places
    if not best.fits:
        counted = ", ".join(f"{len(names)} {kind}" for kind, names in best.odd.items())
        which = "; ".join(f"{kind}: {_first(names)}" for kind, names in best.odd.items() if names)
        fix = "build the model that the checkpoint was trained with"
        raise FileError(f"weights of a {what} in {name}", f"another architecture ({counted}; {which})", fix)
    if same := [p for p in others if p.fits and p.rank == best.rank]:
        fix = "save the state dict of one of them"
        raise FileError(f"the weights of one model in {name}", f"{best} and {same[0]}", fix)
    return best


def _ways(content: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The ways to all dicts of tensors; extra state that is not a tensor may be among them."""
    texts = {key: value for key, value in content.items() if isinstance(key, str)}
    kinds = [isinstance(value, Tensor) or key.endswith("_extra_state") for key, value in texts.items()]
    if kinds and all(kinds) and len(texts) == len(content):
        yield way
    elif len(way) < DEEPEST:
        for key, value in texts.items():
            if isinstance(value, Mapping):
                yield from _ways(value, (*way, key))


def _places(way: tuple[str, ...], state: dict[str, Any], own: Mapping[str, Tensor]) -> Iterator[Placement]:
    """The places that the weights may have in a dict of tensors: several if their prefix is not clear.

    Wrappers and trainers put a prefix there, such as ``module.`` or ``model._orig_mod.``; any other is
    recognised, but a usual one is preferred. ``_orig_mod.`` may also stand within a name.
    """
    tensors = {name: t for name, t in state.items() if isinstance(t, Tensor)}
    plain = {name if name in own else "".join(name.split(COMPILED)): name for name in tensors}
    for prefix in _prefixes(plain, own):
        names = {name[len(prefix) :]: of for name, of in plain.items() if name.startswith(prefix)}
        shared = {own[name].data_ptr() for name in names if name in own and own[name].numel()}
        odd = {  # what is missing may be tied to a weight that is there
            "missing": [n for n, t in own.items() if n not in names and t.data_ptr() not in shared],
            "unexpected": [n for n in names if n not in own],
            "of another shape": [
                f"{n} {tuple(tensors[names[n]].shape)} instead of {tuple(t.shape)}"
                for n, t in own.items()
                if n in names and tensors[names[n]].shape != t.shape
            ],
        }
        yield Placement(way, prefix, names, odd, [*(tensors.keys() - set(names.values()))])


def _prefixes(names: Iterable[str], own: Collection[str]) -> list[str]:
    hits = Counter[str]()
    for name in names:
        cuts = [0, *(i + 1 for i, letter in enumerate(name) if letter == ".")]
        hits.update(name[:cut] for cut in cuts if name[cut:] in own)
    if not hits or "" in hits:
        return [""]
    best = [prefix for prefix, count in hits.items() if count == max(hits.values())]
    return [prefix for prefix in best if set(re.findall(r".*?\.", prefix)) <= {*PREFIXES}] or best


def _first(names: list[str]) -> str:
    short = [name if len(name) <= 200 else brief(name) for name in names[:MOST_NAMED]]
    return ", ".join(short) + " …" * (len(names) > MOST_NAMED)


def _folder(path: Path) -> Stored:
    file = weights_in(path)
    if file is None:
        fix = "save it with save_pretrained, or name the file itself"
        raise FileError(f"{WEIGHTS[0]} in {path}", "no such file", fix)
    if not file.name.endswith(INDEX):
        return read(file)
    files = read_json(file).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise FileError(f"a weight_map of names and files in {file}", "none", "save the model again")
    content, metadata = dict[str, Any](), dict[str, str]()
    shards = {name: below(path, name) for name in sorted(set(files.values()))}
    for name, shard in shards.items():
        part = read(shard)
        if odd := part.content.keys() ^ {key for key, where in files.items() if where == name}:
            got = f"{_first(sorted(odd))} elsewhere"
            raise FileError(f"the weights of {file.name} in {name}", got, "save the model again")
        content |= part.content
        metadata |= part.metadata
    return Stored(file, content, metadata, (file.name, *shards))


def _torch(path: Path) -> tuple[Any, tuple[str, ...]]:
    """What torch saved. Objects of classes that it does not vouch for are not made: others stand for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, map_location="cpu", weights_only=True), ()
        except pickle.UnpicklingError:
            pass
        except Exception:  # torch raises many kinds of errors on a damaged file
            raise damaged(path) from None
        names: tuple[str, ...] = ()
        try:
            names = tuple(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
            stand_ins = [(type("Inert", (Inert,), {}), name) for name in names]
            with torch.serialization.safe_globals(stand_ins):  # type: ignore[arg-type]
                return torch.load(path, map_location="cpu", weights_only=True), names
        except Exception:
            raise _would_run(path, names) from None


def _would_run(path: Path, names: tuple[str, ...]) -> FileError:
    classes = f" ({_first([*names])})" if names else ""
    return FileError(
        f"plain weights in {path.name}",
        f"a pickle{classes} that would run code (it was not run), or a damaged file",
        "save model.state_dict() with torch.save or as safetensors",
    )


def _no_weights(path: Path, got: str) -> FileError:
    return FileError(f"a dict of tensors by name in {path.name}", got, "save model.state_dict() alone")


def damaged(path: Path) -> FileError:
    """The refusal of a file that cannot be read."""
    return FileError(f"a complete checkpoint in {path}", "a damaged or truncated file", "save it again")
