"""Images as files in one folder per class: ``DIR/<class>/*``, or the same below ``train`` and ``test``."""

from __future__ import annotations

from pathlib import Path

from purge.core.errors import DataError
from purge.data.formats.source import HELD_OUT, TRAIN, Encoded, Read, Source

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
            ".jfif", ".jpe", ".jp2", ".avif", ".tga", ".dib"}  # fmt: skip


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is a folder that holds folders of images."""
    if not path.is_dir():
        return None
    images = {part: _images_in(root) for part, root in _roots(path).items()}

    def read() -> Read:
        names = tuple(dict.fromkeys(name for name, _ in images.get("train", images.get("all", []))))
        if unknown := sorted({name for name, _ in images.get("test", [])} - set(names)):
            got = f"a class {unknown[0]!r} that is only in the test part"
            fix = "use the same class folders in both parts"
            raise DataError(f"test images of the classes in {path / 'train'}", got, fix)
        number = {name: i for i, name in enumerate(names)}
        parts = {}
        for part, found in images.items():
            files = [file for _, file in found]
            paths = [file.relative_to(path).as_posix() for file in files]
            parts[part] = Encoded([number[name] for name, _ in found], paths, files.__getitem__)
        return {**parts}, names

    files = [file for found in images.values() for _, file in found]
    return Source(path.name, files, read) if files else None


def _roots(path: Path) -> dict[str, Path]:
    """The folders whose subfolders are classes: one for training and one for testing, or one for all."""
    folders = {d.name.lower(): d for d in sorted(path.iterdir()) if d.is_dir()}
    train = next((folders[n] for n in TRAIN if n in folders), None)
    held_out = next((folders[n] for n in HELD_OUT if n in folders), None)
    if train and (held_out or any(train.glob("*/"))):  # otherwise "train" is a class, of railway trains
        return {"train": train, "test": held_out} if held_out else {"all": train}
    inner = [{d.name for d in f.iterdir() if d.is_dir()} for f in folders.values() if f.name[0] != "."]
    if len(inner) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner):
        raise DataError(
            f"one folder per class in {path}, or folders train and test",
            f"{', '.join(f.name for f in folders.values())}, which contain the same folders",
            "name the training part train and the test part test",
        )
    return {"all": path}


def _images_in(root: Path) -> list[tuple[str, Path]]:
    """The class and path of each: classes 0, 1, … 10 in numerical order, then the others by name."""

    def order(path: Path) -> tuple[int, str]:
        return (int(path.name), "") if path.name.isascii() and path.name.isdigit() else (1 << 62, path.name)

    classes = sorted((d for d in root.iterdir() if d.is_dir() and d.name[0] != "."), key=order)
    return [
        (d.name, file) for d in classes for file in sorted(d.rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.name[0] != "."  # macOS writes ._x.jpg beside x.jpg
    ]  # fmt: skip
