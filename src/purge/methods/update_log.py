"""The log of the updates of a training, which :mod:`purge.methods.amnesiac` takes back.

A log is a folder with one file per logged step, ``00000000.safetensors`` and on; ``steps.parquet`` (the
names of the samples in every step, and whether its update was logged); ``samples.parquet`` (all samples
of the training); and ``log.json`` with the digest of the trained model, written last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from purge.core.errors import DataError, FileError, MethodError, ModelError
from purge.core.files import atomically, out_folder, read_json, write_json
from purge.data.identity import identities
from purge.data.samples import Samples
from purge.engine.trainer import Recipe
from purge.models.checkpoint import digest, read_tensors, write_tensors

FACTS, STEPS, SAMPLES = "log.json", "steps.parquet", "samples.parquet"


class UpdateLog:
    """Writes the update of every training step to a folder; its :meth:`step` watches ``fit``.

    ``only``: log the batches with one of these samples, which are then the only ones that can be
    forgotten. Without it the log takes the bytes of all trainable parameters, times the steps.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module,
        samples: Samples,
        recipe: Recipe,
        *,
        only: Samples | None = None,
    ) -> None:
        self._folder = out_folder(folder)
        if recipe.ema > 0:  # an average of weights is not the sum of the updates
            raise MethodError("ema=0 for a training with a log of updates", str(recipe.ema), "set ema=0")
        self._ids, self._labels, self._everything = identities(samples), samples.labels, only is None
        self._wanted = torch.ones(len(samples), dtype=torch.bool)
        if only is not None:
            names = identities(only)
            self._wanted = torch.isin(self._ids, names)
            if strange := int((~torch.isin(names, self._ids)).sum()):
                what, fix = "samples of the training data to log", "take them from it with purge.split"
                raise DataError(what, f"{strange} that are not in it", fix)
        n, k = len(self._ids), int(self._wanted.sum())
        steps, batch = recipe.batches(n)
        each = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        size = each * recipe.epochs * steps * (1 - (1 - k / n) ** batch)  # the chance that a batch is logged
        parent = next(p for p in [self._folder, *self._folder.absolute().parents] if p.exists())
        if size > (free := shutil.disk_usage(parent).free):
            raise FileError(
                f"room for a log of about {size / 1e9:.1f} GB in {parent}",
                f"{free / 1e9:.1f} GB free",
                "log only the batches of samples that may have to be forgotten, or choose another disk",
            )
        self._steps: list[int] = []
        self._rows: list[Tensor] = []
        self._logged: list[bool] = []
        self._folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def step(self, model: nn.Module, step: int, index: Tensor) -> Iterator[None]:
        """Log how far the parameters move within the block, a step with the samples at ``index``."""
        logged = bool(self._wanted[index].any())  # on the CPU: no device waits for it
        self._steps.append(step)
        self._rows.append(index.clone())
        self._logged.append(logged)
        params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad and logged}
        before = {name: p.clone() for name, p in params.items()}
        yield
        if logged:
            delta = {name: p - before[name] for name, p in params.items()}
            write_tensors(_file(self._folder, step), delta, fix="free some space, then train again")

    def finish(self, model: nn.Module) -> None:
        """Write the index and, last of all, log.json."""
        if self._steps != list(range(len(self._steps))):
            got = f"one that begins at step {self._steps[0]}"
            fix = "train again from the start: a resumed training cannot be logged"
            raise FileError("a log of all steps from the first on", got, fix)
        lengths = [len(rows) for rows in self._rows]
        offsets = pa.array(np.cumsum([0, *lengths]), pa.int64())
        ids = pa.LargeListArray.from_arrays(offsets, pa.array(self._ids[torch.cat(self._rows)].numpy()))
        tables = {
            STEPS: pa.table({"step": self._steps, "logged": self._logged, "ids": ids}),
            SAMPLES: pa.table({"id": self._ids.numpy(), "label": self._labels.numpy()}),
        }
        for name, table in tables.items():
            atomically(self._folder / name, partial(pq.write_table, table))
        count = {"steps": len(self._steps), "logged": sum(self._logged)}
        write_json(self._folder / FACTS, {"digest": digest(model), **count, "everything": self._everything})


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}.safetensors"


def updates_with(log: str | None, model: nn.Module, forget: Samples) -> list[Path]:
    """The files of the updates that used a sample to forget, the last one first.

    Refuses a missing, unfinished or damaged log, one of another model or other data, and one that
    lacks some of these updates.
    """
    if log is None:
        raise MethodError(
            "log=…, the folder with the updates of the training",
            "none",
            "train with a log first: purge train --log-updates DIR, then pass log=DIR",
        )
    folder = Path(log)
    if not (folder / FACTS).is_file():
        raise FileError(
            f"a complete log of updates in {folder}",
            f"{'a folder' if folder.is_dir() else 'nothing'} without {FACTS}",
            "train again with a log, and let it finish",
        )
    if read_json(folder / FACTS).get("digest") != digest(model):
        raise ModelError(
            f"the model that the log in {folder} was written for",
            "one with other weights",
            "use the model as that training returned it",
        )
    try:
        steps, samples = pq.read_table(folder / STEPS), pq.read_table(folder / SAMPLES)
        number, logged = steps["step"].to_numpy(), steps["logged"].to_numpy()
        ids = steps["ids"].combine_chunks()
        lengths, names = ids.value_lengths().to_numpy(), ids.flatten().to_numpy()
        known = set(zip(samples["id"].to_pylist(), samples["label"].to_pylist(), strict=True))
    except (OSError, pa.ArrowException, KeyError, AttributeError):
        raise _damaged(folder) from None
    lost = identities(forget)
    if strange := sum(pair not in known for pair in zip(lost.tolist(), forget.labels.tolist(), strict=True)):
        raise DataError(
            "samples to forget from the logged training",
            f"{strange} of {len(lost)} that it does not know",
            "split the data of that training with purge.split",
        )
    touched = np.zeros(len(number), bool)
    touched[np.repeat(np.arange(len(number)), lengths)[np.isin(names, lost.numpy())]] = True
    if absent := int((touched & ~logged).sum()):
        raise MethodError(
            f"a log with all {int(touched.sum())} updates that used the forget set",
            f"one without {absent} of them",
            "forget samples that were named when training was logged, or train again with a full log",
        )
    return [_file(folder, step) for step in number[touched].tolist()[::-1]]


def updates_in(file: Path) -> dict[str, Tensor]:
    """How far a step moved each parameter; a file that holds other tensors than were logged is refused."""
    if (tensors := read_tensors(file)) is None:
        raise _damaged(file)
    return tensors


def _damaged(path: Path) -> FileError:
    return FileError(
        f"a complete log of updates in {path}", "a missing or damaged part", "train again with a log"
    )
