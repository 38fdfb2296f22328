"""A metric of your own: one function and one purge.Metric, used like any other metric.

python examples/own_metric.py

On the command line, in the folder of this file:   purge audit RUN --metrics ta,own_metric:SURE
In the YAML file of a bench:                       metrics: [ta, "own_metric:SURE"]
In a package of yours, for all who install it, under its own name (pyproject.toml):

    [project.entry-points."purge.metrics"]
    sure = "your_package.own_metric:SURE"
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import purge

if TYPE_CHECKING:
    from purge.metrics.audited import AuditedModel


def sure(audited: AuditedModel) -> dict[str, purge.Value]:
    """Share of samples that are answered with a probability above 90 %, whether right or wrong.

    A model that never saw the forgotten samples is rarely sure about them. It does not tell whether the
    answer is right: see fa_train.
    """
    return {
        "forget": audited.mean(audited.log_probs("forget").max(1) > math.log(0.9)),
        "retain": audited.mean(audited.log_probs("retain").max(1) > math.log(0.9)),
    }


SURE = purge.Metric(
    name="sure",
    symbol="sure",
    about="share of samples answered with a probability above 90 %",
    fn=sure,
    parts=("forget", "retain"),
    unit="share",  # printed in percent
    section="forgetting",
)


def main() -> None:
    """Forget a digit, and audit the result with this metric beside two others."""
    from torch import nn

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    train, test = purge.load("digits")
    forget, retain = purge.split(train, classes=[0])
    original = purge.train(network(), train, epochs=5, progress=False).model
    retrained = purge.train(network(), retain, epochs=5, progress=False).model
    result = purge.unlearn(original, forget, retain, test=test, progress=False)
    report = purge.audit(
        result, forget, retain, test, original=original, retrained=retrained,
        metrics=["fa_test", "ta_retain", SURE], progress=False,
    )  # fmt: skip
    print(report.table())


if __name__ == "__main__":
    main()
