"""Which images a bench uses, and the models it trains once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file

from purge.bench.jobs import Data
from purge.bench.models import cached, drawn_per_class, images, trained
from purge.core.errors import PurgeError
from purge.core.files import write_json
from purge.models.checkpoint import file_digest
from tests.bench.plans import place_of, plan_of


def test_of_two_benches_one_trains_and_the_other_waits(tmp_path: Path) -> None:
    """The other is played by this test, which has the lock and brings the model."""
    plan, place = plan_of(tmp_path, recipe={"epochs": 1}), place_of(tmp_path)
    training = plan.jobs[0].base
    folder = trained(training, place)
    made = (folder / "run.json").read_bytes()
    folder.rename(tmp_path / "elsewhere")
    with ThreadPoolExecutor(1) as pool:
        with FileLock(place.models / ".locks" / folder.name):
            waiting = pool.submit(trained, training, place)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            assert not folder.exists()
            (tmp_path / "elsewhere").rename(folder)
        assert waiting.result(timeout=30) == folder
    assert (folder / "run.json").read_bytes() == made


def test_so_many_of_each_class() -> None:
    labels = torch.tensor([0] * 10 + [1] * 20)
    mask = drawn_per_class(labels, 0.2)
    assert [int(mask[labels == c].sum()) for c in (0, 1)] == [2, 4]
    assert torch.equal(mask, drawn_per_class(labels, 0.2))
    with pytest.raises(PurgeError, match="11 training images of each class, got 10 of class 0"):
        drawn_per_class(labels, 11)


def test_held_out_images_are_training_images_that_are_not_trained_with() -> None:
    train, test = images(Data("digits"), None, None)
    kept, held = images(Data("digits", holdout=0.2), None, None)
    assert held.source == train.source != test.source  # not one image of the test part
    assert not set(kept.ids.tolist()) & set(held.ids.tolist())
    assert len(kept) + len(held) == len(train)
    counts = torch.bincount(held.labels) / torch.bincount(train.labels)
    assert all(0.17 < share < 0.23 for share in counts.tolist())


def test_a_small_part_of_each_class() -> None:
    some, test = images(Data("digits", per_class=20, size=16), None, None)
    assert torch.bincount(some.labels).tolist() == [20] * 10
    assert some.shape == (1, 16, 16)
    assert len(test) == len(images(Data("digits"), None, None)[1])
    kept, held = images(Data("digits", per_class=2, holdout=0.5), None, None)
    assert len(kept) == len(held) == 10
    with pytest.raises(PurgeError, match="two training images of each class to hold one out"):
        images(Data("digits", per_class=1, holdout=0.1), None, None)


def test_the_state_of_a_training_is_no_model(tmp_path: Path) -> None:
    base = plan_of(tmp_path).trainings()[0]
    folder = tmp_path / f"{base.spec}-12345678"
    folder.mkdir()
    save_file({}, folder / "model.safetensors")
    (folder / "state.safetensors").write_text("")
    assert cached(base, tmp_path) is None
    write_json(folder / "run.json", {"digest": file_digest(folder / "model.safetensors")})
    assert cached(base, tmp_path) == folder


def test_a_model_with_other_weights_than_its_run_recorded_is_trained_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan, place = plan_of(tmp_path, recipe={"epochs": 1}), place_of(tmp_path)
    training = plan.jobs[0].base
    folder = trained(training, place)
    made = load_file(folder / "model.safetensors")
    assert cached(training, place.models) == folder
    save_file({k: torch.zeros_like(v) for k, v in made.items()}, folder / "model.safetensors")
    assert cached(training, place.models) is None
    assert not caplog.messages
    assert trained(training, place) == folder
    assert len(caplog.messages) == 1
    assert f"The weights in {folder} are not those that its run.json recorded" in caplog.messages[0]
    again = load_file(folder / "model.safetensors")
    assert all(torch.equal(made[k], again[k]) for k in made)
    assert trained(training, place) == folder
    assert len(caplog.messages) == 1
