"""The shelf of unlearning methods: one entry per name."""

from __future__ import annotations

from typing import Any, NamedTuple

from purge.core.errors import MethodError, did_you_mean
from purge.core.settings import replace
from purge.engine.optimizer import Optim
from purge.engine.stopping import Stopping
from purge.methods.amnesiac import Amnesiac
from purge.methods.ascent import GradientAscent, NegGradPlus
from purge.methods.badteacher import BadTeacher
from purge.methods.base import Method
from purge.methods.boundary import BoundaryExpand, BoundaryShrink
from purge.methods.delete import Delete
from purge.methods.finetune import FineTune
from purge.methods.fisher import FisherForgetting
from purge.methods.iewp import IEWP
from purge.methods.influence import Influence
from purge.methods.purge.method import Purge
from purge.methods.relabel import RandomLabel, SalUn
from purge.methods.retrain import Retrain
from purge.methods.scrub import Scrub
from purge.methods.sisa import Sisa
from purge.methods.ssd import SelectiveDampening
from purge.methods.unsir import UNSIR


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
            certainty=1.0,
            lr=5e-4,
            epochs=15,
            min_steps=1,
            max_steps=1_000_000,
            batch_size=128,
            silence=0.0,
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
    "purge-close": Entry(
        Purge(
            objective="relearned",
            relearn=0.5,
            relearn_epochs=9,
            certainty=1.4,
            silence=0.05,
            erasure=50.0,
            erase_to="neighbours",
            epochs=4,
            batch_size=256,
            cooldown=0.5,
            stop=Stopping(check_every=40, epoch_ends=False, check_samples=1024, early=False),
        ),
        "projected erasure that asks a relearned copy: nearer to a retrained model, and slower",
        "PURGE, extended",
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
    "random-label": Entry(
        RandomLabel(),
        "train on, with random labels for the forget set",
        "RL; Golatkar et al., arXiv:1911.04933",
    ),
    "salun": Entry(
        SalUn(),
        "random labels, learnt by the weights that matter most for the forget set",
        "Fan et al., arXiv:2310.12508",
    ),
    "salun-soft": Entry(
        SalUn(soft=True, mixed=True),
        "random labels, with the smallest changes taken back after each step",
        "Fan et al., arXiv:2310.12508",
    ),
    "amnesiac-relabel": Entry(
        RandomLabel(
            epochs=3,
            batch_size=128,
            mixed=True,
            wrong=True,
            redraw=False,
            optim=Optim(optimizer="adam", lr=1e-4, weight_decay=0.0),
        ),
        "train on, with a wrong label for each forgotten sample, drawn once",
        "Graves et al., arXiv:2010.10981",
    ),
    "scrub": Entry(
        Scrub(),
        "climb away from the original on the forget set, return to it on the rest, in turns",
        "Kurmanji et al., arXiv:2302.09880",
    ),
    "bad-teacher": Entry(
        BadTeacher(),
        "distil what must go from an untrained network, what must stay from the original",
        "Chundawat et al., arXiv:2205.08096",
    ),
    "delete": Entry(
        Delete(),
        "distil the original without each sample's own label, on the forget set alone",
        "DELETE; Zhou et al., arXiv:2503.23751",
    ),
    "boundary-expand": Entry(
        BoundaryExpand(),
        "send the forget set to a class of its own, then drop that class",
        "BE; Chen et al., arXiv:2303.11570",
    ),
    "boundary-shrink": Entry(
        BoundaryShrink(),
        "teach each forget sample the label across its nearest boundary",
        "BS; Chen et al., arXiv:2303.11570",
    ),
    "influence": Entry(
        Influence(),
        "one Newton step that takes the forget set's influence away",
        "IU; Jia et al., arXiv:2304.04934",
    ),
    "fisher": Entry(
        FisherForgetting(),
        "noise on the weights that the retain set does not need",
        "Golatkar et al., arXiv:1911.04933",
    ),
    "ssd": Entry(
        SelectiveDampening(),
        "shrink the weights that matter more to the forget set",
        "SSD; Foster et al., arXiv:2308.07707",
    ),
    "amnesiac": Entry(
        Amnesiac(),
        "take back the logged updates of batches with forgotten samples (purge train --log-updates)",
        "Graves et al., arXiv:2010.10981",
    ),
    "sisa": Entry(
        Sisa(),
        "exact deletion from a model that was trained in shards (purge train --shards)",
        "SISA; Bourtoule et al., arXiv:1912.03817",
    ),
    "unsir": Entry(
        UNSIR(),
        "impair with noise that stands for the class, repair with retained samples",
        "Tarun et al., arXiv:2111.08947",
    ),
    "iewp": Entry(
        IEWP(),
        "raise the entropy of influential forget samples, between retain steps",
        "IEWPv2; PURGE's predecessor, Jawandhia et al.",
    ),
}


def resolve_method(method: str | Method, settings: dict[str, Any]) -> Method:
    """The method of that name, or the given one, with the settings changed as asked."""
    if isinstance(method, str):
        if method not in METHODS:
            raise MethodError("the name of a method", repr(method), did_you_mean(method, METHODS))
        method = METHODS[method].method
    elif not isinstance(method, Method):
        raise MethodError(
            "a method's name or a Method",
            f"the class {method.__name__}" if isinstance(method, type) else type(method).__name__,
            f"pass {method.__name__}()" if isinstance(method, type) else "pass method='purge'",
        )
    if {"forget_target", "retain_budget"} & settings.keys():  # who names a reason to stop wants to stop
        settings = {"early": True, **settings}
    return replace(method, settings)


__all__ = [
    "IEWP",
    "METHODS",
    "UNSIR",
    "Amnesiac",
    "BadTeacher",
    "BoundaryExpand",
    "BoundaryShrink",
    "Delete",
    "Entry",
    "FineTune",
    "FisherForgetting",
    "GradientAscent",
    "Influence",
    "Method",
    "NegGradPlus",
    "Purge",
    "RandomLabel",
    "Retrain",
    "SalUn",
    "Scrub",
    "SelectiveDampening",
    "Sisa",
    "resolve_method",
]
