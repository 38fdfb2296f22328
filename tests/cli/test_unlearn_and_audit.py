"""purge unlearn and purge audit on the run folders of the demo."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from purge.data.load import load
from purge.metrics.registry import PANELS, number
from purge.models.checkpoint import digest, load_weights
from purge.models.small_resnet import SmallResNet
from tests.cli.commands import ANY_TARGET, command, ran, read, refused
from tests.cli.conftest import Demo

# -- unlearn ------------------------------------------------------------------------------------


def test_unlearn_a_class(shown: Demo, tmp_path: Path) -> None:
    base, out = shown.folder / "base", tmp_path / "new" / "run"
    before = digest(_stored(base))
    done = command(
        "unlearn", base, "--forget-class", 3, "--out", out, "--json", "--seed", 7,
        "--set", "rate=0.02", "--set", "forget_target=0.2", "--set", "batch_size=64",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    facts = read(out / "run.json")
    assert facts["request"] == {"forget_classes": [3]}
    assert facts["original"] == str(base.absolute())
    assert facts["settings"]["rate"] == 0.02
    assert facts["settings"]["stop"]["forget_target"] == 0.2
    assert (facts["model"], facts["data"], facts["seed"]) == ("small-resnet", "digits", 7)
    assert facts["digest"] == digest(_stored(out)) != before
    assert digest(_stored(base)) == before

    assert done.json["folder"] == str(out)
    same = ("steps", "seconds", "flop", "stopped_by")
    assert {key: done.json[key] for key in same} == {key: facts[key] for key in same}
    assert done.json["flop"] > 3 * 64 * done.json["steps"] * facts["flop_per_row"] > 0
    assert done.json["stopped_by"] == "forget_target"
    assert done.json["forget_accuracy"] <= 0.2

    audited = command("audit", out, "--metrics", "fa_test,ta_retain", "--json")
    assert audited.json["values"]["fa_test"]["value"] <= 0.2
    assert audited.json["values"]["ta_retain"]["value"] >= 0.9
    assert audited.json["original"]["fa_test"]["value"] >= 0.9


def _stored(folder: Path) -> SmallResNet:
    model = SmallResNet()
    load_weights(model, folder / "model.safetensors")
    return model


def test_unlearn_samples_from_a_file(shown: Demo, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("5, 3\n900\n3\n")
    out = tmp_path / "run"
    few = ("--set", "steps=5", "--set", "batch_size=16", *ANY_TARGET)
    done = ran("unlearn", shown.folder / "base", "--forget-ids", ids, "--out", out, *few)
    facts = read(out / "run.json")
    assert facts["request"] == {"forget_ids": [3, 5, 900]}
    assert (facts["forget_samples"], facts["retain_samples"]) == (3, len(load("digits")[0]) - 3)
    assert done.out.startswith("purge: 3 samples to forget, ")
    assert f"Written to {out}." in done.out

    audited = command("audit", out, "--metrics", "ra", "--json")  # the request is read from the run
    assert audited.json["info"]["forget_samples"] == 3


def test_a_missed_target_is_exit_1_and_everything_is_written(shown: Demo, tmp_path: Path) -> None:
    few = ("--forget-class", 3, "--set", "steps=2", "--set", "rate=1e-9", "--quiet")
    for more in ((), ("--json",)):
        out = tmp_path / f"run{len(more)}"
        done = command("unlearn", shown.folder / "base", "--out", out, *few, *more)
        assert done.code == 1
        said = "Failed: the forget target was not reached, accuracy 100.0 % instead of 10.0 %.\n"
        assert done.err == said
        assert (out / "run.json").is_file()
        assert done.json["target_missed"] is True if more else "target was not reached" in done.out


def test_a_model_trained_anew_cannot_miss_the_target(shown: Demo, tmp_path: Path) -> None:
    """It never saw the samples: that it is right about more of them than about unseen ones is chance."""
    (tmp_path / "ids.txt").write_text("1\n2\n")
    argv = ["unlearn", shown.folder / "base", "--forget-ids", tmp_path / "ids.txt", "--method", "retrain"]
    done = command(
        *argv, "--set", "epochs=1", "--set", "forget_target=0", "--out", tmp_path / "run", "--json"
    )
    assert done.json["forget_accuracy"] > 0
    assert (done.code, done.json["target_missed"]) == (0, False)


def test_few_samples_may_be_above_an_estimated_target_by_chance(shown: Demo, tmp_path: Path) -> None:
    """A retrained model, too, is often right about all of ten samples; a target that was given is strict."""
    (tmp_path / "ids.txt").write_text("\n".join(map(str, range(10))))
    few = ("--set", "steps=2", "--set", "rate=1e-9", "--quiet")
    argv = ["unlearn", shown.folder / "base", "--forget-ids", tmp_path / "ids.txt", *few]
    done = command(*argv, "--out", tmp_path / "open")
    assert (done.code, done.err) == (0, "")
    assert "above the target by no more than chance" in done.out
    assert command(*argv, "--set", "forget_target=0.98", "--out", tmp_path / "given").code == 1


def test_unlearn_twice_in_a_row_with_force(shown: Demo, tmp_path: Path) -> None:
    argv = ["unlearn", shown.folder / "base", "--out", tmp_path, "--method", "gradient-ascent", "--quiet"]
    argv += ANY_TARGET
    ran(*argv, "--forget-class", 1, "--forget-class", 2)
    assert read(tmp_path / "run.json")["request"] == {"forget_classes": [1, 2]}
    assert command(*argv, "--forget-class", 4).code == 2
    assert read(tmp_path / "run.json")["request"] == {"forget_classes": [1, 2]}
    ran(*argv, "--forget-class", 4, "--force")
    assert read(tmp_path / "run.json")["request"] == {"forget_classes": [4]}


def test_progress_goes_to_stderr_and_quiet_means_quiet(shown: Demo, tmp_path: Path) -> None:
    argv = ["unlearn", shown.folder / "base", "--forget-class", 1, "--method", "gradient-ascent", "--json"]
    argv += ANY_TARGET
    loud = command(*argv, "--out", tmp_path / "loud", terminal=True)
    quiet = command(*argv, "--out", tmp_path / "quiet", "--quiet", terminal=True)
    assert "gradient-ascent" in loud.err
    assert quiet.err == ""
    for done in (loud, quiet):
        assert done.code == 0
        assert done.json["method"] == "gradient-ascent"


# -- audit --------------------------------------------------------------------------------------


def test_audit_as_json_is_what_is_written_and_what_the_demo_found(shown: Demo, run: Path) -> None:
    done = command("audit", run, "--retrained", shown.folder / "retrain", "--metrics", "quick", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == read(run / "audit.json")
    found = read(shown.folder / "purge" / "audit.json")
    assert {name.split(".")[0] for name in done.json["values"]} == set(PANELS["quick"])
    for part in ("values", "retrained", "original"):
        assert done.json[part].keys() <= found[part].keys()
        for key in done.json[part]:
            value = found[part][key]
            assert done.json[part][key] == pytest.approx(value), (part, key)


def test_audit_as_a_table(shown: Demo, run: Path) -> None:
    done = ran("audit", run, "--retrained", shown.folder / "retrain", "--metrics", "quick")
    written = read(run / "audit.json")
    assert {key.split(".")[0] for key in written["values"]} == set(PANELS["quick"])
    title, head, *rows = [line.split() for line in done.out.splitlines() if line.strip(" ─")]
    assert " ".join(title) == "Forgotten: 142 samples, class 0"
    assert head == ["metric", "value", "95", "%", "interval", "retrained", "original", "note"]
    shown_keys = [k for k, v in written["values"].items() if v["value"] or not k.startswith("destinations.")]
    assert sorted(words[0] for words in rows if words[0] in written["values"]) == sorted(shown_keys)
    for words in rows:
        if words[0] in written["values"]:
            assert " ".join(words[1:]).startswith(number(words[0], written["values"][words[0]]["value"]))


def test_audit_of_another_request_beside_another_original(shown: Demo, tmp_path: Path) -> None:
    base = Path(shutil.copytree(shown.folder / "base", tmp_path / "base"))
    (tmp_path / "ids.txt").write_text("1 2 3 4")
    retrain = ("--original", shown.folder / "retrain")
    done = command("audit", base, "--forget-class", 0, *retrain, "--metrics", "fa_test", "--json")
    assert done.json["values"]["fa_test"]["value"] == shown.value("base", "fa_test")
    assert done.json["original"]["fa_test"]["value"] == 0
    done = command("audit", base, "--forget-ids", tmp_path / "ids.txt", "--metrics", "ra", "--json")
    assert done.json["info"]["forget_samples"] == 4
    assert done.json["original"] == {}


def test_audit_beside_two_retrained_models_shows_how_far_apart_they_are(shown: Demo, run: Path) -> None:
    both = [word for name in ("retrain", "retrain-2") for word in ("--retrained", shown.folder / name)]
    done = command("audit", run, *both, "--metrics", "agreement,mia,bn_recal", "--json")
    assert set(done.json["floor"]) == {"agreement", "mia"}  # quick, or a distance
    assert done.json["floor"]["agreement"]["value"] == shown.value("retrain-2", "agreement")
    assert done.json["retrained"]["mia"]["value"] == shown.value("retrain", "mia")
    assert "floor" in command("audit", run, *both, "--metrics", "agreement").out


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (["fa_test>50", "ra<50"], 0, ""),
        (["fa_test>50", "ra<100.5"], 1, "Failed: ra<100.5, it is "),
        (["kl_retrain>1"], 1, "Failed: kl_retrain>1 cannot be ruled out, kl_retrain was not measured"),
        (["failed"], 0, ""),
        (["fa_tset>1"], 2, "did you mean 'fa_test'"),
        (["mia>0.9"], 2, "Expected mia to be measured"),
        (["ra<50", "ra.steps<50"], 2, "Expected a number of ra in --fail-if"),
        (["ra<50", "ra>inf"], 2, "Expected a condition such as"),
    ],
)
def test_an_audit_fails_if_a_limit_is_broken(run: Path, limits: list[str], code: int, said: str) -> None:
    options = [word for limit in limits for word in ("--fail-if", limit)]
    done = command("audit", run, "--metrics", "fa_test,ra,kl_retrain", *options)
    assert done.code == code
    assert said in done.err
    assert ("fa_test" in done.out) == (code != 2)  # a bad request is noticed before anything is done


def test_an_audit_fails_if_a_finding_failed(shown: Demo) -> None:
    """The original model has forgotten nothing."""
    argv = ["audit", shown.folder / "base", "--forget-class", 0, "--retrained", shown.folder / "retrain"]
    done = command(*argv, "--metrics", "fa_test,ra", "--fail-if", "failed")
    assert done.code == 1
    assert done.err.startswith("Failed: ")
    assert "✘" in done.out


def test_an_audit_that_cannot_be_written_is_shown(run: Path) -> None:
    (run / "audit.json").unlink()
    (run / "audit.json").mkdir()
    done = command("audit", run, "--metrics", "quick")
    assert done.code == 2
    assert done.err == f"Error: Expected a file or nothing at {run / 'audit.json'}, got a folder. " + (
        "Fix: choose another name.\n"
    )
    assert "fa_test" in done.out


@pytest.mark.slow
def test_a_full_audit_trains_shadow_models_like_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    base, out = tmp_path / "base", tmp_path / "out"
    quick = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1")
    ran("train", *quick, "--out", base, "--quiet")
    (tmp_path / "ids.txt").write_text("\n".join(map(str, range(200))))
    asked = ("--forget-ids", tmp_path / "ids.txt", "--set", "steps=4", *ANY_TARGET)
    ran("unlearn", base, *asked, "--out", out, "--quiet")
    done = command("audit", out, "--metrics", "lira,u_lira,klom", "--shadows", 4, "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    for name in ("lira.auroc", "u_lira.auroc", "klom.p95"):
        assert done.json["values"][name]["value"] is not None, done.json["values"][name]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*") if p.is_file()}
    assert len(before) > 8
    again = command("audit", out, "--metrics", "lira,u_lira,klom", "--shadows", 4, "--json", "--quiet")
    assert again.json["values"] == done.json["values"]
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*") if p.is_file()} == before


def test_shadow_models_need_an_original_that_was_trained_here(run: Path) -> None:
    assert "made by purge train" in refused("audit", run, "--original", run, "--metrics", "full")
