"""The log of updates: what is in it, how large it is, and what is refused."""

from __future__ import annotations

import copy
import json
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import purge
from purge.core.errors import DataError, FileError, MethodError, ModelError
from purge.data.identity import identities
from purge.data.split import split
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe, fit
from purge.methods import update_log
from purge.methods.amnesiac import Amnesiac
from purge.methods.update_log import UpdateLog, updates_with
from purge.models import checkpoint as store
from purge.models.checkpoint import digest
from tests.methods.logged import CPU, RECIPE, forget, samples, train
from tests.nets import blobs, small_mlp


def test_logging_changes_nothing(logged):
    model, _ = logged
    twin = small_mlp()
    with seeded(0, CPU):
        fit([twin], [samples(blobs())], RECIPE, seeds=[0])
    assert digest(twin) == digest(model)
    assert digest(
        purge.train(small_mlp(), blobs(), epochs=3, lr=0.05, batch_size=16, progress=False).model
    ) == (digest(model))


def test_a_log_of_some_samples_still_lists_all_steps(tmp_path, logged, recorded):
    rows = [3, 40]
    gone, kept = split(blobs(), indices=rows)
    model = train(tmp_path / "log", only=gone)
    assert digest(model) == digest(logged[0])
    table = pq.read_table(tmp_path / "log" / "steps.parquet").to_pydict()
    names = identities(samples(blobs()))
    assert table["step"] == list(range(len(recorded.steps)))
    assert table["ids"] == [names[index].tolist() for _, index, _, _ in recorded.steps]
    assert table["logged"] == [bool(set(index) & set(rows)) for _, index, _, _ in recorded.steps]
    files = {p.name for p in (tmp_path / "log").glob("*.safetensors")}
    assert files == {f"{i:08d}.safetensors" for i, there in enumerate(table["logged"]) if there}
    facts = json.loads((tmp_path / "log" / "log.json").read_text())
    assert facts == {"digest": digest(model), "steps": 18, "logged": len(files), "everything": False}
    one, other = (
        forget(model, gone, kept, at, epochs=0).model for at in (tmp_path / "log", logged[1])
    )  # fmt: skip
    assert digest(one) == digest(other)
    with pytest.raises(MethodError, match=r"updates that used the forget set.*one without \d+ of them"):
        forget(model, *split(blobs(), indices=[5]), tmp_path / "log")


def test_a_log_that_the_disk_has_no_room_for_is_refused_before_training(tmp_path, monkeypatch):
    model, data, usage = small_mlp(), samples(blobs()), shutil.disk_usage(tmp_path)
    size = 4 * sum(p.numel() for p in model.parameters())
    one = samples(split(blobs(), indices=[1])[0])
    for only, wanted in ((None, size * 18), (one, size * 18 * (1 - (95 / 96) ** 16))):
        free = usage._replace(free=round(wanted) + 1)
        monkeypatch.setattr(update_log.shutil, "disk_usage", lambda _, free=free: free)
        UpdateLog(tmp_path / str(wanted), model, data, RECIPE, only=only)
        less = usage._replace(free=round(wanted) - 2)
        monkeypatch.setattr(update_log.shutil, "disk_usage", lambda _, less=less: less)
        with pytest.raises(FileError, match=r"room for a log of about .* GB"):
            UpdateLog(tmp_path / "no", model, data, RECIPE, only=only)
    assert not (tmp_path / "no").exists()


def test_a_log_that_cannot_be_right_is_not_started(tmp_path):
    model, data = small_mlp(), samples(blobs())
    with pytest.raises(MethodError, match="ema=0"):
        UpdateLog(tmp_path / "log", model, data, Recipe(ema=0.9))
    with pytest.raises(DataError, match="96 that are not in it"):
        UpdateLog(tmp_path / "log", model, data, RECIPE, only=samples(blobs(seed=5)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileError, match="empty folder"):
        UpdateLog(tmp_path / "full", model, data, RECIPE)
    log = UpdateLog(tmp_path / "late", model, data, RECIPE)
    with log.step(model, 5, torch.arange(4)):
        pass
    with pytest.raises(FileError, match="resumed"):
        log.finish(model)


def test_a_full_disk_is_reported_in_one_sentence(tmp_path, monkeypatch):
    def full(*_args, **_settings):
        raise OSError(28, "No space left on device")

    log = UpdateLog(tmp_path / "log", small_mlp(), samples(blobs()), RECIPE)
    monkeypatch.setattr(store, "save_file", full)
    with pytest.raises(FileError, match="No space left"):
        train(None, more=log)


# -- logs that cannot be used ------------------------------------------------------------------


def test_no_log_and_an_unfinished_one_are_refused(logged, tmp_path):
    model, folder = logged
    gone, kept = split(blobs(), indices=[0])
    with pytest.raises(MethodError, match=r"log=….*purge train --log-updates DIR"):
        purge.unlearn(model, gone, kept, method=Amnesiac(), progress=False)
    with pytest.raises(FileError, match=r"nothing without log\.json"):
        forget(model, gone, kept, tmp_path / "nowhere")
    shutil.copytree(folder, tmp_path / "cut")
    (tmp_path / "cut" / "log.json").unlink()
    with pytest.raises(FileError, match=r"a folder without log\.json"):
        forget(model, gone, kept, tmp_path / "cut")


def test_the_log_of_another_model_is_refused(logged, tmp_path):
    model, folder = logged
    gone, kept = split(blobs(), indices=[0])
    for other in (small_mlp(), train(tmp_path / "other", seed=1)):
        with pytest.raises(ModelError, match="one with other weights"):
            forget(other, gone, kept, folder)
    edited = copy.deepcopy(model)
    edited[1].running_mean.add_(1)
    with pytest.raises(ModelError, match="one with other weights"):
        forget(edited, gone, kept, folder)


def test_samples_that_were_not_trained_on_are_refused(logged):
    model, folder = logged
    x, y = blobs()
    with pytest.raises(DataError, match="1 of 1 that it does not know"):
        forget(model, (x[:1] + 1, y[:1]), (x[1:], y[1:]), folder)


@pytest.mark.parametrize("what", ["missing", "short", "flipped", "foreign", "index", "samples"])
def test_damaged_logs_are_refused(logged, tmp_path, what):
    model, folder = logged
    copied = tmp_path / "log"
    shutil.copytree(folder, copied)
    gone, kept = split(blobs(), indices=[0])
    file = updates_with(str(copied), model, samples(gone))[0]
    if what == "missing":
        file.unlink()
    elif what == "short":
        file.write_bytes(file.read_bytes()[:-4])
    elif what == "flipped":
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    elif what == "foreign":
        save_file({"0.weight": torch.zeros(2)}, file)
    else:
        (copied / ("steps.parquet" if what == "index" else "samples.parquet")).write_bytes(b"no")
    with pytest.raises(FileError, match="missing or damaged"):
        forget(model, gone, kept, copied)
