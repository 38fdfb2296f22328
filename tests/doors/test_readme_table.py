"""README's table is of CIFAR-10, and each number in it is that of the jobs under results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PARTS = {"original": "original", "retrain": "retrained", "floor": "floor"}  # rows of models beside the jobs'
COLUMNS = {  # heading: the metric, and how it is written
    "seconds": ("seconds", ".2f"), "FA": ("fa_test", "%"), "recal after": ("bn_recal.after", "%"),
    "agree": ("agreement", "%"), "KL": ("kl_retrain", ".3f"), "MIA loss": ("mia_loss", ".3f"),
    "probe": ("probe", "%"), "TA_r": ("ta_retain", "%"), "UA": ("ua", "%"),
    "RA": ("ra", "%"), "TA": ("ta", "%"),
    "MIA SVC confidence": ("mia_svc.confidence", "%"), "corr": ("odds_correlation", ".3f"),
}  # fmt: skip
ROWS = {
    "3": ["original", "retrain", "floor", "purge", "purge, close"],
    "10%": ["original", "retrain", "floor", "purge", "purge, close", "l1-sparse"],
}
FOLDER = {"l1-sparse": "samples"}  # the others are in requests


def jobs(folder: str, forget: str) -> list[dict]:
    """The published jobs of a request."""
    files = sorted((ROOT / "results" / folder / "jobs").glob("*.json"))
    found = [json.loads(file.read_text()) for file in files]
    return [job for job in found if job["forget"] == forget and job["data"] == "cifar10"]


def number(job: dict, row: str, metric: str) -> float | None:
    """A number of a job, or of a model that it was compared with."""
    if metric == "seconds":
        names = {"retrain": "retrain_seconds"} | dict.fromkeys(("original", "floor"))
        return job["numbers"].get(names.get(row, "seconds"))
    return job[PARTS.get(row, "values")].get(metric, {}).get("value")


def written(value: float, form: str) -> str:
    return f"{100 * value:.1f} %" if form == "%" else f"{value:{form}}"


def expected(forget: str, row: str, heading: str) -> str:
    """The mean over seeds, once for each seed."""
    metric, form = COLUMNS[heading]
    label = "purge" if row in PARTS else row
    own = [job for job in jobs(FOLDER.get(row, "requests"), forget) if job["label"] == label]
    found = [number(job, row, metric) for job in own]
    assert len(own) == len({job["seed"] for job in own}) == (1 if row in FOLDER else 3)
    return "–" if None in found else written(mean(found), form)


def table(forget: str) -> tuple[list[str], dict[str, list[str]], str]:
    """A table under Results: headings, rows by method, and the line below."""
    results = README.partition("\n## Results\n")[2].partition("\n## ")[0].replace("\u00a0", " ")
    found = []
    for block, note in re.findall(r"((?:^\|.*\n)+)\n(.*)", results, re.M):
        head, _, *body = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        found.append((head, {row[0]: row for row in body}, note))
    assert len(found) == len(ROWS)
    return found[[*ROWS].index(forget)]


@pytest.mark.parametrize("forget", ROWS)
def test_its_numbers_are_the_means_of_the_published_jobs(forget: str) -> None:
    head, rows, _ = table(forget)
    assert set(ROWS[forget]) <= rows.keys()
    assert len(head) <= 9, "a page shows no more side by side"
    for row in ROWS[forget]:
        told = dict(zip(head[1:], rows[row][1:], strict=True))
        assert told == {heading: expected(forget, row, heading) for heading in head[1:]}, row


@pytest.mark.parametrize("forget", ROWS)
def test_it_names_the_commit_and_the_machine(forget: str) -> None:
    _, _, note = table(forget)
    published = jobs("requests", forget)
    assert published
    for job in published:
        assert job["commit"] in note
        assert job["hardware"]["gpu"] in note


def test_no_page_calls_the_present_purge_unmeasured() -> None:
    wrong = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = " ".join(page.read_text().split())
        for sentence in re.split(r"(?<=[.;:])\s|\|", re.sub(r"yet\*\*:", "yet", text)):
            ours = re.search(r"the present `purge`|(the|a) restart\b", sentence, re.I)
            if ours and re.search(r"\bnot( yet)?( been)? (measured|timed)", sentence, re.I):
                wrong.append(f"{page.name}: {sentence}")
    assert wrong == []
