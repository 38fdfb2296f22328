"""Records: values with reasons, reports on disk and as text, run folders that are whole or not there."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import re
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import purge
import purge.api
from purge.audit_report import Report
from purge.core.errors import FileError, MetricError
from purge.core.files import read_json, write_json
from purge.engine.trainer import Recipe
from purge.methods.purge import PUSH_EVERY
from purge.metrics.metric import Metric
from purge.metrics.registry import PANELS
from purge.metrics.value import Value
from purge.models.checkpoint import digest, load_weights
from purge.result import Result


@pytest.fixture(scope="module")
def report(toy) -> Report:
    model, forget, retain, test = toy
    return purge.audit(model, forget, retain, test, original=model, progress=False)


@pytest.fixture(scope="module")
def result(toy) -> Result:
    model, forget, retain, _ = toy
    return purge.unlearn(model, forget, retain, seed=3, progress=False, rate=0.02, steps=12, batch_size=32)


def small(history: list[dict] | None = None, **changes) -> Result:
    """A result that costs nothing."""
    torch.manual_seed(0)
    rows = [{"epoch": 1, "loss": 0.5}] if history is None else history
    return Result(nn.Linear(2, 2), Recipe(), rows, "schedule", 1.5, 3, {"seed": 7, **changes})


def inside(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# -- Value -------------------------------------------------------------------------------------


def test_a_missing_value_carries_its_reason_and_none_can_be_changed():
    assert Value.missing("no test data") == Value(None, why="no test data")
    assert Value(0.0).value == 0.0  # zero is a number, not a gap
    for why in ({}, {"why": ""}):
        with pytest.raises(MetricError, match="reason"):
            Value(None, **why)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Value(0.0).value = 1.0


# -- Report ------------------------------------------------------------------------------------


def test_a_report_survives_json(report, tmp_path):
    path = tmp_path / "audit.json"
    path.write_text("something else")  # an old one is replaced
    report.to_json(str(path))
    again = Report.from_json(path)
    assert again == report
    assert str(again) == again.table() == report.table()
    assert list(again["bn_recal"]) == ["before", "after", "delta"]
    assert again["bn_recal"]["delta"] == again["bn_recal.delta"] == report["bn_recal.delta"]
    assert again["agreement"].why == report["agreement"].why != ""
    assert inside(tmp_path) == ["audit.json"]


def test_a_report_describes_its_metrics_and_an_older_file_is_completed(report, tmp_path):
    assert list(report.metrics) == list(PANELS["standard"])
    assert report.metrics["relearn_few"]["units"] == {"steps": "steps"}
    raw = report.to_dict()
    assert raw.pop("metrics") == report.metrics
    raw["values"]["own"] = {"value": 0.5, "low": None, "high": None, "n": 3, "why": ""}
    write_json(tmp_path / "audit.json", raw)
    older = Report.from_json(tmp_path / "audit.json")
    assert older.metrics == report.metrics  # the registry does not know "own"
    assert line(older.table(), "own").split()[1] == "0.500"


def test_a_metric_of_the_user_is_shown_in_its_unit(toy, tmp_path):
    def half(audited):
        return {"hit": Value(0.5), "steps": Value(0.5)}

    model, forget, retain, test = toy
    own = Metric("own", "own", "mine", half, parts=("hit", "steps"), unit="share", units={"steps": "steps"})
    purge.audit(model, forget, retain, test, metrics=["ra", own], progress=False).to_json(tmp_path / "a.json")
    text = Report.from_json(tmp_path / "a.json").table()
    assert line(text, "own.hit").split()[1:3] == ["50.0", "%"]
    assert line(text, "own.steps").split()[1] == "0.5"


def test_the_original_may_be_given_as_a_result_like_the_retrained_model(toy, result):
    _, forget, retain, test = toy
    asked = ["ra", "feature_l2_original", "agreement"]
    data = (forget, retain, test)
    by_result, by_model = (
        purge.audit(
            result, *data, original=other, retrained=[other], metrics=asked, progress=False, check=False
        )
        for other in (result, result.model)
    )
    assert by_result.original == by_model.original != {}
    assert by_result["feature_l2_original"].value == 0.0
    assert by_result.values == by_model.values


def test_a_report_names_the_weights_that_it_looked_at(toy, result):
    model, *sets = toy
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    auditor = purge.api.Auditor(*sets, original=model, retrained=[other, model], check=False)
    for audited in (result, model):  # the second audit computes those of the others no more
        found = auditor.audit(audited, metrics="ra", progress=False).info["digests"]
        assert found == {
            "audited": digest(audited.model if audited is result else model),
            "retrained": digest(other), "retrained 1": digest(model), "original": digest(model),
        }  # fmt: skip
    assert purge.audit(model, *sets, metrics="ra", progress=False).info["digests"] == {
        "audited": digest(model)
    }


def test_a_report_writes_its_page(report, tmp_path):
    file = report.html(tmp_path / "report.html")
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert all(f"<code>{name}</code>" in text for name in ("ra", "bn_recal.delta"))
    assert inside(tmp_path) == ["report.html"]
    with pytest.raises(FileError, match="make it first"):
        report.html(tmp_path / "no" / "report.html")


def test_numbers_of_a_report_are_numbers_in_json(tmp_path):
    # a metric of the user may well return numpy numbers; text in their place would go unnoticed
    numpy = Report({"own": Value(np.float32(0.5), n=np.int64(3))}, {}, {})
    numpy.to_json(tmp_path / "audit.json")
    assert json.loads((tmp_path / "audit.json").read_text())["values"]["own"]["value"] == 0.5
    assert json.loads((tmp_path / "audit.json").read_text())["values"]["own"]["n"] == 3


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "not json",
        b"\xff\xfe\x00",
        '{"values": 3, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": 1, "colour": 2}}, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": null}}, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": "0.5"}}, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": 1, "low": "0"}}, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": NaN}}, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": 1, "why": 3}}, "retrained": {}, "original": {}, "info": {}}',
        '{"values": {"ra": {"value": 1%s}}, "retrained": {}, "original": {}, "info": {}}' % ("0" * 400),
        '{"values": {"ra": {"value": 1%s}}, "retrained": {}, "original": {}, "info": {}}' % ("0" * 9000),
        '{"values": {}, "retrained": {}, "original": {}, "info": []}',
        '{"values": {}, "retrained": {}, "original": {}, "info": {"names": "abc"}}',
        '{"values": {}, "retrained": {}, "original": {}, "info": {"names": [1, 2]}}',
        '{"values": {}, "retrained": {}, "original": {}, "info": {"forget_classes": ["0"]}}',
        '{"values": {}, "retrained": {}, "original": {}, "info": {}, "curves": {"audited": 3}}',
        '{"values": {}, "retrained": {}, "original": {}, "info": {}, "metrics": {"ra": "share"}}',
    ],
)
def test_what_is_not_a_report_is_refused(tmp_path, content):
    path = tmp_path / "audit.json"
    with pytest.raises(FileError, match="nothing there"):
        Report.from_json(path)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(purge.PurgeError, match="Expected"):
        Report.from_json(path)


@pytest.mark.parametrize("info", [{}, {"forget_samples": 3}, {"forget_samples": None, "names": None}])
def test_a_report_that_says_little_about_its_audit_is_shown_all_the_same(tmp_path, info):
    write_json(tmp_path / "audit.json", {"values": {}, "retrained": {}, "original": {}, "info": info})
    report = Report.from_json(tmp_path / "audit.json")
    text = report.html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The report does not say what was to be forgotten." in text
    assert ("Forgotten: 3 samples" in report.table()) == (info.get("forget_samples") is not None)


def test_an_audit_writes_its_folder(toy, tmp_path):
    model, *data = toy
    asked = {"metrics": ["fa_test", "ra"], "progress": False}
    report = purge.audit(model, *data, **asked, out=tmp_path / "new" / "audit")
    assert sorted(p.name for p in (tmp_path / "new" / "audit").iterdir()) == ["audit.json", "report.html"]
    assert Report.from_json(tmp_path / "new" / "audit" / "audit.json").values == report.values
    assert "<html" in (tmp_path / "new" / "audit" / "report.html").read_text()
    purge.audit(model, *data, **asked, out=tmp_path / "new" / "audit")  # a second audit of the same run
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a folder at"):
        purge.audit(model, *data, metrics="nonsense", out=tmp_path / "file")


@pytest.mark.parametrize(("typo", "meant"), [("fa_tst", "fa_test"), ("bn_recal.dleta", "bn_recal.delta")])
def test_an_unknown_name_is_answered_with_the_nearest(report, typo, meant):
    with pytest.raises(MetricError, match=f"did you mean '{re.escape(meant)}'"):
        report[typo]
    for prefix in ("bn", "bn_recal.", "f", ""):
        with pytest.raises(MetricError):
            report[prefix]


# -- table -------------------------------------------------------------------------------------


def line(text: str, name: str) -> str:
    return next(row for row in text.splitlines() if row.split()[:1] == [name])


def test_what_a_row_of_a_table_shows():
    ours = {"ra": Value(0.98765, 0.9, 1.0), "mia": Value(0.98765, 0.9, 1.0), "ta": Value(0.0)}
    more = {"destinations.0": Value(0.0), "destinations.1": Value(1.0), "bn_recal.after": Value(0.25)}
    # this model has no BatchNorm and the retrained one has, or the other way round
    text = Report({**ours, **more}, {"ra": Value(0.5), "bn_recal": Value.missing("no BatchNorm")}, {}).table()
    rows = {
        "ra": "98.8 % 90.0 % … 100.0 % 50.0 %",
        "mia": "0.988 0.900 … 1.000 –",
        "ta": "0.0 % –",
        "destinations.1": "100.0 % –",
        "bn_recal.after": "25.0 % –",
    }
    for name, words in rows.items():
        assert line(text, name).split() == [name, *words.split()]
    assert "destinations.0" not in text  # nothing goes there
    assert "retrained" in text
    assert "original" not in text


def test_a_table_gives_the_reason_for_what_is_missing_as_it_is(report):
    row = line(report.table(), "agreement")
    assert "–" in row
    assert "no retrained model was given to compare with" in row
    assert "%" not in row
    why = " ".join(["no file at [tmp], [/tmp/x], [red]", *(f"word{i}" for i in range(60))])
    text = Report({"ra": Value.missing(why)}, {}, {}).table()
    assert all(word in text.split() for word in why.split())


def test_classes_without_a_name_go_by_their_numbers():
    info = {"names": ["cat", "dog"], "forget_samples": 3, "retain_samples": 4, "forget_classes": [1, 2]}
    values = {"class_accuracy.1": Value(0.5), "class_accuracy.2": Value(0.5), "class_accuracy.²": Value(0.5)}
    text = Report(values, {}, {}, info).table()
    assert "Forgotten: 3 samples, class 1 (dog), class 2\n" in re.sub(" +\n", "\n", text)
    for name in ("class_accuracy.1 (dog)", "class_accuracy.2 ", "class_accuracy.² "):
        assert name in text


# -- run folders -------------------------------------------------------------------------------


def test_a_run_folder_holds_the_model_bit_for_bit(toy, tmp_path):
    out = tmp_path / "a" / "run"
    result = purge.unlearn(*toy[:3], progress=False, out=out, steps=2)
    assert inside(out) == ["history.parquet", "model.safetensors", "run.json"]
    with pytest.raises(FileError, match="empty folder"):
        result.save(out)
    again = copy.deepcopy(toy[0])
    assert digest(again) != digest(result.model)  # so that loading has something to do
    load_weights(again, out / "model.safetensors")
    assert digest(again) == digest(result.model) == read_json(out / "run.json")["digest"]
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert again.state_dict()[name].dtype == tensor.dtype


def test_a_folder_with_something_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match="empty folder"):
        small().save(tmp_path)
    for force in (False, True):
        with pytest.raises(FileError, match="a file"):
            small().save(tmp_path / "file", force=force)
    assert inside(tmp_path) == ["file"]
    small().save(tmp_path, force=True)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "run" / "history.parquet" / "in the way").mkdir(parents=True)
    with pytest.raises(FileError, match="Expected a folder that can be written"):
        small().save(tmp_path / "run", force=True)
    assert inside(tmp_path / "run") == ["history.parquet"], "no run.json that says it is finished"


def test_run_json_says_how_the_model_was_made(result, tmp_path):
    run = read_json(result.save(tmp_path / "run", request={"forget_classes": [0]}) / "run.json")
    assert run["method"] == "Purge"
    assert run["settings"]["rate"] == 0.02
    assert run["settings"]["steps"] == run["steps"] == 12
    assert run["settings"]["stop"]["check_every"] == result.method.stop.check_every
    assert set(run["settings"]) == {f.name for f in dataclasses.fields(result.method)}
    assert run["seed"] == 3
    assert run["digest"] == digest(result.model)
    assert run["stopped_by"] in ("forget_target", "retain_budget", "schedule")
    assert run["stopped_by"] == result.stopped_by
    assert run["seconds"] == result.seconds > 0
    assert run["steps"] == result.steps
    assert torch.__version__.startswith(run["versions"]["torch"])  # less the name of the build
    assert {"python", "numpy"} <= run["versions"].keys()
    assert run["hardware"]["cpus"] >= 1
    assert run["request"] == {"forget_classes": [0]}
    assert (run["classes"], run["forget_classes"], run["test_samples"]) == (3, [0], None)
    stop = purge.Stopping(**run["settings"].pop("stop"))
    assert type(result.method)(**run["settings"], stop=stop) == result.method


def test_history_has_a_row_per_step_and_a_column_per_quantity(result, tmp_path):
    table = pq.read_table(result.save(tmp_path / "run") / "history.parquet")
    assert table.to_pylist() == result.history
    assert table["step"].to_pylist() == list(range(result.steps + 1))
    empty = {"retain_loss": 1, "displacement_cosine": 1}  # step 0 is before the first
    pushes = math.ceil(result.steps / PUSH_EVERY)
    empty |= dict.fromkeys(("forget_loss", "cosine"), 1 + result.steps - pushes)
    checked = {"check_forget_accuracy", "check_retain_loss"}
    assert {"step", "projected", *empty} | checked == set(table.column_names)
    for name, count in empty.items():
        assert pa.types.is_floating(table[name].type)
        assert table[name].null_count == count
    assert table["check_forget_accuracy"][0].as_py() is not None


def test_a_quantity_that_is_never_measured_is_a_column_of_empty_numbers(toy, tmp_path):
    trained = pq.read_table(small().save(tmp_path / "trained") / "history.parquet")
    assert trained.to_pylist() == [{"epoch": 1, "loss": 0.5}]
    result = purge.unlearn(*toy[:3], method="purge-paper", epochs=2, erasure=0.0, progress=False)
    table = pq.read_table(result.save(tmp_path / "run") / "history.parquet")
    assert table.to_pylist() == result.history
    assert pa.types.is_floating(table["erasure_loss"].type)
    assert table["erasure_loss"].null_count == len(table) == 3
    assert table["gated"].null_count == table["retain_loss"].null_count == 1


def test_digests_of_samples_are_in_the_record_and_outlive_pickling(toy):
    model, forget, retain, test = toy
    result = purge.unlearn(model, forget, retain, test=test, steps=2, progress=False)
    names = ("forget_content", "retain_content", "test_content")
    assert not set(names) & result.info.keys()  # nobody waits for them
    record = result.to_dict()
    assert len({record[name] for name in names} - {None}) == 3
    pickled = pickle.dumps(result)
    assert pickle.loads(pickled).to_dict() == record
    assert result.to_dict() == record
    bare = dataclasses.replace(result, later=dict)
    assert len(pickled) < len(pickle.dumps(bare)) + 1000  # the data stay behind


def test_a_failure_while_writing_the_history_leaves_the_old_run(tmp_path):
    good = small().save(tmp_path / "run")
    (good / "audit.json").write_text("{}")
    before = {p.name: p.read_bytes() for p in good.iterdir()}
    bad = small([{"loss": object()}])  # cannot be written as Parquet
    with pytest.raises((pa.ArrowException, purge.PurgeError)):
        bad.save(good, force=True)
    assert {p.name: p.read_bytes() for p in good.iterdir()} == before
    for wrong in (bad, small(loss=math.nan)):
        with pytest.raises((pa.ArrowException, ValueError)):
            wrong.save(tmp_path / "new")
    assert inside(tmp_path) == ["run"]


@contextmanager
def no_file_longer_than(size):
    """A disk that is full for all but small files; Python ignores the signal that comes with it."""
    resource = pytest.importorskip("resource", reason="this system cannot limit the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 500, 4500])
def test_a_full_disk_is_one_line_and_the_old_run_stays(tmp_path, size):
    """Full at once, after some of the weights, and after the weights, in the history."""
    rows = [{"step": i, "loss": i / 7} for i in range(2000)]
    large = dataclasses.replace(small(rows), model=nn.Linear(30, 30))
    good = small().save(tmp_path / "run")
    (good / "audit.json").write_text("{}")
    before = {p.name: p.read_bytes() for p in good.iterdir()}
    for folder, force in ((good, True), (tmp_path / "new", False)):
        with pytest.raises(FileError) as caught, no_file_longer_than(size):
            large.save(folder, force=force)
        assert re.fullmatch(
            r"Expected a folder that can be written at [^\n]+, got [^\n]+\.", str(caught.value)
        )
        assert "File too large" in str(caught.value)
    assert {p.name: p.read_bytes() for p in good.iterdir()} == before
    with pytest.raises(FileError, match="Expected to be able to write"), no_file_longer_than(0):
        Report({}, {}, {}).to_json(tmp_path / "audit.json")
    assert inside(tmp_path) == ["run"]
    large.save(good, force=True)
    assert inside(good) == ["history.parquet", "model.safetensors", "run.json"]


def test_an_overwritten_run_keeps_nothing_of_the_old_one(tmp_path):
    folder = small().save(tmp_path / "run")
    fresh = small([], seed=8)  # a run without a history
    fresh.save(folder, force=True)
    assert read_json(folder / "run.json")["seed"] == 8
    assert "history.parquet" not in inside(folder)  # that was the other run's


def test_a_digest_tells_models_apart():
    a, b = small().model, small().model
    assert digest(a) == digest(b)
    with torch.no_grad():
        b.weight[0, 0] = torch.nextafter(b.weight[0, 0], torch.tensor(9.0))  # one unit in the last place
    assert digest(a) != digest(b)
