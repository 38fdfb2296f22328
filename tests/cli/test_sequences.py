"""Several commands in a row: one request after another, trainings that exact deletions need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import ANY_TARGET, command, ran, read, refused

pytestmark = pytest.mark.slow

# -- one request after the other ------------------------------------------------------------------


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, class 3 forgotten, then class 5, and a reference without class 3."""
    runs = tmp_path_factory.mktemp("twice")
    quick = ["--set", "steps=20"]
    for argv in (
        ["train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=4", "--out", runs / "base"],
        ["unlearn", runs / "base", "--forget-class", 3, *quick, "--out", runs / "three"],
        ["unlearn", runs / "three", "--forget-class", 5, *quick, "--out", runs / "both"],
        ["train", "--like", runs / "base", "--without-class", 3, "--out", runs / "without3"],
    ):
        ran(*argv, "--quiet")
    return runs


def test_what_was_forgotten_before_is_not_taught_again(twice: Path) -> None:
    one, two = (read(twice / name / "run.json") for name in ("three", "both"))
    assert two["request"] == {"forget_classes": [5]}
    assert two["gone"] == {"forget_classes": [3]}
    of_5 = two["forget_samples"]
    assert two["retain_samples"] == one["retain_samples"] - of_5  # class 3 is not among them
    report = command("audit", twice / "both", "--metrics", "fa_train", "--json").json
    assert report["info"]["forget_classes"] == [3, 5]
    only = command("audit", twice / "both", "--forget-class", 5, "--metrics", "fa_train", "--json").json
    assert only["info"]["forget_samples"] == of_5
    assert only["info"]["retain_samples"] == report["info"]["retain_samples"]


def test_a_reference_of_another_request_is_refused(twice: Path) -> None:
    quick = ["--metrics", "fa_train"]
    ran("audit", twice / "three", "--retrained", twice / "without3", *quick)
    said = refused("audit", twice / "both", "--retrained", twice / "without3", *quick)
    assert "trained without class 3, class 5" in said
    assert "got one without class 3" in said
    assert "--without-class 3 --without-class 5" in said
    said = refused("audit", twice / "three", "--retrained", twice / "base", *quick)
    assert "got one trained on all of the data" in said


def test_a_reference_for_images_of_another_size_is_refused(twice: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    argv = ["train", "--like", twice / "without3", "--size", 16, "--set", "epochs=1", "--out", large]
    ran(*argv)
    assert read(large / "run.json")["request"] == {"forget_classes": [3]}  # as the one it is like
    assert "size 16" in refused("audit", twice / "three", "--retrained", large)


# -- trainings that deletions need ------------------------------------------------------------------


def test_shards_are_trained_cut_and_audited_from_the_shell(tmp_path: Path) -> None:
    base, gone, again, reference = (tmp_path / n for n in ("base", "gone", "again", "reference"))
    (tmp_path / "ids").write_text("5\n6\n")
    few = ["--set", "epochs=2", "--set", "batch_size=64"]
    for argv in (
        ["train", "--data", "digits", "--model", "small-resnet", "--shards", 3, "--slices", 2,
         "--vote", "majority", *few, "--out", base],
        ["unlearn", base, "--forget-class", 3, "--method", "sisa", "--out", gone],
        ["unlearn", gone, "--forget-ids", tmp_path / "ids", "--method", "sisa", "--set", "vote=mean",
         "--out", again],
        ["train", "--like", base, "--seed", 0, "--without-class", 3, "--out", reference],
    ):  # fmt: skip
        ran(*argv, "--quiet")
    assert read(gone / "run.json")["digest"] == read(reference / "run.json")["digest"]  # exact deletion
    assert 1 <= len(read(again / "run.json")["retrained"]) <= 2  # two samples are in two shards at most
    votes = {
        folder.name: read(folder / "sisa.json")["plan"]["vote"] for folder in (base, gone, again, reference)
    }
    assert votes == {"base": "majority", "gone": "majority", "again": "mean", "reference": "majority"}
    assert "the audited model's own weights as retrained" in refused(
        "audit", gone, "--retrained", reference, "--metrics", "fa_train,ra", "--json"
    )
    other = tmp_path / "other"
    ran("train", "--like", base, "--seed", 1, "--without-class", 3, "--out", other, "--quiet")
    report = command("audit", gone, "--retrained", other, "--metrics", "fa_train,ra", "--json").json
    assert report["values"]["ra"]["value"] is not None


def test_updates_are_logged_and_taken_back_from_the_shell(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("5\n")
    base, out, log = tmp_path / "base", tmp_path / "out", tmp_path / "log"
    argv = ["train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=2", "--log-updates", log,
            "--log-only-ids", tmp_path / "ids", "--out", base]  # fmt: skip
    ran(*argv, "--quiet")
    forget = ("--forget-ids", tmp_path / "ids", *ANY_TARGET)
    ran("unlearn", base, *forget, "--method", "amnesiac", "--out", out)
    for method in ("amnesiac", "sisa"):  # the log has only the steps of that one sample
        refused("unlearn", base, "--forget-class", 3, "--method", method, "--out", tmp_path / "no")
