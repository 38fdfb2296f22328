"""Models of any kind: calling them, looking inside, building, reading and writing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.models.checkpoint import file_digest, read_tensors
    from purge.models.checks import training_data
    from purge.models.copies import copied
    from purge.models.forward import logits
    from purge.models.zoo import known_name

__all__ = ["copied", "file_digest", "known_name", "logits", "read_tensors", "training_data"]

__getattr__ = imported_on_use(
    __name__,
    {
        "copied": "models.copies",
        "file_digest": "models.checkpoint",
        "known_name": "models.zoo",
        "logits": "models.forward",
        "read_tensors": "models.checkpoint",
        "training_data": "models.checks",
    },
)
