"""Write the digits of scikit-learn as PNG files, one folder per class: images to try things on.

python examples/write_digits.py DIR [IMAGES PER CLASS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write(folder: Path, per_class: int | None = None) -> int:
    """Write DIR/train/<word>/0000.png … and, every fifth, DIR/test/<word>/…; return how many."""
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    written = 0
    for digit, word in enumerate(WORDS):
        for i, image in enumerate(pixels[digits.target == digit][:per_class]):
            path = folder / ("test" if i % 5 == 4 else "train") / word / f"{i:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
            written += 1
    return written


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    count = write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    print(f"{count} images in {sys.argv[1]}")
