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
from purge.core.files import atomically
from purge.core.progress import progress_line
from purge.data.catalog import Download

UNREACHABLE = (
    urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError,
)  # fmt: skip


def fetch(download: Download, folder: Path, progress: bool) -> Path:
    """The path of the file in ``folder``; it is downloaded if it is missing."""
    path = folder / download.file
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(download.url, timeout=30) as answer:
            folder.mkdir(parents=True, exist_ok=True)  # only now: a failed download leaves no folder
            atomically(path, lambda to: _save(answer, to, download, folder, progress))
    except UNREACHABLE as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise FileError(
            f"{download.file} in {folder}",
            f"no such file, and {download.url} did not answer ({getattr(error, 'reason', None) or error})",
            f"download it elsewhere and put it into {folder}, or pass --data-dir if you have it",
        ) from None
    except OSError as error:
        raise FileError(
            f"a folder that can be written, {folder}", str(error), "choose another with --data-dir"
        ) from None
    return path


def _save(answer: Any, to: Path, download: Download, folder: Path, progress: bool) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    megabytes = int(answer.headers.get("Content-Length") or 0) >> 20
    with to.open("wb") as file, progress_line(f"download {download.file} (MB)", megabytes, progress) as on:
        while block := answer.read(1 << 20):
            file.write(block)
            digest.update(block)
            on(1, "")
    if digest.hexdigest() != download.md5:
        raise FileError(
            f"the published {download.file}",
            "another or an incomplete file (wrong checksum)",
            f"try again, or put the file from {download.url} into {folder}",
        )
