"""What the outputs of forgotten samples are pulled to: small objects with settings of their own.

``target=`` of :class:`Pull` takes one of them or its name: ``masked`` or ``paper``.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.core.settings import normalise, setting
from purge.data.samples import Samples, part_of
from purge.data.split import Split, matched_to
from purge.engine.losses import kl, masked_teacher, unseen_confidence
from purge.engine.run import Run
from purge.methods.purge.layers import Say, layers_say, look, neighbours_say
from purge.methods.purge.relearn import BATCH, relearned
from purge.models.forward import logits
from purge.models.inspect import device_of

logger = logging.getLogger("purge")

Opinion = Literal["own", "views", "layers", "neighbours", "copy"]
HELD = 1000  # retained samples that stand for unseen ones where there is no test data


class Scene(NamedTuple):
    """What a target is made from."""

    teacher: nn.Module  # the frozen original
    split: Split
    run: Run
    retained: Tensor | None  # the teacher's logits of all of D_r, if they were computed
    within: Callable[[int], int]  # a number of steps brought into the limits of the schedule


class Aim(NamedTuple):
    """What forgotten outputs are pulled to, (|D_f|, K), and a second opinion on them, if there is one."""

    target: Tensor
    second: Tensor | None = None  # logits of a model that never learned the forgotten classes
    accuracy: float | None = None  # that single samples would have unseen, where no test data tells


class Target(ABC):
    """Where the output of each forgotten sample should go."""

    needs: ClassVar[frozenset[str]] = frozenset()  # beside data; see Method.needs
    whole_retain: ClassVar[bool] = False  # does it need the teacher's logits of all of D_r?
    augments: ClassVar[bool] = False  # see Method.augments

    def __post_init__(self) -> None:
        normalise(self)

    @abstractmethod
    def aim(self, scene: Scene) -> Aim:
        """The target of each forget sample."""

    def loss(self, z: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """L_forget = KL(target ‖ softmax(z))."""
        return kl(z, target)

    def capped(self, z: Tensor, y: Tensor) -> Tensor:
        """Should the batch be left alone, as it is forgotten enough?"""
        return torch.zeros((), dtype=torch.bool, device=z.device)


@dataclass(frozen=True)
class Paper(Target):
    """The paper's targets: one for all samples, or none at all (ascent)."""

    objective: Literal["kl_retain", "kl_uniform", "ga"] = setting(
        "kl_retain", "pull to the mean output on D_r, to the uniform one, or climb the loss (ga)"
    )

    @property
    def whole_retain(self) -> bool:  # type: ignore[override]
        """The mean output on D_r needs all of it."""
        return self.objective == "kl_retain"

    def aim(self, scene: Scene) -> Aim:
        """The mean softmax of the teacher over D_r, or 1/K."""
        n, k = len(scene.split.forget), scene.split.classes
        if self.objective == "kl_retain" and scene.retained is not None:
            return Aim(scene.retained.softmax(1).mean(0).expand(n, k))
        return Aim(torch.full((1, k), 1 / k, device=device_of(scene.teacher)).expand(n, k))

    def loss(self, z: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """Minus the cross entropy for ``ga``, otherwise KL(target ‖ softmax(z))."""
        return -F.cross_entropy(z.float(), y) if self.objective == "ga" else kl(z, target)

    def capped(self, z: Tensor, y: Tensor) -> Tensor:
        """Has gradient ascent reached log K, the loss of a uniform guess? (``ga`` only)."""
        if self.objective != "ga":
            return super().capped(z, y)
        return F.cross_entropy(z.float(), y) >= math.log(z.shape[1])


@dataclass(frozen=True)
class Masked(Target):
    """Per sample: the mean of some opinions without the forgotten classes, sharpened if asked.

    ``own``: the original's logits. ``views``: their mean over random changes of the sample, where it is known
    how samples are changed. ``layers`` and ``neighbours``: what hidden layers say, see
    :mod:`purge.methods.purge.layers`. ``copy``: a copy that relearned D_r, the nearest to a retrained model,
    and slow.
    """

    opinions: tuple[Opinion, ...] | None = setting(
        None, "own, views, layers, neighbours, copy: their mean; none: own for classes, views for samples"
    )
    sharpness: float = setting(
        1.0, "logits of the target are multiplied by this before the softmax", above=0,
        renamed_from=("certainty",),
    )  # fmt: skip
    views: int = setting(8, "random changes of each sample behind the opinion views", low=1)
    neighbours: int = setting(50, "retained samples that vote in the opinion neighbours", low=1)
    fresh_share: float = setting(
        0.6, "the share of fresh weights that is mixed into the copy", above=0, high=1,
        renamed_from=("relearn",),
    )  # fmt: skip
    relearn_epochs: int = setting(5, "passes over D_r of the copy, within min_steps and max_steps", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opinions == ():
            raise MethodError("at least one opinion", "none", "pass opinions=own, say")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """A copy that relearns begins with fresh weights."""
        return frozenset({"fresh"} if "copy" in (self.opinions or ()) else ())

    @property
    def augments(self) -> bool:  # type: ignore[override]
        """Views are samples changed at random."""
        return self.opinions is None or "views" in self.opinions

    def aim(self, scene: Scene) -> Aim:
        """The mean opinion without the forgotten classes.

        A single sample of a class that stays keeps its label with the confidence that an unseen sample of
        its class and rank gets; the mean opinion ranks them.
        """
        split, teacher, gone = scene.split, scene.teacher, scene.split.forget_classes
        of_class, of_sample = self.opinions or ("own",), self.opinions or ("views",)
        unseen, known = split.test, split.retain
        estimated = split.single and unseen is None
        if estimated:
            unseen, known = held_out(split.retain, scene.run)
            logger.warning(
                "No test data: what unseen samples get is estimated from %d retained ones, by comparing "
                "them with the others in hidden layers. Pass test=… to measure it.", len(unseen),
            )  # fmt: skip
        asked = (*(of_class if gone else ()), *(of_sample if split.single else ()))
        say = self._say({*asked, *(("layers",) if estimated else ())}, scene, known)

        own = logits(teacher, split.forget)
        said = {name: say[name](split.forget, own) for name in asked}
        second = said.get("copy") if gone else None
        y = split.forget.labels.to(own.device)
        whole = torch.isin(y, torch.tensor(sorted(gone), device=y.device))
        z = self.sharpness * _mean(said, of_class) if gone else own
        if not split.single or unseen is None:
            return Aim(masked_teacher(z, y, gone), second)

        z = torch.where(whole[:, None], z, _mean(said, of_sample))
        z_unseen, y_unseen = logits(teacher, unseen), unseen.labels.to(z.device)
        accuracy = None
        if estimated:  # what the model itself says of them is memorised
            z_unseen = say["layers"](unseen, z_unseen)
            shares = matched_to(unseen.labels, split.forget.labels[~whole.cpu()])
            accuracy = float((z_unseen.argmax(1) == y_unseen).cpu().double() @ shares) / len(shares)
        keep = torch.zeros(len(z), device=z.device)
        keep[~whole] = unseen_confidence(z[~whole], y[~whole], z_unseen, y_unseen)
        return Aim(masked_teacher(z, y, gone, keep), second, accuracy)

    def _say(self, names: set[Opinion], scene: Scene, known: Samples) -> dict[Opinion, Say]:
        """The opinions of these names, formed on the retained samples ``known``."""
        teacher, run = scene.teacher, scene.run
        found: dict[Opinion, Say] = {"own": lambda samples, own: own}
        if "views" in names:
            found["views"] = self._views(scene)
        if names & {"layers", "neighbours"}:
            seen = look(teacher, known, scene.split.classes, run)
            if "layers" in names:
                found["layers"] = layers_say(teacher, seen, run)
            if "neighbours" in names:
                found["neighbours"] = neighbours_say(teacher, seen, run, count=self.neighbours)
        if "copy" in names:
            steps = scene.within(math.ceil(self.relearn_epochs * len(known) / BATCH))
            student = relearned(teacher, known, run, share=self.fresh_share, steps=steps)
            found["copy"] = lambda samples, own: logits(student, samples)
        return found

    def _views(self, scene: Scene) -> Say:
        def say(samples: Samples, own: Tensor) -> Tensor:
            changed = scene.run.augmented(samples)
            if changed is None:
                if self.opinions:  # it was asked for
                    logger.info("It is not known how samples are changed at random: views are the samples.")
                return own
            total = torch.zeros_like(own)
            for _ in range(self.views):
                total += logits(scene.teacher, changed)
            return total / self.views

        return say


def held_out(retain: Samples, run: Run) -> tuple[Samples, Samples]:
    """A seeded tenth of the retained samples, at most ``HELD``, and the others."""
    if len(retain) < 2:
        return retain, retain
    rows = run.batch_indices(retain, steps=1, batch_size=len(retain))[0].cpu()
    n = min(HELD, math.ceil(len(rows) / 10))
    return part_of(retain, rows[:n]), part_of(retain, rows[n:])


def _mean(said: dict[Opinion, Tensor], names: tuple[Opinion, ...]) -> Tensor:
    return sum((said[name] for name in names[1:]), said[names[0]]) / len(names)
