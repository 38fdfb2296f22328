"""The bad data of benchmarks/bad_data.py is bad where it says so, and prepared as the good data is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.benchmark import benchmark


@pytest.fixture(scope="module")
def bad_data() -> Any:
    return benchmark("bad_data")


@pytest.fixture(scope="module")
def setup(bad_data: Any) -> Any:
    return bad_data.prepare(bad_data.options("", bad_data.OUT, epochs=1).parse_args([]))


def test_a_tenth_of_the_labels_is_wrong_and_no_pixel(bad_data, setup):
    bad = bad_data.labels(setup, 0)
    wrong = (bad.train.labels != setup.train.labels).nonzero()[:, 0]
    assert wrong.tolist() == bad.rows.tolist()
    assert len(wrong) == round(0.1 * len(setup.train))
    assert torch.equal(bad.truth, setup.train.labels[wrong])
    every = torch.arange(len(setup.train))
    assert torch.equal(bad.train.take(every)[0], setup.train.take(every)[0])  # normalised alike


def test_a_trigger_is_a_patch_on_samples_of_other_classes(bad_data, setup):
    bad = bad_data.trigger(setup, 0)
    assert bad_data.TARGET not in bad.truth.tolist()
    assert set(bad.train.labels[bad.rows].tolist()) == {bad_data.TARGET}
    every = torch.arange(len(setup.train))
    before, after = setup.train.take(every)[0], bad.train.take(every)[0]
    kept = torch.ones(len(every), dtype=torch.bool)
    kept[bad.rows] = False
    assert torch.equal(before[kept], after[kept])
    white = after[bad.rows][:, :, -3:, -3:]
    assert torch.allclose(white, torch.tensor((1 - setup.train.mean[0]) / setup.train.std[0]))
    assert torch.equal(before[bad.rows][:, :, :-3], after[bad.rows][:, :, :-3])


def test_the_attack_is_asked_about_test_images_of_other_classes(bad_data, setup):
    bad = bad_data.trigger(setup, 0)
    others = setup.test.select(setup.test.labels != bad_data.TARGET)
    assert len(bad.triggered) == len(others)
    assert set(bad.triggered.labels.tolist()) == {bad_data.TARGET}
    every = torch.arange(len(others))
    assert torch.equal(bad.triggered.take(every)[0][:, :, :-3], others.take(every)[0][:, :, :-3])


def test_an_aim_that_is_missed_is_named(bad_data):
    numbers = {"ta": 0.98, "kl_retrain": 0.05, "seconds": 1.0}
    models = {
        bad_data.RETRAINED: {"ta": 0.985, "seconds": 5.0},
        "good": numbers,
        "far": {**numbers, "kl_retrain": 0.2},
        "slow": {**numbers, "seconds": 2.0},
        "poor": {**numbers, "ta": 0.97},
    }
    rows = [{"models": models}]
    assert bad_data.missed(rows, "good") == []
    assert bad_data.missed(rows, "far") == ["KL 0.200"]
    assert bad_data.missed(rows, "slow") == ["40 % of Retrain's time"]
    assert bad_data.missed(rows, "poor") == ["test accuracy 1.5 points below Retrain's"]
