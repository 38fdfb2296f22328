"""Is a model sound, and does it fit its data? Checked once, before anything runs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.special import bdtrc
from torch import Tensor, nn

from purge.core.errors import DataError, MethodError, ModelError, PurgeError, did_you_mean, first_line
from purge.data import inputs
from purge.data.accept import as_samples
from purge.data.augmented import Augmentation, Change, check_change
from purge.data.images import as_labels
from purge.data.overlap import overlap
from purge.data.samples import Data, GivenLabels, Samples, few
from purge.data.split import Split
from purge.models.batchnorm import batchnorms
from purge.models.checkpoint import tensors_of
from purge.models.forward import as_classes, evaluating, forward, logits, one_logit, raw_logits
from purge.models.hooks import capture, training_flags_kept
from purge.models.inspect import anatomy
from purge.models.wrappers import check_kind, unwrapped
from purge.verdict.roles import Role, Slot

logger = logging.getLogger("purge")

FEWEST, MOST = 100, 2000  # retained samples that tell whether a model knows its data
FEWEST_OTHERS = 30  # of them that are not of the largest class
NO_WEIGHTS = (
    hashlib.sha256().hexdigest()
)  # the digest of models that have none, which may differ all the same
KAPPA = 0.05  # how much better than chance, where 1 is always right


def make_split(
    model: nn.Module, samples: Mapping[str, Samples], at: torch.device, *, truth: GivenLabels | None = None
) -> Split:
    """Forget, retain and test on the device, fit for each other and for the model.

    ``triggered`` among them, and ``truth``, are what an audit may also have: see :class:`Split`.
    """
    parts = {what: part.to(at, _dtype(model)) for what, part in samples.items()}
    classes = _sound(model, parts)
    copies = overlap(parts)
    there = {what: torch.bincount(part.labels, minlength=classes) > 0 for what, part in parts.items()}
    forgotten = (there["forget"] & ~there["retain"]).nonzero()[:, 0].tolist()
    names = parts["forget"].names
    right = None if truth is None else _right_labels(truth, len(parts["forget"]), classes)
    return Split(
        parts["forget"], parts["retain"], parts.get("test"), classes, frozenset(forgotten), names,
        truth=right, triggered=parts.get("triggered"), copies=copies,
    )  # fmt: skip


def _right_labels(truth: GivenLabels, n: int, classes: int) -> Tensor:
    """The right labels (n,) of the forget samples, on the CPU."""
    fix = "give the right label of each forget sample, in their order"
    if hasattr(truth, "__len__") and not isinstance(truth, str) and len(truth) != n:
        raise DataError(f"{n} labels in truth, one per forget sample", str(len(truth)), fix)
    labels = as_labels(truth, n, "truth")
    if n and int(labels.max()) >= classes:
        raise DataError(f"labels from 0 to {classes - 1} in truth", str(int(labels.max())), fix)
    return labels


def check_classifier(model: Any) -> nn.Module:
    """The plain module in what was given, whose weights are there and finite."""
    check_kind(model)
    plain = unwrapped(model)
    for name, t in [*plain.named_parameters(), *plain.named_buffers()]:
        if torch.nn.parameter.is_lazy(t):
            raise ModelError(
                "weights with values", f"{name}, not yet initialised", "run the model once first"
            )
        if t.is_meta:
            raise ModelError("weights with values", f"{name} on meta", "load the weights first")
        if odd := inputs.unusable(t):
            raise ModelError("plain dense weights", f"{name}, {odd}", "convert the model first")
    if bad := _not_finite(plain):
        raise ModelError("finite weights", f"NaN or infinity in {bad}", "load a sound checkpoint")
    return plain


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


def check_same_classes(model: nn.Module, split: Split, what: str) -> None:
    """A further model for the same data: it must have as many outputs as the others."""
    if (k := as_classes(_answer(model, split.retain, "retain")).shape[1]) != split.classes:
        raise ModelError(f"{split.classes} outputs from the {what} model", str(k), "compare like with like")


def check_references(digests: Mapping[Slot, str]) -> None:
    """Refuse retrained models that are no reference: beside the same weights every comparison is perfect.

    ``digests``: of the weights of each model.
    """
    others = {Role.ORIGINAL: "the original's own weights", Role.AUDITED: "the audited model's own weights"}
    seen = {weights: others[slot.role] for slot, weights in digests.items() if slot.role in others}
    for slot, weights in digests.items():
        if slot.role is Role.RETRAINED and weights != NO_WEIGHTS:
            if weights in seen:
                fix = "train one from its start, without what must be forgotten and from a seed of its own"
                raise ModelError("a retrained model as a reference", f"{seen[weights]} as {slot.name}", fix)
            seen[weights] = "the weights of another retrained model"


def check_knows(model: nn.Module, retain: Samples, what: str) -> None:
    """Refuse a model that is no better than chance on data that it should have been trained on.

    Chance is what answers of these frequencies would get right if they did not depend on the sample. Where
    too few samples are not of the largest class, nothing can be said and nothing is refused.
    """
    rows = torch.linspace(0, len(retain) - 1, min(len(retain), MOST)).long()
    labels = retain.labels[rows]
    if len(rows) < FEWEST or len(rows) - int(labels.bincount().max()) < FEWEST_OTHERS:
        return
    answers, n = logits(model, retain, rows).argmax(1).cpu(), len(rows)
    longest = int(torch.cat([answers, labels]).max()) + 1
    shares = (answers.bincount(minlength=longest) / n, labels.bincount(minlength=longest) / n)
    right, chance = int((answers == labels).sum()), float((shares[0] * shares[1]).sum())
    above = (right / n - chance) / max(1 - chance, 1e-9)  # Cohen's kappa
    if above > KAPPA and bdtrc(right - 1, n, chance) < 0.01:  # as many right by chance alone
        return
    raise DataError(
        f"{what} that knows the retained data",
        f"{right / n:.1%} right, no better than chance ({chance:.1%})",
        "check the normalisation (mean and std), the order of the labels and that it is the right "
        "checkpoint; check=False in Python skips this",
    )


def training_data(model: nn.Module, dataset: Data, at: torch.device) -> Samples:
    """Training data as samples on the device, fit for the model."""
    samples = as_samples(dataset, at, "the dataset", _dtype(model))
    _sound(model, {"the dataset": samples})
    return samples


def check_batch_size(model: nn.Module, size: int) -> None:
    """BatchNorm in training mode needs two samples for a variance."""
    if size < 2 and batchnorms(model):
        raise MethodError("batches of at least 2 samples for BatchNorm", str(size), "raise batch_size")


def check_augment(samples: Samples, augment: str, colour: float) -> None:
    """Only images can be moved, flipped and coloured."""
    by = [augment] * (augment != "none") + ["colour"] * (colour > 0)
    if by and samples.pixel_shape is None:
        raise MethodError(
            f"purge.Images to augment by {' and '.join(by)}",
            "other data",
            "augment in the dataset itself and set augment=none, colour=0",
        )
    if augment == "turn" and samples.pixel_shape and len(set(samples.pixel_shape[1:])) > 1:
        _, h, w = samples.pixel_shape
        raise MethodError("square images to turn", f"{h}×{w} pixels", "set augment=flip")


def check_augmented(split: Split, how: Augmentation | Change | None) -> None:
    """Can the samples that a method trains on be changed at random in this way?"""
    for what, samples in (("forget", split.forget), ("retain", split.retain)):
        if isinstance(how, Augmentation):
            check_augment(samples, how.moves, how.colour)
        elif how is not None:
            check_change(how, samples, what)


def parameters_to_train(model: nn.Module, freeze: Sequence[str] = ()) -> list[nn.Parameter]:
    """The trainable parameters whose names do not start with one of ``freeze``."""
    named = dict(model.named_parameters())
    for prefix in freeze:
        if not any(name.startswith(prefix) for name in named):
            tops = {name.split(".")[0] for name in named}
            raise MethodError(
                "freeze to name parameters of the model", repr(prefix), did_you_mean(prefix, tops)
            )
    trained = [p for name, p in named.items() if p.requires_grad and not name.startswith(tuple(freeze))]
    if not trained:
        raise ModelError(
            "at least one trainable parameter",
            f"none of {len(named)}",
            "set requires_grad on the layers to change, or freeze fewer",
        )
    return trained


def erasure_layers(model: nn.Module, samples: Samples, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The layers to erase: those asked for, if each of them gives one row per sample."""
    x = few(samples)
    if wanted is None:
        return anatomy(model, x).blocks
    names = [name for name, _ in model.named_modules() if name]
    for name in wanted:
        if name not in names:
            raise MethodError("layers of the model", repr(name), did_you_mean(name, names))
    with evaluating(model), capture(model, wanted) as seen:
        forward(model, x)
    for name in wanted:
        if name not in seen or len(seen[name]) != inputs.count(x):
            raise MethodError(
                "layers that give one row per sample",
                f"{name!r}, which does not",
                "choose a layer further out",
            )
    return wanted


def _sound(model: nn.Module, parts: dict[str, Samples]) -> int:
    """Each part has samples, finite inputs and labels below K; K is returned."""
    for what, samples in parts.items():
        if len(samples) == 0:
            raise DataError(f"samples in {what}", "none", "pass a set that is not empty")
        _finite_inputs(samples, what)
    shapes = {what: inputs.describe(few(samples, 1)) for what, samples in parts.items()}
    first, *others = shapes
    answer = _answer(model, parts[first], first)
    classes = as_classes(answer).shape[1]
    for what in others:
        if shapes[what] != shapes[first]:
            raise DataError(
                f"inputs of one shape and type, {shapes[first]} as in {first}",
                f"{shapes[what]} in {what}",
                "prepare all sets in the same way",
            )
    names = parts[first].names
    if names and len(names) != classes:
        raise ModelError(
            f"a model with {len(names)} outputs, one per class of the data",
            str(classes),
            "use the model that belongs to this data",
        )
    if one_logit(answer):
        _check_binary(parts, tuple(answer.shape))
    for what, samples in parts.items():
        if int(samples.labels.max()) >= classes:
            raise DataError(
                f"labels from 0 to {classes - 1} in {what} (the model has {classes} outputs)",
                str(int(samples.labels.max())),
                "use the model that belongs to this data, or number the classes 0 … K-1",
            )
    return classes


def _check_binary(parts: dict[str, Samples], shape: tuple[int, ...]) -> None:
    """One logit per sample is read as that of class 1 beside class 0; labels must be of such a task."""
    highest = max(int(samples.labels.max()) for samples in parts.values())
    got = f"{shape}, one logit per sample, which is binary, beside "
    if highest > 1:
        fix = "end the model in one logit per class"
        raise ModelError("a model with one output per class", f"{got}label {highest}", fix)
    if highest == 0 and len(parts) > 1:
        fix = "number the classes 0 and 1, or end the model in one logit per class"
        raise ModelError("labels 0 and 1 for one logit", f"{got}label 0 alone", fix)
    if highest == 0:  # what is retained once class 1 is forgotten looks like this too
        logger.warning("The model has one logit, which is read as that of class 1, and every label is 0.")


def _answer(model: nn.Module, samples: Samples, what: str) -> Tensor:
    """What the model returns for two samples, as it is."""
    x, n = few(samples), min(2, len(samples))
    try:
        with evaluating(model):
            z = raw_logits(model, x)
    except (PurgeError, MemoryError, RecursionError):  # the last two are not about the data
        raise
    except Exception as error:  # whatever a user's model may raise
        raise ModelError(
            f"a model that takes {what}, a batch of {n} × {inputs.describe(x)}",
            first_line(error),
            "bring the inputs into the shape and type that the model was trained with",
        ) from error
    if z.ndim > 2 or (z.ndim == 2 and z.shape[1] == 0) or len(as_classes(z)) != n:
        raise ModelError(
            f"a model output of shape ({n}, classes), or ({n}, 1) for two classes",
            str(tuple(z.shape)),
            "pass a classifier that returns one row of logits per sample",
        )
    if not bool(torch.isfinite(z).all()):
        raise ModelError("finite logits", "NaN or infinity", "check weights and inputs")
    return z


def _dtype(model: nn.Module) -> torch.dtype:
    """The floating type that the model computes in: that of its first weight."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def check_differentiable(model: nn.Module, samples: Samples) -> None:
    """Some trainable parameter must reach the logits."""
    x = few(samples)
    with training_flags_kept(model), torch.enable_grad():
        model.eval()
        reached = forward(model, x).requires_grad
    with evaluating(model):
        forward(model, x)  # some models keep their last output, and with a graph it cannot be copied
    if not reached:
        raise ModelError(
            "logits that depend on a trainable parameter",
            "logits without a gradient",
            "set requires_grad on layers in use, and do not wrap forward in no_grad",
        )


def check_same_shapes(model: nn.Module, fresh: nn.Module) -> None:
    """A fresh model must have weights of the same names and shapes as the model that it replaces."""
    own, others = ([(n, t.shape) for n, t in tensors_of(m).items()] for m in (model, fresh))
    if own != others:
        name = next((n for n, t in own if (n, t) not in others), others[0][0] if others else "none")
        fix = "pass fresh=… of the same architecture as the model"
        raise ModelError("fresh weights of the model's own shapes", f"others, first: {name}", fix)


def _finite_inputs(samples: Samples, what: str) -> None:
    if samples.streamed:  # too large to read for this
        return
    seen = samples.look()
    if seen is not None and seen.not_finite is not None:
        got = f"NaN or infinity in sample {seen.not_finite}"
        raise DataError(f"finite inputs in {what}", got, "clean the data")
