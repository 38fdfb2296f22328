"""What the audit says about fakes on CIFAR-10: results/fakes_cifar10.json.

uv run python benchmarks/fakes.py --data-dir DIR            # needs a GPU; about 15 minutes
uv run python benchmarks/fakes.py --data-dir DIR purge      # some models; runs made before stay in the file
uv run python benchmarks/fakes.py --table                   # print the table of docs/metrics.md

ResNet-18 at 32×32, class 0. The models of tests/fakes.py only pretend to have forgotten it; ``purge``,
``purge-close`` and honest retrainings from other seeds are audited beside them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from base_models import commit
from baselines import trained, untrained
from scene import options, prepare
from torch import nn

import purge
from purge.auditor import Auditor
from purge.core.files import write_json
from purge.report.sentences import title_of
from purge.result import environment
from purge.verdict.judge import verdict_of

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.fakes import FAKES, Request  # noqa: E402

OUT = ROOT / "results" / "fakes_cifar10.json"
HONEST = 3  # further retrainings
LEFT_OUT = {"look-up", "other request"}  # 5,000 images in every pass; a training that says nothing new here
KEYS = (
    "fa_test",
    "relearn_ratio",
    "probe",
    "head_refit.fa",
    "hidden_change",
    "output_change",
    "bn_recal.after",
)


def unlearned(method: str) -> Callable[[Request], nn.Module]:
    return lambda r: (
        purge.unlearn(r.base, r.forget, r.retain, test=r.test, method=method, progress=False).model
    )


def row(name: str, report: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What is kept of an audit."""
    verdict = verdict_of(report)
    findings = [f for f in verdict.findings if f.topic != "limits"]
    levels = {
        level: [title_of(f) for f in findings if f.level == level] for level in ("shown", "failed", "unknown")
    }
    numbers = {k: report["values"].get(k, {}).get("value") for k in KEYS}
    return {
        "model": name,
        "headline": verdict.level,
        **levels,
        **numbers,
        "audit_seconds": seconds,
    }


def table(content: dict[str, Any]) -> str:
    """The table of docs/metrics.md."""
    lines = [
        "| model | verdict | ✔ | ✘ | FA | relearning | probe | hidden layers moved | what failed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [(r, run["retrained"]["hidden_change"]) for run in content["runs"] for r in run["rows"]]
    for r, retrained in rows:
        ratio = "–" if r["relearn_ratio"] is None else f"{r['relearn_ratio']:.2f}"
        moved = (r["hidden_change"] or 0.0) / retrained
        lines.append(
            f"| {r['model']} | {r['headline']} | {len(r['shown'])} | {len(r['failed'])} | "
            f"{100 * r['fa_test']:.1f} % | {ratio} | {100 * r['probe']:.1f} % | {100 * moved:.0f} % | "
            f"{'; '.join(r['failed'])} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__.splitlines()[0], OUT)
    parser.add_argument("names", nargs="*", help="of models; default: all")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    train_data, train, test, forget, retain, base, _ = prepare(asked)
    retrained, again = (trained(asked, f"retrain{s}", retain, i)[0] for i, s in ((1, ""), (2, "-2")))
    epochs = asked.epochs or 40
    request = Request(
        train,
        test,
        forget,
        retain,
        base,
        retrained,
        False,
        lambda seed: untrained(train_data[0], seed),
        epochs,
    )
    auditor = Auditor(forget, retain, test, original=base, retrained=[retrained, again])
    models = {name: fake for name, fake in FAKES.items() if name not in LEFT_OUT}
    models |= {name: unlearned(name) for name in ("purge", "purge-close")}
    for seed in range(3, 3 + HONEST):
        models[f"honest retraining {seed}"] = lambda r, s=seed: trained(asked, f"honest-{s}", r.retain, s)[0]
    before = json.loads(asked.out.read_text())["runs"] if asked.out.is_file() else []
    content: dict[str, Any] = {"rows": [], "epochs": epochs, "commit": commit(), **environment()}
    for name, make in models.items():
        if asked.names and name not in asked.names:
            continue
        started = time.perf_counter()
        report = auditor.audit(make(request), metrics="standard", progress=False).to_dict()
        content["rows"].append(row(name, report, time.perf_counter() - started))
        for part in ("retrained", "original"):
            content[part] = {k: report[part].get(k, {}).get("value") for k in KEYS}
        write_json(asked.out, {"runs": [*before, content]})  # a call that is cut off keeps what it has
        print(name, content["rows"][-1]["headline"], content["rows"][-1]["failed"], flush=True)


if __name__ == "__main__":
    main()
