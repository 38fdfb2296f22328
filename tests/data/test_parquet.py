"""Parquet in the layout of Hugging Face, and files that are refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purge.core.errors import DataError, FileError
from tests.data.image_files import (
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


TEN = [png(x) for x in noise(10, 8, 8)]
ODD = {
    "no images": ({"picture": TEN, "label": [0, 1] * 5}, "one column 'image' and one column 'label'"),
    "no labels": ({"image": TEN, "kind": [0, 1] * 5}, "one column 'image' and one column 'label'"),
    "words": ({"image": TEN, "label": ["a", "b"] * 5}, "whole numbers"),
    "a gap": ({"image": TEN, "label": [0, None] * 5}, "whole numbers"),
    "floats": ({"image": TEN, "label": [0.5, 1.5] * 5}, "whole numbers"),
    "no rows": ({"image": TEN[:0], "label": []}, "whole numbers"),
    "an id": ({"image": TEN, "label": [0, 2**40] * 5}, str(2**40)),
    "negative": ({"image": TEN, "label": [0, -1] * 5}, "labels from 0 to 0 in x.parquet, got -1"),
    "null": ({"image": pa.nulls(10, pa.binary()), "label": [0, 1] * 5}, "images that can be read"),
    "numbers": ({"image": [3] * 10, "label": [0, 1] * 5}, "images that can be read"),
    "lists": ({"image": [[1, 2]] * 10, "label": [0, 1] * 5}, "images that can be read"),
    "paths": ({"image": [{"bytes": None, "path": 7}] * 10, "label": [0, 1] * 5}, "images that can be read"),
    "text": ({"image": [{"bytes": "x", "path": "a"}] * 10, "label": [0, 1] * 5}, "images that can be read"),
}


@pytest.mark.parametrize(("content", "words"), ODD.values(), ids=ODD.keys())
def test_parquet_without_images_and_labels_is_refused(content, words, tmp_path, cache):
    pq.write_table(pa.table(content), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=words) as error:
        load(tmp_path / "x.parquet")
    sentence(error)
    assert not entries(cache)


@pytest.mark.parametrize("columns", [["image", "image", "label"], ["image", "label", "label"]])
def test_a_column_that_is_there_twice_is_refused(columns, tmp_path):
    given = [TEN if name == "image" else [0, 1] * 5 for name in columns]
    pq.write_table(pa.Table.from_arrays(list(map(pa.array, given)), columns), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="one column") as error:
        load(tmp_path / "a.parquet")
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
    for at in range(0, len(whole), len(whole) // 40):  # in the header, the pages and the footer
        path.write_bytes(whole[:at] + bytes(255 - b for b in whole[at : at + 8]) + whole[at + 8 :])
        sentence_or_nothing(path)
