"""Reading the files of heads; :meth:`Head.save` writes them. Nothing in a file is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from purge.core.errors import FileError, PurgeError
from purge.core.settings import replace
from purge.models.heads import logistic
from purge.models.heads.head import FORMAT, Head, HeadSettings, LogisticHead, RidgeHead
from purge.models.heads.logistic import Problem, Solution
from purge.models.heads.moments import Moments
from purge.models.heads.rows import Ledger, checked


def load(path: str | os.PathLike[str]) -> Head:
    """Read a head that :meth:`Head.save` wrote; nothing in the file is executed."""
    file = Path(path)
    if not file.is_file():
        raise FileError(f"the file of a head at {file}", "nothing there", "check the path")
    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError, ValueError):
        raise FileError(f"the file of a head at {file}", "a damaged or other file", "save it again") from None
    if about.get("format") != FORMAT:
        fix = "pass what head.save wrote"
        raise FileError(f"the file of a head at {file}", "safetensors of something else", fix)
    try:
        return _read(about, tensors)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, RecursionError) as error:
        why = str(error) if isinstance(error, PurgeError) else "parts that do not fit each other"
        raise FileError(f"the file of a head at {file}", why.rstrip("."), "save it again") from None


def _read(about: Mapping[str, str], tensors: dict[str, Tensor]) -> Head:
    written, k = json.loads(about["settings"]), int(about["classes"])
    if not isinstance(written, dict):
        raise ValueError
    settings = replace(HeadSettings(), written)
    key, digests = tensors.pop("ledger.key", None), tensors.pop("ledger.digests", None)
    ledger = None if key is None or digests is None else Ledger.read(key, digests)
    for t in tensors.values():
        if t.is_floating_point() and not (t.dtype == torch.float64 and bool(torch.isfinite(t).all())):
            raise ValueError
    if settings.kind == "ridge":
        counts, means, scatter = tensors["counts"], tensors["means"], tensors["scatter"]
        width = means.shape[1]
        rows = int(counts.sum())
        fits = (
            counts.shape == (k,)
            and tensors["rounding"].shape == (width,)
            and means.shape == (k, width)
            and scatter.shape == (width, width)
        )
        if not fits or counts.dtype != torch.long or int(counts.min()) < 0 or rows < 1:
            raise ValueError
        if ledger is not None and len(ledger.digests) != rows:
            raise ValueError
        moments = Moments(counts, means, scatter, tensors["rounding"])
        return RidgeHead(settings, k, ledger, moments)
    x, y = checked(tensors["x"], tensors["y"], classes=k)
    width = x.shape[1]
    if ledger is None or len(ledger.digests) != len(y) or x.dtype != torch.float64:
        raise ValueError
    weight = tensors["solution"]
    if weight.shape != (k, width):
        raise ValueError
    problem = Problem(x, y, x.T @ x, settings.lam, k)
    solution = Solution(weight, logistic.curvature_at(problem, weight))
    return LogisticHead(settings, k, ledger, problem, solution)
