"""purge: make a trained classifier forget, and prove it.

result = purge.unlearn(model, forget, retain)
report = purge.audit(result.model, forget, retain, test, original=model, retrained=retrained)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purge import callbacks, data, heads, ledger, methods, metrics, models
    from purge.api import audit, unlearn
    from purge.audit_report import Report
    from purge.core.errors import PurgeError
    from purge.data.augmented import Augmentation
    from purge.data.catalog import list_datasets
    from purge.data.images import Images
    from purge.data.load import load
    from purge.data.planting import plant_canaries
    from purge.data.request import DeletionRequest
    from purge.data.split import split
    from purge.engine.stopping import Stopping
    from purge.ledger.ledger import Ledger
    from purge.methods.base import Method
    from purge.methods.registry import list_methods
    from purge.metrics.canaries import epsilon_canaries
    from purge.metrics.metric import Metric
    from purge.metrics.registry import list_metrics
    from purge.metrics.shadow import Shadows
    from purge.metrics.value import Value
    from purge.models.checkpoint import load_weights
    from purge.models.export import export
    from purge.models.sklearn import from_sklearn
    from purge.models.zoo import build, list_models
    from purge.result import Result
    from purge.training import train, train_sharded

__version__ = "0.2.0"

# The module of each public name; they are imported when first used, since torch takes seconds to import.
_HOMES = {
    "Augmentation": "data.augmented", "DeletionRequest": "data.request", "Images": "data.images",
    "Ledger": "ledger.ledger", "Method": "methods.base", "Metric": "metrics.metric",
    "PurgeError": "core.errors",
    "Report": "audit_report", "Result": "result", "Shadows": "metrics.shadow", "Stopping": "engine.stopping",
    "Value": "metrics.value", "audit": "api", "build": "models.zoo",
    "epsilon_canaries": "metrics.canaries", "export": "models.export", "from_sklearn": "models.sklearn",
    "list_datasets": "data.catalog",
    "list_methods": "methods.registry", "list_metrics": "metrics.registry", "list_models": "models.zoo",
    "load": "data.load", "load_weights": "models.checkpoint", "plant_canaries": "data.planting",
    "split": "data.split", "train": "training", "train_sharded": "training", "unlearn": "api",
}  # fmt: skip
_ROOMS = {
    "callbacks": "callbacks", "data": "data", "heads": "heads", "ledger": "ledger", "methods": "methods",
    "metrics": "metrics", "models": "models",
    "requests": "ledger",  # its name until 0.3; scripts of schedulers have it
}  # fmt: skip

__all__ = [
    "Augmentation", "DeletionRequest", "Images", "Ledger", "Method", "Metric", "PurgeError", "Report",
    "Result", "Shadows", "Stopping", "Value", "audit", "build", "callbacks", "data",
    "epsilon_canaries", "export", "from_sklearn", "heads", "ledger", "list_datasets", "list_methods",
    "list_metrics", "list_models", "load", "load_weights", "methods", "metrics", "models",
    "plant_canaries", "split", "train", "train_sharded", "unlearn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"purge.{_HOMES[name]}"), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"purge.{_ROOMS[name]}")
    else:
        raise AttributeError(f"module 'purge' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
