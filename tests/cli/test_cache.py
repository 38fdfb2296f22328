"""What the cache keeps can be seen and removed, a run says which copies it left, and none need be."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml

import purge
from purge.data.load import load
from purge.metrics.shadow import Shadows
from tests.cli.commands import FEW_STEPS, command, ran, read, refused
from tests.metrics.shadows import QUICK, noise
from tests.nets import plain_mlp

pytestmark = pytest.mark.slow

BRIEF = ("--set", "epochs=1", "--quiet")


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A file of one's own images, and an empty cache beside it."""
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (90, 8, 8), dtype=np.uint8), np.arange(90) % 3
    np.savez(tmp_path / "own.npz", train_images=images[:60], train_labels=labels[:60],
             test_images=images[60:], test_labels=labels[60:])  # fmt: skip
    return tmp_path / "own.npz"


def bytes_below(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def test_nothing_is_listed_before_anything_was_kept(own):
    empty = {"folder": str(own.parent / "cache"), "entries": []}
    assert ran("cache", "list", "--json").json == empty
    assert "empty" in ran("cache", "list").out
    assert ran("cache", "clear", "--json").json["entries"] == []


def test_decoded_images_and_shadow_models_are_listed_and_removed(own):
    cache = own.parent / "cache"
    load(own, progress=False)
    report = purge.audit(
        plain_mlp(), noise(11, 0), noise(40, 1), noise(30, 2), metrics=["lira"], progress=False,
        shadows=Shadows(number=4, recipe=QUICK),
    )  # fmt: skip
    (cache / "data" / "mnist").mkdir(parents=True)
    (cache / "data" / "mnist" / "train.gz").write_bytes(bytes(1000))
    (cache / "notes.txt").write_text("of the user")

    found = ran("cache", "list", "--json").json["entries"]
    assert [entry["kind"] for entry in found] == ["decoded", "shadows", "data"]
    for entry in found:
        assert entry["bytes"] == bytes_below(cache / entry["path"]) > 0
        assert 0 <= entry["age_seconds"] < 600
    assert [entry["about"] for entry in found] == ["own.npz", "4 models", "mnist"]
    assert report.info["cache"] == [found[1]["path"]], "an audit says which models it left"
    shown = ran("cache", "list").out
    assert all(entry["path"] in shown for entry in found)
    assert "1.0 kB" in shown

    done = ran("cache", "clear", "shadows", "--json").json["entries"]
    assert [entry["path"] for entry in done] == [found[1]["path"]]
    done = ran("cache", "clear")
    assert found[0]["path"] in done.out
    assert "purge cache clear data" in done.out
    left = ran("cache", "list", "--json").json["entries"]
    assert [entry["kind"] for entry in left] == ["data"], "downloads are asked for by name"
    ran("cache", "clear", "all")
    assert sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file()) == ["notes.txt"]


def test_a_link_in_the_cache_is_removed_and_not_followed(own, tmp_path):
    load(own, progress=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").write_text("mine")
    (tmp_path / "cache" / "decoded" / "link").symlink_to(tmp_path / "elsewhere")
    ran("cache", "clear")
    assert (tmp_path / "elsewhere" / "mine.txt").is_file()
    assert not any((tmp_path / "cache" / "decoded").iterdir())


def test_bad_requests(own):
    assert "'clear'" in refused("cache", "clean")
    assert "'shadows'" in refused("cache", "clear", "shadow")
    assert "a kind after clear" in refused("cache", "list", "data")


def test_a_run_says_which_copies_of_its_data_are_kept(own, tmp_path):
    base, new = tmp_path / "base", tmp_path / "new"
    ran("train", "--data", own, "--model", "small-resnet", "--out", base, *BRIEF)
    command("unlearn", base, "--forget-class", 0, "--out", new, "--quiet", *FEW_STEPS)
    (kept,) = (tmp_path / "cache" / "decoded").glob("*-*")
    assert read(base / "run.json")["cache"] == read(new / "run.json")["cache"] == [f"decoded/{kept.name}"]
    ran("audit", new, "--metrics", "quick", "--quiet")
    ran("report", new)
    page = (new / "report.html").read_text()
    assert f"decoded/{kept.name}" in page
    assert "purge cache clear" in page
    ran("cache", "clear")
    ran("report", new)
    assert "removed since" in (new / "report.html").read_text()


def test_without_a_cache_nothing_is_kept(own, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    base, new = tmp_path / "base", tmp_path / "new"
    plan = {
        "data": str(own), "model": "small-resnet", "recipe": {"epochs": 1}, "forget": [0],
        "metrics": ["fa_test"], "methods": [{"method": "finetune", "set": {"epochs": 1}}],
    }  # fmt: skip
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    for argv in (
        ("train", "--data", own, "--model", "small-resnet", "--out", base, *BRIEF),
        ("unlearn", base, "--forget-class", 0, "--out", new, "--quiet", *FEW_STEPS),
        ("audit", new, "--metrics", "quick", "--quiet"),
        ("bench", tmp_path / "plan.yaml", "--out", tmp_path / "bench", "--quiet"),
    ):
        assert command(*argv, "--no-cache").code in (0, 1)
        assert not (tmp_path / "cache").exists()
        assert not any((tmp_path / "tmp").iterdir())
    assert "PURGE_NO_CACHE" not in os.environ
    assert read(base / "run.json")["cache"] == read(new / "run.json")["cache"] == []
    assert read(new / "audit.json")["info"]["cache"] == []


def test_the_environment_can_say_so_too(own, tmp_path):
    """In Python the private folder lasts until the interpreter ends."""
    script = (
        "from purge.data.cache import cache_folder, user_folder\n"
        "cache_folder().mkdir(exist_ok=True)\n"
        "print(cache_folder(), user_folder())"
    )
    user = tmp_path / "cache"
    for without, private in (("1", True), ("0", False)):
        env = {**os.environ, "PURGE_NO_CACHE": without, "TMPDIR": str(tmp_path)}
        argv = [sys.executable, "-c", script]
        said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.split()
        assert said[1] == str(user)
        assert (said[0] != str(user)) == private
        assert Path(said[0]).exists() != private
