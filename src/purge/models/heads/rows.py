"""Rows of features that come in and go: checked once, and known again by their digests."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief
from purge.data.classes import as_labels

CHUNK = 4096  # rows that are looked at together, so that a copy in float64 stays small
DIGEST = 16  # bytes of a row's digest


def checked(x: Any, y: Any, *, width: int | None = None, classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Features (N, D) on the CPU and labels (N,), or a DataError that says what is wrong."""
    features = numbers(x, width)
    labels = as_labels(y, len(features), "the labels")
    if classes is not None and int(labels.max()) >= classes:
        fix = f"fit the head with classes={int(labels.max()) + 1} or more"
        raise DataError(f"labels below {classes}, the classes of the head", str(int(labels.max())), fix)
    return features, labels


def numbers(x: Any, width: int | None = None) -> Tensor:
    """Features (N, D) as a real, finite tensor on the CPU."""
    try:
        features = torch.as_tensor(x).detach().cpu()
        got = f"{features.dtype} of shape {tuple(features.shape)}"
    except (TypeError, ValueError, RuntimeError, OverflowError):
        features, got = torch.zeros(0), type(x).__name__
    real = features.layout == torch.strided and not features.is_complex()
    if not real or features.ndim != 2 or not features.numel() or width not in (None, features.shape[1]):
        what = "features (N, D)" + (f" with D = {width}" if width else "")
        raise DataError(what, got, "pass one row of numbers per sample, as purge.heads.features does")
    if not all(bool(torch.isfinite(chunk).all()) for chunk in features.split(CHUNK)):
        raise DataError("finite features", "NaN or infinity", "leave such rows out, or mend the backbone")
    return features


def chunks(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows in float64 with their labels, some at a time."""
    for part, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        yield part.double(), labels


class KeptRows:
    """Which rows a head has learned, as a keyed digest of each; nothing else of a row is kept.

    The key is drawn for each head, so that digests of two heads cannot be compared.
    """

    def __init__(self, key: bytes = b"", digests: list[bytes] | None = None) -> None:
        self.key, self.digests = key or secrets.token_bytes(DIGEST), digests or []

    def of(self, x: Tensor, y: Tensor) -> list[bytes]:
        """The digests of rows; a number counts by its value in float64, so 0 and −0 are the same."""
        digests = []
        for part, labels in chunks(x, y):
            rows = np.ascontiguousarray((part + 0.0).numpy())
            for row, label in zip(rows, labels.tolist(), strict=True):
                h = hashlib.blake2b(row.data, digest_size=DIGEST, key=self.key)
                h.update(label.to_bytes(8, "little"))
                digests.append(h.digest())
        return digests

    def find(self, wanted: list[bytes]) -> list[int]:
        """The places of these rows; a row that is wanted twice must be there twice."""
        places: dict[bytes, list[int]] = {digest: [] for digest in wanted}
        for i, digest in enumerate(self.digests):
            if digest in places:
                places[digest].append(i)
        at = [places[digest].pop() if places[digest] else -1 for digest in wanted]
        if -1 in at:
            got = f"{at.count(-1)} that it has not (first: row {at.index(-1)}, with its label)"
            fix = "pass the very features and labels that were added, each as often as it was"
            raise DataError("rows that the head has learned", got, fix)
        return at

    def tensors(self) -> dict[str, Tensor]:
        """The key and the digests (N, 16), for a file."""
        rows = np.frombuffer(b"".join(self.digests), np.uint8).reshape(-1, DIGEST)
        return {
            "ledger.key": torch.tensor(list(self.key), dtype=torch.uint8),
            "ledger.digests": torch.from_numpy(rows.copy()),
        }

    @classmethod
    def read(cls, key: Tensor, digests: Tensor) -> KeptRows:
        """The ledger that a file holds."""
        if key.dtype != torch.uint8 or digests.dtype != torch.uint8 or digests.shape[1:] != (DIGEST,):
            raise ValueError(brief(tuple(digests.shape)))
        return cls(bytes(key.tolist()), [row.tobytes() for row in digests.numpy()])
