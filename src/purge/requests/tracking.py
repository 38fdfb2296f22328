"""Versions in MLflow: a model version with tags, its lineage, and the report as an artifact.

Where MLflow keeps them is MLflow's own setting, ``MLFLOW_TRACKING_URI``. No id and no sample is sent:
weights, run.json, audit.json and report.html are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge.core.errors import LedgerError
from purge.requests.records import Version
from purge.result import Report

if TYPE_CHECKING:
    from purge.requests.ledger import Ledger

EXPERIMENT = "purge"
REGISTERED = "mlflow"  # the kind of entry that says that a version is there
FILES = ("model.safetensors", "run.json", "audit.json")


def client() -> Any:
    """The client of MLflow, if that is installed."""
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        fix = "pip install 'purge-unlearning[mlflow]'"
        raise LedgerError("the package mlflow, to register versions", "none", fix) from None
    return MlflowClient()


def register_all(ledger: Ledger, name: str) -> None:
    """Register the versions that came of a batch and are not in MLflow yet, each once."""
    there = {(entry.payload["version"], entry.payload["name"]) for entry in ledger.entries(REGISTERED)}
    for version in ledger.versions():
        if version.batch is not None and (version.number, name) not in there:
            number = register(ledger, version, name)
            ledger.append(REGISTERED, {"version": version.number, "name": name, "number": number})


def register(ledger: Ledger, version: Version, name: str) -> str:
    """Register a version of the model in MLflow under a name; its number there is returned."""
    at, folder = client(), Path(version.folder)
    found = at.get_experiment_by_name(EXPERIMENT)
    experiment = found.experiment_id if found else at.create_experiment(EXPERIMENT)
    tags = {
        "purge.version": str(version.number), "purge.digest": version.digest, "purge.kind": version.kind,
        "purge.parent": version.parent or "", "purge.batch": str(version.batch or ""),
        "purge.head": str(ledger.head()),
    }  # fmt: skip
    run = at.create_run(experiment, tags=tags, run_name=folder.name).info
    for file in FILES:
        if (folder / file).is_file():
            at.log_artifact(run.run_id, str(folder / file))
    if (folder / "audit.json").is_file():
        report = Report.from_json(folder / "audit.json")
        for key, value in _numbers(report).items():
            at.log_metric(run.run_id, key, value)
        with tempfile.TemporaryDirectory() as made:
            at.log_artifact(run.run_id, str(report.html(Path(made) / "report.html")))
    at.set_terminated(run.run_id)
    if not any(model.name == name for model in at.search_registered_models()):
        at.create_registered_model(name)
    made_version = at.create_model_version(name, source=run.artifact_uri, run_id=run.run_id, tags=tags)
    return str(made_version.version)


def _numbers(report: Report) -> Mapping[str, float]:
    return {name: v.value for name, v in report.values.items() if v.value is not None}
