"""Whoever may read what is written is decided by the user's umask, whichever library writes the file."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import numpy as np
import yaml

import purge
from purge.data.formats.published import fetch
from purge.metrics.shadow import Shadows
from tests.cli.commands import FEW_STEPS, command
from tests.metrics.shadows import FINE, QUICK, noise
from tests.nets import plain_mlp


def everything(folder: Path) -> None:
    """Write each kind of file that there is, quickly."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (90, 8, 8), dtype=np.uint8), np.arange(90) % 3
    np.savez(folder / "own.npz", train_images=images[:60], train_labels=labels[:60],
             test_images=images[60:], test_labels=labels[60:])  # fmt: skip
    base, new = folder / "base", folder / "new"
    brief = ("--set", "epochs=1", "--quiet")
    first = ("train", "--data", folder / "own.npz", "--model", "small-resnet", *brief)
    commands = [
        (*first, "--out", base, "--log-updates", folder / "updates"),
        (*first, "--out", folder / "shards", "--shards", 2),
        ("unlearn", base, "--forget-class", 0, "--out", new, "--quiet", *FEW_STEPS),
        ("audit", new, "--metrics", "quick", "--quiet"),
        ("report", new),
    ]
    plan = {
        "data": str(folder / "own.npz"), "model": "small-resnet", "recipe": {"epochs": 1}, "forget": [0],
        "metrics": ["fa_test"], "methods": [{"method": "finetune", "set": {"epochs": 1}}],
        "tables": [{"name": "t", "columns": ["fa_test"]}],
        "figures": [{"name": "f", "table": "t", "columns": ["fa_test"]}],
    }  # fmt: skip
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    for argv in [*commands, ("bench", folder / "plan.yaml", "--out", folder / "bench", "--quiet")]:
        done = command(*argv)
        assert done.code in (0, 1), done.err
    purge.audit(
        plain_mlp(), noise(11, 0), noise(40, 1), noise(30, 2), metrics=["lira"], progress=False,
        shadows=Shadows(number=4, recipe=QUICK, method=FINE),
    )  # fmt: skip
    md5 = hashlib.md5((folder / "own.npz").read_bytes()).hexdigest()
    fetch((folder / "own.npz").absolute().as_uri(), md5, folder / "downloads", progress=False)


def test_all_files_and_folders_have_the_mode_of_the_umask(tmp_path, monkeypatch):
    """With 027 neither 0644 nor 0600 is right, the two modes that libraries choose by themselves."""
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "written" / "cache"))
    before = os.umask(0o027)
    try:
        (tmp_path / "written").mkdir()
        everything(tmp_path / "written")
    finally:
        os.umask(before)
    found = list((tmp_path / "written").rglob("*"))
    kinds = {path.suffix for path in found}
    assert kinds >= {".safetensors", ".parquet", ".json", ".html", ".png", ".svg", ".md", ".csv", ".bin"}
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in found}
    assert {name: oct(m) for name, m in modes.items() if m != (0o750 if Path(name).is_dir() else 0o640)} == {}
