"""Models at a URL that all nodes of a cluster reach; each is one archive, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from purge.core.errors import FileError, PurgeError, first_line
from purge.core.plugins import from_extra
from purge.data.cache import cache_folder

ENDING = ".zip"
FIX = "choose another with --models"


def is_url(models: Path | str | None) -> bool:
    """Is this a URL, and not the path of a folder?"""
    return isinstance(models, str) and re.match(r"[A-Za-z][\w+.-]*://", models) is not None


def checked(url: str) -> str:
    """The URL, once it was seen that it can be read."""
    names(url)
    return url


def local_copy(url: str) -> Path:
    """The folder of this node with copies of the models at a URL."""
    return cache_folder() / "models" / hashlib.sha256(url.encode()).hexdigest()[:16]


def names(url: str) -> list[str]:
    """The names of the models at a URL; none if there is no URL."""
    if not url:
        return []
    with _opened(url) as (fs, root), suppress(FileNotFoundError):
        files = [str(path).rpartition("/")[2] for path in fs.ls(root, detail=False, refresh=True)]
        return [name.removesuffix(ENDING) for name in files if re.fullmatch(rf"\w.*{ENDING}", name)]
    return []


def fetch(url: str, folder: Path) -> bool:
    """Copy the model of that name from a URL to a folder, if it is there."""
    if not url:
        return False
    with _opened(url) as (fs, root), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as parts:
        archive, unpacked = Path(parts, "archive"), Path(parts, "unpacked")
        try:
            fs.get_file(f"{root}/{folder.name}{ENDING}", str(archive))
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(unpacked)  # never outside of the folder, whatever the names in it are
        except (FileNotFoundError, zipfile.BadZipFile):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return True


def publish(folder: Path, url: str, *, replace: bool = False) -> None:
    """Copy a model to a URL, first under another name; one of its name that is there stays by default."""
    if not url or (not replace and folder.name in names(url)):
        return
    with _opened(url) as (fs, root), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as parts:
        archive = Path(parts, "archive")
        with zipfile.ZipFile(archive, "w") as zipped:  # weights cannot be compressed
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                zipped.write(file, file.relative_to(folder))
        fs.makedirs(root, exist_ok=True)
        other = f"{root}/.{folder.name}-{secrets.token_hex(8)}"
        fs.put_file(str(archive), other)
        fs.mv(other, f"{root}/{folder.name}{ENDING}")


def remove(name: str, url: str) -> None:
    """Remove a model from a URL, if it is there."""
    if url and name in names(url):
        with _opened(url) as (fs, root):
            fs.rm_file(f"{root}/{name}{ENDING}")


@contextmanager
def _opened(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it; what goes wrong is one line."""
    fsspec = from_extra("fsspec", "bench", f"models at {url}", FileError)
    try:
        fs, root = fsspec.core.url_to_fs(url)
        yield fs, str(root).rstrip("/")
    except PurgeError:
        raise
    except Exception as error:  # whatever the package for the protocol may raise; it may also be missing
        raise FileError(f"models at {url}", first_line(error), FIX) from None
