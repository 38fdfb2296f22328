"""What runs a method or a training: steps, checks, losses, projection, precision, seeds.

The names below are for the other rooms; they are imported when first used, since torch takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.engine.precision import Precision, choose_device
    from purge.engine.resume import STATE, kept_epochs, training_folder
    from purge.engine.seeding import seeded
    from purge.engine.trainer import Recipe

__all__ = [
    "STATE", "Precision", "Recipe", "choose_device", "kept_epochs", "seeded", "training_folder",
]  # fmt: skip

__getattr__ = imported_on_use(
    __name__,
    {
        "STATE": "engine.resume", "Precision": "engine.precision", "Recipe": "engine.trainer",
        "choose_device": "engine.precision", "kept_epochs": "engine.resume",
        "seeded": "engine.seeding", "training_folder": "engine.resume",
    },
)  # fmt: skip
