"""An interrupted training resumes and ends as if it had never stopped."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import purge
import purge.runs.folder
from purge.core import threads
from purge.core.errors import FileError, RunError
from purge.data.accept import as_samples
from purge.data.images import Images
from purge.engine import trainer as training
from purge.engine.resume import STATE, data_digest
from purge.models import checkpoint as store
from purge.models.checkpoint import cpu_copies, digest, load_weights, save_weights, write_tensors
from tests.engine.images import net, on_images
from tests.nets import blobs, small_mlp


@pytest.fixture(scope="module")
def few(digits):
    return digits.train.select(torch.arange(50))


class Killed(Exception):
    """Stands for a kill of the process."""


@contextmanager
def ending_after(epochs):
    """Within the block, training is killed after so many more epochs."""
    shown = training.progress_line

    @contextmanager
    def ending(*args):
        with shown(*args) as advance:
            left = epochs + 1  # the first call reports the epochs done before

            def counted(by, note=""):
                nonlocal left
                advance(by, note)
                left -= 1
                if left == 0:
                    raise Killed

            yield counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "progress_line", ending)
        with pytest.raises(Killed):
            yield


def facts(folder):
    """The content of run.json without times, the history, and the names of the files."""
    found = json.loads((folder / "run.json").read_text())
    assert found.pop("seconds") > 0
    assert found.pop("finished")
    history = pq.read_table(folder / "history.parquet").to_pylist()
    return found, history, sorted(p.name for p in folder.iterdir())


VARIANTS = {
    "plain": {},
    "momentum 0": {"momentum": 0},
    "all": {
        "ema": 0.5, "augment": "crop-flip", "label_smoothing": 0.1, "schedule": "cosine", "precision": "bf16",
        "channels_last": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_a_killed_training_ends_as_if_it_had_never_stopped(few, variant, epochs, tmp_path):
    """The model has dropout and BatchNorm; after the last epoch, only the files are left to write."""
    settings = {"epochs": 4, "test": few, **VARIANTS[variant]}
    whole = on_images(few, out=tmp_path / "whole", **settings)
    with ending_after(epochs):
        on_images(few, out=tmp_path / "killed", **settings)
    assert [p.name for p in (tmp_path / "killed").iterdir()] == [STATE]
    resumed = on_images(few, out=tmp_path / "killed", resume=True, **settings)
    assert digest(resumed.model) == digest(whole.model) == digest(on_images(few, **settings).model)
    assert resumed.history == whole.history
    assert resumed.info == whole.info
    assert facts(tmp_path / "killed") == facts(tmp_path / "whole")
    assert facts(tmp_path / "whole")[2] == ["history.parquet", "model.safetensors", "run.json"]
    load_weights(stored := net(), tmp_path / "killed" / "model.safetensors")
    assert digest(stored) == digest(whole.model)


@contextmanager
def with_threads(number):
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "_cores", lambda: set(range(64)))  # so that it is somebody's choice
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def test_another_number_of_threads_is_told(few, tmp_path, caplog):
    """Sums are rounded differently, so the result may be another."""
    with with_threads(2), ending_after(1):
        on_images(few, out=tmp_path)
    with with_threads(3), ending_after(1):
        on_images(few, out=tmp_path, resume=True)
    assert caplog.messages == [
        "The training began with 2 threads and goes on with 3: sums are rounded differently, so its result "
        "is not the same to the bit as without the interruption. Keep the number with OMP_NUM_THREADS=2."
    ]
    caplog.clear()
    with with_threads(3):
        resumed = on_images(few, out=tmp_path, resume=True)
    assert len(caplog.messages) == 1
    assert resumed.info["threads"] == facts(tmp_path)[0]["threads"] == [2, 3]
    purge.runs.folder.read_facts(tmp_path)


@pytest.fixture(scope="module")
def unfinished(few, tmp_path_factory):
    """A folder with a training of two epochs out of three."""
    folder = tmp_path_factory.mktemp("unfinished") / "run"
    with ending_after(2):
        on_images(few, out=folder)
    return folder


def sentence(error):
    assert re.fullmatch(r"Expected .+, got .+\. Fix: .+\.", str(error.value)), error.value
    return str(error.value)


def other_pixels(images):
    pixels = images.pixels.clone()
    pixels[7, 0, 3, 3] ^= 1
    return Images(pixels, images.labels, mean=images.mean, std=images.std)


def other_model():
    model = net()
    model[0].weight.data[0] += 1e-6
    return model


CHANGES = {
    "lr": lambda few: {"lr": 0.06},
    "seed": lambda few: {"seed": 1},
    "model": lambda few: {"model": other_model()},
    "data: a sample less": lambda few: {"images": few.select(torch.arange(49))},
    "data: one bit of one pixel": lambda few: {"images": other_pixels(few)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_the_same_training_resumes(few, unfinished, change):
    before = (unfinished / STATE).read_bytes()
    with pytest.raises(FileError, match=f"another {change.split(':')[0]}") as error:
        on_images(**{"images": few, "out": unfinished, "resume": True, **CHANGES[change](few)})
    sentence(error)
    assert (unfinished / STATE).read_bytes() == before
    assert [p.name for p in unfinished.iterdir()] == [STATE]


def test_a_file_that_is_not_a_state_is_refused(few, unfinished, tmp_path):
    sound = (unfinished / STATE).read_bytes()
    save_weights(net(), tmp_path / "weights")
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign", metadata={"facts": '{"identity": 3}'})
    flipped = bytearray(sound)
    flipped[-100] ^= 1
    for i, content in enumerate((
        sound[:-1], bytes(flipped), sound[:50], b"", b"epoch 2", (tmp_path / "weights").read_bytes(),
        (tmp_path / "foreign").read_bytes(),
    )):  # fmt: skip
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / STATE).write_bytes(content)
        with pytest.raises(FileError, match="a damaged file") as error:
            on_images(few, out=folder, resume=True)
        assert str(folder) in sentence(error)
        assert (folder / STATE).read_bytes() == content
        assert digest(on_images(few, out=folder, force=True).model) == digest(on_images(few).model)


def test_an_unfinished_training_is_not_overwritten_by_mistake(few, unfinished):
    with pytest.raises(FileError, match="one with an unfinished training") as error:
        on_images(few, out=unfinished)
    assert "resume" in sentence(error)
    assert "force" in sentence(error)


def test_resume_starts_a_training_where_there_is_none(few, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        result = on_images(few, out=tmp_path / name, resume=True)
        assert digest(result.model) == digest(on_images(few).model)
        assert (tmp_path / name / "run.json").is_file()
    with pytest.raises(FileError, match="a finished one") as error:
        on_images(few, out=tmp_path / "new", resume=True)
    sentence(error)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="one with files in it"):
        on_images(few, out=tmp_path / "mine", resume=True)
    with pytest.raises(FileError, match="got none") as error:
        on_images(few, resume=True)
    sentence(error)


def test_a_kill_while_the_first_state_is_written(few, tmp_path):
    """A half-written temporary file marks an unfinished training; it is removed on resume."""
    half = tmp_path / f".{STATE}.x7k2"
    half.write_bytes(b"half")
    with pytest.raises(FileError, match="one with an unfinished training"):
        on_images(few, out=tmp_path)
    result = on_images(few, out=tmp_path, resume=True)
    assert digest(result.model) == digest(on_images(few).model)
    assert facts(tmp_path)[2] == ["history.parquet", "model.safetensors", "run.json"]


def test_force_starts_over_and_keeps_the_old_run_until_the_new_one_is_whole(few, tmp_path):
    on_images(few, out=tmp_path)
    old = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(FileError, match="one with files in it"):
        on_images(few, out=tmp_path)
    with ending_after(1):
        on_images(few, out=tmp_path, force=True, seed=7)
    now = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert now.pop(STATE)
    assert now == old
    with pytest.raises(FileError, match="another seed"):
        on_images(few, out=tmp_path, resume=True)
    with ending_after(1):  # over an unfinished training with another seed
        on_images(few, out=tmp_path, force=True, seed=8)
    resumed = on_images(few, out=tmp_path, resume=True, seed=8)
    assert digest(resumed.model) == digest(on_images(few, seed=8).model)
    assert facts(tmp_path)[0]["seed"] == 8
    assert facts(tmp_path)[2] == ["history.parquet", "model.safetensors", "run.json"]


def test_a_kill_between_the_last_two_files(few, tmp_path):
    """Both run.json and the state are there and agree; resuming removes the state."""
    with ending_after(3):
        on_images(few, out=tmp_path)
    state = (tmp_path / STATE).read_bytes()
    on_images(few, out=tmp_path, resume=True)
    whole = facts(tmp_path)
    (tmp_path / STATE).write_bytes(state)
    on_images(few, out=tmp_path, resume=True)
    assert facts(tmp_path) == whole


def test_a_training_that_diverges_leaves_nothing(few, tmp_path):
    with pytest.raises(RunError, match="finite"):
        on_images(few, out=tmp_path, lr=1e30)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError):
        on_images(few, out=tmp_path, lr=1e30)  # the folder is as good as new


def test_a_full_disk_is_reported_in_one_sentence(few, tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "save_file", full)
        with pytest.raises(FileError, match="No space left on device") as error:
            on_images(few, out=tmp_path)
    sentence(error)
    assert list(tmp_path.iterdir()) == []
    on_images(few, out=tmp_path, resume=True)


@pytest.mark.gpu
def test_a_training_resumes_on_the_gpu(few, tmp_path):
    """Started there or on the CPU; a GPU may add in another order, so the result is only close."""
    whole = on_images(few, device="cuda", precision="float32")
    for device in ("cuda", "cpu"):
        with ending_after(2):
            on_images(few, device=device, out=tmp_path / device, precision="float32")
        resumed = on_images(few, device="cuda", out=tmp_path / device, resume=True, precision="float32")
        assert len(resumed.history) == 3
        assert resumed.history[-1]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=0.2)


# -- tensors in files, and digests of data ---------------------------------------------------------


def test_copies_share_no_memory_with_tied_weights(tmp_path):
    model = small_mlp()
    state = model.state_dict() | {"tied": model[0].weight.T}
    held = cpu_copies(state)
    write_tensors(tmp_path / "weights", held, fix="")
    assert all(t.is_contiguous() for t in held.values())
    model[0].weight.data.zero_()
    assert held["tied"].abs().sum() > 0


def test_digests_of_data_see_labels_inputs_and_ids():
    x, y = blobs()
    other, label = x.clone(), y.clone()
    other[50, 0] += 1e-3
    label[50] = (label[50] + 1) % 3
    cpu = torch.device("cpu")
    plain, moved, relabelled = (as_samples(pair, cpu, "data") for pair in ((x, y), (other, y), (x, label)))
    assert data_digest(plain) == data_digest(as_samples((x.clone(), y.clone()), cpu, "data"))
    assert len({data_digest(s) for s in (plain, moved, relabelled)}) == 3
    assert data_digest(plain, 0) == data_digest(moved, 0) != data_digest(relabelled, 0)
    pixels = torch.arange(48, dtype=torch.uint8).view(3, 1, 4, 4)
    images = [
        Images(pixels, torch.arange(3), ids=torch.arange(3) + k, mean=(m,)) for k in (0, 1) for m in (0, 1)
    ]
    assert len({data_digest(s) for s in images}) == 4
