"""The state of an unfinished training on disk, from which it resumes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from purge.core.errors import FileError
from purge.core.files import out_folder
from purge.core.settings import as_dict
from purge.data.samples import Lazy, Samples
from purge.engine.store import cpu_copies, data_digest, write_tensors
from purge.models.checkpoint import digest, tensors_of
from purge.models.inspect import device_of

if TYPE_CHECKING:
    from purge.engine.trainer import Recipe

STATE = "state.safetensors"  # in the folder of an unfinished training
HALF = ".*.safetensors.*"  # temporary files that a killed training left behind


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


def identity(model: nn.Module, samples: Samples, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What must be the same for a training to resume: recipe, seed, untrained model and data."""
    few = 0 if isinstance(samples, Lazy) else 256  # items read from a dataset may differ each time
    return {**as_dict(recipe), "seed": seed, "model": digest(model), "data": data_digest(samples, few)}


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
    ) -> None:
        self._path, self._identity, self._model, self._mean = path, identity, model, mean
        self._momentum, self._generator, self._device = optimizer.state, generator, device_of(model)
        self._thread = ThreadPoolExecutor(1)  # writes while the next epoch runs
        self._writing = self._thread.submit(lambda: None)

    def restore(self) -> tuple[list[Tensor], float]:
        """Continue where the file was written, if there is one; return the losses and seconds so far."""
        if not self._path.is_file():
            return [], 0.0
        try:
            with safe_open(self._path, "pt") as file:
                facts = json.loads(file.metadata()["facts"])
            before, seconds = dict(facts["identity"]), float(facts["seconds"])
            found = load_file(self._path)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            raise FileError(
                f"the state of a training in {self._path}", "a damaged file", "start again"
            ) from None
        if other := [k for k, v in self._identity.items() if before.get(k) != v]:
            raise FileError(
                "the model, data and settings of the training to resume",
                f"another {other[0]}",
                "pass the same ones, or start again in another folder",
            )
        own = self._model.state_dict()
        self._model.load_state_dict({k: found.get(f"model.{k}", v) for k, v in own.items()})
        for name, average in self._mean.items():
            average.copy_(found[f"mean.{name}"])
        for i, p in enumerate(self._model.parameters()):
            if (buffer := found.get(f"momentum.{i}")) is not None:
                self._momentum[p]["momentum_buffer"] = torch.empty_like(p).copy_(buffer)
        self._generator.set_state(found["random.order"])
        torch.set_rng_state(found["random.cpu"])
        if self._device.type == "cuda" and "random.gpu" in found:  # it may have started on the CPU
            torch.cuda.set_rng_state(found["random.gpu"], self._device)
        return list(found["losses"].to(self._device)), seconds

    def write(self, losses: list[Tensor], seconds: float) -> None:
        """Write the state after an epoch, while the next one runs."""
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
        facts = {"facts": json.dumps({"identity": self._identity, "seconds": seconds})}
        copied, fix = cpu_copies(state), "free some space, then resume with --resume (resume=True)"
        self._writing.result()
        self._writing = self._thread.submit(write_tensors, self._path, copied, fix=fix, metadata=facts)

    def close(self) -> None:
        """Wait until the last epoch is written."""
        self._thread.shutdown()
        self._writing.result()
