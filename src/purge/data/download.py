"""Downloads of published files, verified by checksum."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from purge.core.errors import FileError
from purge.core.files import atomically, below
from purge.core.progress import progress_line


def fetch(url: str, md5: str, folder: Path, progress: bool) -> Path:
    """The path of a published file in ``folder``; it is downloaded if it is missing."""
    path = below(folder, url.rpartition("/")[2])
    if path.is_file():
        return path

    def save(to: Path) -> None:
        digest, megabytes = (
            hashlib.md5(usedforsecurity=False),
            int(answer.headers["Content-Length"] or 0) >> 20,
        )
        with to.open("wb") as file, progress_line(f"download {path.name} (MB)", megabytes, progress) as on:
            while block := answer.read(1 << 20):
                file.write(block)
                digest.update(block)
                on(1, "")
        if digest.hexdigest() != md5:
            got, fix = "another or an incomplete file (wrong checksum)", f"try again, or put it into {folder}"
            raise FileError(f"the published {path.name} at {url}", got, fix)

    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            folder.mkdir(parents=True, exist_ok=True)  # only now: a failed download leaves no folder
            atomically(path, save)
    except (OSError, http.client.HTTPException) as error:  # of the network, or of the folder
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        got = f"no such file, and downloading {url} failed ({getattr(error, 'reason', None) or error})"
        fix = f"download it elsewhere and put it into {folder}, or pass --data-dir if you have it"
        raise FileError(f"{path.name} in {folder}", got, fix) from None
    return path
