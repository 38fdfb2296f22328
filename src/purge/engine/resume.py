"""The state of an unfinished training on disk, from which it can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from purge.core.errors import (
    FileError,
)
from purge.core.files import atomically, out_folder
from purge.core.settings import as_dict
from purge.data.images import Images
from purge.data.samples import Lazy, Samples
from purge.models.checkpoint import digest, tensors_of
from purge.models.inspect import device_of

if TYPE_CHECKING:
    from purge.engine.trainer import Recipe

STATE = "state.safetensors"  # of a training that is not finished


HALF = ".*.safetensors.*"  # what a training that was killed had half written


def training_folder(path: str | os.PathLike[str] | None, *, resume: bool, force: bool) -> Path | None:
    """A folder for a training: empty, to be overwritten, or with an unfinished training to go on with."""
    if path is None:
        if resume:
            raise FileError("the folder of the training to go on with, as resume asks", "none", "pass out=…")
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
            "go on with it by resume, or overwrite it with force",
        )
    return folder if begun else out_folder(path, force=force)


def _identity(model: nn.Module, samples: Samples, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What must be the same for a training to go on: recipe and seed, the fresh model, the data."""
    return {**as_dict(recipe), "seed": seed, "model": digest(model), "data": _fingerprint(samples)}


def _fingerprint(samples: Samples) -> str:
    """A digest of the labels and of some inputs; of images also of which they are and their size."""
    h = hashlib.sha256(samples.labels.numpy().tobytes())
    n, few = len(samples), min(len(samples), 256)
    spread = torch.arange(few) * n // few
    if isinstance(samples, Images):
        h.update(repr((samples.shape, samples.mean, samples.std)).encode())
        h.update(samples.ids.numpy().tobytes())
        h.update(samples.select(spread).pixels.cpu().numpy().tobytes())
    elif not isinstance(samples, Lazy):  # which may draw random numbers for every item
        x, _ = samples.take(spread)
        h.update(x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


class Kept:
    """The state of a training after its latest epoch, in one file that is replaced whole."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path, self._identity = path, identity
        self._thread = ThreadPoolExecutor(1)  # writes while the next epoch runs
        self._writing = self._thread.submit(lambda: None)

    def restore(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        mean: dict[str, Tensor],
        generator: torch.Generator,
    ) -> tuple[list[Tensor], float]:
        """Put everything back as it was after the latest epoch: losses and seconds so far are returned."""
        if not self._path.is_file():
            return [], 0.0
        try:
            with safe_open(self._path, "pt") as file:
                facts = json.loads(file.metadata()["facts"])
            identity, seconds = dict(facts["identity"]), float(facts["seconds"])
            found = load_file(self._path)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            raise FileError(
                f"the state of a training in {self._path}", "a damaged file", "start anew"
            ) from None
        if other := [k for k, v in self._identity.items() if identity.get(k) != v]:
            raise FileError(
                "the model, data and settings that the training was begun with",
                f"another {other[0]}",
                "give the same again, or start anew in another folder",
            )
        device = device_of(model)
        model.load_state_dict({**model.state_dict(), **_under(found, "model.")})  # in place: the layout stays
        params = list(model.parameters())
        for i, buffer in _under(found, "momentum.").items():
            optimizer.state[params[int(i)]]["momentum_buffer"] = torch.empty_like(params[int(i)]).copy_(
                buffer
            )
        for name, value in _under(found, "mean.").items():
            mean[name].copy_(value)
        generator.set_state(found["random.order"])
        torch.set_rng_state(found["random.cpu"])
        if device.type == "cuda" and "random.gpu" in found:  # it may have begun on the CPU
            torch.cuda.set_rng_state(found["random.gpu"], device)
        return list(found["losses"].to(device)), seconds

    def write(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        mean: dict[str, Tensor],
        generator: torch.Generator,
        losses: list[Tensor],
        seconds: float,
    ) -> None:
        """Write the state after an epoch, while the next one runs."""
        buffers = [optimizer.state[p].get("momentum_buffer") for p in model.parameters()]
        device = device_of(model)
        state = {
            **{f"model.{k}": v for k, v in tensors_of(model).items()},
            **{f"momentum.{i}": b for i, b in enumerate(buffers) if b is not None},
            **{f"mean.{k}": v for k, v in mean.items()},
            "random.order": generator.get_state(),
            "random.cpu": torch.get_rng_state(),
            "losses": torch.stack(losses),
        }
        if device.type == "cuda":
            state["random.gpu"] = torch.cuda.get_rng_state(device)
        copied = {
            k: v.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for k, v in state.items()
        }
        facts = {"facts": json.dumps({"identity": self._identity, "seconds": seconds})}
        self._wait()
        self._writing = self._thread.submit(
            atomically, self._path, lambda to: save_file(copied, to, metadata=facts)
        )

    def close(self) -> None:
        """Wait for the last epoch to be written."""
        self._thread.shutdown()
        self._wait()

    def _wait(self) -> None:
        try:
            self._writing.result()
        except (OSError, SafetensorError) as error:
            raise FileError(
                f"to be able to write {self._path}", str(error), "make room, then go on by resume"
            ) from None


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in sorted(tensors.items()) if k.startswith(prefix)}
