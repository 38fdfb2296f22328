"""A metric that lives outside of the package: as an object, as module:NAME, and installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import MetricError
from purge.core.plugins import current_folder_importable
from purge.metrics.registry import METRICS, all_metrics, find_metric, resolve_metrics
from tests.refusals import assert_sentence

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_metric.py"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder that python imports from, with the example in it."""
    shutil.copy(EXAMPLE, tmp_path / "own_metric.py")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_metric", "broken_metric"):
        sys.modules.pop(name, None)


def install(folder: Path, **points: str) -> None:
    """What pip leaves behind of a package with these entry points."""
    info = folder / "audits_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: audits-of-mine\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[purge.metrics]", *lines, ""]))


def given() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3), 3 * torch.randn(90, 4), torch.arange(90) % 3


def audit(*metrics: str | purge.Metric) -> purge.Report:
    model, x, y = given()
    forget, retain = purge.split((x, y), classes=[0])
    return purge.audit(model, forget, retain, (x + 0.01, y), metrics=list(metrics), progress=False)


def by_hand(forgotten: bool) -> float:
    model, x, y = given()
    p = model(x).softmax(1).max(1).values
    return float((p[(y == 0) == forgotten] > 0.9).float().mean())


# -- where it may come from --------------------------------------------------------------------


def test_as_an_object_and_by_module_and_name(folder, capsys):
    import own_metric

    named = audit("ta", "own_metric:SURE")
    assert list(named.values) == ["ta", "sure.forget", "sure.retain"]
    assert named["sure.forget"].value == pytest.approx(by_hand(True))
    assert 0 < named["sure.retain"].value == pytest.approx(by_hand(False))
    assert audit("ta", own_metric.SURE).values == named.values
    assert "sure" not in METRICS
    own_metric.main()
    assert "sure.forget" in capsys.readouterr().out


def test_the_current_folder_is_importable_only_where_a_person_named_a_module(tmp_path, monkeypatch):
    (tmp_path / "metric_right_here.py").write_text(EXAMPLE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    for allowed in (False, True):
        with current_folder_importable(allowed):
            if allowed:
                assert find_metric("metric_right_here:SURE").name == "sure"
            else:
                with pytest.raises(MetricError, match="imported"):
                    find_metric("metric_right_here:SURE")
    assert str(tmp_path) not in sys.path


def test_an_installed_package_brings_its_metrics_under_their_names(folder):
    with pytest.raises(MetricError, match="the name of a metric or panel"):
        find_metric("sure")
    install(folder, sure="own_metric:SURE", ta="own_metric:SURE")
    assert find_metric("ta") is all_metrics()["ta"] is METRICS["ta"]  # it does not replace one of purge
    assert all_metrics().keys() - METRICS.keys() == {"sure"}
    assert purge.list_metrics()["sure"].startswith("share of samples")
    assert audit("sure")["sure.forget"].value == pytest.approx(by_hand(True))
    with pytest.raises(MetricError, match="did you mean 'sure'"):
        find_metric("sur")


def test_a_package_that_does_not_load_is_named_and_hides_no_other(folder, caplog):
    (folder / "broken_metric.py").write_text("import nothing_of_that_name\n")
    install(folder, sure="own_metric:SURE", broken="broken_metric:X")
    with pytest.raises(MetricError, match="audits-of-mine"):
        find_metric("broken")
    assert all_metrics().keys() - METRICS.keys() == {"sure"}
    assert "nothing_of_that_name" in caplog.text


# -- one line about what is wrong --------------------------------------------------------------

VALUE, NONE = purge.Value(0.5), purge.Value.missing("not today")


def made(found: object = VALUE, **fields: object) -> purge.Metric:
    return purge.Metric(**{"name": "own", "symbol": "o", "about": "mine", "fn": lambda s: found, **fields})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_metrik:SURE", "a module 'own_metrik' that can be imported"),
        ("own_metric:SUR", "did you mean 'SURE'"),
        ("own_metric:sure", "a purge.Metric as own_metric:sure, got function"),
        ("other", "a metric named 'other' from its entry point, got 'sure'"),
    ],
)
def test_what_is_no_metric_is_said_in_one_line(folder, name, words):
    install(folder, other="own_metric:SURE")  # an entry point that is not named after its metric
    with pytest.raises(MetricError) as refused:
        resolve_metrics(["ta", name])
    assert_sentence(str(refused.value), words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "my.metric"}, "letters"),
        ({"fn": "no function"}, "a function for own"),
        ({"fn": 3}, "a function for own"),
        ({"parts": "class"}, "did you mean 'classes'"),
        ({"unit": "percent"}, "share"),
        ({"units": {"a": "shares"}}, "did you mean 'share'"),
        ({"section": "robust"}, "did you mean 'robustness'"),
        ({"direction": "up"}, "higher, lower, retrain"),
        ({"cost": "training"}, "did you mean 'train'"),
        ({"needs": {"retrain"}}, "did you mean 'retrained'"),
        # what the function returns must fit what the metric says
        ({"found": 0.5}, "return purge.Value(number)"),
        ({"found": None}, "return purge.Value(number)"),
        ({"found": {"a": 0.5}, "parts": ("a",)}, "return purge.Value(number)"),
        ({"found": {}}, "an empty dict"),
        ({"found": {"a": VALUE}}, "parts=('a',)"),
        ({"found": {"a": VALUE}, "parts": ("a", "b")}, "parts ('a', 'b')"),
        ({"parts": ("a",)}, "parts=()"),
        ({"parts": "classes"}, "parts=()"),
    ],
)
def test_a_metric_that_contradicts_itself_is_refused_in_one_line(fields, words):
    with pytest.raises(MetricError) as refused:
        audit(made(**fields))
    assert_sentence(str(refused.value), words)


def test_one_reason_may_stand_for_all_parts():
    for parts in ((), ("a", "b"), "classes", "layers"):
        assert audit(made(NONE, parts=parts))["own"] == NONE


def test_what_the_metric_did_not_say_it_needs_is_missing_with_a_reason_all_the_same():
    def fn(audited):
        return audited.mean(audited.guesses("forget") == audited.other("original").guesses("forget"))

    report = audit(made(fn=fn))
    assert "no original model was given" in report["own"].why


# -- what it says about itself -----------------------------------------------------------------


def test_a_metric_explains_itself(folder):
    assert "see fa_train" in find_metric("own_metric:SURE").explain()
    assert "closed above" in METRICS["ece"].explain()  # the docstring of its function
    assert "steps until FA is half" in METRICS["relearn_few"].explain()  # of what it is a partial of
    assert METRICS["lira"].explain() == METRICS["lira"].about
    assert made(docs="More about it.").explain() == "More about it."


def test_explaining_and_listing_need_no_torch():
    import subprocess

    code = (
        "import sys; from purge.metrics.registry import all_metrics; "
        "[m.explain() for m in all_metrics().values()]; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
