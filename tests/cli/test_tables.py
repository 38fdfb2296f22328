"""Texts and tables from files in the shell: trained, forgotten by the user's own ids, audited, reported."""

from __future__ import annotations

import csv
import io
import json
import logging
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.commands import ANY_TARGET, FEW_STEPS, names, ran, read, refused
from tests.refusals import tree

TOPICS = {
    "sport": ("ball", "goal", "team", "match", "race"),
    "food": ("bread", "soup", "apple", "cheese", "salt"),
    "music": ("song", "drum", "piano", "choir", "tune"),
}
FILL = ("the", "a", "of", "and", "we", "they", "like", "see")


def reviews(n: int) -> Iterable[tuple[str, str, str]]:
    """Customers, texts and topics; each customer wrote two of them."""
    draw = random.Random(0)
    for i in range(n):
        topic = draw.choice([*TOPICS])
        words = [draw.choice(TOPICS[topic] if draw.random() < 0.6 else FILL) for _ in range(8)]
        yield f"c-{i // 2:03}", " ".join(words), topic


def write_csv(path: Path, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def bert(folder: Path, labels: int = 3) -> Path:
    """A tiny BERT with its tokenizer, as save_pretrained writes both."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILL, *(w for ws in TOPICS.values() for w in ws)]
    vocabulary = folder.with_suffix(".txt")
    vocabulary.write_text("\n".join(words))
    transformers.BertTokenizer(str(vocabulary)).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=labels, initializer_range=0.2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


TEXTS = ("--label", "topic", "--text", "review", "--id", "customer")
FEW = ("--set", "epochs=10", "--set", "lr=0.1", "--set", "batch_size=16", "--quiet")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of texts, a tiny BERT, and a run that was trained with both."""
    at = tmp_path_factory.mktemp("texts")
    write_csv(at / "reviews.csv", ("customer", "review", "topic"), reviews(240))
    data = ("--data", at / "reviews.csv", *TEXTS, "--model", f"hf:{bert(at / 'bert')}")
    ran("train", *data, *FEW, "--out", at / "base")
    return at


@pytest.mark.slow
def test_a_text_classifier_forgets_a_class_and_then_people(texts: Path, tmp_path: Path) -> None:
    base, out = texts / "base", tmp_path
    facts = read(base / "run.json")
    assert facts["test_accuracy"] > 0.8
    assert (facts["names"], facts["samples"]) == (["food", "music", "sport"], 192)
    asked = [f"c-{i:03}" for i in range(12)]
    (out / "ids.txt").write_text("\ufeff" + "\n".join(asked) + "\n\n", encoding="utf-8")
    ran("unlearn", base, "--forget-class", "music", *FEW_STEPS, "--quiet", "--out", out / "one")
    people = ("--forget-ids", out / "ids.txt", "--request-id", "DSR-17", *FEW_STEPS, "--quiet")
    ran("unlearn", out / "one", *people, "--out", out / "two")
    second = read(out / "two" / "run.json")
    assert second["request"] == {"forget_subjects": asked}
    assert second["gone"] == {"forget_classes": [1]}
    rows = list(csv.DictReader(lines(texts / "reviews.csv")))
    mine = [row for row in rows if row["customer"] in asked]
    assert len(asked) <= second["forget_samples"] <= len(mine) == 24
    music = sum(row["topic"] == "music" for row in rows)
    assert second["retain_samples"] < 192 - second["forget_samples"] - 0.6 * music  # not taught again
    text = (out / "two" / "run.json").read_text()
    assert not any(f"c-{i:03}" in text for i in range(12, 120)), "ids of people who stay"

    without = ("--without-class", "music", "--without-ids", out / "ids.txt", "--quiet")
    ran("train", "--like", base, *without, "--out", out / "retrained")
    beside = ("--retrained", out / "retrained", "--json", "--quiet")
    found = ran("audit", out / "two", *beside).json
    assert found["info"]["retain_samples"] == read(out / "retrained" / "run.json")["samples"]
    assert found["original"]["ra"]["value"] > 0.8
    for name, value in found["values"].items():
        assert value["value"] is not None or value["why"], name
    for name in ("ta", "fa_train", "ra", "mia", "probe", "feature_cosine", "agreement", "relearn_few.after"):
        assert found["values"][name]["value"] is not None, name
    ran("report", out / "two")
    page = (out / "two" / "report.html").read_text()
    for words in ("all samples of 12 ids", "DSR-17", "c-011"):
        assert words in page
    assert "c-012" not in page

    said = refused("audit", out / "two", "--retrained", base, *beside[2:])
    assert "without class 1 (music) and all samples of 12 ids" in said
    assert "--without-class 1 --without-ids FILE" in said


def test_ids_that_are_not_there_are_refused_and_few_are_named(texts: Path, tmp_path: Path) -> None:
    ids, out = tmp_path / "ids.txt", tmp_path / "out"
    for content, said in (
        ("c-001\nnobody\n", "'nobody'"),
        ("\n".join(f"x{i}" for i in range(30)), "'x0', 'x1', 'x10' and 27 more"),
        ("7\n", "'7'"),  # a position, but these people have ids
        ("\n", "ids in ids.txt, got none"),
    ):
        ids.write_text(content)
        assert said in refused("unlearn", texts / "base", "--forget-ids", ids, "--out", out)
    assert not out.exists()


def test_people_who_have_left_the_file_are_still_gone(texts: Path, tmp_path: Path) -> None:
    """The second request comes after the first customer's rows were deleted from the table."""
    at = tmp_path / "now"
    shutil.copytree(texts, at)
    facts = (at / "base" / "run.json").read_text().replace(str(texts), str(at))
    (at / "base" / "run.json").write_text(facts)
    ids = at / "ids.txt"
    ids.write_text("c-003\nc-004")
    few = (*FEW_STEPS, "--quiet")
    ran("unlearn", at / "base", "--forget-ids", ids, *few, "--out", at / "one")
    rows = [row for row in reviews(240) if row[0] != "c-003"]
    write_csv(at / "reviews.csv", ("customer", "review", "topic"), rows)
    ids.write_text("c-005")
    ran("unlearn", at / "one", "--forget-ids", ids, *few, "--out", at / "two")
    second = read(at / "two" / "run.json")
    assert second["gone"] == {"forget_subjects": ["c-003", "c-004"]}
    assert second["source"] != read(at / "one" / "run.json")["source"]


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_folder_of_save_pretrained_is_unlearned_exported_and_audited(texts: Path, tmp_path: Path) -> None:
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(texts / "bert")
    model.load_state_dict(load_file(texts / "base" / "model.safetensors"))
    given, new = tmp_path / "given", tmp_path / "new"
    model.save_pretrained(given)
    for file in (texts / "bert").glob("tokenizer*"):
        shutil.copy(file, given)
    asked = ("--data", texts / "reviews.csv", *TEXTS, "--forget-class", "food", *FEW_STEPS, "--quiet")
    asked += ("--split-seed", 0)  # by which purge train held a fifth out
    done = ran("unlearn", given, *asked, "--out", tmp_path / "out", "--export", new)
    assert f"Exported to {new}." in done.out
    assert names(new) == names(given)
    again = transformers.BertForSequenceClassification.from_pretrained(new).state_dict()
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(again[name], t) for name, t in stored.items())
    found = ran("audit", tmp_path / "out", "--metrics", "quick", "--json", "--quiet").json
    assert found["original"]["ra"]["value"] > 0.8
    assert "given, the deployed model" in found["info"]["models"]["original"]


def flowers(path: Path) -> Path:
    from sklearn.datasets import load_iris

    iris = load_iris()
    kinds = [iris.target_names[i] for i in iris.target]
    rows = [(f"p{i:03}", *x, kind) for i, (x, kind) in enumerate(zip(iris.data.tolist(), kinds, strict=True))]
    return write_csv(path, ("plant", "a", "b", "c", "d", "kind"), rows)


TABLE = ("--label", "kind", "--id", "plant")
OF_TABLE = (*TABLE, "--model", "mlp")
QUICK = ("--set", "epochs=20", "--set", "lr=0.05", "--set", "batch_size=16", "--quiet")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("table")
    ran("train", "--data", flowers(at / "iris.csv"), *OF_TABLE, *QUICK, "--out", at / "base")
    return at


def test_a_run_from_a_bare_file_is_audited_and_goes_back_as_it_came(table: Path, tmp_path: Path) -> None:
    weights = load_file(table / "base" / "model.safetensors")
    state = {f"net.{name}": t for name, t in weights.items()}
    content = {"state_dict": state, "epoch": 3, "optimizer_states": [{"state": {0: {"m": torch.ones(2)}}}]}
    torch.save(content, tmp_path / "w.ckpt")
    data = ("--data", table / "iris.csv", *OF_TABLE, "--split-seed", 0)
    few = (*FEW_STEPS, "--quiet")
    first = ("--forget-class", "setosa", *few, "--export", tmp_path / "new.ckpt", "--out", tmp_path / "one")
    done = ran("unlearn", tmp_path / "w.ckpt", *data, *first, "--json").json
    assert done["left_out"] == ["optimizer_states"]
    back = torch.load(tmp_path / "new.ckpt", weights_only=True)
    assert (back.keys(), back["epoch"]) == ({"state_dict", "epoch"}, 3)
    now = load_file(tmp_path / "one" / "model.safetensors")
    assert all(torch.equal(back["state_dict"][f"net.{name}"], t) for name, t in now.items())
    quick = ("--metrics", "quick", "--json", "--quiet")
    found = ran("audit", tmp_path / "one", *quick).json
    assert found["original"]["ra"]["value"] > 0.9
    assert "w.ckpt, the deployed model, as it was" in found["info"]["models"]["original"]
    beside = ("--retrained", tmp_path / "new.ckpt")  # whatever it is: a file of weights says nothing
    assert "the audited model's own weights" in refused("audit", tmp_path / "one", *beside, *quick)

    (tmp_path / "ids").write_text("p149")
    second = ("--forget-ids", tmp_path / "ids", *few, "--export", tmp_path / "newer.ckpt")
    ran("unlearn", tmp_path / "one", *second, "--out", tmp_path / "two")
    assert torch.load(tmp_path / "newer.ckpt", weights_only=True)["epoch"] == 3


# -- tables ---------------------------------------------------------------------------------------


def as_jsonl(rows: list[dict[str, str]], path: Path) -> Path:
    kept = [{k: v if k in ("plant", "kind") else float(v) for k, v in row.items()} for row in rows]
    path.write_text("\n".join(map(json.dumps, kept)) + "\n\n")
    return path


def as_parquet(rows: list[dict[str, str]], path: Path) -> Path:
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    kinds = {"plant": pa.string(), "kind": pa.dictionary(pa.int32(), pa.string())}
    made = {k: pa.array(v).cast(kinds[k]) if k in kinds else np.array(v, float) for k, v in columns.items()}
    pq.write_table(pa.table(made), path)
    return path


@pytest.mark.parametrize("form", [as_jsonl, as_parquet])
def test_every_form_of_a_table_gives_the_same_model(form: Any, table: Path, tmp_path: Path) -> None:
    rows = list(csv.DictReader(lines(table / "iris.csv")))
    path = form(rows, tmp_path / f"iris.{form.__name__[3:]}")
    ran("train", "--data", path, *OF_TABLE, *QUICK, "--out", tmp_path / "run")
    here, there = (read(at / "run.json") for at in (tmp_path / "run", table / "base"))
    assert here["digest"] == there["digest"]
    assert here["train_content"] == there["train_content"]
    assert len(here["mean"]) == len(here["std"]) == 4


def test_columns_are_scaled_and_a_second_file_is_for_testing(table: Path, tmp_path: Path) -> None:
    rows = list(csv.reader(lines(table / "iris.csv")))
    train = write_csv(tmp_path / "a.csv", rows[0], rows[1::2])
    test = write_csv(tmp_path / "b.csv", rows[0], rows[2::2])
    ran("train", "--data", train, "--test", test, *OF_TABLE, *QUICK, "--out", tmp_path / "run")
    facts = read(tmp_path / "run" / "run.json")
    assert (facts["samples"], facts["test_file"]) == (75, str(test))
    x = np.array([row[1:5] for row in rows[1::2]], float)
    np.testing.assert_allclose(facts["mean"], x.mean(0))
    np.testing.assert_allclose(facts["std"], x.std(0))
    ran("unlearn", tmp_path / "run", "--forget-class", 1, *FEW_STEPS, "--quiet", "--out", tmp_path / "u")
    found = ran("audit", tmp_path / "u", "--metrics", "ta", "--json", "--quiet").json
    assert found["original"]["ta"]["value"] == pytest.approx(facts["test_accuracy"])


def test_a_model_of_ones_own_is_told_how_many_columns_there_are(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def net(classes, features):\n"
        "    return nn.Sequential(nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, classes))\n"
    )
    own = ("--data", table / "iris.csv", *TABLE, "--model", "my_net:net", *QUICK)
    ran("train", *own, "--out", "run")
    assert load_file("run/model.safetensors")["0.weight"].shape == (7, 4)


# -- refusals -------------------------------------------------------------------------------------

HEAD = "plant,a,b,kind\n"
ROWS = "".join(f"p{i},{i},{i % 7},{'xyz'[i % 3]}\n" for i in range(30))
BAD: dict[str, tuple[bytes | str, tuple[str, ...], str]] = {
    "an empty file": ("", TABLE, "rows in t.csv, got none"),
    "two rows": (HEAD + "p,1,2,x\nq,1,2,y\n", TABLE, "at least 3 samples of some class"),
    "no such label": (HEAD + ROWS, ("--label", "kimd"), "did you mean 'kind'"),
    "no label": (HEAD + ROWS, (), "pass --label with one of plant, a, b, kind"),
    "one class": (HEAD + ROWS.replace("y\n", "x\n").replace("z\n", "x\n"), TABLE, "two classes"),
    "a column twice": ("plant,a,a,kind\n" + ROWS, TABLE, "each column of t.csv, got 'a' 2 times"),
    "a column for two things": (HEAD + ROWS, ("--label", "kind", "--id", "kind"), "'kind' twice"),
    "a column without a name": (",a,b,kind\n" + ROWS, ("--label", "kind"), "index=False"),
    "text": (HEAD + ROWS, ("--label", "kind"), "finite numbers in 'plant' of t.csv, got 'p0' in row 1"),
    "a gap": (HEAD + ROWS + "q,,1,x\nr,nan,1,x\n", TABLE, "finite numbers in 'a' of t.csv, got '' in row 31"),
    "infinity": (HEAD + ROWS + "q,inf,1,x\n", TABLE, "got 'inf' in row 31"),
    "no id": (HEAD + ROWS + " ,1,1,x\n", TABLE, "every row of 'plant'"),
    "no class": (HEAD + ROWS + "q,1,1,\n", TABLE, "something in every row of 'kind' in t.csv, got 1 without"),
    "a short line": (HEAD + ROWS + "q,1\n", TABLE, "CSV in t.csv"),
    "NUL": (HEAD + ROWS + "q,1,\0,x\n", TABLE, "NUL bytes"),
    "Latin-1": ((HEAD + ROWS + "ü,1,1,x\n").encode("latin-1"), TABLE, "UTF-8"),
    "a huge cell of text": (HEAD + ROWS + f"q,{'9' * 100_000}x,1,x\n", TABLE, "finite numbers in 'a'"),
    "a huge class": (HEAD + ROWS + f"q,1,1,{'k' * 100_000}\n", TABLE, "names of 1 to 300 characters"),
    "a huge id": (HEAD + ROWS + f"{'i' * 100_000},1,1,x\n", TABLE, "ids of at most 1000 characters"),
    "an open quote": (HEAD + ROWS + '"q,1,1,x\n', TABLE, "t.csv"),
    "only labels": ("kind\n" + "x\ny\nz\n" * 9, ("--label", "kind"), "no other columns"),
    "a number as label": (HEAD + ROWS, ("--label", "a", "--id", "plant"), "30 in 30 rows"),
    "texts for a table": (HEAD + ROWS, ("--label", "kind", "--text", "plant"), "a model of Hugging Face"),
    "a size": (HEAD + ROWS, (*TABLE, "--size", "8"), "--size"),
    "a transform": (HEAD + ROWS, (*TABLE, "--transform", "os:abort"), "--transform"),
    "means": (HEAD + ROWS, (*TABLE, "--mean", "1,2,3"), "one finite mean per column (2), got (1.0, 2"),
    "a spread of 0": (HEAD + ROWS, (*TABLE, "--std", "0"), "one finite std per column (2), above 0"),
    "no test file": (HEAD + ROWS, (*TABLE, "--test", "none.csv"), "a table at"),
}  # fmt: skip


BAD_LINES = {
    "[1]\n": "in line 1",
    '{"a": 1, "kind": "x"}\n{"b": 2}\n': "a key 'b'",
    '{"a": 1, "kind"\n': "in line 1",
    "[" * 100_000: "in line 1",
    '{"a": 1, "kind": "x"}\n{"a": [1], "kind": "y"}\n': "of t.jsonl, got '[1]' in row 2",
    '{"a": "\\ud800", "kind": "x"}\n{"a": 1, "kind": "y"}\n': "of t.jsonl, got '?' in row 1",
    '{"a": null, "kind": "x"}\n{"a": null, "kind": "y"}\n': "got None in row 1",
    '{"a": 1e999, "kind": "x"}\n{"a": true, "kind": "y"}\n': "numbers in 'a' of t.jsonl",
}
CASES = [("t.csv", *row) for row in BAD.values()]
CASES += [("t.jsonl", content, ("--label", "kind"), said) for content, said in BAD_LINES.items()]


@pytest.mark.parametrize(("name", "content", "options", "said"), CASES, ids=[*BAD, *BAD_LINES.values()])
def test_bad_tables_are_refused_in_one_line(
    name: str, content: bytes | str, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(tmp_path)
    line = refused("train", "--data", path, *options, "--model", "mlp", "--out", tmp_path / "out")
    assert said in line
    assert len(line) < 1500
    assert tree(tmp_path) == before


def test_a_damaged_parquet_table_is_refused(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(HEAD + ROWS)))
    whole = as_parquet(rows, tmp_path / "t.parquet").read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], b"x" * 100):
        (tmp_path / "t.parquet").write_bytes(content)
        data = ("--data", tmp_path / "t.parquet", *OF_TABLE, "--out", tmp_path / "out")
        assert "Parquet in t.parquet" in refused("train", *data)


def test_columns_of_a_table_are_for_tables_only(tmp_path: Path) -> None:
    few = ("--model", "small-resnet", "--out", tmp_path / "out")
    assert "a table of numbers or a table of texts for --label" in refused(
        "train", "--data", "digits", "--label", "kind", *few
    )
    assert "--id for digits" in refused("train", "--data", "digits", "--id", "kind", *few)


def test_a_bom_odd_names_and_zeros_before_an_id_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = "".join(f"{i:03},{i},{i % 7},{'xyz'[i % 3]}\r\n" for i in range(30))
    (tmp_path / "t.csv").write_bytes(('\ufeff plant ,a,"b, or\nc",kind\r\n' + rows).encode())
    (tmp_path / "ids").write_text("008\n")
    data = ("--data", tmp_path / "t.csv", *OF_TABLE, "--split-seed", 1, "--set", "epochs=1", "--quiet")
    ran("train", *data, "--without-ids", tmp_path / "ids", "--out", tmp_path / "out")
    assert read(tmp_path / "out" / "run.json")["request"] == {"forget_subjects": ["008"]}
    (tmp_path / "ids").write_text("8\n")
    assert "'8'" in refused("train", *data, "--without-ids", tmp_path / "ids", "--out", tmp_path / "b")


def test_long_texts_are_cut_and_that_is_told(
    texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*reviews(60), ("c-999", "ball " * 20_000, "sport")]
    write_csv(tmp_path / "long.csv", ("customer", "review", "topic"), rows)
    data = ("--data", tmp_path / "long.csv", *TEXTS, "--model", f"hf:{texts / 'bert'}", "--set", "epochs=1")
    with caplog.at_level(logging.WARNING, "purge"):
        ran("train", *data, "--quiet", "--out", tmp_path / "out")
    assert "1 texts take up all 16 tokens" in caplog.text


def test_a_folder_without_a_tokenizer_is_refused(texts: Path, tmp_path: Path) -> None:
    shutil.copytree(texts / "bert", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    (tmp_path / "bare" / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["evil.T", null]}}'
    )
    (tmp_path / "bare" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    data = ("--data", texts / "reviews.csv", *TEXTS, "--model", f"hf:{tmp_path / 'bare'}")
    assert "a tokenizer in" in refused("train", *data, "--out", tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_classes_come_in_the_order_of_the_model(texts: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(texts / "bert", tmp_path / "named"))
    config = read(folder / "config.json")
    order = {"0": "sport", "1": "music", "2": "food"}
    config |= {"id2label": order, "label2id": {name: int(i) for i, name in order.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    data = (*TEXTS, "--model", f"hf:{folder}", "--set", "epochs=1", "--quiet")
    ran("train", "--data", texts / "reviews.csv", *data, "--out", tmp_path / "words")
    assert read(tmp_path / "words" / "run.json")["names"] == ["sport", "music", "food"]
    number = {name: i for i, name in order.items()}
    rows = [(who, text, number[topic]) for who, text, topic in reviews(240)]
    write_csv(tmp_path / "numbers.csv", ("customer", "review", "topic"), rows)
    ran("train", "--data", tmp_path / "numbers.csv", *data, "--out", tmp_path / "numbers")
    here, there = (read(tmp_path / name / "run.json") for name in ("words", "numbers"))
    assert (here["names"], here["digest"]) == (there["names"], there["digest"])


# -- images ---------------------------------------------------------------------------------------


def test_a_transform_is_recorded_and_run_again_only_if_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def mirrored(x): return torch.cat([x, x.flip(3)], 1)\n"
        "def random(x): return x + torch.rand_like(x)\n"
        "def fewer(x): return x[:1]\n"
        "def broken(x): return x.no_such_thing()\n"
    )
    digits = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--quiet")
    for name, said in (("random", "random ones"), ("fewer", "for 2 images"), ("broken", "AttributeError")):
        assert said in refused("train", *digits, "--transform", f"mine:{name}", "--out", "bad")
    assert "module:function as --transform" in refused("train", *digits, "--transform", "x", "--out", "b")
    ran("train", *digits, "--transform", "mine:mirrored", "--out", "base")
    facts = read(tmp_path / "base" / "run.json")
    assert facts["transform"] == "mine:mirrored"
    few = ("--forget-class", 3, "--set", "steps=2", "--set", "batch_size=16", *ANY_TARGET, "--quiet")
    assert "'mine:mirrored' from run.json" in refused("unlearn", "base", *few, "--out", "out")
    ran("unlearn", "base", *few, "--transform", "mine:mirrored", "--out", "out")
    quick = ("--metrics", "ta,ra", "--quiet", "--json")
    assert "mine:mirrored" in refused("audit", "out", *quick)
    found = ran("audit", "out", *quick, "--trust").json
    assert found["original"]["ta"]["value"] == pytest.approx(facts["test_accuracy"])
