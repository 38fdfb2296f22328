"""Linear heads on fixed features, from which rows are deleted exactly.

head = purge.heads.fit(features, labels)      # or purge.heads.of(model, dataset)
head.remove(features[rows], labels[rows])     # the head that training without these rows gives
"""

from __future__ import annotations

from purge.models.heads.head import Head, HeadSettings, LogisticHead, RidgeHead, fit, load
from purge.models.heads.place import Placed, features, of

__all__ = ["Head", "HeadSettings", "LogisticHead", "Placed", "RidgeHead", "features", "fit", "load", "of"]
