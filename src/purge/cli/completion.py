"""What a shell completes: names of methods, metrics, data sets, models and settings.

A key press must be answered at once, so nothing here imports torch: the settings of a method are read from
its source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import typer

SHELVES = ("methods", "metrics", "datasets", "models", "recipe")
Found = list[tuple[str, str]]  # words and what they mean


def methods(incomplete: str) -> Found:
    """Names of methods."""
    from purge.methods.registry import list_methods

    return _begin(incomplete, list_methods())


def metrics(incomplete: str) -> Found:
    """A panel, or the last of several metrics with commas between them."""
    from purge.metrics.registry import PANELS, list_metrics

    before, comma, last = incomplete.rpartition(",")
    panels = {} if comma else dict.fromkeys(PANELS, "a panel")
    return [(f"{before}{comma}{name}", about) for name, about in _begin(last, panels | list_metrics())]


def datasets(incomplete: str) -> Found:
    """Names of data sets; where none begins like this, the shell completes paths."""
    from purge.data.catalog import DATASETS

    return _begin(incomplete, {name: entry.about for name, entry in DATASETS.items()})


def models(incomplete: str) -> Found:
    """Names of models."""
    from purge.models.zoo import MODELS

    return _begin(incomplete, {name: entry.about for name, entry in MODELS.items()})


def listed(context: typer.Context, incomplete: str) -> Found:
    """What ``purge list SHELF`` takes after the shelf."""
    shelves: dict[str, Callable[[str], Found]] = {
        "methods": methods, "metrics": metrics, "recipe": datasets,
    }  # fmt: skip
    found = shelves.get(context.params.get("shelf") or "")
    return found(incomplete) if found else []


def method_settings(context: typer.Context, incomplete: str) -> Found:
    """Keys of ``--set`` for the method that is named before, or else for purge."""
    from purge.engine.stopping import Stopping
    from purge.methods import HOMES
    from purge.methods.registry import METHODS

    entry = METHODS.get(context.params.get("method") or "purge")
    if entry is None:
        return []
    stopping = {name: f.metadata["help"] for name, f in Stopping.__dataclass_fields__.items()}
    return _keys(incomplete, _settings_in(HOMES[entry.cls], entry.cls) | stopping)


def recipe_settings(incomplete: str) -> Found:
    """Keys of ``--set`` for a training."""
    return _keys(incomplete, _settings_in("purge.engine.trainer", "Recipe"))


def one_of(*words: str) -> Callable[[str], list[str]]:
    """A completion from a fixed list."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _begin(incomplete: str, known: Mapping[str, str]) -> Found:
    return [(name, about) for name, about in known.items() if name.startswith(incomplete)]


def _keys(incomplete: str, known: Mapping[str, str]) -> Found:
    return [(f"{name}=", about) for name, about in _begin(incomplete, known)]


def _settings_in(module: str, name: str) -> dict[str, str]:
    """The settings of a class, and of those in its module that it is derived from, with their help."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def inside(cls: str) -> Iterable[tuple[str, str]]:
        for base in classes[cls].bases:
            if isinstance(base, ast.Name) and base.id in classes:
                yield from inside(base.id)
        for node in classes[cls].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                match node.value:
                    case ast.Call(func=ast.Name(id="setting"), args=[_, about, *_]):
                        yield node.target.id, str(about.value) if isinstance(about, ast.Constant) else ""

    return dict(inside(name)) if name in classes else {}
