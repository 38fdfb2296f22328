"""Writing weights back in the form that they came in: the same nesting, names, types and files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from purge.core.errors import FileError, ModelError
from purge.core.files import atomically, file_errors, out_folder
from purge.models.checkpoint import tensors_of
from purge.models.stored import INDEX, Stored, inside, place, read, weights_in

OF_TORCH = (".pt", ".pth", ".ckpt", ".bin")
KEPT = ("*.json", "*.txt", "*.model", "*.jinja", "*.md", "LICENSE*")  # of a folder, beside the weights
LEFT = ("trainer_state.json", "*_results.json")  # but not these


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> list[str]:
    """Write the weights of a model as another checkpoint has them.

    Nesting, names, prefixes and number types are those of ``like``, a file or folder of ``save_pretrained``;
    without it, a plain state dict is written. Numbers and text beside the weights, such as the epoch, are
    kept. Everything else is left out: the state of an optimiser and an average of the weights hold what was
    learned from the forgotten samples.

    Args:
        model: a model, or what :func:`purge.unlearn` returned.
        path: the new file, or the new folder if ``like`` is one.
        like: the checkpoint that the model was loaded from.
        force: overwrite what is there.

    Returns:
        The names of what was left out.

    Raises:
        FileError: something is at ``path`` already, or it cannot be written.

    Example:
        ```python
        purge.load_weights(model, "last.ckpt")
        result = purge.unlearn(model, forget, retain)
        purge.export(result, "forgotten.ckpt", like="last.ckpt")
        ```
    """
    target, form = Path(path), None if like is None else Path(like)
    model = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(model, nn.Module):
        raise ModelError("a model to export", type(model).__name__, "pass the model, or the result")
    check_export(target, form, force=force)
    own = tensors_of(model)
    if form is None:
        state = {name: t.detach().cpu().clone() for name, t in own.items()}
        with file_errors(target):
            atomically(target, lambda new: _write(state, new, {"format": "pt"}, target.suffix))
        return []
    stored = read(form)
    at = place(stored, own, type(model).__name__)
    old = inside(stored.content, at.way)
    state = {of: own[n].detach().cpu().to(old[of].dtype).clone() for n, of in at.names.items()}
    with file_errors(target):
        if form.is_dir():
            return [*_folder(state, form, target, stored), *at.beside]
        content, left = _nested(stored.content, at.way, state)
        atomically(target, lambda new: _write(content, new, stored.metadata, form.suffix))
        return [*left, *sorted(at.beside)]


def check_export(path: Path, like: Path | None, *, force: bool = False) -> None:
    """Refuse a place that cannot be written in the form of ``like``, before anything is computed."""
    if like is not None and path.resolve() == like.resolve():
        got = "the checkpoint that the model came from"
        raise FileError("another place for the export", got, "keep it: an audit compares with it")
    if (path.absolute().parent / "run.json").is_file():
        got = f"{path.parent}, a run folder"
        raise FileError("another place for the export", got, "keep its files as run.json recorded them")
    if like is not None and like.is_dir():
        out_folder(path, force=force)
        return
    every = (".safetensors", *OF_TORCH)
    kinds = every if like is None else every[:1] if like.suffix == every[0] else (like.suffix, *OF_TORCH)
    if path.suffix not in kinds:
        what = f"a file of {' or '.join(dict.fromkeys(kinds))} for the export"
        raise FileError(what, path.name, f"name it NAME{kinds[0]}")
    if path.exists() and not (force and path.is_file()):
        fix = "choose another name" + ", or overwrite with --force (force=True)" * path.is_file()
        raise FileError(f"no file yet at {path}", "one" if path.is_file() else "a folder", fix)
    if not path.absolute().parent.is_dir():
        raise FileError(f"a folder at {path.absolute().parent}", "none", "make it first")


def check_form(model: nn.Module, like: Path) -> None:
    """Refuse a checkpoint whose names or shapes are not those of the model, before anything is computed."""
    place(read(like), tensors_of(model), type(model).__name__)


def _write(content: Mapping[str, Any], at: Path, metadata: dict[str, str], suffix: str) -> None:
    if suffix == ".safetensors":
        save_file({name: t.contiguous() for name, t in content.items()}, at, metadata=metadata or None)
    else:
        torch.save(dict(content), at)


def _nested(
    content: Mapping[str, Any], way: tuple[str, ...], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], list[str]]:
    """The nested dicts with other weights at the end of the way, and what had to go."""
    if not way:
        return dict(state), []
    key, *rest = way
    kept, left = dict[str, Any](), list[str]()
    for name, value in content.items():
        if name == key:
            kept[name], more = _nested(value, tuple(rest), state)
            left += [f"{name}.{one}" for one in more]
        elif _is_plain(value):
            kept[name] = value
        else:
            left.append(str(name))
    return kept, left


def _is_plain(value: Any) -> bool:
    """Is it made of numbers, text, lists and dicts only, so that no weights or samples can be in it?"""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str, type(None))


def _folder(state: Mapping[str, Tensor], like: Path, target: Path, stored: Stored) -> list[str]:
    """A folder with the weights in one file, and the files that describe the model."""
    weights = weights_in(like)
    assert weights is not None  # it was read
    name = weights.name.removesuffix(INDEX)
    files = [p for p in sorted(like.iterdir()) if p.name not in (name, *stored.files)]
    kept = [p for p in files if p.is_file() and any(map(p.match, KEPT)) and not any(map(p.match, LEFT))]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".exporting-") as private:
        at = Path(private)
        suffix = Path(name).suffix
        atomically(at / name, lambda new: _write(state, new, stored.metadata, suffix))
        for file in kept:
            shutil.copyfile(file, at / file.name)
        target.mkdir(exist_ok=True)
        for file in sorted(at.iterdir(), key=lambda file: file.name == "config.json"):  # which comes last
            os.replace(file, target / file.name)
    return [p.name for p in files if p not in kept]


def words(left: list[str], path: Path) -> str:
    """What was left out of an export, in one sentence; empty if nothing was."""
    named = ", ".join(left[:5]) + " …" * (len(left) > 5)
    return f"Left out of {path.name}, since it may hold what was forgotten: {named}." if left else ""
