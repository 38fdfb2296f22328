"""The shelf of unlearning methods: one entry per name."""

from __future__ import annotations

from typing import Any, NamedTuple

from purge.errors import MethodError, did_you_mean, expected
from purge.methods.ascent import GradientAscent, NegGradPlus
from purge.methods.base import Method
from purge.methods.finetune import FineTune
from purge.methods.purge import Purge
from purge.methods.retrain import Retrain
from purge.settings import replace
from purge.stopping import Stopping


class Entry(NamedTuple):
    """A method with the settings that its name stands for."""

    method: Method
    about: str
    cite: str  # authors and where to find them


METHODS: dict[str, Entry] = {
    "purge": Entry(
        Purge(),
        "projected erasure that survives recalibration: our default",
        "PURGE, extended",
    ),
    "purge-paper": Entry(
        Purge(
            objective="kl_retain",
            lr=5e-4,
            epochs=15,
            min_steps=1,
            max_steps=1_000_000,
            batch_size=128,
            erasure=0.05,
            kd=2.0,
            temperature=4.0,
            gate=0.0,
            clip=1.0,
            momentum=0.9,
            weight_decay=5e-4,
            optimizer="sgd",
            space="gradient",
            norm="frozen",
            descend=False,
            cooldown=0.0,
            stop=Stopping(retain_budget=5.0, check_every=50),
        ),
        "projected erasure as published, CIFAR-10 settings",
        "PURGE, Jawandhia et al.",
    ),
    "retrain": Entry(
        Retrain(), "a fresh model trained without the forget set: the reference", "the training recipe"
    ),
    "finetune": Entry(FineTune(), "train on with the retain set", "FT; Golatkar et al., arXiv:1911.04933"),
    "l1-sparse": Entry(
        FineTune(l1=1e-4),
        "train on with the retain set and a penalty on all weights",
        "Jia et al., arXiv:2304.04934",
    ),
    "not": Entry(
        FineTune(negate=True, epochs=50),
        "negate the first convolution, then train on with the retain set",
        "NoT; Khalil et al., arXiv:2503.05657",
    ),
    "gradient-ascent": Entry(
        GradientAscent(),
        "climb the loss of the forget set, nothing else",
        "GA; Thudi et al., arXiv:2109.13398",
    ),
    "neggrad-plus": Entry(
        NegGradPlus(),
        "descend on the retain set and climb on the forget set in one step",
        "Kurmanji et al., arXiv:2302.09880",
    ),
}


def resolve_method(method: str | Method, settings: dict[str, Any]) -> Method:
    """The method of that name, or the given one, with the settings changed as asked."""
    if isinstance(method, str):
        if method not in METHODS:
            raise MethodError(expected("the name of a method", repr(method), did_you_mean(method, METHODS)))
        method = METHODS[method].method
    elif not isinstance(method, Method):
        raise MethodError(
            expected(
                "a method's name or a Method",
                f"the class {method.__name__}" if isinstance(method, type) else type(method).__name__,
                f"pass {method.__name__}()" if isinstance(method, type) else "pass method='purge'",
            )
        )
    return replace(method, settings)


__all__ = [
    "METHODS",
    "Entry",
    "FineTune",
    "GradientAscent",
    "Method",
    "NegGradPlus",
    "Purge",
    "Retrain",
    "resolve_method",
]
