"""Weights and other tensors in files, and their digests. No code in a file is ever run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from purge.core.errors import FileError
from purge.core.files import atomically
from purge.models.stored import damaged, inside, place, read


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
    stat = path.stat()
    return _digest_of_file(path.absolute(), (stat.st_ino, stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=1024)
def _digest_of_file(path: Path, _stamp: tuple[int, ...]) -> str:
    try:
        with safe_open(path, "pt") as file:  # one tensor at a time is in memory
            return _digest((name, file.get_tensor(name)) for name in sorted(file.keys()))
    except (SafetensorError, OSError, ValueError):
        raise damaged(path) from None


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    h = hashlib.sha256()
    for name, t in tensors:
        h.update(name.encode())
        h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights as safetensors; tied weights are written under each of their names."""
    save_file(cpu_copies(tensors_of(model)), path)


def cpu_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU, as safetensors wants them."""
    form = torch.contiguous_format
    return {k: v.detach().to("cpu", copy=True, memory_format=form) for k, v in tensors.items()}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, fix: str, metadata: dict[str, str] | None = None
) -> str:
    """Write tensors to a safetensors file with their digest, whole or not at all; return the digest."""
    held = cpu_copies(tensors)
    about = {"digest": tensors_digest(held), **(metadata or {})}
    try:
        atomically(path, lambda to: save_file(held, to, metadata=about))
    except (OSError, SafetensorError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise FileError(f"to be able to write {path}", got, fix) from None
    return about["digest"]


def read_tensors(path: Path, recorded: str | None = None) -> dict[str, Tensor] | None:
    """What :func:`write_tensors` wrote; None if the file is missing or damaged, or holds other tensors.

    ``recorded``: their digest; by default what the file itself says.
    """
    try:
        with safe_open(path, "pt") as file:
            recorded = recorded or (file.metadata() or {}).get("digest")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        return None
    return tensors if tensors_digest(tensors) == recorded else None


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Load weights into a model, from any form in which checkpoints are kept; no code in a file is run.

    A ``.safetensors`` file; a file of ``torch.save`` with a state dict, alone or within other dicts, as
    training scripts and Lightning write it; a folder of ``save_pretrained``, also in shards. A prefix that
    all names have, such as ``module.`` or ``model.``, is left out. What does not fit is refused by name.

    Args:
        model: the model that the weights are of; it is changed in place.
        path: the file or folder.

    Raises:
        FileError: it cannot be read, or the weights are not those of this model.

    Example:
        ```python
        model = purge.build("resnet18", classes=10, channels=3, size=32)
        purge.load_weights(model, "last.ckpt")
        ```
    """
    own, stored = tensors_of(model), read(Path(path))
    at = place(stored, own, type(model).__name__)
    content = inside(stored.content, at.way)
    state = {name: content[of] for name, of in at.names.items()}
    # A file may leave out what the model keeps under a second name.
    tied = {own[name].data_ptr(): t for name, t in state.items() if own[name].numel()}
    weights = {name: state[name] if name in state else tied[t.data_ptr()] for name, t in own.items()}
    model.load_state_dict({**model.state_dict(), **weights})
