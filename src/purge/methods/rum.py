"""RUM: forget in parts, from what is hardly memorised to what is most, each part by its own method.

Zhao, Kurmanji, Bărbulescu, Triantafillou, Triantafillou: "What Makes Unlearning Hard and What to Do About
It", NeurIPS 2024, arXiv:2406.01257; proxies of memorisation: Zhao, Triantafillou: "Scalability of
Memorization-Based Machine Unlearning", 2024, arXiv:2410.16516. With A_1 … A_K methods and θ_0 the
original::

    D_f = S_1 ∪ … ∪ S_K        in equal parts, ordered by how strongly a sample is memorised
    θ_i = A_i(θ_{i−1}, forget S_i, retain D_r ∪ S_{i+1} ∪ … ∪ S_K)          i = 1 … K

Memorisation of (x, y) is the probability of y under a model trained on x less that under one trained
without. To train those takes longer than to retrain, so a proxy stands for it: the model's own confidence
p(y | x), which is low for what is memorised; or its mean over random views of x, which falls where only x
itself was learnt.

Published: three parts; nothing is done about the first, the second goes by fine-tuning (10 epochs, η =
0.1), the third by SalUn (5 epochs, η = 0.1), in the authors' example. The same method for all parts is
their RUM-F.

Where we differ: the authors' parts are 1,000 samples each of the lowest, the middle and the highest
memorisation in all of the training data; ours divide whatever is to be forgotten. Their best proxy,
training on held-out data, needs a training; confidence they average over the epochs of the training.
Samples of a class that must go are not retained while they wait, or the class would be taught again.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.data.joined import joined, one_after_another
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping, setting
from purge.methods.registry import resolve_method
from purge.models.forward import logits

VIEWS = 8  # random views of a sample


@dataclass(frozen=True)
class Rum(Method):
    """Divide the forget set by memorisation, and run a method on each part in turn."""

    methods: tuple[str, ...] = setting(
        ("none", "finetune lr=0.1", "salun lr=0.1 epochs=5"),
        "of each part, the least memorised first: a name, then its settings as key=value; none: left alone",
    )
    proxy: Literal["confidence", "views"] = setting(
        "confidence", "what tells memorisation: confidence in the label, or its mean over random views"
    )
    stop: Stopping = PUBLISHED

    def __post_init__(self) -> None:
        super().__post_init__()
        used = [method for method in self.inner if method is not None]
        if not used:
            got = ", ".join(self.methods) or "no method"
            raise MethodError("a method for at least one part", got, "pass methods='none, salun', say")
        for trait in ("full_precision", "graph", "augments"):  # of the whole run, so of any of its parts
            object.__setattr__(self, trait, any(getattr(method, trait) for method in used))

    @property
    def inner(self) -> list[Method | None]:
        """The method of each part of the forget set."""
        return [None if words == "none" else _named(words) for words in self.methods]

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Run the methods one after the other, each on its part."""
        if len(split.forget) < len(self.methods):
            what = f"at least {len(self.methods)} samples, one for each part of rum"
            fix = "name fewer methods, or use one of them by itself"
            raise MethodError(what, str(len(split.forget)), fix)
        order = self._memorised(model, split, run).argsort()
        parts = [rows.sort().values for rows in order.tensor_split(len(self.methods))]
        for i, (method, rows) in enumerate(zip(self.inner, parts, strict=True)):
            if method is None:
                continue
            stop = method.stop if self.stop == PUBLISHED else self.stop
            part = run.part(stop, f"part {i + 1} of {len(parts)}", (run.seed + i) % 2**32)
            later = torch.cat([*parts[i + 1 :], rows[:0]])
            later = later[~split.whole[later]]  # what waits is retained, unless its whole class must go
            retain = split.retain
            if len(later):
                both = [retain, split.forget.select(later)]
                if all(data.pixel_shape is not None for data in both):  # only images are augmented by name
                    retain = joined([(data, torch.arange(len(data))) for data in both], run.device)
                else:
                    retain = one_after_another(both)
            forget = split.forget if len(rows) == len(split.forget) else split.forget.select(rows)
            method.run(model, dataclasses.replace(split, forget=forget, retain=retain), part)
            run.follow(part)
        run.took = f"{len(split.forget)} samples in {len(parts)} parts: " + ", then ".join(self.methods)

    def _memorised(self, model: nn.Module, split: Split, run: Run) -> Tensor:
        """How strongly each forget sample is memorised, by the proxy, (|D_f|,); only the order counts."""
        views = run.augmented(split.forget) if self.proxy == "views" else None
        y = split.forget.labels.to(run.device)[:, None]
        total = torch.zeros(len(split.forget), device=run.device)
        for _ in range(1 if views is None else VIEWS):
            z = logits(model, views or split.forget)
            # Log-odds: they tell samples apart whose probability is 1 in float32.
            total += z.gather(1, y)[:, 0] - z.scatter(1, y, -math.inf).logsumexp(1)
        return -total.cpu()


def _named(words: str) -> Method:
    """The method that is meant by ``name key=value …``."""
    name, *settings = words.split() or [""]
    pairs = [pair.partition("=") for pair in settings]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        got, fix = f"{wrong[0]!r} in {words!r}", "separate settings by spaces, methods by commas"
        raise MethodError("settings as key=value after the name of a method", got, fix)
    method = resolve_method(name, {key: value for key, _, value in pairs})
    if kept := method.needs & {"shards", "updates"}:
        got, fix = f"{name}, which needs {' and '.join(kept)} kept by the training", f"use {name} by itself"
        raise MethodError("methods that forget a part of the samples at a time", got, fix)
    return method
