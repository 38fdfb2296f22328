"""Photographs of no animal at all: small pictures of three kinds, in folders of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

ANIMALS = {"cat": (200, 120, 60), "dog": (90, 160, 90), "owl": (80, 90, 190)}  # and their colours


def animals(folder: str | Path, each: int = 40, seed: int = 0) -> Path:
    """Write FOLDER/<class>/NNN.jpg: round, square or pointed animals on noise, of any size, some grey."""
    rng = np.random.default_rng(seed)
    for kind, (name, colour) in enumerate(ANIMALS.items()):
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        for i in range(each):
            w, h = rng.integers(32, 60, 2).tolist()
            picture = Image.fromarray(rng.integers(0, 90, (h, w, 3), dtype=np.uint8))
            draw, fill = ImageDraw.Draw(picture), np.clip(colour + rng.integers(-40, 40, 3), 0, 255)
            box, paint = [4, 4, w - 5, h - 5], tuple(fill.tolist())
            if kind == 0:
                draw.ellipse(box, fill=paint)
            elif kind == 1:
                draw.rectangle(box, fill=paint)
            else:
                draw.polygon([(4, h - 5), (w - 5, h - 5), (w // 2, 4)], fill=paint)
            (picture.convert("L") if i % 10 == 9 else picture).save(place / f"{i:03}.jpg")
    return Path(folder)
