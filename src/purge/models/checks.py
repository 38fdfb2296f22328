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
from purge.data.classes import as_labels
from purge.data.overlap import overlap
from purge.data.samples import Data, GivenLabels, Samples, few
from purge.data.split import Split
from purge.models.batchnorm import batchnorms
from purge.models.checkpoint import tensors_of
from purge.models.forward import as_classes, dtype_of, evaluating, forward, logits, one_logit, raw_logits
from purge.models.hooks import capture, training_flags_kept
from purge.models.inspect import anatomy
from purge.models.wrappers import check_kind, unwrapped
from purge.verdict.numbers import Role, Slot

logger = logging.getLogger("purge")

FEWEST, MOST = 100, 2000  # retained samples that tell whether a model knows its data
FEWEST_OTHERS = 30  # of them that are not of the largest class
NO_WEIGHTS = hashlib.sha256().hexdigest()  # of models without weights, which may differ all the same
KAPPA = 0.05  # how much better than chance, where 1 is always right


def make_split(
    model: nn.Module, samples: Mapping[str, Samples], at: torch.device, *, truth: GivenLabels | None = None
) -> Split:
    """Forget, retain and test on the device, fit for each other and for the model.

    ``triggered`` among them, and ``truth``, are what an audit may also have: see :class:`Split`.
    """
    parts = {what: part.to(at, dtype_of(model)) for what, part in samples.items()}
    classes = _sound(model, parts)
    copies = overlap(parts)
    there = {what: torch.bincount(part.labels, minlength=classes) > 0 for what, part in parts.items()}
    forgotten = (there["forget"] & ~there["retain"]).nonzero()[:, 0].tolist()
    right = None if truth is None else as_labels(truth, len(parts["forget"]), "truth")
    if right is not None and int(right.max()) >= classes:
        fix = "give the right label of each forget sample, in their order"
        raise DataError(f"labels from 0 to {classes - 1} in truth", str(int(right.max())), fix)
    return Split(
        parts["forget"], parts["retain"], parts.get("test"), classes, frozenset(forgotten),
        parts["forget"].names, truth=right, triggered=parts.get("triggered"), copies=copies,
    )  # fmt: skip


def check_classifier(model: Any) -> nn.Module:
    """The plain module in what was given, whose weights are there and finite."""
    check_kind(model)
    plain = unwrapped(model)
    odd = dict[str, Tensor]()  # of each tensor: has it a number that is not finite?
    for name, t in [*plain.named_parameters(), *plain.named_buffers()]:
        lazy = torch.nn.parameter.is_lazy(t)
        if got := "not yet initialised" if lazy else "on meta" if t.is_meta else inputs.unusable(t):
            fix = "load the weights, run the model once or convert it first"
            raise ModelError("plain dense weights with values", f"{name}, {got}", fix)
        # A buffer may be infinite, as masks of attention are.
        odd[name] = (~t.isfinite() if isinstance(t, nn.Parameter) else t.isnan()).any()
    if bad := [name for name, answer in odd.items() if bool(answer)]:
        raise ModelError("finite weights", f"NaN or infinity in {bad[0]}", "load a sound checkpoint")
    return plain


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
    fix = (
        "check the normalisation (mean and std), the order of the labels and that it is the right checkpoint"
    )
    got = f"{right / n:.1%} right, no better than chance ({chance:.1%})"
    raise DataError(f"{what} that knows the retained data", got, f"{fix}; check=False in Python skips this")


def training_data(model: nn.Module, dataset: Data, at: torch.device) -> Samples:
    """Training data as samples on the device, fit for the model."""
    samples = as_samples(dataset, at, "the dataset", dtype_of(model))
    _sound(model, {"the dataset": samples})
    return samples


def check_batch_size(model: nn.Module, size: int) -> None:
    """BatchNorm in training mode needs two samples for a variance."""
    if size < 2 and batchnorms(model):
        raise MethodError("batches of at least 2 samples for BatchNorm", str(size), "raise batch_size")


def check_augment(samples: Samples, augment: str, colour: float) -> None:
    """Only images can be moved, flipped and coloured."""
    by = [augment] * (augment != "none") + ["colour"] * (colour > 0)
    if not by:
        return
    if samples.pixel_shape is None:
        fix = "augment in the dataset itself and set augment=none, colour=0"
        raise MethodError(f"purge.Images to augment by {' and '.join(by)}", "other data", fix)
    _, h, w = samples.pixel_shape
    if augment == "turn" and h != w:
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
            fix = did_you_mean(prefix, {name.split(".")[0] for name in named})
            raise MethodError("freeze to name parameters of the model", repr(prefix), fix)
    trained = [p for name, p in named.items() if p.requires_grad and not name.startswith(tuple(freeze))]
    if not trained:
        fix = "set requires_grad on the layers to change, or freeze fewer"
        raise ModelError("at least one trainable parameter", f"none of {len(named)}", fix)
    return trained


def erasure_layers(model: nn.Module, samples: Samples, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The layers to erase: those asked for, if each of them gives one row per sample."""
    x = few(samples)
    if wanted is None:
        return anatomy(model, x).blocks
    names = [name for name, _ in model.named_modules() if name]
    with evaluating(model), capture(model, [name for name in wanted if name in names]) as seen:
        forward(model, x)
    for name in wanted:
        if name not in seen or len(seen[name]) != inputs.count(x):
            fix = "choose a layer further out" if name in names else did_you_mean(name, names)
            raise MethodError("layers of the model that give one row per sample", repr(name), fix)
    return wanted


def _sound(model: nn.Module, parts: dict[str, Samples]) -> int:
    """Each part has samples, finite inputs and labels below K; K is returned."""
    shapes = dict[str, str]()
    for what, samples in parts.items():
        if len(samples) == 0:
            raise DataError(f"samples in {what}", "none", "pass a set that is not empty")
        look = None if samples.streamed else samples.look()  # what is streamed is too large to read for this
        if look is not None and look.not_finite is not None:
            got = f"NaN or infinity in sample {look.not_finite}"
            raise DataError(f"finite inputs in {what}", got, "clean the data")
        shapes[what] = inputs.describe(few(samples, 1))
    first = next(iter(parts))
    answer = _answer(model, parts[first], first)
    classes = as_classes(answer).shape[1]
    for what, shape in shapes.items():
        if shape != shapes[first]:
            wanted = f"inputs of one shape and type, {shapes[first]} as in {first}"
            raise DataError(wanted, f"{shape} in {what}", "prepare all sets in the same way")
    names = parts[first].names
    if names and len(names) != classes:
        wanted = f"a model with {len(names)} outputs, one per class of the data"
        raise ModelError(wanted, str(classes), "use the model that belongs to this data")
    labels = {what: int(samples.labels.max()) for what, samples in parts.items()}
    if one_logit(answer):
        _check_binary(max(labels.values()), len(parts), tuple(answer.shape))
    for what, label in labels.items():
        if label >= classes:
            wanted = f"labels from 0 to {classes - 1} in {what} (the model has {classes} outputs)"
            fix = "use the model that belongs to this data, or number the classes 0 … K-1"
            raise DataError(wanted, str(label), fix)
    return classes


def _check_binary(highest: int, parts: int, shape: tuple[int, ...]) -> None:
    """One logit per sample is read as that of class 1 beside class 0; labels must be of such a task."""
    got = f"{shape}, one logit per sample, which is binary, beside label {highest}"
    if highest > 1:
        raise ModelError("a model with one output per class", got, "end the model in one logit per class")
    if highest == 0 and parts > 1:
        fix = "number the classes 0 and 1, or end the model in one logit per class"
        raise ModelError("labels 0 and 1 for one logit", f"{got} alone", fix)
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
        wanted = f"a model that takes {what}, a batch of {n} × {inputs.describe(x)}"
        fix = "bring the inputs into the shape and type that the model was trained with"
        raise ModelError(wanted, first_line(error), fix) from error
    if z.ndim > 2 or (z.ndim == 2 and z.shape[1] == 0) or len(as_classes(z)) != n:
        wanted = f"a model output of shape ({n}, classes), or ({n}, 1) for two classes"
        fix = "pass a classifier that returns one row of logits per sample"
        raise ModelError(wanted, str(tuple(z.shape)), fix)
    if not bool(torch.isfinite(z).all()):
        raise ModelError("finite logits", "NaN or infinity", "check weights and inputs")
    return z


def check_differentiable(model: nn.Module, samples: Samples) -> None:
    """Some trainable parameter must reach the logits."""
    x = few(samples)
    with training_flags_kept(model), torch.enable_grad():
        model.eval()
        reached = forward(model, x).requires_grad
    with evaluating(model):
        forward(model, x)  # some models keep their last output, and with a graph it cannot be copied
    if not reached:
        fix = "set requires_grad on layers in use, and do not wrap forward in no_grad"
        raise ModelError("logits that depend on a trainable parameter", "logits without a gradient", fix)


def check_same_shapes(model: nn.Module, fresh: nn.Module) -> None:
    """A fresh model must have weights of the same names and shapes as the model that it replaces."""
    own, others = ([(n, t.shape) for n, t in tensors_of(m).items()] for m in (model, fresh))
    if own != others:
        name = next((n for n, t in own if (n, t) not in others), others[0][0] if others else "none")
        fix = "pass fresh=… of the same architecture as the model"
        raise ModelError("fresh weights of the model's own shapes", f"others, first: {name}", fix)
