"""purge: make a trained classifier forget, and prove it.

result = purge.unlearn(model, forget, retain)
report = purge.audit(result.model, forget, retain, test, original=model, retrained=retrained)
"""

from purge.api import audit, datasets, methods, metrics, models, train, train_sharded, unlearn
from purge.architectures import build
from purge.datasets import load
from purge.errors import PurgeError
from purge.images import Images
from purge.methods.base import Method
from purge.metrics.base import Metric
from purge.metrics.shadow import Shadows
from purge.result import Report, Result, Value
from purge.splits import split
from purge.stopping import Stopping

__version__ = "0.1.0"

__all__ = [
    "Images",
    "Method",
    "Metric",
    "PurgeError",
    "Report",
    "Result",
    "Shadows",
    "Stopping",
    "Value",
    "audit",
    "build",
    "datasets",
    "load",
    "methods",
    "metrics",
    "models",
    "split",
    "train",
    "train_sharded",
    "unlearn",
]
