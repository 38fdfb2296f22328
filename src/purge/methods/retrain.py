"""Retrain: the reference that all others are compared with.

A fresh model, trained on the retained samples alone, by the recipe of training. ``fresh=`` (on the
command line: the architecture's name) gives the untrained model; without it the layers draw their
weights anew, each by its own ``reset_parameters``, which for some networks is not quite how their
authors begin.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from purge.engine.trainer import Recipe, fit
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping
from purge.models.checks import check_batch_size, check_same_shapes
from purge.models.copies import keep_frozen


@dataclass(frozen=True)
class Retrain(Method):
    """Train a fresh model without the forget set."""

    distributes: ClassVar[bool] = True
    full_precision: ClassVar[bool] = True
    retrains: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain", "fresh"})

    recipe: Recipe = Recipe()
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Train from scratch on the retain set; one row of the history is one epoch."""
        check_batch_size(model, min(self.recipe.batch_size, len(split.retain)))
        fresh = run.fresh(model)
        check_same_shapes(model, fresh)
        keep_frozen(fresh, model)  # a layer that was not trained is not trained now
        history: list[dict[str, float]] = []
        for i in run.steps(self.recipe.epochs, epoch=self.recipe.epochs):
            if i == 0:
                (history,), _ = fit(
                    [fresh], [split.retain], self.recipe, dataclasses.replace(run.context, tell=None),
                    seeds=[run.seed], title="retrain",
                )  # fmt: skip
                model.load_state_dict(fresh.state_dict())
            run.log(retain_loss=torch.tensor(history[i]["loss"], device=run.device))
