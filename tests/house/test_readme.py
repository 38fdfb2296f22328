"""The README is short, and all tables are those of the JSON files. What it says runs: test_docs.py."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

import pytest

import purge
from purge.metrics.registry import METRICS
from tests.benchmark import forget, script

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"


def test_it_is_short_and_its_recipes_are_too():
    shown = re.sub(r"<!--.*?-->\n", "", README, flags=re.S)
    rows = re.findall(r"^\|", shown, re.M)  # of tables, which a script writes
    assert len(shown.splitlines()) - len(rows) <= 118
    assert len(rows) <= 18
    recipes = re.findall(r"```python\n(.*?)```", shown.partition("## Recipes")[2], re.S)
    assert len(recipes) == 4
    assert all(len(recipe.splitlines()) <= 8 for recipe in recipes)


def test_its_links_and_pictures_are_there():
    found = re.findall(r"\]\(([^)#]+)", README)
    assert "docs/start.md" in found
    assert [link for link in found if "://" not in link and not (ROOT / link).is_file()] == []


def test_ci_runs_the_test_command_of_the_readme():
    assert "uv run pytest" in README.splitlines()
    assert "scripts/check" in (ROOT / ".ci" / "run").read_text()
    assert "uv run pytest" in (ROOT / "scripts" / "check").read_text()
    assert "mkdocs build --strict" in (ROOT / "scripts" / "check").read_text()


def caption_of(benchmark, page):
    """What stands under a table."""
    found = re.search(
        rf"benchmarks/{benchmark}\.py -->.*?<!-- end of table -->\n\n(.*?)(?:\n\n|\Z)", page, re.S
    )
    return found.group(1)


def test_every_table_is_that_of_its_file(monkeypatch):
    """README, docs and the list of results."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, tables = set(sys.modules), script(ROOT / "scripts" / "tables.py")
    for page in tables.PAGES:
        assert tables.filled(page.read_text()) == page.read_text(), page
    forget(ROOT / "benchmarks", before)
    assert sum(page.read_text().count("<!-- table:") for page in tables.PAGES) >= 12


def test_the_caption_tells_where_the_digits_are_from():
    content = json.loads((ROOT / "results" / "digits.json").read_text())
    caption = caption_of("digits", (DOCS / "start.md").read_text())
    assert content["commit"] in caption
    assert len(content["seeds"]) >= 3
    assert str(len(content["seeds"])) in caption


def test_the_base_models_are_those_of_the_json():
    content = json.loads((ROOT / "results" / "base_models.json").read_text())
    caption = caption_of("base_models", (DOCS / "guides" / "images.md").read_text())
    assert content["commit"] in caption
    speed = json.loads((ROOT / "results" / "training_speed.json").read_text())
    for key in ("images_per_second", "images_per_second_dataloader"):
        assert f"{speed[key]:,.0f}" in caption


def test_the_pages_on_concepts_say_what_was_measured():
    content = json.loads((ROOT / "results" / "concepts.json").read_text())

    def mean(model, key):
        return f"{100 * statistics.mean(r[key] for r in content['rows'] if r['model'] == model):.0f} %"

    page = {path.stem: " ".join(path.read_text().split()) for path in (DOCS / "concepts").glob("*.md")}
    steps = content["steps"]["purge"]
    gone = next(s for s, a in zip(steps["step"], steps["check_forget_accuracy"], strict=True) if a == 0)
    assert f"{steps['step'][-1]} steps of `purge`" in page["forgetting"]
    assert f"gone after {gone} steps" in page["forgetting"]
    assert f"retrainings agree on {mean('second retraining', 'agreement')}" in page["retrain-floor"]
    assert f"`purge` agrees on {mean('purge', 'agreement')}" in page["retrain-floor"]
    for model, words in (("original", "AUROC of"), ("unlearned", "it reaches"), ("retrained", "the images,")):
        assert f"{words} {content['losses'][model]['mia_loss']:.2f}" in page["membership"]
    for model, words in (("purge-paper", "100 % to {}. After"), ("gradient-ascent", "ascent: {}, then {}.")):
        sentence = words.format(mean(model, "bn_recal.before"), mean(model, "bn_recal.after"))
        assert sentence in page["recalibration"]
    assert f"it is {mean('purge-paper', 'bn_recal.after')}." in page["recalibration"]
    for model in ("purge-paper", "purge"):
        cosines = [c for c in content["steps"][model]["displacement_cosine"] if c is not None]
        told = f"{sum(c < 0 for c in cosines)} of {len(cosines)} steps"
        assert f"{told} go uphill" in page["guarantee"]
        assert f"{model}: {told}" in (DOCS / "images" / "concept_guarantee.svg").read_text()


def test_every_method_is_among_the_baselines():
    content = json.loads((ROOT / "results" / "baselines_cifar10.json").read_text())
    page = (ROOT / "docs" / "baselines.md").read_text()
    assert content["commit"] in caption_of("baselines", page)
    measured = {row["method"] for row in content["rows"]}
    missing = re.search(r"\*\*Not measured yet\*\*: (.*?)\.\s", page, re.S)
    left = set(re.findall(r"`([a-z0-9-]+)`", missing.group(1))) if missing else set()
    assert measured | left >= set(purge.list_methods())


def test_every_metric_is_explained():
    page = (ROOT / "docs" / "metrics.md").read_text()
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z0-9_]+)`", " ".join(first))) == set(METRICS)


ELSEWHERE = {  # decimals in the text of a page that no table of it has, and where they are from
    "baselines.md": {
        "0.01": "a setting", "0.95": "a setting", "0.9999": "a setting", "37.5": "LoTUS", "0.03": "√(α/F)",
    },
    "results.md": {"0.2": "a version"},
    "paper.md": {},
    "performance.md": {
        "0.6": "an aim", "2.5": "an aim", "1.3": "an aim", "1.16": "memory / memory",
        "1.23": "memory / memory", "1.57": "speed_224_again.json", "1.18": "speed_earlier.json",
        "0.61": "speed_earlier.json",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_numbers_in_the_text_are_those_of_the_tables(name):
    page = (ROOT / "docs" / name).read_text()
    block = re.compile(r"<!-- table:.*?<!-- end of table -->", re.S)
    decimals = re.compile(r"(?<![\w.:/])\d*\.\d+(?![\w.])")
    tables = {float(n) for found in block.findall(page) for n in decimals.findall(found)}
    known = tables | {round(n, 1) for n in tables} | {float(n) for n in ELSEWHERE[name]}
    text = decimals.findall(block.sub("", page))
    assert text
    assert [n for n in text if float(n) not in known] == []


def test_ratios_of_memory_are_those_of_the_json():
    page = (ROOT / "docs" / "performance.md").read_text()
    for entry in json.loads((ROOT / "results" / "speed.json").read_text())["sizes"]:
        ours = next(row for row in entry["rows"] if row["name"] == "purge")["memory"]["allocated"]
        assert f"{ours / entry['training_step']['memory']['allocated']:.2f} times" in page
    earlier = json.loads((ROOT / "results" / "speed_earlier.json").read_text())["sizes"][0]["rows"]
    ours = next(row for row in earlier if row["name"] == "purge")
    assert f"{ours['memory']['allocated'] / 1e9:.2f} to" in page
    assert f"{ours['seconds']:.2f}".lstrip("0") in page
    again = json.loads((ROOT / "results" / "speed_224_again.json").read_text())["sizes"][0]["rows"]
    assert f"{next(row for row in again if row['name'] == 'purge')['seconds']:.2f} s" in page
