"""The command line on its good paths: the demo, and unlearn, audit and list on what it leaves.

Everything runs on the folders of one ``purge demo --quick``, which is thereby tested itself.
"""

from __future__ import annotations

import errno
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import purge
from purge import demo
from purge.cli import app as cli
from purge.core.settings import flat_fields
from purge.data.catalog import load
from purge.methods.registry import METHODS
from purge.metrics.registry import METRICS, PANELS
from purge.models.checkpoint import digest, load_weights
from purge.models.zoo import MODELS, SmallResNet
from purge.metrics.registry import number

ROWS = ["base", "retrain", "retrain-2", "purge", "purge-paper", "gradient-ascent"]


class Done(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal(io.StringIO):
    """A stream that says it is a terminal, so that progress is shown on it."""

    def isatty(self) -> bool:
        return True


def command(*argv: Any, terminal: bool = False) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), Terminal() if terminal else io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["purge", *map(str, argv)])
        patch.setenv("TERM", "xterm")
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Done(ended.value.code or 0, out.getvalue(), err.getvalue())


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


class Demo(NamedTuple):
    """One run of the demo."""

    folder: Path
    done: Done
    rows: list[demo.Row]
    seconds: float  # of processor time, on one thread: what a machine with nothing else to do takes

    def value(self, name: str, key: str) -> float:
        """A number of an audit.json."""
        return read(self.folder / name / "audit.json")["values"][key]["value"]

    def took(self, name: str) -> float:
        return read(self.folder / name / "run.json")["seconds"]

    @property
    def lines(self) -> list[str]:
        """What was printed: two lines of head, the rows, the sentences, where the folders are."""
        return [line for line in self.done.out.splitlines() if line.strip()]

    @property
    def sentences(self) -> list[str]:
        return self.lines[2 + len(ROWS) : -1]


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, run once; its rows are kept as they come."""
    folder = tmp_path_factory.mktemp("demo") / "runs"
    rows: list[demo.Row] = []
    run_demo = demo.run_demo

    def keep(*args: Any, **more: Any) -> list[demo.Row]:
        rows.extend(run_demo(*args, **more))
        return rows

    started = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_demo", keep)
        done = command("demo", "--quick", "--out", folder)
    return Demo(folder, done, rows, time.process_time() - started)


@pytest.fixture
def run(shown: Demo, tmp_path: Path) -> Path:
    """A copy of the unlearned run, to be audited."""
    return Path(shutil.copytree(shown.folder / "purge", tmp_path / "run"))


# -- demo ---------------------------------------------------------------------------------------


def test_the_demo_ends_well(shown: Demo) -> None:
    assert shown.done.code == 0
    assert "Data: digits" in shown.done.err
    assert "Data: digits" not in shown.done.out
    assert shown.lines[-1].startswith(f"Run folders (weights, history, audits) in {shown.folder};")


def test_the_quick_demo_takes_less_than_half_a_minute(shown: Demo) -> None:
    assert shown.seconds < 30


@pytest.mark.slow
def test_the_whole_demo_takes_less_than_a_minute_and_a_half(tmp_path: Path) -> None:
    started = time.process_time()
    done = command("demo", "--out", tmp_path / "runs")
    assert done.code == 0
    assert time.process_time() - started < 90
    panel = {name.split(".")[0] for name in read(tmp_path / "runs" / "purge" / "audit.json")["values"]}
    assert panel == set(PANELS["standard"])


def test_the_demo_leaves_a_folder_per_row(shown: Demo) -> None:
    assert sorted(p.name for p in shown.folder.iterdir()) == sorted(ROWS)
    for name in ROWS:
        files = {p.name for p in (shown.folder / name).iterdir()}
        assert files == {"model.safetensors", "history.parquet", "run.json", "audit.json"}


def test_the_demo_forgets(shown: Demo) -> None:
    assert shown.value("base", "ta") >= 0.9
    assert shown.value("base", "fa_test") >= 0.9
    assert shown.value("retrain", "fa_test") == 0
    assert shown.value("purge", "fa_test") <= 0.02
    assert shown.value("purge", "bn_recal.after") <= 0.02
    assert shown.value("purge", "ta_retain") >= shown.value("retrain", "ta_retain") - 0.03


def test_the_table_shows_the_audits(shown: Demo) -> None:
    head, _, *lines = shown.lines
    assert head.split() == " ".join(["method", "seconds", *(title for title, _ in demo.COLUMNS)]).split()
    for name, line in zip(ROWS, lines, strict=False):
        numbers = [number(key, shown.value(name, key)) for _, key in demo.COLUMNS]
        assert line.split() == " ".join([name, f"{shown.took(name):.1f}", *numbers]).split()


def test_the_three_sentences_agree_with_the_audits(shown: Demo) -> None:
    def percent(name: str, key: str) -> str:
        return f"{100 * shown.value(name, key):.1f}"

    def points(name: str) -> tuple[str, str]:
        kept = 100 * (shown.value(name, "ta_retain") - shown.value("retrain", "ta_retain"))
        return f"{abs(kept):.1f}", "above" if kept >= 0 else "below"

    first, second, third = shown.sentences
    (kept, side), (lost, other) = points("purge"), points("gradient-ascent")
    assert re.findall(r"\d+\.\d", first) == [
        percent("base", "fa_test"), percent("purge", "fa_test"), percent("retrain", "fa_test"), kept,
        f"{shown.took('purge'):.1f}", f"{shown.took('retrain'):.1f}",
    ]  # fmt: skip
    assert f"{kept} points {side} the retrained model" in first
    both = ("purge", "purge-paper")
    assert re.findall(r"\d+\.\d", second) == [
        percent(name, key) for name in both for key in ("bn_recal.before", "bn_recal.after")
    ]
    survivors = [name for name in both if shown.value(name, "bn_recal.delta") <= 0.02]
    assert second.endswith(f"survives it with {' and '.join(survivors) or 'neither'}.")
    assert re.findall(r"\d+\.\d", third) == [
        percent("gradient-ascent", "fa_test"), lost, percent("gradient-ascent", "bn_recal.after"),
    ]  # fmt: skip
    assert f"{lost} points {other} the retrained model" in third


def test_the_demo_as_json(shown: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the demo above, printed for machines."""
    monkeypatch.setattr(demo, "run_demo", lambda *args, **more: shown.rows)
    done = command("demo", "--quick", "--json", "--out", tmp_path / "again")
    assert done.code == 0
    assert [row["method"] for row in done.json["rows"]] == ROWS
    for row in done.json["rows"]:
        assert row["seconds"] == shown.took(row["method"])
        assert Path(row["folder"]) == shown.folder / row["method"]
        for _, key in demo.COLUMNS:
            assert row[key] == shown.value(row["method"], key)
    assert done.json["sentences"] == shown.sentences
    assert done.json["folder"] == str(tmp_path / "again")


def test_a_second_demo_takes_a_new_folder(tmp_path: Path) -> None:
    base = tmp_path / "runs" / "demo"
    assert demo.free_folder(base) == base
    base.mkdir(parents=True)
    assert demo.free_folder(base) == base  # empty: still free
    for taken, free in ((base, "demo-2"), (base.with_name("demo-2"), "demo-3")):
        taken.mkdir(exist_ok=True)
        (taken / "run.json").write_text("{}")
        assert demo.free_folder(base) == base.with_name(free)


# -- the README -----------------------------------------------------------------------------------

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[2]
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.strip().splitlines()
]


def test_every_command_of_the_readme_works(
    shown: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page, in one folder; the demo is the quick one above (whole: a slow test), pytest
    what is running now."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")  # they are in a clone
    assert len(COMMANDS) >= 8
    for line in COMMANDS:
        assert line.startswith("uv run "), line
        words = shlex.split(line)[2:]
        if words == ["pytest"]:
            continue
        assert words[0] == "purge", line
        if words == ["purge", "demo"]:
            shutil.copytree(shown.folder, tmp_path / "runs" / "demo")
            continue
        done = command(*words[1:])
        assert done.code == 0, (line, done.err)
        assert done.out.strip(), line
        if "--json" in words:
            assert done.json
    for run in ("demo/purge", "demo/retrain-2", "base", "retrained", "without3", "paper3"):
        assert (tmp_path / "runs" / run / "run.json").exists()
    assert (tmp_path / "runs" / "without3" / "report.html").exists()


# -- unlearn ------------------------------------------------------------------------------------


def test_unlearn_a_class(shown: Demo, tmp_path: Path) -> None:
    base, out = shown.folder / "base", tmp_path / "new" / "run"
    before = digest(_stored(base))
    done = command(
        "unlearn", base, "--forget-class", 3, "--out", out, "--json", "--seed", 7,
        "--set", "lr=0.01", "--set", "forget_target=0.2", "--set", "batch_size=64",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    facts = read(out / "run.json")
    assert facts["request"] == {"forget_classes": [3]}
    assert facts["original"] == str(base.absolute())
    assert facts["settings"]["lr"] == 0.01
    assert facts["settings"]["stop"]["forget_target"] == 0.2
    assert (facts["model"], facts["data"], facts["seed"]) == ("small-resnet", "digits", 7)
    assert facts["digest"] == digest(_stored(out)) != before
    assert digest(_stored(base)) == before

    assert done.json["folder"] == str(out)
    assert {key: done.json[key] for key in ("steps", "seconds", "stopped_by")} == {
        key: facts[key] for key in ("steps", "seconds", "stopped_by")
    }
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
    few = ("--set", "max_steps=5", "--set", "min_steps=1", "--set", "batch_size=16")
    done = command("unlearn", shown.folder / "base", "--forget-ids", ids, "--out", out, *few)
    assert done.code == 0
    facts = read(out / "run.json")
    assert facts["request"] == {"forget_ids": [3, 5, 900]}
    assert (facts["forget_samples"], facts["retain_samples"]) == (3, len(load("digits")[0]) - 3)
    assert done.out.startswith("purge: 3 samples to forget, ")
    assert f"Written to {out}." in done.out

    audited = command("audit", out, "--metrics", "ra", "--json")  # the request is read from the run
    assert audited.json["info"]["forget_samples"] == 3


def test_unlearn_twice_in_a_row_with_force(shown: Demo, tmp_path: Path) -> None:
    argv = ["unlearn", shown.folder / "base", "--out", tmp_path, "--method", "gradient-ascent", "--quiet"]
    assert command(*argv, "--forget-class", 1, "--forget-class", 2).code == 0
    assert read(tmp_path / "run.json")["request"] == {"forget_classes": [1, 2]}
    assert command(*argv, "--forget-class", 4).code == 2
    assert read(tmp_path / "run.json")["request"] == {"forget_classes": [1, 2]}
    assert command(*argv, "--forget-class", 4, "--force").code == 0
    assert read(tmp_path / "run.json")["request"] == {"forget_classes": [4]}


def test_progress_goes_to_stderr_and_quiet_means_quiet(shown: Demo, tmp_path: Path) -> None:
    argv = ["unlearn", shown.folder / "base", "--forget-class", 1, "--method", "gradient-ascent", "--json"]
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
    done = command("audit", run, "--retrained", shown.folder / "retrain", "--metrics", "quick")
    assert done.code == 0
    written = read(run / "audit.json")
    assert {key.split(".")[0] for key in written["values"]} == set(PANELS["quick"])
    title, head, *rows = [line.split() for line in done.out.splitlines() if line.strip(" ─")]
    assert " ".join(title) == "Forgotten: 142 samples, class 0"
    assert head == ["metric", "value", "95", "%", "interval", "retrained", "original", "note"]
    shown_keys = [k for k, v in written["values"].items() if v["value"] or not k.startswith("destinations.")]
    assert [words[0] for words in rows if words[0] in written["values"]] == shown_keys
    for words in rows:
        if words[0] in written["values"]:
            assert " ".join(words[1:]).startswith(number(words[0], written["values"][words[0]]["value"]))


def test_audit_of_chosen_metrics(shown: Demo, run: Path) -> None:
    done = command("audit", run, "--metrics", "fa_test, ra", "--json")
    assert list(done.json["values"]) == ["fa_test", "ra"]
    assert done.json["retrained"] == {}
    assert done.json["values"]["ra"]["value"] == shown.value("purge", "ra")
    assert done.json["original"]["fa_test"]["value"] == shown.value("base", "fa_test")


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
        (["fa_tset>1"], 2, "did you mean 'fa_test'"),
        (["mia>0.9"], 2, "Expected mia to be measured"),
        (["ra<50", "ra.steps<50"], 2, "Expected a number of ra in --fail-if"),
        (["ra<50", "ra>inf"], 2, "Expected a limit such as"),
    ],
)
def test_an_audit_fails_if_a_limit_is_broken(run: Path, limits: list[str], code: int, said: str) -> None:
    options = [word for limit in limits for word in ("--fail-if", limit)]
    done = command("audit", run, "--metrics", "fa_test,ra,kl_retrain", *options)
    assert done.code == code
    assert said in done.err
    assert ("fa_test" in done.out) == (code != 2)  # a bad request is noticed before anything is done


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
    assert command("train", *quick, "--out", base, "--quiet").code == 0
    (tmp_path / "ids.txt").write_text("\n".join(map(str, range(200))))
    asked = ("--forget-ids", tmp_path / "ids.txt", "--set", "max_steps=4", "--set", "min_steps=4")
    assert command("unlearn", base, *asked, "--out", out, "--quiet").code == 0
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
    done = command("audit", run, "--original", run, "--metrics", "full")
    assert (done.code, done.out) == (2, "")
    assert "made by purge train" in done.err


# -- list, help, version --------------------------------------------------------------------------

SHELVES: dict[str, Callable[[], dict[str, str]]] = {
    "methods": purge.list_methods,
    "metrics": purge.list_metrics,
    "datasets": purge.list_datasets,
    "models": purge.list_models,
}


@pytest.mark.parametrize("shelf", SHELVES)
def test_list_names_all_that_there_is(shelf: str) -> None:
    there = SHELVES[shelf]()
    done, machine = command("list", shelf), command("list", shelf, "--json")
    assert (done.code, done.err, machine.code, machine.err) == (0, "", 0, "")
    assert {row[shelf[:-1]]: row["about"] for row in machine.json} == there
    assert there.keys() <= {line.split()[0] for line in done.out.splitlines() if line.split()}


def test_the_shelves_are_not_empty() -> None:
    assert {"purge", "purge-paper", "gradient-ascent"} <= purge.list_methods().keys()
    assert {"ta", "fa_test", "ra", "mia", "bn_recal"} <= METRICS.keys()
    assert "small-resnet" in MODELS


@pytest.mark.parametrize("name", purge.list_methods())
def test_list_names_every_setting_of_a_method(name: str) -> None:
    settings = {f.name: value for f, value in flat_fields(METHODS[name].method)}
    done, machine = command("list", "methods", name), command("list", "methods", name, "--json")
    assert {row["setting"]: row["value"] for row in machine.json} == {k: str(v) for k, v in settings.items()}
    assert all(row["meaning"] for row in machine.json)
    assert settings.keys() <= {line.split()[0] for line in done.out.splitlines() if line.split()}


OPTIONS = {
    "demo": "--out --quick --seed --force --json --quiet",
    "train": (
        "--out --data --model --like --data-dir --size --split-seed --skip-bad --without-class --without-ids "
        "--pretrained --set --seed --device --shards --slices --log-updates --log-only-ids --resume --force "
        "--json --quiet"
    ),
    "unlearn": (
        "checkpoint --out --data --data-dir --size --split-seed --skip-bad --model "
        "--forget-class --forget-ids --method --set --seed --device --precision --graph "
        "--force --json --quiet"
    ),
    "audit": (
        "run --data --data-dir --size --split-seed --skip-bad --model "
        "--retrained --original --metrics --shadows --fail-if --forget-class --forget-ids --seed --device "
        "--json --quiet"
    ),
    "report": "run --out --figures --force --json",
    "list": "shelf name --json",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_mentions_every_option(name: str) -> None:
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    mentioned = re.findall(r"^  (--[a-z-]+|[a-z]+(?=(?:\.\.\.)? <))", done.out, re.M)
    assert sorted(mentioned) == sorted([*OPTIONS[name].split(), "--help"])


def test_help_lists_the_commands() -> None:
    done = command("--help")
    assert done.code == 0
    assert {"demo", "train", "unlearn", "audit", "report", "list"} <= set(
        re.findall(r"^  ([a-z]+)  ", done.out, re.M)
    )


def test_purge_alone_shows_its_help() -> None:
    done = command()
    assert not done.err.startswith("Error")
    assert "\n  demo " in done.out + done.err


class Failing(io.StringIO):
    """A stdout that nothing can be written to."""

    def __init__(self, error: OSError, *, late: bool) -> None:
        super().__init__()
        self.error, self.late = error, late

    def write(self, text: str) -> int:
        if not self.late:
            raise self.error
        return len(text)

    def flush(self) -> None:
        if self.late:
            raise self.error


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "got [Errno 28] No space left on device. Fix"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_a_stdout_that_fails(
    error: OSError, code: int, said: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["purge", "list", "methods"])
    monkeypatch.setattr(sys, "stdout", Failing(error, late=late))
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert len(err.getvalue().splitlines()) == bool(said)
    assert said in err.getvalue()


def test_letters_that_the_terminal_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["purge", "list", "methods"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert "gradient-ascent" in raw.getvalue().decode("cp1252")


def test_version() -> None:
    assert command("--version") == Done(0, f"purge {purge.__version__}\n", "")


def test_as_a_module() -> None:
    argv = [sys.executable, "-m", "purge", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"purge {purge.__version__}\n", "")
