"""The record of a deletion is true or silent: what nobody wrote down is not recorded."""

from __future__ import annotations

import hashlib
import json
import re
from html import unescape
from pathlib import Path

import pytest

import purge
from purge.core.files import write_json
from purge.models.checkpoint import digest
from purge.report import page as html
from purge.report.record import NOT, record_of, rows_in_words
from purge.runs.evidence import audited, record
from purge.runs.folder import RunFile, first_of, read_facts, shown_path
from tests.cli.commands import ANY_TARGET, FEW_STEPS, command, good, read, refusal

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and a record is words."""
    monkeypatch.setattr(html, "PLOTS", {})


def shown(file: Path) -> dict[str, str]:
    """The rows of the record, and which model each column is, as a page shows them."""
    text = file.read_text(encoding="utf-8")
    rows = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    return {unescape(k): unescape(re.sub("<.*?>", "", v)) for k, v in rows}


# -- rows ---------------------------------------------------------------------------------------


def test_a_record_of_nothing_claims_nothing():
    found = record_of({}, {})
    for key, value in found.items():
        if key == "Seeds":
            assert value == f"unlearning {NOT}, audit {NOT}"
        elif key == "Data":
            assert value == f"name {NOT}, see the digests"
        elif not isinstance(value, dict):
            assert value == NOT, key
    assert "nothing" not in json.dumps(found)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"request": {"forget_classes": [1]}, "names": ["cat", "dog"]}, "class 1 (dog)"),
        ({"request": {"forget_ids": [4, 5]}, "gone": {"forget_classes": [0]}},
         "class 0 and 2 samples by number"),
        ({"request": {}, "forget_rows": [4, 5], "forget_samples": 2}, "2 samples by number"),
        ({"request": {}, "forget_rows": None, "forget_samples": 37},
         f"37 samples, given as data; their row numbers were {NOT}"),
        ({"forget_classes": [1], "forget_rows": [8]}, "class 1 and 1 sample by number"),
        ({"method": "Recipe", "request": {}}, NOT),  # a training, of which nobody asked for anything
    ],
)  # fmt: skip
def test_what_was_asked_in_words(run, words):
    assert record_of(run, {})["Request"] == words


def test_row_numbers_as_people_write_them_and_what_they_count():
    def told(**run) -> str:
        return record_of(run, {})["Rows to forget"]

    assert told(request={}, forget_rows=[4], rows_of=675) == "4 (rows of 675, counted from 0)"
    assert told(request={}, forget_rows=[4]) == "4 (ids of the images)"
    assert told(request={"forget_classes": [1]}, forget_rows=[]) == "all rows of these classes"
    shell = {"forget_rows": [9], "rows_of": None}  # the images have ids of their own
    assert told(request={"forget_ids": [4]}, **shell) == "4 (positions in the training data, counted from 0)"
    assert rows_in_words([0, 1, 2, 4, 6, 7], "rows") == "0–2, 4, 6–7 (rows)"
    many = rows_in_words(range(0, 1000, 2), "rows")
    assert many.startswith("0, 2, 4, ")
    assert many.endswith("118 … (all in run.json) (rows)")


def test_a_record_says_whether_the_audit_looked_at_what_the_run_wrote():
    run, other = {"digest": "a", "forget_content": "f"}, {"digests": {"audited": "b"}, "forget_content": "g"}
    same = {"digests": {"audited": "a"}, "forget_content": "f"}
    keys = ("Audited weights", "Audited samples")
    assert [record_of(run, same)[k] for k in keys] == [
        "the weights of this run", "the forgotten samples of this run",
    ]  # fmt: skip
    assert [record_of(run, other)[k] for k in keys] == [
        "weights with another digest: b", "forgotten samples with another digest: g",
    ]  # fmt: skip
    chain = record_of({**run, "gone": {"forget_classes": [1]}}, {**other, "forget_samples": 9})
    assert chain["Audited samples"] == "9, with those of earlier requests; digest g"


# -- a run made in Python -------------------------------------------------------------------------


def test_a_page_from_python_has_the_record_of_its_run(toy, tmp_path):
    model, forget, retain, test = toy
    asked = purge.DeletionRequest(id="DSR-17", received="2026-11-01", done="2026-11-03", by="<b>me</b>")
    result = purge.unlearn(model, forget, retain, test=test, request=asked, steps=2, progress=False)
    report = purge.audit(result, forget, retain, test, original=model, metrics="ra", progress=False)
    found = shown(report.html(tmp_path / "page.html"))
    assert found["Request"] == "class 0"
    assert [found[k] for k in ("Request id", "Received", "Done", "By", "Model version")] == [
        "DSR-17", "2026-11-01", "2026-11-03", "<b>me</b>", NOT,
    ]  # fmt: skip
    assert found["Digest of source weights"] == digest(model)
    assert found["Digest of result weights"] == digest(result.model)
    assert found["Digest of forgotten samples"] == result.to_dict()["forget_content"]
    assert found["Audited weights"] == "the weights of this run"
    assert found["Audited samples"] == "the forgotten samples of this run"
    assert found["Column “original”"].startswith("the model that the unlearning began with (weights ")
    assert found["Column “this model”"].startswith("the result of “purge” (weights ")
    other = purge.audit(result, forget, retain, test, original=result.model, metrics="ra", progress=False)
    assert "but not the model that the unlearning began with" in other.info["models"]["original"]
    same = {"retrained": model, "check": False}
    plain = purge.audit(model, forget, retain, test, **same, metrics="ra", progress=False)
    assert {k: v.partition(" (")[0] for k, v in plain.info["models"].items()} == {
        "audited": "a model that was passed",
        "retrained": "passed as retrained; what it was trained on is not recorded",
    }  # fmt: skip


def test_a_reference_is_known_by_the_samples_that_it_was_trained_on(toy):
    model, forget, retain, test = toy
    honest, other = (
        purge.train(model, data, epochs=1, progress=False)
        for data in (retain, (retain[0][1:], retain[1][1:]))
    )
    report = purge.audit(
        model, forget, retain, test, retrained=[honest, other, model], metrics="ra", progress=False,
        check=False,
    )  # fmt: skip
    found = {k: v.partition(" (weights")[0] for k, v in report.info["models"].items()}
    assert found == {
        "audited": "a model that was passed",
        "retrained": "trained on exactly the retained samples",
        "retrained 1": "passed as retrained, but trained on other samples than the retained ones",
        "retrained 2": "passed as retrained; what it was trained on is not recorded",
    }


def test_the_shell_does_not_go_on_with_a_run_that_does_not_say_what_it_forgot(chain: Path, tmp_path: Path):
    train, _ = purge.load("digits")
    model = purge.build("small-resnet", classes=10, channels=1)
    purge.models.checkpoint.load_weights(model, chain / "base" / "model.safetensors")
    for name, which in (("class", {"classes": [3]}), ("samples", {"indices": [5, 6]})):
        few = {"steps": 2, "batch_size": 16, "progress": False}
        purge.unlearn(model, *purge.split(train, **which), out=tmp_path / name, **few)
    argv = ["--data", "digits", "--model", "small-resnet", "--forget-class", 7, *FEW_STEPS, "--quiet"]
    said = refusal(command("unlearn", tmp_path / "samples", *argv, "--out", tmp_path / "no"))
    assert "Expected a run that says which samples it has forgotten, got samples, made in Python" in said
    good(command("unlearn", tmp_path / "class", *argv, "--out", tmp_path / "next"))
    assert read(tmp_path / "next" / "run.json")["gone"] == {"forget_classes": [3]}


# -- requests in a row ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model and three requests, one after the other, each with its own fields."""
    runs = tmp_path_factory.mktemp("chain")
    quick = ["--set", "steps=4", "--quiet", *ANY_TARGET]
    (runs / "ids").write_text("5 6\n8")
    good(command("train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=3", "--quiet",
                 "--out", runs / "base"))  # fmt: skip
    good(command("unlearn", runs / "base", "--forget-class", 3, *quick, "--out", runs / "one",
                 "--request-id", "DSR-1", "--received", "2026-11-01", "--done", "2026-11-03",
                 "--by", "A. Turing", "--model-version", "2.3"))  # fmt: skip
    good(command("unlearn", runs / "one", "--forget-class", 5, *quick, "--out", runs / "two"))
    good(command("unlearn", runs / "two", "--forget-ids", runs / "ids", *quick, "--out", runs / "three"))
    return runs


def test_the_fields_of_a_request_from_the_shell_are_shown(chain: Path):
    good(command("audit", chain / "one", "--metrics", "quick", "--quiet"))
    good(command("report", chain / "one"))
    found = shown(chain / "one" / "report.html")
    assert [found[k] for k in ("Request", "Request id", "Received", "Done", "By", "Model version")] == [
        "class 3", "DSR-1", "2026-11-01", "2026-11-03", "A. Turing", "2.3",
    ]  # fmt: skip
    assert found["Column “original”"] == "../base, the deployed model, as it was"


@pytest.mark.parametrize("wrong", [("--received", "1.11.2026"), ("--request-id", " ")])
def test_wrong_fields_are_refused_before_anything_runs(chain: Path, tmp_path: Path, wrong):
    done = command("unlearn", chain / "base", "--forget-class", 3, "--out", tmp_path / "run", *wrong)
    assert (done.code, done.out) == (2, "")
    assert not (tmp_path / "run").exists()


def test_the_original_of_a_later_request_is_the_model_that_the_chain_began_with(chain: Path):
    base, three = read(chain / "base" / "run.json"), read(chain / "three" / "run.json")
    assert (three["original"], three["deployed"]) == (str(chain / "two"), str(chain / "base"))
    assert three["deployed_digest"] == base["digest"]
    assert three["original_digest"] == read(chain / "two" / "run.json")["digest"] != base["digest"]
    good(command("audit", chain / "three", "--metrics", "quick", "--quiet"))
    good(command("report", chain / "three"))
    info, found = read(chain / "three" / "audit.json")["info"], shown(chain / "three" / "report.html")
    assert info["digests"] == {"audited": three["digest"], "original": base["digest"]}
    assert found["Request"] == "class 3, class 5 and 3 samples by number"
    assert found["Rows to forget"] == (
        "all rows of these classes and 5–6, 8 (positions in the training data, counted from 0)"
    )
    assert found["Request id"] == NOT
    assert (found["Source weights"], found["Deployed model"]) == ("../two", "../base")
    assert found["Digest of the deployed model"] == base["digest"]
    assert found["Digest of source weights"] == three["original_digest"]
    told = "../base, the deployed model, as it was before the first of several requests"
    assert found["Column “original”"] == told
    one = command("audit", chain / "three", "--original", chain / "two", "--metrics", "ra", "--json").json
    assert one["info"]["models"]["original"].startswith("../two, the model that this run began with")
    other = command("audit", chain / "three", "--original", chain / "one", "--metrics", "ra", "--json").json
    assert other["info"]["models"]["original"] == "../one, given as the original"


def test_a_chain_of_older_runs_is_followed_and_one_in_a_circle_ends(chain: Path, tmp_path: Path):
    for name in ("one", "two"):
        facts = {k: v for k, v in read(chain / name / "run.json").items() if not k.startswith("deployed")}
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "run.json", {**facts, "original": facts["original"].replace(
            str(chain / "one"), str(tmp_path / "one"))})  # fmt: skip
    base = (chain / "base", read(chain / "base" / "run.json")["digest"])
    assert first_of(tmp_path / "two", read_facts(tmp_path / "two")) == base
    assert first_of(tmp_path / "base.pt", RunFile(), "abc") == (tmp_path / "base.pt", "abc")
    write_json(tmp_path / "one" / "run.json", {"original": str(tmp_path / "two")})
    assert first_of(tmp_path / "two", read_facts(tmp_path / "two"))[0] == tmp_path / "two"


def test_an_original_with_other_weights_than_the_run_began_with_is_refused(chain: Path, tmp_path: Path):
    facts = read(chain / "one" / "run.json")
    other = tmp_path / "one"
    other.mkdir()
    (other / "model.safetensors").write_bytes((chain / "one" / "model.safetensors").read_bytes())
    write_json(other / "run.json", {**facts, "deployed": str(chain / "two")})
    done = command("audit", other, "--metrics", "ra")
    assert done.code == 2
    assert "Expected the weights that one began with" in done.err
    write_json(other / "run.json", {**facts, "deployed": str(other)})  # overwritten in place
    assert good(command("audit", other, "--metrics", "ra", "--json")).json["original"] == {}


def test_paths_are_shown_from_the_run_folder():
    run = Path("/data/runs/demo/purge")
    assert shown_path(Path("/data/runs/demo/base"), run) == "../base"
    assert shown_path(Path("/data/my.npz"), run) == "../../../my.npz"
    assert shown_path(Path("/home/someone/private/my.npz"), run) == "my.npz"


def test_digests_of_a_request_and_of_its_samples_can_be_computed_again(chain: Path):
    train, _ = purge.load("digits")
    good(command("audit", chain / "three", "--metrics", "quick", "--quiet"))
    found = record(chain / "three", audited(chain / "three"))
    text = b'{"forget_classes":[3,5],"forget_ids":[5,6,8]}'
    assert found["Digest of the request"] == hashlib.sha256(text).hexdigest()
    pixels, labels = train.pixels[[5, 6, 8]], train.labels[[5, 6, 8]]
    each = [
        hashlib.sha256(p.numpy().tobytes() + int(y).to_bytes(8, "little")).digest()
        for p, y in zip(pixels, labels, strict=True)
    ]
    assert found["Digest of forgotten samples"] == hashlib.sha256(b"".join(sorted(each))).hexdigest()
