"""purge list."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

import purge.runs
from purge.cli import options as opt
from purge.cli.printing import show
from purge.core.errors import DataError, MethodError, PurgeError, did_you_mean
from purge.core.settings import flat_fields, replace
from purge.data import DATASETS
from purge.methods import all_methods, resolve_method
from purge.metrics import all_metrics, find_metric
from purge.report import listing

SHELVES = ("methods", "metrics", "datasets", "models", "recipe")


def list_(
    shelf: Annotated[str, Argument(help="methods, metrics, datasets, models or recipe.")],
    name: Annotated[str | None, Argument(help="A method, a metric, or after recipe a data set.")] = None,
    json_: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List methods, metrics, data sets, models, or the training recipe.

    For example: purge list methods, or for the settings of one: purge list methods purge

    What a metric measures and what it cannot tell: purge list metrics mia
    """
    if shelf not in SHELVES:
        raise PurgeError("something to list", repr(shelf), did_you_mean(shelf, SHELVES))
    if name is not None and shelf in ("datasets", "models"):
        raise MethodError(f"no name after {shelf!r}", repr(name), f"purge list {shelf}")
    if shelf == "metrics" and name:  # as the rest but for settings, without importing torch
        metric = find_metric(name)
        needs = ", ".join(sorted(metric.needs))
        about = metric.describe() | {"values": ", ".join(metric.names()), "needs": needs}
        keys = ("symbol", "about", "values", "unit", "section", "ideal", "cost", "needs")
        columns = ["metric", name]
        rows = [*([key, str(about[key])] for key in keys), ["what it tells", metric.explain()]]
    elif name or shelf == "recipe":
        columns, rows = ["setting", "value", "meaning"], _settings(shelf, name)
    elif shelf == "methods":
        columns, rows = ["method", "about", "cite"], [[n, e.about, e.cite] for n, e in all_methods().items()]
    elif shelf == "metrics":
        columns = ["metric", "symbol", "about", "needs"]
        rows = [[m.name, m.symbol, m.about, ", ".join(sorted(m.needs))] for m in all_metrics().values()]
    else:
        entries = {"datasets": purge.list_datasets, "models": purge.list_models}[shelf]()
        columns, rows = [shelf[:-1], "about"], [[name, about] for name, about in entries.items()]
    show([dict(zip(columns, row, strict=True)) for row in rows], listing(columns, rows), json_)


def _settings(shelf: str, name: str | None) -> list[list[str]]:
    """The settings of a method, or of the recipe for a data set."""
    if shelf == "methods":
        config: Any = resolve_method(name or "", {})
    elif name is not None and name not in DATASETS:
        raise DataError("the name of a data set", repr(name), did_you_mean(name, DATASETS))
    else:
        config = replace(purge.runs.Recipe(), dict(DATASETS[name].recipe) if name else {})
    return [[f.name, str(value), f.metadata["help"]] for f, value in flat_fields(config)]
