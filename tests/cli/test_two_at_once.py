"""Two commands at the same time: one of them gets a folder; what can be shared is shared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Done, names, read, refusal

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"
TRAIN = ("train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=3", "--quiet")
FILES = ["history.parquet", "model.safetensors", "run.json"]


def both(*commands: tuple[Any, ...], **more: str) -> list[Done]:
    """Run commands at the same time."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "purge", *map(str, argv)], env=alone,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) for argv in commands
    ]  # fmt: skip
    said = [process.communicate(timeout=300) for process in started]
    return [Done(process.returncode, *lines) for process, lines in zip(started, said, strict=True)]


def one_wins(done: list[Done]) -> None:
    loser = max(done, key=lambda one: one.code)
    assert sorted(one.code for one in done) == [0, 2], done
    assert "another that writes to it" in refusal(loser) or "one with" in refusal(loser)


@pytest.mark.slow
def test_of_two_that_want_one_folder_one_gets_it(tmp_path: Path) -> None:
    one_wins(both(*[(*TRAIN, "--out", tmp_path / "base", "--seed", seed) for seed in (1, 2)]))
    assert names(tmp_path / "base") == FILES
    forgetting = ("unlearn", tmp_path / "base", "--forget-class", 3, "--set", "forget_target=1", "--quiet")
    one_wins(both(*[(*forgetting, "--out", tmp_path / "less", "--seed", seed) for seed in (1, 2)]))
    assert names(tmp_path / "less") == FILES


@pytest.mark.slow
def test_two_audits_two_decodings_and_two_benches_share_what_they_can(tmp_path: Path) -> None:
    (done,) = both((*TRAIN, "--out", tmp_path / "base"))
    assert done.code == 0, done.err
    audits = both(*[("audit", tmp_path / "base", "--forget-class", 3, "--metrics", "quick", "--json")] * 2)
    assert [one.code for one in audits] == [0, 0], audits
    assert audits[0].json["values"] == audits[1].json["values"]
    assert read(tmp_path / "base" / "audit.json")["values"] == audits[0].json["values"]

    cache = tmp_path / "cache"  # empty: both decode the digits
    decoded = both(*[(*TRAIN, "--out", tmp_path / str(i)) for i in (1, 2)], PURGE_CACHE=str(cache))
    assert [one.code for one in decoded] == [0, 0], decoded
    assert not list(cache.glob("decoded/.making-*"))
    digests = {read(tmp_path / name / "run.json")["digest"] for name in ("base", "1", "2")}
    assert len(digests) == 1

    config = {**yaml.safe_load(SMOKE.read_text()), "seeds": [0], "retrains": 0, "metrics": ["ra"]}
    config |= {"tables": [{"name": "t", "columns": ["ra"]}], "figures": []}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    models = ("--models", tmp_path / "models", "--quiet")
    benches = [("bench", tmp_path / "small.yaml", "--out", tmp_path / name, *models) for name in ("x", "y")]
    ended = both(*benches)
    assert [one.code for one in ended] == [0, 0], ended
    assert names(tmp_path / "x" / "jobs") == names(tmp_path / "y" / "jobs")
    assert len([p for p in (tmp_path / "models").iterdir() if p.name != ".locks"]) == 1
    shutil.rmtree(tmp_path / "models")
