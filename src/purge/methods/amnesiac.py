"""Amnesiac unlearning, the true one: take back the updates of the batches that had the samples.

Graves, Nagisetty, Ganesh: "Amnesiac Machine Learning", AAAI 2021, arXiv:2010.10981. While the model is
trained, the change that each batch b makes to the parameters is written to disk; to forget D_f, the
changes of all batches with a sample of D_f are taken back, and the model is trained on for a short
while with the rest::

    δ_b = θ_after(b) − θ_before(b)          for every training step b            (the log)
    θ  ← θ − Σ_{b : b ∩ D_f ≠ ∅} δ_b
    θ  ← θ − η ∇ CE(x_r, y_r)               for a few steps                      (the repair)

Published defaults: none for the repair but that it is short; ours is one epoch of SGD with η = 1e-2.

What to expect: few samples touch few batches and little is lost. A class is in nearly every batch, so
nearly everything is taken back, and the repair has to train the model from its first weights: that is
the method, not a fault here (give it the epochs of a training, or use another). What later batches
made of the forgotten ones, through weights, momentum and weight decay, is not taken back.

Where we differ: the log has trainable parameters only, not the running statistics of BatchNorm (a
variance less a few of its changes can be negative); the repair renews those, with ``norm="train"``.
The log knows which samples were in *every* step, so that an incomplete one is noticed. Changes are
taken back from the last to the first, each rounded once. Every batch of the repair is full, dropout
is off, there is no augmentation.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from purge.core.errors import DataError, FileError, MethodError, ModelError
from purge.core.files import atomically, out_folder, read_json, write_json
from purge.data.identity import identities
from purge.data.samples import Samples
from purge.engine.trainer import Recipe
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.checkpoint import digest
from purge.models.forward import forward

logger = logging.getLogger("purge")

FACTS = "log.json"  # written last: a log without it is not complete
STEPS, SAMPLES = "steps.parquet", "samples.parquet"
LARGE = 1 << 30  # a log of more bytes than this is announced


@dataclass(frozen=True)
class Amnesiac(Method):
    """Take back the logged updates of the batches with forgotten samples, then repair."""

    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain", "updates"})

    log: str | None = setting(None, "folder of the log that training wrote; see UpdateLog")
    epochs: int = setting(1, "passes over the retain set afterwards; 0: no repair", low=0)
    batch_size: int = setting(256, "samples per step of the repair", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Take back what forgotten samples had a part in; then go through the retain set."""
        files = updates_with(self.log, model, split.forget)
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.retain) / self.batch_size)
        order = [torch.empty(0, dtype=torch.long, device=run.device)]  # the first step is the subtraction
        if self.epochs > 0:
            order += run.batch_indices(split.retain, steps=self.epochs * epoch, batch_size=self.batch_size)
        ends = range(1, len(order) + 1, epoch)
        for _, (r,) in run.batches(split.retain, orders=[order], epoch=ends):
            if not len(r):
                take_back(model, files)
                run.log(retain_loss=None, taken_back=torch.tensor(len(files), device=run.device))
                continue
            with statistics(model, self.norm):
                loss = F.cross_entropy(forward(model, r.x).float(), r.y)
            self.optim.step(optimizer, loss)
            run.log(retain_loss=loss, taken_back=None)


@torch.no_grad()
def take_back(model: nn.Module, files: Sequence[Path]) -> None:
    """θ − Σ δ over the files, one after the other; what takes no gradient stays as it is."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for file in files:
        for name, delta in load_file(file).items():
            if name in params:
                params[name].sub_(delta.to(params[name].device))


# -- writing a log ----------------------------------------------------------------------------


class UpdateLog:
    """The updates of a training, one file per step, for :class:`Amnesiac`; give it to ``fit``.

    ``only``: keep the updates of batches with one of these samples, the only ones that can then be
    forgotten. Otherwise all are kept: as many bytes as all trainable parameters, times the steps.
    A log has ``steps.parquet`` (the names of the samples in each step, and whether its update is
    there), ``samples.parquet`` (all that was trained on), ``00000000.safetensors`` and on, and
    ``log.json`` with the digest of the model that the training gave.
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
        if recipe.ema > 0:
            raise MethodError(
                "ema=0 for a training with a log of updates",
                str(recipe.ema),
                "a mean of weights is not the sum of the updates: set ema=0",
            )
        self._ids, self._labels = identities(samples), samples.labels
        self._wanted = torch.ones(len(samples), dtype=torch.bool)
        if only is not None:
            names = identities(only)
            self._wanted = torch.isin(self._ids, names)
            if strange := int((~torch.isin(names, self._ids)).sum()):
                raise DataError(
                    "samples of the training data to log the updates of",
                    f"{strange} that are not in it",
                    "take them from the training data with purge.split",
                )
        self._everything = only is None
        self._announce(self.expected_bytes(model, recipe))
        self._steps: list[int] = []
        self._rows: list[Tensor] = []
        self._logged: list[bool] = []
        self._before: dict[str, Tensor] = {}
        self._folder.mkdir(parents=True, exist_ok=True)

    def expected_bytes(self, model: nn.Module, recipe: Recipe) -> int:
        """How large the log will be, about: a batch is logged with 1 − (1 − k/n)^size."""
        n, k = len(self._ids), int(self._wanted.sum())
        size = min(recipe.batch_size, n)
        steps = recipe.epochs * max(1, n // size)
        return round(_bytes(model) * steps * (1 - (1 - k / n) ** size))

    def before(self, model: nn.Module, step: int, index: Tensor) -> None:
        """Remember who is in the step, and where the parameters are."""
        logged = bool(self._wanted[index].any())  # on the CPU: no device waits for it
        self._steps.append(step)
        self._rows.append(index.clone())
        self._logged.append(logged)
        self._before = _trainable(model) if logged else {}

    def after(self, model: nn.Module) -> None:
        """Write how far they have moved."""
        if not self._before:
            return
        now = dict(model.named_parameters())
        delta = {
            name: (now[name].detach() - before).to("cpu", memory_format=torch.contiguous_format)
            for name, before in self._before.items()
        }
        self._before = {}
        self._write(_file(self._folder, self._steps[-1]), delta)

    def finish(self, model: nn.Module) -> None:
        """Write the index and, last of all, log.json."""
        if self._steps != list(range(len(self._steps))):
            raise FileError(
                "a log of all steps from the first on",
                f"one that begins at step {self._steps[0] if self._steps else 0}",
                "train anew: a training that was resumed cannot be logged",
            )
        lengths = [len(rows) for rows in self._rows]
        offsets = pa.array(np.cumsum([0, *lengths]), pa.int32() if sum(lengths) < 2**31 else pa.int64())
        of = pa.LargeListArray if offsets.type == pa.int64() else pa.ListArray
        ids = of.from_arrays(offsets, pa.array(self._ids[torch.cat(self._rows)].numpy()))
        steps = pa.table({"step": self._steps, "logged": self._logged, "ids": ids})
        samples = pa.table({"id": self._ids.numpy(), "label": self._labels.numpy()})
        atomically(self._folder / STEPS, lambda p: pq.write_table(steps, p))
        atomically(self._folder / SAMPLES, lambda p: pq.write_table(samples, p))
        facts = {
            "digest": digest(model),
            "steps": len(self._steps),
            "logged": sum(self._logged),
            "everything": self._everything,
        }
        write_json(self._folder / FACTS, facts)

    def _announce(self, size: int) -> None:
        parent = next(p for p in [self._folder, *self._folder.absolute().parents] if p.exists())
        free = shutil.disk_usage(parent).free
        if size > free:
            raise FileError(
                f"room for a log of about {size / 1e9:.1f} GB in {parent}",
                f"{free / 1e9:.1f} GB free",
                "log only the batches of samples that may have to go, or choose another disk",
            )
        if size > LARGE:
            logger.warning(
                "The log of updates in %s will take about %.1f GB: all trainable parameters, once for each "
                "logged step. To log fewer, name the samples that may have to go.",
                self._folder,
                size / 1e9,
            )

    def _write(self, path: Path, delta: dict[str, Tensor]) -> None:
        try:
            atomically(path, lambda p: save_file(delta, p))
        except (OSError, SafetensorError) as error:
            raise FileError(f"to be able to write {path}", str(error), "make room, then train anew") from None


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def _bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}.safetensors"


# -- reading a log ----------------------------------------------------------------------------


def updates_with(log: str | None, model: nn.Module, forget: Samples) -> list[Path]:
    """The files of the updates that forgotten samples had a part in, the last one first.

    Refused: no log, one that is not complete, one of another model or data, one without some of
    these updates.
    """
    if log is None:
        raise MethodError(
            "log=…, the folder of the updates that training wrote",
            "none",
            "train with a log first: purge train --log-updates DIR, then pass log=DIR",
        )
    folder = Path(log)
    if not (folder / FACTS).is_file():
        raise FileError(
            f"a complete log of updates in {folder}",
            f"{'a folder' if folder.is_dir() else 'nothing'} without {FACTS}",
            "train anew with a log, and let it finish",
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
        known = {(i, y) for i, y in zip(samples["id"].to_pylist(), samples["label"].to_pylist(), strict=True)}
    except (OSError, pa.ArrowException, KeyError, AttributeError):
        raise _damaged(folder) from None
    gone = identities(forget)
    _all_known(list(zip(gone.tolist(), forget.labels.tolist(), strict=True)), known)
    touched = np.zeros(len(number), bool)
    touched[np.repeat(np.arange(len(number)), lengths)[np.isin(names, gone.numpy())]] = True
    if absent := int((touched & ~logged).sum()):
        raise MethodError(
            f"a log with all {int(touched.sum())} updates that the forget set had a part in",
            f"one without {absent} of them",
            "forget samples that were named when training was logged, or train anew with a full log",
        )
    files = [_file(folder, step) for step in number[touched].tolist()[::-1]]
    _whole(folder, files, model)
    return files


def _all_known(gone: list[tuple[int, int]], known: set[tuple[int, int]]) -> None:
    if strange := sum(pair not in known for pair in gone):
        raise DataError(
            "samples to forget that the logged training was about",
            f"{strange} of {len(gone)} that it does not know",
            "divide the data of that training with purge.split",
        )


def _whole(folder: Path, files: list[Path], model: nn.Module) -> None:
    """Every file is there, can be read, and is about parameters of the model."""
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    for file in files:
        try:
            with safe_open(file, "pt") as found:
                sound = all(found.get_slice(k).get_shape() == shapes.get(k) for k in found.keys())  # noqa: SIM118
        except (OSError, SafetensorError):
            sound = False
        if not sound:
            raise _damaged(folder / file.name)


def _damaged(path: Path) -> FileError:
    return FileError(
        f"a whole log of updates in {path}", "a missing or damaged part", "train anew with a log"
    )
