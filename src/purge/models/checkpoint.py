"""Reading and writing the weights of a model. No code in a file is ever run."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from purge.core.errors import FileError
from purge.models.wrappers import without_prefix


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers by name, without extra state that is not a tensor."""
    return {name: t for name, t in model.state_dict().items() if isinstance(t, Tensor)}


def digest(model: nn.Module) -> str:
    """SHA-256 of the names and bytes of all weights and buffers."""
    return tensors_digest(tensors_of(model))


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names and bytes of tensors, in the order of their names."""
    return _digest((name, tensors[name]) for name in sorted(tensors))


def file_digest(path: Path) -> str:
    """The digest of the model whose weights a ``.safetensors`` file holds; its architecture is not needed.

    The same file is read once in the life of the process.
    """
    if not path.is_file():
        raise FileError(f"a checkpoint at {path}", "no such file", "check the path")
    found = path.stat()
    return _digest_of_file(path.absolute(), (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=1024)
def _digest_of_file(path: Path, _stamp: tuple[int, ...]) -> str:
    try:
        with safe_open(path, "pt") as file:  # one tensor at a time is in memory
            return _digest((name, file.get_tensor(name)) for name in sorted(file.keys()))
    except (SafetensorError, OSError, ValueError):
        raise _damaged(path) from None


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    h = hashlib.sha256()
    for name, t in tensors:
        h.update(name.encode())
        h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights as safetensors; tied weights are written under each of their names."""
    state = {k: v.detach().cpu().contiguous().clone() for k, v in tensors_of(model).items()}
    save_file(state, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights from a ``.safetensors`` file, or from a state dict that torch saved.

    The prefix that DataParallel or ``torch.compile`` gives to all names is left out.
    """
    own = tensors_of(model)
    state = without_prefix(_read(path), own)
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    wrong = [k for k, v in own.items() if k in state and state[k].shape != v.shape]
    if missing or unexpected or wrong:
        name = sorted([*missing, *unexpected, *wrong], key=str)[0]
        raise FileError(
            f"weights of a {type(model).__name__} in {path.name}",
            f"another architecture ({len(missing)} missing, {len(unexpected)} unexpected, "
            f"{len(wrong)} of another shape, first: {name})",
            "build the model that the checkpoint was trained with",
        )
    model.load_state_dict({**model.state_dict(), **state})


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileError(f"a checkpoint at {path}", "no such file", "check the path")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError):
            raise _damaged(path) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FileError(
            f"plain weights in {path.name}",
            "a pickle that would run code (it was not run), or a damaged file",
            "save model.state_dict() with torch.save or as safetensors",
        ) from None
    except Exception:  # torch raises many kinds of errors on a damaged file
        raise _damaged(path) from None
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise FileError(
            f"a dict of tensors in {path.name}", type(state).__name__, "save model.state_dict() alone"
        )
    return dict(state)


def _damaged(path: Path) -> FileError:
    return FileError(f"a complete checkpoint in {path}", "a damaged or truncated file", "save it again")
