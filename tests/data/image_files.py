"""Writers of image files, and what several tests of data on disk share."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import purge
import purge.data.decode
from purge.data.images import Images

SENTENCE = re.compile(r"Expected .+, got .+\. Fix: .+\.")


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert SENTENCE.fullmatch(text), text
    return text


def load(data: Any, **options: Any) -> tuple[Images, Images]:
    return purge.load(data, progress=False, **options)


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, pixels: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def tree(root: Path, classes: dict[str, int], *, side: int = 8, seed: int = 0) -> dict[str, Any]:
    """Write colour images in one folder per class; returns their pixels (C, H, W) by path below the root."""
    made = {}
    for c, (name, n) in enumerate(classes.items()):
        for i in range(n):
            made[f"{name}/{i:03}.png"] = noise(side, side, 3, seed=1000 * seed + 100 * c + i)
    for path, pixels in made.items():
        save(root / path, pixels)
    return {path: pixels.transpose(2, 0, 1) for path, pixels in made.items()}


def paths_of(images: Images) -> list[str]:
    return [images.paths[i] for i in images.ids.tolist()]


def check(images: Images, made: dict[str, Any], below: str = "") -> None:
    """Every image has the pixels that were written at its path, and the class of its folder."""
    for path, pixels, label in zip(
        paths_of(images), images.pixels.numpy(), images.labels.tolist(), strict=True
    ):
        assert np.array_equal(pixels, made[path.removeprefix(below)]), path
        assert path.removeprefix(below).split("/")[0] == images.names[label]


RAMP = np.arange(96, dtype=np.uint8).reshape(8, 12)  # differs from all its rotations and flips

COLOUR = np.stack([RAMP, 255 - RAMP, RAMP * 2], 2)

WIDE = np.resize(np.array([0, 128, 129, 257, 514, 32768, 65406, 65407, 65535], dtype=np.uint16), (8, 12))


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def parquet(
    path: Path,
    labels: list[int],
    *,
    seed: int = 0,
    metadata: dict[str, str] | None = None,
    columns: tuple[str, str] = ("image", "label"),
    paths: bool = True,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write images in the layout of Hugging Face; returns their pixels (N, C, H, W)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(len(labels), 8, 8, 3, seed=seed)
    rows = [
        {"bytes": png(x), "path": f"{path.stem}_{i}.png" if paths else None} for i, x in enumerate(pixels)
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns_of = {columns[0]: pa.array(rows, kind), **(extra or {}), columns[1]: pa.array(labels, pa.int64())}
    table = pa.table(columns_of).replace_schema_metadata(metadata)
    pq.write_table(table, path, **options)
    return pixels.transpose(0, 3, 1, 2)


class Payload:
    """Makes a folder if it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def sentence_or_nothing(path: Path) -> None:
    """Loading works, or fails with an error of one sentence."""
    try:
        load(path)
    except purge.PurgeError as error:
        text = str(error)
    else:
        return
    assert SENTENCE.fullmatch(text), text


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.glob("*-*"))


# -- small JPEG images of some brightness, in folders, Parquet and .tar shards -----------------------


def jpegs(n: int, classes: int = 4, seed: int = 0, side: int = 16) -> tuple[list[bytes], list[int]]:
    """Images whose brightness tells their class, with some noise; labels in turn."""
    g = torch.Generator().manual_seed(seed)
    found, labels = [], [i % classes for i in range(n)]
    for label in labels:
        base = torch.full((side, side, 3), 30.0 + 180 * label / max(1, classes - 1))
        pixels = (base + 12 * torch.randn(side, side, 3, generator=g)).clamp(0, 255).to(torch.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(out, "JPEG", quality=90)
        found.append(out.getvalue())
    return found, labels


def add(file: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    file.addfile(member, io.BytesIO(content))


def write_tar(path: Path, images: list[bytes], labels: list[int], *, as_json: bool = False) -> Path:
    with tarfile.open(path, "w") as file:
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            add(file, f"s/{i:06d}.jpg", image)
            if as_json:
                add(file, f"s/{i:06d}.json", json.dumps({"label": label, "width": 16}).encode())
            else:
                add(file, f"s/{i:06d}.cls", str(label).encode())
    return path


def write_parquet(path: Path, images: list[bytes], labels: list[int], rows: int = 7) -> Path:
    names = [f"{i:06d}.jpg" for i in range(len(images))]
    cells = [{"bytes": image, "path": name} for image, name in zip(images, names, strict=True)]
    pq.write_table(pa.table({"image": cells, "label": labels}), path, row_group_size=rows)
    return path


def write_folder(root: Path, images: list[bytes], labels: list[int]) -> Path:
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        at = root / str(label)
        at.mkdir(parents=True, exist_ok=True)
        (at / f"{i:06d}.jpg").write_bytes(image)
    return root


def write_all(root: Path, n: int = 120, test: int = 40) -> dict[str, Path]:
    """Each form with a training and a test part; of Parquet and .tar, two training shards."""
    (images, labels), (more, theirs) = jpegs(n), jpegs(test, seed=1)
    half = n // 2
    for form, write, ending in (("parquet", write_parquet, "parquet"), ("tar", write_tar, "tar")):
        (root / form).mkdir()
        write(root / form / f"train-0.{ending}", images[:half], labels[:half])
        write(root / form / f"train-1.{ending}", images[half:], labels[half:])
        write(root / form / f"test-0.{ending}", more, theirs)
    write_folder(root / "folder" / "train", images, labels)
    write_folder(root / "folder" / "test", more, theirs)
    return {form: root / form for form in ("parquet", "tar", "folder")}
