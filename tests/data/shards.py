"""Small JPEG images of the digits, as files in folders, in Parquet and in .tar shards."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image


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
