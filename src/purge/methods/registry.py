"""The registry of unlearning methods: names, what they are, and the settings that a name stands for.

No method is imported before it is used, so that listing them is quick.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge.core.errors import MethodError, did_you_mean
from purge.core.plugins import installed, named
from purge.core.settings import check_settings_class, replace

if TYPE_CHECKING:
    from purge.methods.base import Method

GROUP = "purge.methods"  # entry points of installed packages that bring methods of their own


@dataclass(frozen=True)
class MethodRow:
    """A method with the settings that its name stands for."""

    cls: str  # module:Class
    about: str
    cite: str = ""  # authors and where to find them
    settings: Mapping[str, Any] = field(default_factory=dict)
    package: str = "purge.methods."  # where the module is; empty for a method of somebody else

    @cached_property
    def method(self) -> Method:
        """The method with these settings; the class may be somebody else's."""
        cls = named(self.package + self.cls, MethodError)
        if not (isinstance(cls, type) and issubclass(cls, _base())):
            got = getattr(cls, "__name__", repr(cls))
            raise MethodError("a subclass of purge.Method", got, "derive your class from purge.Method")
        check_settings_class(cls)
        if inspect.isabstract(cls):
            raise MethodError(f"a method run in {cls.__name__}", "none", "write run(self, model, split, run)")
        return replace(cls(), self.settings)


METHODS: dict[str, MethodRow] = {  # name: class, what it does, where it is from, settings of this name
    "purge": MethodRow(
        "purge:Purge", "restart on the retained data, nothing left of the rest: our default",
        "PURGE, extended"),
    "purge-paper": MethodRow(
        "purge_paper:PurgePaper", "projected erasure as published, CIFAR-10 settings",
        "PURGE, Jawandhia et al."),
    "purge-close": MethodRow(
        "purge:Purge", "a longer restart, nearer to a retrained model: budget=close", "PURGE, extended",
        {"budget": "close"}),
    "retrain": MethodRow(
        "retrain:Retrain", "a fresh model trained without the forget set: the reference",
        "the training recipe"),
    "finetune": MethodRow(
        "finetune:FineTune", "train on with the retain set", "FT; Golatkar et al., arXiv:1911.04933"),
    "l1-sparse": MethodRow(
        "finetune:FineTune", "train on with the retain set and a penalty on all weights",
        "Jia et al., arXiv:2304.04934",
        {"l1": 0.0001}),
    "not": MethodRow(
        "finetune:FineTune", "negate the first convolution, then train on with the retain set",
        "NoT; Khalil et al., arXiv:2503.05657",
        {"negate": True, "epochs": 50}),
    "gradient-ascent": MethodRow(
        "ascent:GradientAscent", "climb the loss of the forget set, nothing else",
        "GA; Thudi et al., arXiv:2109.13398"),
    "neggrad-plus": MethodRow(
        "ascent:NegGradPlus", "descend on the retain set and climb on the forget set in one step",
        "NegGrad+; Kurmanji et al., arXiv:2302.09880"),
    "neggrad-plus-small": MethodRow(
        "ascent:NegGradPlus", "NegGrad+ for small data, with a pull back to the original weights",
        "NegGrad+; Kurmanji et al., arXiv:2302.09880",
        {"alpha": 0.95, "pull": 0.1, "forget_batch_size": 64, "norm": "frozen"}),
    "random-label": MethodRow(
        "relabel:RandomLabel", "train on, with random labels for the forget set",
        "RL; Golatkar et al., arXiv:1911.04933"),
    "salun": MethodRow(
        "relabel:SalUn", "random labels, learnt by the weights that matter most for the forget set",
        "Fan et al., arXiv:2310.12508"),
    "salun-soft": MethodRow(
        "relabel:SalUn", "random labels, with the smallest changes taken back after each step",
        "Fan et al., arXiv:2310.12508",
        {"soft": True}),
    "amnesiac-relabel": MethodRow(
        "relabel:RandomLabel", "train on, with a wrong label for each forgotten sample, drawn once",
        "Graves et al., arXiv:2010.10981",
        {"epochs": 3, "batch_size": 128, "wrong": True, "redraw": False, "optimizer": "adam", "lr": 0.0001,
         "weight_decay": 0.0}),
    "scrub": MethodRow(
        "scrub:Scrub", "climb away from the original on the forget set, return to it on the rest, in turns",
        "Kurmanji et al., arXiv:2302.09880"),
    "scrub-small": MethodRow(
        "scrub:Scrub", "SCRUB with its authors' settings for small data",
        "Kurmanji et al., arXiv:2302.09880",
        {"optimizer": "adam", "weight_decay": 0.1, "gamma": 1.0, "alpha": 0.5, "temperature": 2.0,
         "max_steps": 3, "epochs": 10, "decay_after": (5, 8, 9), "batch_size": 32, "forget_batch_size": 64}),
    "scrub-r": MethodRow(
        "scrub:Scrub", "SCRUB, then back to the epoch that forgot about as much as test data is unknown",
        "SCRUB+R; Kurmanji et al., arXiv:2302.09880",
        {"gamma": 1.0, "alpha": 0.5, "max_steps": 3, "epochs": 5, "batch_size": 32, "forget_batch_size": 16,
         "rewind": "nearest"}),
    "bad-teacher": MethodRow(
        "badteacher:BadTeacher",
        "distil what must go from an untrained network, what must stay from the original",
        "Chundawat et al., arXiv:2205.08096"),
    "delete": MethodRow(
        "delete:Delete", "distil the original without each sample's own label, on the forget set alone",
        "DELETE; Zhou et al., arXiv:2503.23751"),
    "boundary-expand": MethodRow(
        "boundary:BoundaryExpand", "send the forget set to a class of its own, then drop that class",
        "BE; Chen et al., arXiv:2303.11570"),
    "boundary-shrink": MethodRow(
        "boundary:BoundaryShrink", "teach each forget sample the label across its nearest boundary",
        "BS; Chen et al., arXiv:2303.11570"),
    "influence": MethodRow(
        "influence:Influence", "one Newton step that takes the forget set's influence away",
        "IU; Jia et al., arXiv:2304.04934"),
    "fisher": MethodRow(
        "fisher:FisherForgetting", "noise on the weights that the retain set does not need",
        "Golatkar et al., arXiv:1911.04933"),
    "fisher-large": MethodRow(
        "fisher:FisherForgetting", "the same with less noise, as published for all of CIFAR-10",
        "Golatkar et al., arXiv:1911.04933; Kurmanji et al., arXiv:2302.09880",
        {"alpha": 1e-07}),
    "ssd": MethodRow(
        "ssd:SelectiveDampening", "shrink the weights that matter more to the forget set",
        "SSD; Foster et al., arXiv:2308.07707"),
    "amnesiac": MethodRow(
        "amnesiac:Amnesiac",
        "take back the logged updates of batches with forgotten samples (purge train --log-updates)",
        "Graves et al., arXiv:2010.10981"),
    "sisa": MethodRow(
        "sisa:Sisa", "exact deletion from a model that was trained in shards (purge train --shards)",
        "SISA; Bourtoule et al., arXiv:1912.03817"),
    "exact-head": MethodRow(
        "exact_head:ExactHead",
        "solve for the linear head again without the forget set: exact if the rest is frozen",
        "ridge or logistic regression on fixed features"),
    "unsir": MethodRow(
        "unsir:UNSIR", "impair with noise that stands for the class, repair with retained samples",
        "Tarun et al., arXiv:2111.08947"),
    "coun": MethodRow(
        "coun:CoUn", "train on with the retain set and two views of each sample, drawn together",
        "Khalil et al., arXiv:2509.16391"),
    "amun": MethodRow(
        "amun:Amun", "learn the wrong answers that the model gives right beside the forgotten samples",
        "Ebrahimpour-Boroojeny et al., arXiv:2503.00917"),
    "mu-mis": MethodRow(
        "mumis:MuMis", "make each forgotten sample's own logit less sensitive to it, without retained data",
        "Cheng et al., arXiv:2402.15109"),
    "trw": MethodRow(
        "trw:TiltedReweighting",
        "send the samples of a class where its neighbouring classes would take them",
        "Ebrahimpour-Boroojeny et al., arXiv:2506.20893"),
    "scissorhands": MethodRow(
        "scissorhands:Scissorhands", "draw the weights anew that matter most to the forget set, then repair",
        "Wu and Harandi, arXiv:2401.06187"),
    "rum": MethodRow(
        "rum:Rum", "divide the forget set by memorisation, run a method on each part in turn",
        "Zhao et al., arXiv:2406.01257"),
    "iewp": MethodRow(
        "iewp:IEWP", "raise the entropy of influential forget samples, between retain steps",
        "IEWPv2; PURGE's predecessor, Jawandhia et al."),
    "munba": MethodRow(
        "munba:Munba", "steps along which forgetting and retaining agree, by Nash bargaining",
        "Wu and Harandi, arXiv:2411.15537"),
    "sfron": MethodRow(
        "sfron:SFRon", "climb on the forget set by salient weights, between steps on the retain set",
        "SFR-on; Huang et al., arXiv:2409.19732"),
    "msg": MethodRow(
        "msg:MaskedSmallGradients", "draw the weights anew that neither set needs, then train on",
        "NeurIPS 2023 competition; Cadet et al., arXiv:2410.01276"),
    "convolution-transpose": MethodRow(
        "convolution_transpose:ConvolutionTranspose", "turn all convolution kernels over, then train on",
        "CT; NeurIPS 2023 competition; Cadet et al., arXiv:2410.01276"),
    "lotus": MethodRow(
        "lotus:LoTUS", "distil smoothed answers of the original until the forget set looks unseen",
        "Spartalis et al., arXiv:2503.18314"),
}  # fmt: skip


def all_methods() -> dict[str, MethodRow]:
    """The methods of this package, and those of installed ones by the entry point ``purge.methods``."""
    outside = {
        name: MethodRow(
            point.value,
            f"{point.attr}, from the package {point.dist.name if point.dist else '?'}",
            package="",
        )
        for name, point in installed(GROUP).items()
    }
    return {**outside, **METHODS}


def list_methods() -> dict[str, str]:
    """The unlearning methods, also those of installed packages.

    Returns:
        Name → one line about it.

    Example:
        >>> "purge" in list_methods()
        True
    """
    return {name: entry.about for name, entry in all_methods().items()}


def resolve_method(method: str | Method, settings: Mapping[str, Any]) -> Method:
    """The method of that name, or the given one, with the settings changed as asked."""
    if isinstance(method, str):
        entry = all_methods().get(method) or (
            MethodRow(method, method, package="") if ":" in method else None
        )
        if entry is None:
            what = "the name of a method, or module:Class for one of your own"
            raise MethodError(what, repr(method), did_you_mean(method, all_methods(), "purge list methods"))
        method = entry.method
    elif isinstance(method, type):
        got, fix = f"the class {method.__name__}", f"pass {method.__name__}()"
        raise MethodError("a method's name or a Method", got, fix)
    elif not isinstance(method, _base()):
        raise MethodError("a method's name or a Method", type(method).__name__, "pass method='purge'")
    if {"forget_target", "retain_budget"} & settings.keys():  # who names a reason to stop wants to stop
        settings = {"early": True, **settings}
    return replace(method, settings)


def source_digest(method: Method) -> str:
    """SHA-256 of the source of a method, so that an edited method counts as another one.

    That is the file of its class, and for a method that runs others, theirs as well.
    """
    cls = type(method)
    try:
        file = Path(inspect.getfile(cls))
        source = file.read_bytes() if file.is_file() else b""
    except (OSError, TypeError):  # typed into an interpreter
        source = repr(sorted(vars(cls))).encode()
    inside = [source_digest(other) for other in method.inner if other is not None]
    own = hashlib.sha256(source).hexdigest()
    return hashlib.sha256("".join([own, *inside]).encode()).hexdigest() if inside else own


def _base() -> type[Method]:
    from purge.methods.base import Method  # imports torch, which takes seconds

    return Method
