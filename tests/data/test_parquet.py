"""Parquet in the layout of Hugging Face, and files that are refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purge.core.errors import DataError, FileError
from tests.data.image_files import (
    RAMP,
    entries,
    load,
    noise,
    parquet,
    paths_of,
    png,
    sentence,
    sentence_or_nothing,
)


def test_one_parquet_file_is_split_by_the_seed(tmp_path):
    labels = [0, 1, 2] * 10
    pixels = parquet(tmp_path / "all.parquet", labels, row_group_size=7)
    train, test = load(tmp_path / "all.parquet")
    assert train.names == ("0", "1", "2")
    assert test.labels.bincount().tolist() == [2, 2, 2]
    for part in (train, test):
        assert np.array_equal(part.pixels.numpy(), pixels[part.ids.numpy()])
        assert part.labels.tolist() == [labels[i] for i in part.ids.tolist()]
        assert paths_of(part) == [f"all_{i}.png" for i in part.ids.tolist()]
    assert load(tmp_path / "all.parquet", split_seed=1)[1].ids.tolist() != test.ids.tolist()


@pytest.mark.parametrize("below", [".", "data"])
@pytest.mark.parametrize("held_out", ["test", "validation"])
def test_shards_are_concatenated_in_order(below, held_out, tmp_path):
    at = tmp_path / below
    first = parquet(at / "train-00000-of-00002.parquet", [0, 1, 2], seed=1)
    second = parquet(at / "train-00001-of-00002.parquet", [2, 1], seed=2)
    held = parquet(at / f"{held_out}-00000-of-00001.parquet", [1, 0], seed=3)
    train, test = load(tmp_path)
    assert np.array_equal(train.pixels.numpy(), np.concatenate([first, second]))
    assert train.labels.tolist() == [0, 1, 2, 2, 1]
    assert np.array_equal(test.pixels.numpy(), held)
    assert test.labels.tolist() == [1, 0]


HUGGINGFACE = {
    "info": {
        "features": {
            "source": {"names": ["web", "camera"], "_type": "ClassLabel"},
            "image": {"_type": "Image"},
            "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        }
    }
}


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"classes": json.dumps(["cat", "dog", "eel"])}, ("cat", "dog", "eel")),
        ({"huggingface": json.dumps(HUGGINGFACE)}, ("cat", "dog")),  # of the label, not of another column
        (None, ("0", "1")),
        ({"huggingface": "{not json"}, ("0", "1")),
        ({"huggingface": json.dumps({"info": {"features": {"label": {"dtype": "int64"}}}})}, ("0", "1")),
        ({"huggingface": "[]"}, ("0", "1")),
    ],
)
def test_class_names_come_from_the_metadata(metadata, names, tmp_path):
    extra = {"source": pa.array([0, 1] * 5)}
    parquet(tmp_path / "all.parquet", [0, 1] * 5, metadata=metadata, extra=extra)
    assert load(tmp_path / "all.parquet")[0].names == names


def test_the_column_names_of_cifar_are_known(tmp_path):
    pixels = parquet(tmp_path / "all.parquet", [0, 1] * 5, columns=("img", "fine_label"))
    train, _ = load(tmp_path)
    assert np.array_equal(train.pixels.numpy(), pixels[train.ids.numpy()])


def test_images_can_be_plain_bytes_and_have_no_paths(tmp_path):
    pixels = noise(10, 8, 8, 3)
    table = pa.table({"image": [png(x) for x in pixels], "label": [0, 1] * 5})
    pq.write_table(table, tmp_path / "plain.parquet")
    train, _ = load(tmp_path / "plain.parquet")
    assert np.array_equal(train.pixels.numpy(), pixels.transpose(0, 3, 1, 2)[train.ids.numpy()])
    assert paths_of(train)[0] == f"plain.parquet row {train.ids[0]}"
    parquet(tmp_path / "x" / "none.parquet", [0, 1] * 5, paths=False)
    assert paths_of(load(tmp_path / "x")[0])[0].startswith("none.parquet row ")


def test_rows_that_cannot_be_read_are_named(tmp_path):
    rows = [png(noise(8, 8, 3, seed=i)) for i in range(10)]
    table = pa.table({"image": [*rows[:4], None, b"text", *rows[6:]], "label": [0, 1] * 5})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"2 that cannot \(x.parquet row 4, x.parquet row 5\)"):
        load(tmp_path / "x.parquet")
    assert sum(map(len, load(tmp_path / "x.parquet", skip_bad=True))) == 8


def test_parquet_without_images_or_labels_is_refused(tmp_path):
    for columns in (("picture", "label"), ("image", "kind")):
        parquet(tmp_path / "x.parquet", [0, 1] * 3, columns=columns)
        with pytest.raises(DataError, match="one column 'image' and one column 'label'") as error:
            load(tmp_path / "x.parquet")
        assert columns[0] in sentence(error)
    for labels in (["a", "b"] * 3, [0, None] * 3, [0.5, 1.5] * 3, []):
        table = pa.table({"image": [png(RAMP)] * len(labels), "label": labels})
        pq.write_table(table, tmp_path / "y.parquet")
        with pytest.raises(DataError, match="whole numbers") as error:
            load(tmp_path / "y.parquet")
        sentence(error)


def test_damaged_parquet_is_reported_in_one_sentence(tmp_path):
    path = tmp_path / "x.parquet"
    parquet(path, [0, 1] * 50)
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[200:-3000] = bytes(len(middle[200:-3000]))
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1], bytes(middle)):
        path.write_bytes(content)
        with pytest.raises(FileError) as error:
            load(path)
        assert "x.parquet" in sentence(error)


def test_damage_anywhere_in_parquet_is_harmless_or_reported_in_one_sentence(tmp_path, cache):
    """In the header, the pages and the footer; checksums inside the images catch the rest."""
    path = tmp_path / "x.parquet"
    parquet(path, [0, 1] * 5)
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 60):
        damaged = bytearray(whole)
        damaged[at : at + 8] = bytes(255 - b for b in damaged[at : at + 8])
        path.write_bytes(damaged)
        sentence_or_nothing(path)
    assert not [name for name in entries(cache) if name.startswith(".")]
