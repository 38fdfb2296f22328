"""Versions in MLflow, in a store of files."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from purge.core.errors import LedgerError
from purge.requests import tracking
from purge.requests.ledger import Ledger
from tests.requests.people import person
from tests.requests.test_worker import ask, run


def test_without_mlflow_it_is_said_before_anything_begins(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    ask(ledger, 1)
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)
    with pytest.raises(LedgerError, match=r"purge-unlearning\[mlflow\]"):
        run(ledger, mlflow="digits")
    assert not ledger.batches()


@pytest.mark.slow  # importing MLflow takes seconds
@pytest.mark.filterwarnings("ignore")  # of MLflow
def test_versions_are_registered_once_with_their_lineage(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    ask(ledger, 1)
    run(ledger)  # without MLflow
    ask(ledger, 2)
    run(ledger, mlflow="digits")
    ask(ledger, 3)
    run(ledger, mlflow="digits")
    at, versions = tracking.client(), ledger.versions()
    found = sorted(at.search_model_versions("name = 'digits'"), key=lambda v: int(v.version))
    assert [v.tags["purge.digest"] for v in found] == [v.digest for v in versions[1:]]
    assert [v.tags["purge.parent"] for v in found] == [v.digest for v in versions[:-1]]
    assert found[0].tags["purge.kind"] == "unlearned"
    files = {f.path for f in at.list_artifacts(found[-1].run_id)}
    assert files == {"model.safetensors", "run.json", "audit.json", "report.html"}
    values = ledger.audits()[-1].found["values"]
    assert at.get_run(found[-1].run_id).data.metrics["ta_retain"] == values["ta_retain"]["value"]
    assert ledger.verify().ok
    planted = person(1).encode()
    assert not any(planted in p.read_bytes() for p in (tmp_path / "mlruns").rglob("*") if p.is_file())
