"""Everything that can be wrong with what the user gave us, checked once, at the door."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from purge.data import Data, Lazy, Samples, as_samples, batches, unwrap
from purge.errors import (
    DataError,
    DeviceError,
    FileError,
    MethodError,
    ModelError,
    PurgeError,
    did_you_mean,
    expected,
)
from purge.hooks import capture, training_flags_kept
from purge.images import Images
from purge.models import anatomy, logits_of, tensors_of
from purge.norm import batchnorms
from purge.runtime import Precision, device_of, evaluating, has_bf16
from purge.splits import Pair, Split


def device(wanted: torch.device | str | None, model: nn.Module) -> torch.device:
    """The device to run on: the one asked for if it is there, otherwise the model's."""
    if wanted is None:
        return device_of(model)
    try:
        found = torch.device(wanted)
        torch.zeros(1, device=found).item()  # a device without data, such as meta, fails here
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        there = "cpu" + (f", cuda:0 … cuda:{n - 1}" if (n := torch.cuda.device_count()) else "")
        raise DeviceError(
            expected(f"a device that is here ({there})", repr(str(wanted)), "choose one of these")
        ) from None
    return found


def precision(wanted: str | None, at: torch.device, *, full: bool) -> Precision:
    """What convolutions and products are computed in: bf16 where the device has it and it is safe."""
    if wanted not in (None, "float32", "bf16"):
        raise MethodError(
            expected("precision float32 or bf16", repr(wanted), "leave it out to have it chosen")
        )
    if wanted is None:
        return "bf16" if has_bf16(at) and not full else "float32"
    return wanted  # type: ignore[return-value]  # mypy does not follow `in`


def graph(wanted: bool | None, at: torch.device, *, default: bool) -> bool:
    """Are steps to be recorded as a CUDA graph? By default as the method says, on a GPU."""
    if wanted not in (None, True, False):
        raise MethodError(expected("graph true or false", repr(wanted), "leave it out"))
    if wanted and at.type != "cuda":
        raise DeviceError(expected("a CUDA device for graph=True", str(at), "leave graph out"))
    return default and at.type == "cuda" if wanted is None else bool(wanted)


def split(model: nn.Module, forget: Data, retain: Data, test: Data | None, at: torch.device) -> Split:
    """Forget, retain and test as samples on the device, fit for each other and for the model."""
    dtype = _dtype(model)
    given = {"forget": forget, "retain": retain} | ({} if test is None else {"test": test})
    parts = {what: as_samples(data, at, what, dtype) for what, data in given.items()}
    classes = _sound(model, parts, forget)
    _disjoint(forget, retain, parts["forget"], parts["retain"])
    there = {what: torch.bincount(samples.labels, minlength=classes) > 0 for what, samples in parts.items()}
    gone = (there["forget"] & ~there["retain"]).nonzero()[:, 0].tolist()
    names = tuple(getattr(forget, "names", ()))
    return Split(parts["forget"], parts["retain"], parts.get("test"), classes, frozenset(gone), names)


def classifier(model: Any) -> None:
    """A module whose weights are there and finite."""
    if not isinstance(model, nn.Module):
        raise ModelError(expected("a torch.nn.Module", type(model).__name__, "pass the model itself"))
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if torch.nn.parameter.is_lazy(t):
            raise ModelError(
                expected("weights with values", f"{name}, not yet initialised", "run the model once first")
            )
        if t.is_meta:
            raise ModelError(expected("weights with values", f"{name} on meta", "load the weights first"))
    if bad := _not_finite(model):
        raise ModelError(expected("finite weights", f"NaN or infinity in {bad}", "load a sound checkpoint"))


@torch.no_grad()
def _not_finite(model: nn.Module) -> str:
    """The first weight or buffer with a number that is not finite, or nothing; a GPU is read once."""
    floats = {n: t for n, t in [*model.named_parameters(), *model.named_buffers()] if t.is_floating_point()}
    norms = torch._foreach_norm([*floats.values()]) if floats else ()
    places = {n.device for n in norms}
    if all(torch.stack([n.float() for n in norms if n.device == at]).isfinite().all() for at in places):
        return ""
    learned = {n for n, _ in model.named_parameters()}  # a buffer may be infinite, as masks of attention are
    bad = [n for n, t in floats.items() if bool((~t.isfinite() if n in learned else t.isnan()).any())]
    return bad[0] if bad else ""


def same_classes(model: nn.Module, split: Split, what: str) -> None:
    """A further model for the same data: it must have as many outputs as the others."""
    if (k := _classes(model, split.retain, "retain")) != split.classes:
        raise ModelError(
            expected(f"{split.classes} outputs from the {what} model", str(k), "compare like with like")
        )


def training_data(model: nn.Module, dataset: Data, at: torch.device) -> Samples:
    """Training data as samples on the device, fit for the model."""
    samples = as_samples(dataset, at, "the dataset", _dtype(model))
    _sound(model, {"the dataset": samples}, dataset)
    return samples


def batch_size(model: nn.Module, size: int) -> None:
    """BatchNorm in training mode needs two samples for a variance."""
    if size < 2 and batchnorms(model):
        raise MethodError(
            expected("batches of at least 2 samples for BatchNorm", str(size), "raise batch_size")
        )


def augmentable(samples: Samples, augment: str, colour: float) -> None:
    """Only images can be moved, flipped and coloured."""
    by = [augment] * (augment != "none") + ["colour"] * (colour > 0)
    if by and not isinstance(samples, Images):
        raise MethodError(
            expected(
                f"purge.Images to augment by {' and '.join(by)}",
                "other data",
                "augment in the dataset itself and set augment=none, colour=0",
            )
        )
    if augment == "turn" and isinstance(samples, Images) and len(set(samples.pixel_shape[1:])) > 1:
        _, h, w = samples.pixel_shape
        raise MethodError(expected("square images to turn", f"{h}×{w} pixels", "set augment=flip"))


def parameters_to_train(model: nn.Module, freeze: Sequence[str] = ()) -> list[nn.Parameter]:
    """The trainable parameters whose names do not start with one of ``freeze``."""
    named = dict(model.named_parameters())
    for prefix in freeze:
        if not any(name.startswith(prefix) for name in named):
            tops = {name.split(".")[0] for name in named}
            raise MethodError(
                expected(
                    "freeze to name parameters of the model",
                    repr(prefix),
                    did_you_mean(prefix, tops),
                )
            )
    found = [p for name, p in named.items() if p.requires_grad and not name.startswith(tuple(freeze))]
    if not found:
        raise ModelError(
            expected(
                "at least one trainable parameter",
                f"none of {len(named)}",
                "set requires_grad on the layers to change, or freeze fewer",
            )
        )
    return found


def erasure_layers(model: nn.Module, samples: Samples, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The layers to erase: those asked for, if each of them gives one row per sample."""
    x, _ = samples.take(torch.arange(min(2, len(samples))))
    if wanted is None:
        return anatomy(model, x).blocks
    names = [name for name, _ in model.named_modules() if name]
    for name in wanted:
        if name not in names:
            raise MethodError(expected("layers of the model", repr(name), did_you_mean(name, names)))
    with evaluating(model), capture(model, wanted) as seen:
        model(x)
    for name in wanted:
        if name not in seen or len(seen[name]) != len(x):
            raise MethodError(
                expected(
                    "layers that give one row per sample",
                    f"{name!r}, which does not",
                    "choose a layer further out",
                )
            )
    return wanted


def _sound(model: nn.Module, parts: dict[str, Samples], data: Data) -> int:
    """Each part has samples, finite inputs and labels below K; K is returned."""
    for what, samples in parts.items():
        if len(samples) == 0:
            raise DataError(expected(f"samples in {what}", "none", "pass a set that is not empty"))
        _finite_inputs(samples, what)
    shapes = {what: _shape(samples) for what, samples in parts.items()}
    first, *others = shapes
    classes = _classes(model, parts[first], first)
    for what in others:
        if shapes[what] != shapes[first]:
            raise DataError(
                expected(
                    f"inputs of one shape and type, {shapes[first]} as in {first}",
                    f"{shapes[what]} in {what}",
                    "prepare all sets in the same way",
                )
            )
    names = getattr(data, "names", ())
    if names and len(names) != classes:
        raise ModelError(
            expected(
                f"a model with {len(names)} outputs, one per class of the data",
                str(classes),
                "use the model that belongs to this data",
            )
        )
    for what, samples in parts.items():
        if int(samples.labels.max()) >= classes:
            raise DataError(
                expected(
                    f"labels from 0 to {classes - 1} in {what} (the model has {classes} outputs)",
                    str(int(samples.labels.max())),
                    "use the model that belongs to this data, or number the classes 0 … K-1",
                )
            )
    return classes


def _classes(model: nn.Module, samples: Samples, what: str) -> int:
    """K, from the shape of what the model returns for two samples."""
    x, _ = samples.take(torch.arange(min(2, len(samples))))
    try:
        with evaluating(model):
            z = logits_of(model(x))
    except PurgeError:
        raise
    except Exception as error:  # whatever a user's model may raise
        raise ModelError(
            expected(
                f"a model that takes {what}, a batch of shape {tuple(x.shape)} ({x.dtype})",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip("."),
                "bring the inputs into the shape and type that the model was trained with",
            )
        ) from error
    if z.ndim != 2 or len(z) != len(x) or z.shape[1] < 2:
        raise ModelError(
            expected(
                f"a model output of shape ({len(x)}, classes), at least 2 classes",
                str(tuple(z.shape)),
                "pass a classifier that returns one row of logits per sample",
            )
        )
    if not bool(torch.isfinite(z).all()):
        raise ModelError(expected("finite logits", "NaN or infinity", "check weights and inputs"))
    return z.shape[1]


def _shape(samples: Samples) -> str:
    x, _ = samples.take(torch.zeros(1, dtype=torch.long))
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"


def _dtype(model: nn.Module) -> torch.dtype:
    """The floating type that the model computes in: that of its first weight."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def differentiable(model: nn.Module, samples: Samples) -> None:
    """Some trainable parameter must reach the logits."""
    x, _ = samples.take(torch.arange(min(2, len(samples))))
    with training_flags_kept(model), torch.enable_grad():
        model.eval()
        reached = logits_of(model(x)).requires_grad
    with evaluating(model):
        model(x)  # some keep what they computed, and with its graph they could not be copied
    if not reached:
        raise ModelError(
            expected(
                "logits that depend on a trainable parameter",
                "logits without a gradient",
                "set requires_grad on layers in use, and do not wrap forward in no_grad",
            )
        )


def same_shapes(model: nn.Module, fresh: nn.Module) -> None:
    """A fresh model that takes the place of another one's weights must have as many, of the same shapes."""
    own, given = ([(n, t.shape) for n, t in tensors_of(m).items()] for m in (model, fresh))
    if own != given:
        name = next((n for n, t in own if (n, t) not in given), given[0][0] if given else "none")
        fix = "pass fresh=… of the same architecture as the model"
        raise ModelError(expected("fresh weights of the model's own shapes", f"others, first: {name}", fix))


def _finite_inputs(samples: Samples, what: str) -> None:
    if isinstance(samples, (Images, Lazy)):  # bytes are finite; the other is too large to read for this
        return
    at = 0
    for x, _ in batches(samples, 4096):
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            row = at + int((~torch.isfinite(x.reshape(len(x), -1))).any(1).nonzero()[0])
            raise DataError(
                expected(f"finite inputs in {what}", f"NaN or infinity in sample {row}", "clean the data")
            )
        at += len(x)


def _disjoint(forget: Data, retain: Data, f: Samples, r: Samples) -> None:
    """No sample may be in both sets: by id where both come from one source, by content elsewhere."""
    common = same_samples(forget, retain)
    if common is None:
        prints = fingerprints(f)
        common = torch.isin(prints, fingerprints(r)).nonzero()[:, 0]
    if len(common):
        raise DataError(
            expected(
                "every sample in forget or in retain, not in both",
                f"{len(common)} in both (first: {int(common[0])})",
                "remove them from retain; a copy that stays keeps teaching the model",
            )
        )


def same_samples(a: Data, b: Data) -> Tensor | None:
    """The ids that two parts of one source have in common; None where no ids are known."""
    if isinstance(a, Images) and isinstance(b, Images):
        return _common(a.ids, b.ids) if a.source == b.source else None
    if isinstance(a, Pair) and isinstance(b, Pair):
        return _common(a.rows, b.rows) if a.whole is b.whole else None
    if isinstance(a, Subset) and isinstance(b, Subset):
        (base_a, index_a), (base_b, index_b) = unwrap(a), unwrap(b)
        return _common(index_a, index_b) if base_a is base_b else None
    return None


def _common(a: Tensor, b: Tensor) -> Tensor:
    """The ids of ``a`` that are in ``b``; as a rule they number rows, so that nothing need be sorted."""
    if not len(a) or not len(b):
        return a[:0]
    low, top = int(min(a.min(), b.min())), int(max(a.max(), b.max()))
    if low < 0 or top > 64 * (len(a) + len(b)):
        return a[torch.isin(a, b)]
    there = torch.zeros(top + 1, dtype=torch.bool)
    there[b] = True
    return a[there[a]]


def identities(samples: Samples) -> Tensor:
    """What each sample is called, (N,) on the CPU: the id of an image, a hash of content elsewhere.

    Neither depends on which others there are. Samples of equal content have one name, and it does
    not matter which of them is which. Data that differs whenever it is read has no names.
    """
    if isinstance(samples, Lazy):
        few = torch.arange(min(8, len(samples)))
        if not torch.equal(samples.take(few)[0], samples.take(few)[0]):
            raise DataError(
                expected(
                    "samples that can be told apart by what they are",
                    "items that differ when read again (random transforms?)",
                    "use purge.Images and let the recipe augment",
                )
            )
    return samples.ids if isinstance(samples, Images) else fingerprints(samples)


def fingerprints(samples: Samples) -> Tensor:
    """A 64-bit hash of every sample and its label, (N,) on the CPU; equal samples, equal hashes."""
    if len(samples) == 0:
        return torch.empty(0, dtype=torch.long)
    width = _bits(samples.take(torch.zeros(1, dtype=torch.long))[0]).shape[1]
    generator = torch.Generator().manual_seed(0)
    odd = 2 * torch.randint(-(2**62), 2**62, (width,), generator=generator) + 1
    found = []
    for x, y in batches(samples, max(1, (1 << 24) // max(1, width))):
        # Spread the bits of each number over all 64 (small floats differ in a few high ones only),
        # then add up with a weight per position; integers wrap around, so the order is no matter.
        bits = _bits(x) * 0x1E3779B97F4A7C15
        hashed = ((bits ^ (bits >> 32)) * odd.to(bits.device)).sum(1)
        found.append((hashed * 1_000_003 + y).cpu())
    return torch.cat(found)


def _bits(x: Tensor) -> Tensor:
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    return x.contiguous().view(integers[x.element_size()]).reshape(len(x), -1).long()


STATE = "state.safetensors"  # of a training that is not finished
HALF = ".*.safetensors.*"  # what a training that was killed had half written


def training_folder(path: str | os.PathLike[str] | None, *, resume: bool, force: bool) -> Path | None:
    """A folder for a training: empty, to be overwritten, or with an unfinished training to go on with."""
    if path is None:
        if resume:
            raise FileError(
                expected("the folder of the training to go on with, as resume asks", "none", "pass out=…")
            )
        return None
    folder = out_folder(path, force=True)
    finished = (folder / "run.json").is_file()
    begun = (folder / STATE).is_file() or (not finished and any(folder.glob(HALF)))
    if resume and finished and not begun:
        raise FileError(
            expected(
                f"an unfinished training in {folder}", "a finished one", "use it, or choose another folder"
            )
        )
    if begun and not resume and not force:
        raise FileError(
            expected(
                f"an empty folder at {folder}",
                "one with an unfinished training",
                "go on with it by resume, or overwrite it with force",
            )
        )
    return folder if begun else out_folder(path, force=force)


def out_folder(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """A folder that can be written to and is empty (or may be overwritten); it is not made yet."""
    if not isinstance(path, (str, os.PathLike)):
        raise FileError(expected("a folder as out", f"{path!r} ({type(path).__name__})", "pass a path"))
    folder = Path(path)
    try:
        parent = next(p for p in [folder, *folder.absolute().parents] if p.exists())
        taken = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise FileError(
            expected("a folder that can be written", error.strerror or str(error), "choose another")
        ) from None
    if not parent.is_dir():
        raise FileError(expected(f"a folder at {parent}", "a file", "choose another folder"))
    if taken and not force:
        raise FileError(
            expected(
                f"an empty folder at {folder}",
                "one with files in it",
                "choose another, or overwrite with force",
            )
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FileError(
            expected(f"a folder that can be written, {parent}", "no permission", "choose another")
        )
    return folder
