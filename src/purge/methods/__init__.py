"""The unlearning methods, one file for each paper.

``purge.methods.Purge(lr=…)`` is the typed form of ``method="purge", lr=…``. Classes are imported when they
are first used, since torch takes seconds to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from purge.methods.amnesiac import Amnesiac as Amnesiac
    from purge.methods.amun import Amun as Amun
    from purge.methods.ascent import GradientAscent as GradientAscent
    from purge.methods.ascent import NegGradPlus as NegGradPlus
    from purge.methods.badteacher import BadTeacher as BadTeacher
    from purge.methods.base import Method as Method
    from purge.methods.boundary import BoundaryExpand as BoundaryExpand
    from purge.methods.boundary import BoundaryShrink as BoundaryShrink
    from purge.methods.convolution_transpose import ConvolutionTranspose as ConvolutionTranspose
    from purge.methods.coun import CoUn as CoUn
    from purge.methods.delete import Delete as Delete
    from purge.methods.exact_head import ExactHead as ExactHead
    from purge.methods.finetune import FineTune as FineTune
    from purge.methods.fisher import FisherForgetting as FisherForgetting
    from purge.methods.iewp import IEWP as IEWP
    from purge.methods.influence import Influence as Influence
    from purge.methods.lotus import LoTUS as LoTUS
    from purge.methods.msg import MaskedSmallGradients as MaskedSmallGradients
    from purge.methods.mumis import MuMis as MuMis
    from purge.methods.munba import Munba as Munba
    from purge.methods.purge import Purge as Purge
    from purge.methods.purge_paper import PurgePaper as PurgePaper
    from purge.methods.relabel import RandomLabel as RandomLabel
    from purge.methods.relabel import SalUn as SalUn
    from purge.methods.retrain import Retrain as Retrain
    from purge.methods.rum import Rum as Rum
    from purge.methods.scissorhands import Scissorhands as Scissorhands
    from purge.methods.scrub import Scrub as Scrub
    from purge.methods.sfron import SFRon as SFRon
    from purge.methods.sisa import Sisa as Sisa
    from purge.methods.ssd import SelectiveDampening as SelectiveDampening
    from purge.methods.trw import TiltedReweighting as TiltedReweighting
    from purge.methods.unsir import UNSIR as UNSIR

MODULES = {  # the classes of each module
    "amnesiac": "Amnesiac",
    "amun": "Amun",
    "ascent": "GradientAscent NegGradPlus",
    "badteacher": "BadTeacher",
    "base": "Method",
    "boundary": "BoundaryExpand BoundaryShrink",
    "convolution_transpose": "ConvolutionTranspose",
    "coun": "CoUn",
    "delete": "Delete",
    "exact_head": "ExactHead",
    "finetune": "FineTune",
    "fisher": "FisherForgetting",
    "iewp": "IEWP",
    "influence": "Influence",
    "lotus": "LoTUS",
    "msg": "MaskedSmallGradients",
    "munba": "Munba",
    "mumis": "MuMis",
    "purge": "Purge",
    "purge_paper": "PurgePaper",
    "relabel": "RandomLabel SalUn",
    "retrain": "Retrain",
    "rum": "Rum",
    "scissorhands": "Scissorhands",
    "scrub": "Scrub",
    "sfron": "SFRon",
    "sisa": "Sisa",
    "ssd": "SelectiveDampening",
    "trw": "TiltedReweighting",
    "unsir": "UNSIR",
}
HOMES = {name: f"purge.methods.{module}" for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'purge.methods' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
