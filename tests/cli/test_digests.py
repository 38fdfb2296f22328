"""Weights are those that run.json recorded, and a report is about those that were audited."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.commands import FEW_STEPS, names, ran, read, refused

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"
FIX = "restore that file, or name it itself with --model and --data"


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy of them; the original is the copy's."""
    shutil.copytree(made, tmp_path / "runs")
    edit(
        tmp_path / "runs" / "run", original=str(tmp_path / "runs/base"), deployed=str(tmp_path / "runs/base")
    )
    return tmp_path / "runs"


def edit(run: Path, **changes: Any) -> None:
    """Change keys of run.json; None takes a key out."""
    found = {**read(run / "run.json"), **changes}
    (run / "run.json").write_text(json.dumps({k: v for k, v in found.items() if v is not None}))


def replaced(run: Path) -> None:
    """Other weights of the same architecture, which do as well on the test data."""
    state = load_file(run / WEIGHTS)
    name = min(name for name, t in state.items() if t.is_floating_point())
    save_file({**state, name: state[name] + 1e-6}, run / WEIGHTS)


def flipped(run: Path) -> None:
    """Three bytes of the payload are others."""
    content = bytearray((run / WEIGHTS).read_bytes())
    for at in (-1, -5000, -9000):
        content[at] ^= 1
    (run / WEIGHTS).write_bytes(content)


@pytest.mark.parametrize("damage", [replaced, flipped])
def test_weights_that_are_not_those_of_run_json_are_refused_by_name(
    runs: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for name in ("base", "run", "retrained"):
        damage(runs / name)
    for argv in (
        ("audit", runs / "run", "--metrics", "quick"),
        ("unlearn", runs / "base", "--forget-class", 3, "--out", tmp_path / "out"),
        ("report", runs / "run"),
    ):
        said = refused(*argv, *(() if argv[0] == "report" else ("--quiet",)))
        assert f"the weights that {argv[1] / 'run.json'} recorded" in said
        assert (FIX if argv[0] != "report" else "Fix: restore that file.") in said
    assert names(tmp_path) == ["runs"]
    assert not (runs / "run" / "report.html").exists()
    again = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=2", "--out", runs / "base")
    assert "run.json recorded" in refused("train", *again, "--resume", "--quiet")


@pytest.mark.parametrize(
    ("name", "option"), [("base", None), ("base", "--original"), ("retrained", "--retrained")]
)
def test_the_models_that_an_audit_compares_with_are_checked_too(
    runs: Path, name: str, option: str | None
) -> None:
    """One of them is named by run.json alone."""
    replaced(runs / name)
    named = () if option is None else (option, runs / name)
    said = refused("audit", runs / "run", *named, "--metrics", "quick", "--quiet")
    assert f"the weights that {runs / name / 'run.json'} recorded" in said


def test_a_file_of_weights_is_taken_as_it_is(runs: Path, tmp_path: Path) -> None:
    """This is the way on that the refusal names."""
    replaced(runs / "base")
    named = ("--model", "small-resnet", "--data", "digits", "--quiet")
    out = ("--forget-class", 3, *FEW_STEPS, "--out", tmp_path / "out")
    ran("unlearn", runs / "base" / WEIGHTS, *named, *out)


def test_run_folders_without_a_digest_still_work(runs: Path, tmp_path: Path) -> None:
    for name in ("base", "run"):
        edit(runs / name, digest=None, original_digest=None, deployed_digest=None)
    replaced(runs / "run")
    ran("audit", runs / "run", "--metrics", "quick", "--quiet")
    assert ran("report", runs / "run", "--json").json["warnings"] == []
    shutil.copy(runs / "base" / WEIGHTS, runs / "run" / WEIGHTS)  # a report compares with the file
    assert "is of other weights" in ran("report", runs / "run").err


def test_an_audit_keeps_the_digest_of_the_weights_that_it_looked_at(runs: Path) -> None:
    facts, audit = read(runs / "run" / "run.json"), read(runs / "run" / "audit.json")
    assert audit["info"]["digests"]["audited"] == facts["digest"]
    assert audit["info"]["digests"]["original"] == facts["original_digest"]


def test_a_report_of_other_weights_says_so_on_top(runs: Path) -> None:
    """The weights agree with run.json, and the audit is about others."""
    shutil.copy(runs / "run" / "audit.json", runs / "retrained" / "audit.json")
    done = ran("report", runs / "retrained", runs / "run", "--out", runs / "page.html", "--json")
    own, other = (read(runs / name / "run.json")["digest"] for name in ("retrained", "run"))
    (warning,) = done.json["warnings"]
    assert warning.startswith("The audit of retrained is of other weights than those in the folder")
    assert own[:12] in warning
    assert other[:12] in warning
    assert f"purge audit {runs / 'retrained'}" in warning
    assert warning in done.err
    page = (runs / "page.html").read_text()
    assert page.index(warning) < page.index('class="headline')
    sound = ran("report", runs / "run")
    assert sound.err == ""
    assert "of other weights" not in (runs / "run" / "report.html").read_text()


def test_a_report_does_not_need_the_weights(runs: Path) -> None:
    (runs / "run" / WEIGHTS).unlink()
    done = ran("report", runs / "run")
    assert done.err == ""
    assert "model.safetensors, which is no longer there" in (runs / "run" / "report.html").read_text()


@pytest.mark.parametrize("file", ["sisa-shard-1.safetensors", "sisa-samples.safetensors", WEIGHTS])
def test_every_file_of_a_sharded_model_is_checked(tmp_path: Path, file: str) -> None:
    argv = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--shards", 2, "--quiet")
    ran("train", *argv, "--out", tmp_path / "base")
    out = ("--method", "sisa", "--forget-class", 3, "--quiet", "--out", tmp_path / "out")
    content = bytearray((tmp_path / "base" / file).read_bytes())
    content[-3] ^= 1
    (tmp_path / "base" / file).write_bytes(content)
    said = refused("unlearn", tmp_path / "base", *out)
    assert str(tmp_path / "base") in said
    assert not (tmp_path / "out").exists()
