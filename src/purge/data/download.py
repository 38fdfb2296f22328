"""Downloads of published files, verified by checksum."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from purge.core.errors import FileError
from purge.core.files import atomically, below
from purge.core.progress import progress_line

UNREACHABLE = (
    urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError,
)  # fmt: skip


def fetch(url: str, md5: str, folder: Path, progress: bool) -> Path:
    """The path of a published file in ``folder``; it is downloaded if it is missing."""
    path = below(folder, url.rpartition("/")[2])
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            folder.mkdir(parents=True, exist_ok=True)  # only now: a failed download leaves no folder
            atomically(path, lambda to: _save(answer, to, url, md5, path, progress))
    except UNREACHABLE as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise FileError(
            f"{path.name} in {folder}",
            f"no such file, and {url} did not answer ({getattr(error, 'reason', None) or error})",
            f"download it elsewhere and put it into {folder}, or pass --data-dir if you have it",
        ) from None
    except OSError as error:
        raise FileError(
            f"a folder that can be written, {folder}", str(error), "choose another with --data-dir"
        ) from None
    return path


def _save(answer: Any, to: Path, url: str, md5: str, path: Path, progress: bool) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    megabytes = int(answer.headers.get("Content-Length") or 0) >> 20
    with to.open("wb") as file, progress_line(f"download {path.name} (MB)", megabytes, progress) as on:
        while block := answer.read(1 << 20):
            file.write(block)
            digest.update(block)
            on(1, "")
    if digest.hexdigest() != md5:
        raise FileError(
            f"the published {path.name}",
            "another or an incomplete file (wrong checksum)",
            f"try again, or put the file from {url} into {path.parent}",
        )
