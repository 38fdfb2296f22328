"""The benchmarks of speed: they compare with the paper's method, and print what their file says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import purge
from purge.core.settings import replace
from purge.engine.projection import flat
from purge.methods.registry import METHODS
from purge.models.forward import logits

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    """Import benchmarks as scripts that import each other, and remove them afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def accuracy(model, images):
    return float((logits(model, images).argmax(1) == images.labels).float().mean())


@pytest.fixture(scope="module")
def pictures(digits):
    from plain import Pictures

    return [Pictures(part) for part in (digits.forget, digits.retain)]


@pytest.mark.slow
def test_the_plain_implementation_unlearns(base, digits, pictures):
    from plain import plain

    weights = {k: v.clone() for k, v in base.state_dict().items()}
    settings = replace(METHODS["purge-paper"].method, {"lr": 0.005, "batch_size": 64})
    done = plain(base, *pictures, settings, device=CPU, workers=0)
    assert accuracy(base, digits.forget) > 0.9
    assert accuracy(done.model, digits.forget) <= 0.1, "the target 1/K"
    assert accuracy(done.model, digits.retain) > 0.95
    assert done.stopped_by == "forget_target"
    assert 0 < done.steps < done.of == 15 * 3, "at the end of an epoch, before the last one"
    assert done.steps % 3 == 0
    assert all(torch.equal(v, weights[k]) for k, v in base.state_dict().items()), "the model is not touched"
    assert not any(m._forward_hooks for m in done.model.modules())
    few = plain(base, *pictures, settings, device=CPU, workers=0, most=2)
    assert (few.steps, few.of, few.stopped_by) == (2, 45, "limit")


@pytest.mark.parametrize("budget", [None, 1e-9])
def test_the_plain_implementation_stops_at_the_retain_budget(base, pictures, budget):
    from plain import plain

    changes = {
        "epochs": 2,
        "batch_size": 64,
        "retain_budget": budget,
        "retain_floor": 0.0,
        "forget_target": 0.0,
    }
    done = plain(base, *pictures, replace(METHODS["purge-paper"].method, changes), device=CPU, workers=0)
    assert (done.stopped_by, done.steps) == (("schedule", 6) if budget is None else ("retain_budget", 3))


def test_its_steps_are_those_of_purge_paper(base, digits):
    """Each batch is a whole set, so the order of the samples does not matter; later steps have momentum."""
    from plain import Pictures, plain

    forget, retain = digits.forget.select(torch.arange(24)), digits.retain.select(torch.arange(24))
    steps = {"epochs": 3, "batch_size": 24, "lr": 0.01, "forget_target": 0.0, "retain_budget": None}
    ours = purge.unlearn(base, forget, retain, method="purge-paper", progress=False, device="cpu", **steps)
    settings = replace(METHODS["purge-paper"].method, steps)
    done = plain(base, Pictures(forget), Pictures(retain), settings, device=CPU, workers=0)
    assert ours.steps == done.steps == 3
    assert any(row["projected"] for row in ours.history), "or the projection is not compared"
    start = flat([*base.parameters()])
    here, there = (flat([*model.parameters()]) - start for model in (done.model, ours.model))
    assert float((here - there).norm()) < 1e-3 * float(there.norm())


def test_enlarged_pictures_are_what_purge_gives(digits):
    from plain import Pictures

    train, _ = purge.load("digits", size=24)
    (x, y), (picture, label) = train[5], Pictures(train)[5]
    assert picture.shape == x.shape == (1, 24, 24)
    assert label == y
    assert float((picture - x).abs().max()) <= 1 / 255 / train.std[0], "PIL rounds, once per axis"


def test_the_table_of_speed():
    from speed import ratios, table

    quality = {
        "fa_test": 0.001, "ra": 0.999, "ta_retain": 0.95, "bn_recal.after": 0.002, "agreement": None,
        "mia_loss": 0.51,
    }  # fmt: skip
    rows = [
        {"name": "retrain", "seconds": 40.0, "steps": 5000, "epochs": 58, "quality": quality},
        {"name": "purge", "seconds": 0.5, "seconds_all": [0.4, 0.5, 0.75], "steps": 100, "quality": quality,
         "memory": {"allocated": 1_500_000_000, "reserved": 2_000_000_000}},
        {"name": "plain", "seconds": 25.0, "steps": 70, "of": 600, "stopped_by": "limit", "quality": quality},
    ]  # fmt: skip
    assert ratios(rows[:1]) == {}
    assert ratios(rows) == {"retrain": 80.0, "plain": 50.0}
    entry = {
        "size": 32, "rows": rows, "ratios": ratios(rows), "commit": "abc", "hardware": {"gpu": "H200"},
        "cold": {"seconds": 2.5, "seconds_imports": 4.0},
        "training_step": {"batch": 256, "memory": {"allocated": 1_250_000_000, "reserved": 0}},
    }  # fmt: skip
    lines = table({"sizes": [entry]}).splitlines()
    assert (
        "| retrain, 58 epochs | 40.00 | once | 5000 | 80 | – | 0.1 | 99.9 | 95.0 | 0.2 | – | 0.510 |" in lines
    )
    assert "| `purge` | 0.50 | 0.40–0.75 | 100 | – | 1.50 | 0.1 | 99.9 | 95.0 | 0.2 | – | 0.510 |" in lines
    assert any(
        line.startswith("| plain, ended after 70 of 600 steps | 25.00 | once | 70 | ≥ 50 |") for line in lines
    )
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "2.50 s after 4.0 s of imports; a training step of 256 images holds 1.25 GB" in lines[-1]
    on_cpu = {**entry, "hardware": {"gpu": None}, "training_step": {"batch": 256, "memory": None}}
    assert table({"sizes": [on_cpu]}).endswith("4.0 s of imports. CPU, commit abc.")


def test_the_table_and_the_figure_of_scaling(tmp_path):
    from scaling import figure, table

    from purge.report.theme import save

    def row(axis, value, seconds, **more):
        return {"axis": axis, "value": value, "model": "resnet18", "size": 32, "seconds": seconds,
                "seconds_all": [seconds], "memory": None, **more}  # fmt: skip

    rows = [
        row("retain", 45_000, 0.2), row("retain", 450_000, 0.22), row("forget", 50, 0.1),
        row("batch", 32, 0.3), row("model", "resnet18@32", 0.2),
        row("model", "vit@224", 3.0, model="torchvision:vit_b_16", size=224),
        {"axis": "batch", "value": 512, "error": "out of memory"},
    ]  # fmt: skip
    lines = table({"rows": rows}).splitlines()
    assert "| 450,000 | 0.22 | 0.22–0.22 | 1.10 × | – |" in lines
    assert "| 512 | out of memory |  |  |  |" in lines
    assert "| ViT-B/16, 224×224 | 3.00 | 3.00–3.00 | – | – |" in lines
    svg = save(figure({"rows": rows}), tmp_path, "scaling")[1].read_text()
    for words in ("450,000", "retained samples", "ViT-B/16, 224×224", "seconds"):
        assert words in svg


def test_the_tables_and_the_figure_of_scale(tmp_path):
    from scale import figure, table

    from purge.report.theme import save

    def row(axis, value, **more):
        return {"axis": axis, "value": value, "model": "small-vit", "size": 32, "batch_size": 16,
                "commit": "abc", "seconds": 0.2, "seconds_all": [0.2, 0.3], "reads": 562,
                "memory": 4_000_000, "rss": None, **more}  # fmt: skip

    rows = [
        row("retain", 100_000, seconds_load_first=2.0, seconds_load=0.1), row("forget", 50), row("batch", 32),
        row("model", "small-vit@32", way="plain", training_step=3_200_000),
        {**row("model", "small-vit@32", way="both", training_step=1), "error": "out of memory"},
    ]  # fmt: skip
    content = {"rows": rows, "steps": 4, "hardware": {"machine": "x86_64", "cpus": 2, "gpu": None}}
    lines = table(content).splitlines()
    assert "| 100,000 | 0.20 | 0.20–0.30 | 562 | 4 | – | 2.0 | 0.1 |" in lines
    assert "| small ViT, 32×32 | plain | 16 | 0.20 | 4 | 1.25 × |" in lines
    assert "| small ViT, 32×32 | both | 16 | out of memory | – | – |" in lines
    assert lines[-1] == "x86_64, 2 cores, 4 steps, commit abc."
    assert any(line.startswith("| retained images | CPU seconds |") for line in lines)
    svg = save(figure(content), tmp_path, "scale")[1].read_text()
    assert "retained images" in svg
    assert "small ViT, 32×32" in svg


def test_tiled_images_have_ids_of_their_own(digits):
    from scaling import some, tiled

    many = tiled(digits.retain, 3)
    assert len(many) == 3 * len(digits.retain) == len(many.ids.unique())
    assert torch.equal(many[len(digits.retain) + 4][0], digits.retain[4][0])
    assert many.source != digits.retain.source
    assert len(some(digits.retain, 0.1).ids.unique()) == round(0.1 * len(digits.retain))
