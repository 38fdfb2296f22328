"""Report, which audits return: it prints, draws and saves itself, and reads itself back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge.core.errors import MetricError, did_you_mean
from purge.core.files import file_errors, out_folder, read_json, write_json, write_text, writes
from purge.core.schema import build
from purge.metrics.metric import Words
from purge.metrics.registry import METRICS, find_metric
from purge.metrics.value import Value
from purge.report.curves import check_curves
from purge.report.tables import as_text, audit_table
from purge.result import now
from purge.verdict.compare import broken, read_condition
from purge.verdict.findings import Finding, Verdict
from purge.verdict.judge import verdict_of
from purge.verdict.rules import Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Report:
    """The audit of a model: every value beside the retrained and the original model's.

    ``report["fa_test"]`` is a :class:`Value`. A metric with several values is a dict of them,
    ``report["bn_recal"]``, and each has a dotted name, ``report["bn_recal.delta"]``.

    Attributes:
        values: of the audited model, by name.
        retrained: the same of the retrained model; empty without one.
        original: the same of the original; empty without it.
        info: sizes, seed, digests, versions, and the record of the run.
        floor: what further retrained models reach against the first: mean, lowest, highest and number of
            models; empty with fewer than two.
        curves: what the figures are drawn from: model → name → lists.
        metrics: what ``Metric.describe()`` says about each.
        parts: if the request mixes whole classes with single samples, a report on the ``classes`` and one on
            the ``samples``, without attacks by shadow models.

    Example:
        >>> report = Report({"ra": Value(0.98, 0.97, 0.99, 500)}, {"ra": Value(0.99)}, {})
        >>> report
        Report(1 values beside retrained, ra 98.0 %)
        >>> report["ra"].value, report.retrained["ra"].value
        (0.98, 0.99)
    """

    values: dict[str, Value]
    retrained: dict[str, Value]
    original: dict[str, Value]
    info: dict[str, Any] = field(default_factory=dict)
    floor: dict[str, Value] = field(default_factory=dict)
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, Report] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add what the registry says about the metrics and the report does not, as an earlier version's."""
        kinds = dict.fromkeys(name.partition(".")[0] for name in (*self.values, *self.metrics))
        known = {kind: METRICS[kind].describe() for kind in kinds if kind in METRICS}
        own = {kind: {**known.get(kind, {}), **self.metrics.get(kind, {})} for kind in kinds}
        object.__setattr__(self, "metrics", {kind: about for kind, about in own.items() if about})

    def __getitem__(self, name: str) -> Any:
        for known in (name, name.split(".")[0]):  # a part of a missing metric is missing too
            if known in self.values:
                return self.values[known]
        parts = {k[len(name) + 1 :]: v for k, v in self.values.items() if k.startswith(name + ".")}
        if not parts:
            raise MetricError("a metric of this report", repr(name), did_you_mean(name, self.values))
        return parts

    def table(self) -> str:
        """The report as a text table, with accuracies in percent and the reasons for missing values."""
        return as_text(audit_table(self.to_dict()))

    def to_frame(self) -> DataFrame:
        """The report as a table: one row per value, in the order of the text table.

        Returns:
            A pandas DataFrame with the columns ``name``, ``section``, ``unit``, ``value``, ``low`` and
            ``high`` (the 95 % interval), ``n`` (samples), ``why`` (of a missing value), and ``retrained``,
            ``original`` and ``floor``: the same value of the other models. Shares are fractions, and what is
            missing is NaN.

        Example:
            >>> report = Report({"ra": Value(0.98, 0.97, 0.99, 500)}, {"ra": Value(0.99)}, {})
            >>> report.to_frame()[["name", "value", "low", "high", "n", "retrained"]]
              name  value   low  high    n  retrained
            0   ra   0.98  0.97  0.99  500       0.99
        """
        from purge.report.frames import as_frame

        return as_frame(self._numbers())

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        from purge.report.frames import in_one_line

        return in_one_line(self._numbers())

    @property
    def verdict(self) -> Verdict:
        """What was shown, what failed and what is not known: typed findings, and what they come to.

        Each finding has a ``rule``, a ``part`` of the request, a ``level`` and the ``evidence``: the numbers
        that were compared, what is missing and what would help. Their words are in :meth:`sentences`.
        """
        return verdict_of(self._numbers())

    @property
    def level(self) -> Level:
        """What the verdict comes to: shown, failed or unknown."""
        return self.verdict.level

    @property
    def failed(self) -> list[Finding]:
        """The findings that the numbers contradict."""
        return [*self.verdict.failed]

    @property
    def headline(self) -> str:
        """The whole verdict in one sentence, as the page has it on top."""
        from purge.report.sentences import headline_of

        return str(headline_of(self.verdict))

    def sentences(self, findings: Iterable[Finding] | None = None) -> list[str]:
        """Findings in a few sentences each.

        Args:
            findings: of this report; default: all.

        Returns:
            What was shown, what failed and what is not known.
        """
        from purge.report.sentences import sentence_of

        report = self._numbers()
        findings = self.verdict.findings if findings is None else findings
        return [str(sentence_of(finding, report)) for finding in findings]

    def check(self, *conditions: str) -> list[str]:
        """Those of the conditions that hold; none if the model passes.

        Args:
            *conditions: what must not be, as in ``--fail-if``: ``report.check("fa_test > 2", "ra < 99")``,
                with shares in percent, or ``"failed"`` for any failed finding. A value that is missing does
                not pass.

        Returns:
            A sentence for each; an empty list is a pass.

        Raises:
            MetricError: no condition, or one of a metric that is not known.
        """
        from purge.report.sentences import broken_words

        if not conditions:
            raise MetricError("at least one condition", "none", "pass 'fa_test > 2', say")
        wanted = [
            read_condition(text, lambda n: self.metrics.get(n) or find_metric(n).describe())
            for text in conditions
        ]
        return [broken_words(one) for one in broken(wanted, self._numbers(), self.verdict)]

    def plot(self, name: str | None = None) -> Figure:
        """A Matplotlib figure of the audit; without a name, an overview.

        The overview has what was forgotten, what stays, attacks on membership and treatments of the weights,
        beside the retrained and the original model. A panel without numbers says why it has none.

        Args:
            name: one of trajectory, steps, classes, destinations, membership, roc, robustness, relearn and
                features, for that figure alone.

        Returns:
            A figure that a notebook displays; ``figure.savefig("report.png")`` writes it.

        Raises:
            MetricError: the report has nothing to draw the named figure from.

        Example:
            ```python
            report.plot()
            report.plot("classes").savefig("classes.png")
            ```
        """
        from purge.report.figures import draw
        from purge.report.overview import overview

        return overview(self.to_dict()) if name is None else draw(self.to_dict(), name)

    def html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one HTML page that needs no other file.

        Args:
            path: the file; an existing one is replaced.

        Returns:
            Its path.
        """
        from purge.report.page import page
        from purge.report.record import record_of

        run = self.info.get("run") or {}
        name, records = run.get("preset") or "audit", record_of(run, self.info) if run else {}
        with file_errors(Path(path)):
            write_text(Path(path), page({name: self.to_dict()}, records={name: records}, written=now()))
        return Path(path)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from purge.report.page import report_table

        return report_table(self.to_dict())

    def _numbers(self) -> dict[str, Any]:
        """The report without curves, which would take long to copy."""
        return dataclasses.replace(self, curves={}).to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write audit.json and report.html into a folder.

        Args:
            folder: which may be that of the run.

        Returns:
            Its path.
        """
        if not writes():
            return Path(folder)
        path = out_folder(folder, force=True)
        with file_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self.to_json(path / "audit.json")
        self.html(path / "report.html")
        return path

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file.

        Args:
            path: the file; an existing one is replaced.
        """
        if not writes():
            return
        with file_errors(Path(path)):
            write_json(Path(path), {**self.to_dict(), "verdict": self.verdict.to_dict()})

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that :meth:`to_json` wrote.

        Args:
            path: the file.

        Returns:
            The report.

        Raises:
            FileError: it is something else.
        """
        content = read_json(Path(path))
        report = build(cls, content, str(path), ignore_unknown=True)
        build(AuditInfo, content.get("info"), f"info of {path}", ignore_unknown=True)
        check_curves(report.curves, str(path))
        for name, about in report.metrics.items():
            build(Described, about, f"{name} of metrics of {path}", ignore_unknown=True)
        return report


@dataclass(frozen=True)
class Described:
    """The types of what a report says about a metric: see ``Metric.describe``."""

    symbol: str = ""
    about: str = ""
    unit: str = "number"
    units: dict[str, str] = field(default_factory=dict)
    parts: list[str] | str = ""
    section: str = ""
    direction: str = ""
    slack: float = 0.0
    ideal: float | str | None = None
    cost: str = ""
    words: dict[str, Words] = field(default_factory=dict)
    curve: str = ""


@dataclass(frozen=True)
class AuditInfo:
    """The types of those keys of ``Report.info`` that people are shown."""

    classes: int | None = None
    names: list[str] | None = None
    forget_classes: list[int] | None = None
    forget_samples: int | None = None
    retain_samples: int | None = None
    copies: dict[str, int | None] | None = None  # between the sets
    forget_content: str | None = None
    augmented: str | None = None  # which data could not be read without random transforms
    retain_content: str | None = None
    digests: dict[str, str] | None = None  # of the weights of each model
    models: dict[str, str] | None = None  # which model each column is, in words
    threads: int | list[int] | None = None
    cache: list[str] | None = None
