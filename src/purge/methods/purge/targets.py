"""What the outputs of forgotten samples are pulled to: small objects with settings of their own.

``target=`` of :class:`Purge` takes one of them or its name: ``masked``, ``layers``, ``relearned``, ``paper``.
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

from purge.core.settings import normalise, setting
from purge.data.split import Split
from purge.engine.losses import kl, masked_teacher, unseen_confidence
from purge.engine.run import Run
from purge.methods.purge.layers import layers_say
from purge.methods.purge.relearn import BATCH, relearned
from purge.models.forward import logits
from purge.models.inspect import device_of

logger = logging.getLogger("purge")


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


class Target(ABC):
    """Where the output of each forgotten sample should go."""

    needs: ClassVar[frozenset[str]] = frozenset()  # beside data; see Method.needs
    whole_retain: ClassVar[bool] = False  # does it need the teacher's logits of all of D_r?

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
    """Per sample: the teacher's output without the forgotten classes, sharpened if asked."""

    sharpness: float = setting(
        1.0, "logits of the target are multiplied by this before the softmax", above=0,
        renamed_from=("certainty",),
    )  # fmt: skip

    def aim(self, scene: Scene) -> Aim:
        """The masked output of the teacher, averaged with a second opinion where there is one.

        A single sample of a class that stays keeps its label with the confidence that an unseen sample
        of its rank gets, which takes test data.
        """
        split = scene.split
        second = self._second_opinion(scene) if split.forget_classes else None
        z = logits(scene.teacher, split.forget)
        y = split.forget.labels.to(z.device)
        whole = torch.isin(y, torch.tensor(sorted(split.forget_classes), device=y.device))
        asked = self._asked(scene, z) if second is None else second
        if asked is not None:
            z = torch.where(whole[:, None], (z + asked) / 2, z)
        z = torch.where(whole[:, None], self.sharpness * z, z)
        if split.single and split.test is not None:
            z_test, y_test = logits(scene.teacher, split.test), split.test.labels.to(z.device)
            keep = torch.zeros(len(z), device=z.device)
            keep[~whole] = unseen_confidence(z[~whole], y[~whole], z_test, y_test)
            return Aim(masked_teacher(z, y, split.forget_classes, keep), second)
        if split.single:
            logger.warning(
                "No test data: single samples are pulled away from their label altogether, which "
                "forgets more than a retrained model would. Pass test=… to aim at held-out data."
            )
        return Aim(masked_teacher(z, y, split.forget_classes), second)

    def _second_opinion(self, scene: Scene) -> Tensor | None:
        """Logits of the forget samples from a model that never learned their classes."""
        return None

    def _asked(self, scene: Scene, own: Tensor) -> Tensor | None:
        """Logits of the forget samples from parts of the model itself."""
        return None


@dataclass(frozen=True)
class Layers(Masked):
    """Masked, averaged with what the hidden layers say: nearer to a retrained model, and quick."""

    def _asked(self, scene: Scene, own: Tensor) -> Tensor | None:
        return layers_say(scene.teacher, scene.split, scene.run, own) if scene.split.forget_classes else None


@dataclass(frozen=True)
class Relearned(Masked):
    """Masked, averaged with a copy that relearned D_r: the nearest to a retrained model, and slow."""

    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})

    fresh_share: float = setting(
        0.6, "the share of fresh weights that is mixed into the copy", above=0, high=1,
        renamed_from=("relearn",),
    )  # fmt: skip
    relearn_epochs: int = setting(5, "passes over D_r of the copy, within min_steps and max_steps", low=1)

    def _second_opinion(self, scene: Scene) -> Tensor | None:
        retain = scene.split.retain
        steps = scene.within(math.ceil(self.relearn_epochs * len(retain) / BATCH))
        student = relearned(scene.teacher, retain, scene.run, share=self.fresh_share, steps=steps)
        return logits(student, scene.split.forget)
