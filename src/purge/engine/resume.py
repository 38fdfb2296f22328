"""The state of an unfinished training on disk, from which it resumes."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from purge.core.errors import FileError
from purge.core.files import out_folder
from purge.core.settings import as_dict
from purge.data.identity import fingerprints
from purge.data.images import Images
from purge.data.samples import Samples
from purge.engine.context import Context
from purge.engine.seeding import seeded
from purge.models.checkpoint import cpu_copies, digest, read_tensors, tensors_of, write_tensors
from purge.models.inspect import device_of

if TYPE_CHECKING:
    from purge.engine.trainer import Recipe

logger = logging.getLogger("purge")

STATE = "state.safetensors"  # in the folder of an unfinished training
HALF = ".*.safetensors.*"  # temporary files that a killed training left behind
TRANSFORMED = 16  # images that tell one transform from another


def training_folder(path: str | os.PathLike[str] | None, *, resume: bool, force: bool) -> Path | None:
    """The folder of a training: empty, to be overwritten, or with an unfinished training to resume."""
    if path is None:
        if resume:
            raise FileError("the folder of the training to resume", "none", "pass out=…")
        return None
    folder = out_folder(path, force=True)
    finished = (folder / "run.json").is_file()
    begun = (folder / STATE).is_file() or (not finished and any(folder.glob(HALF)))
    if resume and finished and not begun:
        raise FileError(
            f"an unfinished training in {folder}", "a finished one", "use it, or choose another folder"
        )
    if begun and not resume and not force:
        raise FileError(
            f"an empty folder at {folder}",
            "one with an unfinished training",
            "resume it with --resume (resume=True), or overwrite it with force",
        )
    return folder if begun else out_folder(path, force=force)


def kept_epochs(folder: Path, *, resumable: bool) -> str:
    """After an interruption: how much of a training is in its folder, and how to go on."""
    if not (folder / STATE).is_file():
        return "No epoch of the training is kept; start again."
    if not resumable:
        return f"This training cannot be resumed; start again in another folder, or in {folder} with --force."
    with safe_open(folder / STATE, "pt") as file:
        epochs = file.get_slice("losses").get_shape()[0]
    return (
        f"Kept in {folder}: {epochs} epoch{'' if epochs == 1 else 's'} of the training. Resume with --resume."
    )


def identity(model: nn.Module, samples: Samples, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What must be the same for a training to resume: recipe, seed, untrained model and data."""
    # items read from a dataset may differ each time
    most = 0 if samples.streamed and samples.pixel_shape is None else 256
    return {**as_dict(recipe), "seed": seed, "model": digest(model), "data": data_digest(samples, most)}


def data_digest(samples: Samples, most: int | None = None) -> str:
    """A digest of all labels, and of the inputs (of images also the ids) of at most so many samples."""
    n = len(samples)
    count = n if most is None else min(n, most)
    some = samples if count == n else samples.select(torch.arange(count) * n // max(1, count))
    parts = [samples.labels]
    h = hashlib.sha256()
    if isinstance(some, Images):  # pixels are the same on every device
        h.update(repr((some.shape, some.mean, some.std)).encode())
        parts += [samples.ids, some.pixels.cpu().contiguous()]
        if some.backend.transform is not None:
            parts.append(fingerprints(samples.select(torch.arange(min(n, TRANSFORMED)))))
    else:
        with seeded(0, torch.device("cpu")):  # a dataset may draw random numbers for its items
            parts.append(fingerprints(some))
    for part in parts:
        h.update(part.numpy().data)
    return h.hexdigest()


class TrainingState:
    """A training as it was after its latest epoch, in one file that is replaced whole."""

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        mean: dict[str, Tensor],
        generator: torch.Generator,
        context: Context,
    ) -> None:
        self._context, self._ranks = context, context.ranks
        self._path, self._identity, self._model, self._mean = path, identity, model, mean
        self._momentum, self._generator, self._device = optimizer.state, generator, device_of(model)
        self._threads = {torch.get_num_threads()}  # of all starts of this training
        self._thread = ThreadPoolExecutor(1)  # writes while the next epoch runs
        self._writing: Future[Any] = self._thread.submit(lambda: None)

    def restore(self, resume: bool) -> tuple[list[Tensor], float]:
        """Continue where the file was written, if there is one; the losses and seconds so far."""
        there = self._path.is_file()
        self._ranks.check_same({f"state of the training in {self._path.parent}": there})
        if not (there and resume):
            return [], 0.0
        try:
            with safe_open(self._path, "pt") as file:
                facts = json.loads(file.metadata()["facts"])
            before, seconds = dict(facts["identity"]), float(facts["seconds"])
            threads = set(map(int, facts["threads"]))
            tensors = read_tensors(self._path)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged() from None
        if other := [k for k, v in self._identity.items() if before.get(k) != v]:
            raise FileError(
                "the model, data and settings of the training to resume",
                f"another {other[0]}",
                "pass the same ones, or start again in another folder",
            )
        if tensors is None or not 0 <= seconds < math.inf:
            raise self._damaged()
        self._compare(threads)
        try:
            own = {k: tensors[f"model.{k}"] for k in tensors_of(self._model)}
            self._model.load_state_dict({**self._model.state_dict(), **own})
            for name, average in self._mean.items():
                average.copy_(tensors[f"mean.{name}"])
            for i, p in enumerate(self._model.parameters()):
                if (buffer := tensors.get(f"momentum.{i}")) is not None:
                    self._momentum[p]["momentum_buffer"] = torch.empty_like(p).copy_(buffer)
            self._generator.set_state(tensors["random.order"])
            torch.set_rng_state(tensors["random.cpu"])
            if self._device.type == "cuda" and "random.gpu" in tensors:  # it may have started on the CPU
                torch.cuda.set_rng_state(tensors["random.gpu"], self._device)
            return list(tensors["losses"].to(self._device)), seconds
        except (KeyError, RuntimeError, TypeError):  # tensors of something else
            raise self._damaged() from None

    def _damaged(self) -> FileError:
        return FileError(f"the state of a training in {self._path}", "a damaged file", "start again")

    def _compare(self, before: set[int]) -> None:
        """Say that sums will be rounded differently with another number of threads."""
        (now,) = self._threads
        self._threads |= before
        self._context.threads.update(before)
        if self._device.type == "cpu" and before - {now}:
            began = min(before - {now})
            logger.warning(
                "The training began with %d thread%s and goes on with %d: sums are rounded differently, so "
                "its result is not the same to the bit as without the interruption. Keep the number with "
                "OMP_NUM_THREADS=%d.",
                began, "s" * (began > 1), now, began,
            )  # fmt: skip

    def write(self, losses: list[Tensor], seconds: float) -> None:
        """Write the state after an epoch, while the next one runs; of several ranks the first one does."""
        if self._ranks.rank > 0:
            return
        buffers = [self._momentum[p].get("momentum_buffer") for p in self._model.parameters()]
        state = {
            **{f"model.{k}": v for k, v in tensors_of(self._model).items()},
            **{f"mean.{k}": v for k, v in self._mean.items()},
            **{f"momentum.{i}": b for i, b in enumerate(buffers) if b is not None},
            "random.order": self._generator.get_state(),
            "random.cpu": torch.get_rng_state(),
            "losses": torch.stack(losses),
        }
        if self._device.type == "cuda":
            state["random.gpu"] = torch.cuda.get_rng_state(self._device)
        about = {"identity": self._identity, "seconds": seconds, "threads": sorted(self._threads)}
        facts = {"facts": json.dumps(about)}
        copied, fix = cpu_copies(state), "free some space, then resume with --resume (resume=True)"
        self._writing.result()
        self._writing = self._thread.submit(write_tensors, self._path, copied, fix=fix, metadata=facts)

    def close(self) -> None:
        """Wait until the last epoch is written."""
        self._thread.shutdown()
        self._writing.result()
