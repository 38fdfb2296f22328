"""purge report writes a self-contained page that people can read anywhere.

The runs are real and tiny; a real browser opens the pages if there is one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import purge
from purge.report import figures as plots
from purge.report import page as html
from purge.report.glossary import MEANINGS, PATTERNS, glosses
from purge.report.sentences import Sentence, headline_of, quotable, sentence_of
from purge.verdict.judge import verdict_of
from tests.cli.commands import command, read
from tests.report.test_figures import full_report

TINY = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--set", "augment=none")
FEW = ("--set", "steps=4", "--set", "batch_size=16", "--quiet")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]  # fmt: skip
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MOST = 3_000_000  # bytes of a page
TITLES = [plot.title for plot in plots.PLOTS.values()]
EVIL = "<img src=x onerror=\"document.title='ha'+'cked'\">"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, its retraining, and two audited runs that forgot the 3."""
    at = tmp_path_factory.mktemp("runs")
    assert command("train", *TINY, "--quiet", "--out", at / "base").code == 0
    gone = ("--without-class", 3, "--out", at / "retrained")
    assert command("train", "--like", at / "base", *gone, "--quiet").code == 0
    for name in ("purge", "gradient-ascent"):
        argv = ("unlearn", at / "base", "--forget-class", 3, "--method", name, "--out", at / name)
        few = FEW if name == "purge" else ("--set", "epochs=1", "--quiet")
        assert command(*argv, *few).code in (0, 1)  # so short a run may miss its target
        panel = ("--metrics", "quick", "--quiet")
        assert command("audit", at / name, "--retrained", at / "retrained", *panel).code == 0
    return at


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    """The report of one run, at its usual place."""
    done = command("report", runs / "purge")
    assert (done.code, done.err) == (0, "")
    assert str(runs / "purge" / "report.html") in done.out
    return runs / "purge" / "report.html"


@pytest.fixture(scope="module")
def compared(runs: Path) -> Path:
    out = runs / "compared.html"
    assert command("report", runs / "purge", runs / "gradient-ascent", "--out", out).code == 0
    return out


@pytest.fixture(scope="module")
def full(runs: Path) -> Path:
    """A page with every figure, and with malicious names."""
    report = full_report()
    report["info"]["names"] = [EVIL, "</script><script>document.title='ha'+'cked'</script>", "owl", "$fox_{"]
    record = {"Source weights": f"/tmp/{EVIL}", "Settings": {"lr": EVIL}}
    report["metrics"]["mia"]["about"] = EVIL
    text = html.page({EVIL: report}, records={EVIL: record}, written="today")
    (runs / "full.html").write_text(text, encoding="utf-8")
    return runs / "full.html"


# -- the command --------------------------------------------------------------------------------


def test_a_page_is_small_and_self_contained_and_text_of_others_stays_text(
    page: Path, compared: Path, full: Path, runs: Path
) -> None:
    for file in (page, compared, full):
        text = file.read_text(encoding="utf-8")
        assert len(text.encode()) < MOST
        assert not re.search(r"https?://|//cdn|@import|<link|<iframe", text)
        assert "default-src 'none'" in text
        elements = Elements(text).found
        assert [tag for tag, _ in elements].count("script") == 1
        assert not [tag for tag, attrs in elements if tag == "img" or any(a.startswith("on") for a in attrs)]
        if file != full:  # the paths of this machine are nobody's business
            assert str(runs) not in text
            assert not re.findall(r"(?<![\w.<])/(?:home|tmp|root|Users|var|work)\b[^<]*", text)


def test_the_page_has_every_number_with_its_interval_and_the_others_beside(page: Path, runs: Path) -> None:
    text, audit = page.read_text(encoding="utf-8"), read(runs / "purge" / "audit.json")
    (row,) = re.findall(r"<code>ra</code>.*?</tr>", text, re.S)[:1]
    cells = [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.S)]
    v = audit["values"]["ra"]
    shown = [f"{100 * x:.1f} %" for x in (v["value"], v["low"], v["high"])]
    beside = [f"{100 * audit[part]['ra']['value']:.1f} %" for part in ("retrained", "original")]
    assert cells == [shown[0], f"{shown[1]} … {shown[2]}", *beside, f"{v['n']:,}"]
    for name in audit["values"]:
        if not name.startswith("destinations."):
            assert f"<code>{name}</code>" in text, name
    words = seen(page)
    for name, about in purge.list_metrics().items():
        assert about in words or name not in {key.split(".")[0] for key in audit["values"]}, name


def test_the_page_says_what_was_asked_done_and_found(page: Path, runs: Path) -> None:
    text = seen(page)
    assert "All samples of class 3: " in text
    assert "The method “purge” changed the model's weights in 4 steps" in text
    assert "The original model and a model retrained without the data." in text
    audit = read(runs / "purge" / "audit.json")
    for finding in sentences(audit):
        assert finding.title in text
        assert " ".join(finding.text.split()) in text
    assert "“Relearning” is left out: it needs relearning curves. Fix: audit with metrics='standard'." in text
    assert [title for title in TITLES if f"<h3>{title}</h3>" in page.read_text(encoding="utf-8")] == [
        title for title in TITLES if title not in ("Robustness", "Relearning")
    ]
    told = audit["info"]["models"]
    assert set(told) == {"audited", "retrained", "original"}
    for model, words in told.items():
        column = "this model" if model == "audited" else model
        assert f"Column “{column}”{words}" in text


def sentences(report: dict[str, Any]) -> list[Sentence]:
    return [sentence_of(finding, report) for finding in verdict_of(report).findings]


def seen(page: Path) -> str:
    """The words of a page, as one line."""

    class Words(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_data(self, data: str) -> None:
            self.found.append(data)

    reader = Words()
    reader.found = []
    reader.feed(page.read_text(encoding="utf-8"))
    return " ".join("".join(reader.found).split())


def test_the_deletion_record_can_be_checked_by_anyone(page: Path, runs: Path) -> None:
    text, facts = page.read_text(encoding="utf-8"), read(runs / "purge" / "run.json")
    request = hashlib.sha256(b'{"forget_classes":[3]}').hexdigest()
    settings = json.dumps(facts["settings"], sort_keys=True, separators=(",", ":")).encode()
    train, _ = purge.load("digits")
    numbers = b"".join(i.to_bytes(8, "little") for i in sorted(train.ids[train.labels == 3].tolist()))
    digests = {
        "Digest of the request": request,
        "Digest of forgotten numbers": hashlib.sha256(numbers).hexdigest(),
        "Digest of source weights": read(runs / "base" / "run.json")["digest"],
        "Digest of result weights": facts["digest"],
        "Digest of the settings": hashlib.sha256(settings).hexdigest(),
        "Digest of audit.json": hashlib.sha256((runs / "purge" / "audit.json").read_bytes()).hexdigest(),
    }
    for label, digest in digests.items():
        assert f"<dt>{label}</dt><dd><code>{digest}</code></dd>" in text
    assert "<dt>Source weights</dt><dd>../base</dd>" in text
    assert "<dt>Result weights</dt><dd>model.safetensors</dd>" in text
    for label, when in (
        ("Run finished", facts["finished"]),
        ("Audited", read(runs / "purge" / "audit.json")["info"]["finished"]),
    ):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", when)
        assert f"<dt>{label}</dt><dd>{when[:10]} {when[11:19]} UTC</dd>" in text
    assert f"torch&#34;: &#34;{facts['versions']['torch']}" in text


def test_several_runs_are_compared_side_by_side(compared: Path, runs: Path) -> None:
    text = compared.read_text(encoding="utf-8")
    head = re.search(r"<thead>.*?</thead>", text, re.S)
    assert head is not None
    assert re.findall(r'<th scope="col">(.*?)</th>', head[0]) == [
        "metric",
        "purge",
        "gradient-ascent",
        "retrained",
    ]
    (row,) = re.findall(r"<code>ra</code>.*?</tr>", text, re.S)[:1]
    values = [
        read(runs / name / "audit.json")["values"]["ra"]["value"] for name in ("purge", "gradient-ascent")
    ]
    assert re.findall(r'<td class="own">(.*?)<small>', row) == [f"{100 * v:.1f} %" for v in values]
    assert (
        text.count("<h4>purge</h4>") == text.count("<h4>gradient-ascent</h4>") + 1
    )  # it has no steps to show


@pytest.mark.slow
def test_figures_are_written_too(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    done = command("report", runs / "purge", "--out", tmp_path / "a.html", "--figures", folder, "--json")
    assert done.code == 0
    assert done.json["file"] == str(tmp_path / "a.html")
    assert done.json["bytes"] == (tmp_path / "a.html").stat().st_size
    names = {p.name for p in folder.iterdir()}
    assert {Path(p).name for p in done.json["figures"]} == names
    assert {"trajectory.png", "trajectory.svg", "roc.svg", "classes.png"} <= names
    assert not {"relearn.png", "robustness.svg"} & names  # the quick panel does not train
    again = command("report", runs / "purge", "--out", tmp_path / "b.html", "--figures", folder)
    assert (again.code, (tmp_path / "b.html").exists()) == (2, False)
    assert "empty folder" in again.err


def test_the_default_page_is_replaced_but_another_file_is_not(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "PLOTS", {})  # figures take time, and this is about files
    run = Path(shutil.copytree(runs / "purge", tmp_path / "run"))
    (run / "report.html").write_text("old")
    assert command("report", run).code == 0
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    out = tmp_path / "mine.html"
    out.write_text("mine")
    done = command("report", run, "--out", out)
    assert (done.code, out.read_text()) == (2, "mine")
    assert "Fix: choose another, or overwrite with --force." in done.err
    assert command("report", run, "--out", out, "--force").code == 0
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_bad_requests_get_one_line(runs: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(runs / "purge", tmp_path / "broken"))
    (broken / "history.parquet").write_text("not parquet")
    other = Path(shutil.copytree(runs / "purge", tmp_path / "other"))
    (other / "audit.json").write_text("{}")
    alone = Path(shutil.copytree(runs / "purge", tmp_path / "alone"))
    (alone / "run.json").unlink()
    requests = {
        f"Fix: purge audit {runs / 'base'} first.": [runs / "base"],
        f"--out {tmp_path / 'no'}": [tmp_path / "no"],  # the command that makes one
        "Fix: add --out FILE.html.": [runs / "purge", runs / "gradient-ascent"],
        "Fix: make it first.": [runs / "purge", "--out", tmp_path / "no" / "a.html"],
        "Fix: name a file.": [runs / "purge", "--out", tmp_path],
        "a history in": [broken, "--out", tmp_path / "a.html"],
        f"Expected values in {other}": [other, "--out", tmp_path / "a.html"],
        "run.json": [alone, "--out", tmp_path / "a.html"],
    }
    for words, argv in requests.items():
        done = command("report", *argv)
        assert (done.code, done.out) == (2, ""), argv
        assert len(done.err.splitlines()) == 1
        assert done.err.startswith("Error: Expected ")
        assert words in done.err
    assert {p.name for p in tmp_path.iterdir()} == {"broken", "other", "alone"}


def test_runs_with_the_same_name_are_told_apart_by_the_folders_above(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "PLOTS", {})
    twin = Path(shutil.copytree(runs / "purge", tmp_path / "purge"))
    out = tmp_path / "a.html"
    assert command("report", runs / "purge", twin, "--out", out).code == 0
    text = out.read_text(encoding="utf-8")
    for folder in (runs, tmp_path):
        assert f'<th scope="col">{folder.name}/purge</th>' in text
        assert str(folder) not in text


def test_numbers_come_by_section_and_then_as_the_report_lists_its_metrics() -> None:
    report = full_report()
    report["values"] = dict(reversed(report["values"].items()))  # not the order of measuring
    own = {"symbol": "own", "about": "mine", "unit": "share", "units": {"steps": "steps"}, "section": "new"}
    report["metrics"] = {"own": own, **report["metrics"]}
    report["values"] |= {f"own.{part}": report["values"]["ra"] for part in ("steps", "share")}
    text = html.page({"run": report})
    names = re.findall(r"<code>([\w.]+)</code>", text[text.index("All numbers") :])
    assert [n for n in names if n in ("fa_train", "fa_test", "ta_retain", "ra", "mia_loss", "mia", "lira",
                                      "bn_recal", "quantise", "retrain_gap", "own")] == [
        "fa_train", "fa_test", "ta_retain", "ra", "mia_loss", "mia", "lira", "bn_recal", "quantise",
        "retrain_gap", "own",
    ]  # fmt: skip
    cells = {n: re.search(rf'<code>{n}</code>.*?<td class="own">(.*?)</td>', text, re.S) for n in names}
    assert {n: found[1] for n, found in cells.items() if found and n.startswith("own.")} == {
        "own.steps": "1.0",
        "own.share": "99.0 %",
    }
    assert "aim: 0.000" in text  # of retrain_gap
    assert "What else was measured?" in text
    report["parts"] = {"classes": full_report(), "samples": samples_report()}
    report["parts"]["samples"]["values"]["ra"] = {"value": 0.123, "low": 0.1, "high": 0.2, "n": 9, "why": ""}
    before, _, samples = html.page({"run": report}).partition("<h3>The single samples alone</h3>")
    assert "<h3>The classes alone</h3>" in before
    assert ("12.3 %" in samples, "12.3 %" in before) == (True, False)


# -- words of others ----------------------------------------------------------------------------


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


class Outline(HTMLParser):
    """A page as a reader finds it: what stands under each id, in words, with the tags around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside: list[tuple[str, dict[str, str | None]]] = []
        self.at = ""  # the last heading with an id
        self.words: dict[str, list[str]] = {"": []}
        self.rows: dict[str, list[str]] = {}  # the class of each finding, under its heading
        self.hidden: set[str] = set()  # headings within <details>
        self.kinds: dict[str, list[str]] = {}  # words by the tag or class that they stand in
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "br", "path", "use", "rect", "image"):
            return
        found = dict(attrs)
        self.inside.append((tag, found))
        if re.fullmatch("h[1-6]", tag) and found.get("id"):
            self.at = str(found["id"])
            self.words[self.at] = []
            if "details" in [name for name, _ in self.inside]:
                self.hidden.add(self.at)
        if tag == "li" and ("ul", {"class": "findings"}) in self.inside:
            self.rows.setdefault(self.at, []).append(str(found["class"]))

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and not {"style", "script"} & {name for name, _ in self.inside}:
            self.words[self.at].append(" ".join(data.split()))
            for tag, attrs in self.inside[-2:]:
                for kind in {tag, *str(attrs.get("class") or "").split()}:
                    self.kinds.setdefault(kind, []).append(" ".join(data.split()))


def class_report() -> dict[str, Any]:
    """A class that was forgotten, and nothing suffered."""
    report = full_report()
    report["values"]["class_accuracy.3"] = report["retrained"]["class_accuracy.3"]
    for part, hits in (("values", 0), ("retrained", 0), ("original", 1)):
        ends = {"low": max(0, hits - 0.01), "high": min(1, hits + 0.01)}
        report[part] |= {
            name: {"value": hits, **ends, "n": 1000, "why": ""} for name in ("fa_test", "fa_train")
        }
    return report


def samples_report() -> dict[str, Any]:
    """37 single samples, about which nothing can be known."""
    report = class_report()
    report["info"] |= {"forget_classes": [], "forget_samples": 37}
    unsure = {"value": 0.9, "low": 0.75, "high": 0.96, "n": 37, "why": ""}
    for part in ("values", "retrained", "original"):
        report[part] |= {"fa_train": unsure, "fa_test": unsure}
    return report


def failing_report() -> dict[str, Any]:
    """The same class, still recognised."""
    report = class_report()
    for name in ("fa_test", "fa_train"):
        report["values"][name] = {"value": 0.9, "low": 0.88, "high": 0.92, "n": 1000, "why": ""}
    return report


REPORTS: dict[str, Callable[[], dict[str, Any]]] = {  # by the level of their headline
    "shown": class_report,
    "unknown": samples_report,
    "failed": failing_report,
    "unknown alone": lambda: {**samples_report(), "retrained": {}, "original": {}, "floor": {}},
}


@pytest.fixture(params=REPORTS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """A report and its page, without the figures."""
    monkeypatch.setattr(html, "PLOTS", {})
    report = REPORTS[request.param]()
    assert verdict_of(report).level == request.param.split()[0]
    return report, html.page({"run": report})


def test_the_page_opens_with_a_sentence_to_quote(made: tuple[dict[str, Any], str]) -> None:
    report, text = made
    found = headline_of(verdict_of(report))
    outline = Outline(text)
    first, quoted, *_ = outline.words["run0-summary"]
    assert (first, quoted) == ("Verdict", quotable(verdict_of(report)))
    assert quoted.startswith(f"{found.title}: ")
    assert quoted.endswith(".")
    assert not re.search(r": It\b", quoted)  # away from the page nobody knows what "it" is
    assert quoted == outline.kinds["headline"][0]


def test_the_counts_are_those_of_the_rows(made: tuple[dict[str, Any], str]) -> None:
    report, text = made
    outline, findings = Outline(text), verdict_of(report).findings
    groups = [at.removeprefix("run0-") for at in outline.words if re.fullmatch("run0-(?!summary).*", at)]
    failed = any(f.level == "failed" for f in findings)
    order = ["shown", "failed", "unknown", "limit"]
    assert groups == (["failed", "shown", "unknown", "limit"] if failed else order)
    rows = {name: outline.rows.get(f"run0-{name}", []) for name in groups}
    assert sum(map(len, rows.values())) == len(findings)
    assert all(set(levels) <= {name} for name, levels in rows.items())
    written = [int(n) for n in outline.kinds["count"]]
    assert written == [len(levels) for levels in rows.values()]
    for name, levels in rows.items():
        heading = outline.words[f"run0-{name}"][0]
        assert heading.endswith(f"({len(levels)})")
        for f in findings:
            if ("limit" if f.topic == "limits" else f.level) == name:
                assert sentence_of(f, report).title in outline.words[f"run0-{name}"]


def test_what_to_ask_for_next_stands_in_the_open(made: tuple[dict[str, Any], str]) -> None:
    report, text = made
    outline = Outline(text)
    assert not outline.hidden & {"next", "run0-unknown", "sign-off"}
    asks = [words for words in outline.words["next"] if words in outline.kinds["strong"]]
    wanted = list(dict.fromkeys(f.next for f in sentences(report) if f.next))
    assert [ask.lower().rstrip(".") for ask in asks][: len(wanted)] == [next_.lower() for next_ in wanted]
    assert len(asks) == len(set(asks)) > len(wanted)
    assert any("copies, backups" in ask for ask in asks)
    test_data = "Audit it with test data of the classes in the forget set."
    assert test_data not in asks
    report["values"]["fa_test"] = {"value": None, "low": None, "high": None, "n": None, "why": "no test data"}
    assert test_data in html.page({"run": report})


def test_every_term_is_explained_where_it_is_read(made: tuple[dict[str, Any], str]) -> None:
    _, text = made
    assert "Auroc" not in text
    assert not re.search(r"<abbr|\stitle=", text)  # a tooltip is nothing on paper and on a phone
    findings = re.findall(r'<li class="(?:shown|failed|unknown|limit)">(.*?)</li>', text, re.S)
    explained = set[str]()
    for finding in findings:  # one after the other: a term is explained where it is first used
        explained |= defined(finding)
        said = re.sub(r'<p class="terms">.*?</p>', "", finding, flags=re.S)
        assert set(glosses(re.sub("<[^>]+>", " ", said))) <= explained
    assert {"retrained", "95 % interval"} <= explained
    tables = [part.split("</details>")[0].partition("</table>") for part in text.split("<table>")[1:]]
    assert tables
    for table, _, below in tables:  # each explains its own, because it may be read alone
        words = re.sub("<[^>]+>", " ", table)
        assert {
            term for term in ("AUROC", "FA", "BatchNorm", "retrained") if glosses(words).get(term)
        } <= defined(below)


def defined(part: str) -> set[str]:
    return set(re.findall(r"<dfn>(.*?)</dfn>: \S", part.replace("\u00a0", " ")))


def test_a_term_is_explained_once_to_one_who_knows_it() -> None:
    assert set(glosses("the AUROC of the original")) == {"AUROC", "original"}
    assert glosses("the AUROC of the original", known={"AUROC", "original"}) == {}
    assert glosses("A FACT about contrary aims") == {}  # neither FA nor RA
    assert PATTERNS.keys() <= MEANINGS.keys()
    assert not [term for term, meaning in MEANINGS.items() if meaning.endswith(".")]


def test_the_request_and_the_signature_have_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "PLOTS", {})
    fields = ("Request id", "Received", "Done", "By", "Model version")
    silent = html.page({"run": full_report()})
    assert all(f"<dt>{field}</dt><dd>not recorded</dd>" in silent for field in fields)
    record = dict(
        zip(fields, ("DSR-118", "2026-11-02", "2026-11-03", "A. Clerk <a@b.c>", "1.4"), strict=True)
    )
    text = html.page({"run": full_report()}, records={"run": {**record, "Method": "purge"}})
    for field, said in record.items():
        escaped = said.replace("<", "&lt;").replace(">", "&gt;")
        assert text.count(f"<dt>{field}</dt><dd>{escaped}</dd>") == 1
        assert text.index(f"<dt>{field}</dt>") < text.index('id="findings"')
    assert "<dt>Method</dt><dd>purge</dd>" in text
    blank = Outline(text).words["sign-off"]
    assert [field for field in ("Name", "Role", "Date", "Signature") if field in blank] == [
        "Name", "Role", "Date", "Signature",
    ]  # fmt: skip


def test_a_page_is_made_for_screen_readers(page: Path, compared: Path, full: Path) -> None:
    for file in (page, compared, full):
        elements = Elements(file.read_text(encoding="utf-8")).found
        tags = [tag for tag, _ in elements]
        assert tags.count("h1") == tags.count("main") == 1
        levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
        assert all(b - a <= 1 for a, b in pairwise(levels))
        assert all(attrs.get("scope") for tag, attrs in elements if tag == "th")
        pictures = [attrs for tag, attrs in elements if tag == "svg"]
        assert len(pictures) >= 5
        assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in pictures)
        ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
        assert len(ids) == len(set(ids))
        labels = [attrs["aria-labelledby"] for _, attrs in elements if "aria-labelledby" in attrs]
        assert set(labels) <= set(ids)
        assert dict(elements)["html"] == {"lang": "en"}
        assert tags.count("table") == tags.count("caption")
        links = [str(attrs["href"]) for tag, attrs in elements if tag == "a"]
        assert links[0] == "#main"  # past the rest, for those who go by keyboard
        assert {link.removeprefix("#") for link in links} <= set(ids)
        assert {"header", "nav", "main", "footer"} <= set(tags)
        signs = Outline(file.read_text(encoding="utf-8")).kinds["level"]  # no finding by its colour alone
        assert set(signs) >= {"Shown", "Failed", "Not known", "Limits"}


def test_tables_in_a_notebook_are_escaped_and_complete(full: Path) -> None:
    raw = full_report()
    raw["info"]["names"] = [EVIL, EVIL, EVIL, EVIL]
    raw["values"]["ra"] = {"value": None, "low": None, "high": None, "n": None, "why": EVIL}
    for part in ("values", "retrained", "original", "floor"):
        raw[part] = {k: purge.Value(**v) for k, v in raw[part].items()}
    text = purge.Report(**raw)._repr_html_()
    assert not [tag for tag, _ in Elements(text).found if tag in ("img", "script")]
    assert "another retraining" in text
    assert quotable(verdict_of(full_report())) in text
    assert "recognise what was to be forgotten" in text
    for name in raw["values"]:
        assert name in text or name.startswith("destinations.")


def test_a_result_in_a_notebook(toy: Any) -> None:
    model, forget, retain, _ = toy
    result = purge.unlearn(model, forget, retain, progress=False, steps=3, batch_size=16)
    text = result._repr_html_()
    last = [r["check_retain_loss"] for r in result.history if r["check_retain_loss"] is not None][-1]
    for words in (
        "purge",
        f"{last:.4f}",
        result.stopped_by,
        f'<td style="text-align:left">{result.steps}</td>',
    ):
        assert words in text
    trained = purge.train(model, retain, epochs=1, progress=False)
    assert "Recipe" in trained._repr_html_()


# -- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine to open the page in")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


def visit(
    browser: Browser, file: Path, *, width: int = 1280, scheme: Any = "light"
) -> tuple[Page, list[str]]:
    """The page in a window, and every error and request while it was open."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url) if request.url != file.as_uri() else None)
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.goto(file.as_uri())
    return page, trouble


@pytest.mark.slow
@pytest.mark.parametrize("which", ["page", "compared", "full"])
def test_every_section_opens_and_nothing_is_requested(
    browser: Browser, which: str, request: pytest.FixtureRequest
) -> None:
    page, trouble = visit(browser, request.getfixturevalue(which))
    parts = page.locator("details")
    assert parts.count() >= 5
    for i in range(parts.count()):
        part = parts.nth(i)
        part.locator("summary").first.click()
        assert part.evaluate("d => d.open")
    assert page.locator("details[open]").count() == parts.count()
    parts.first.locator("summary").first.click()
    assert not parts.first.evaluate("d => d.open")
    assert "hacked" not in page.title()
    assert trouble == []
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["page", "compared", "full"])
@pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (375, "dark"), (1280, "light")])
def test_nothing_is_wider_than_the_window(
    browser: Browser, which: str, width: int, scheme: str, request: pytest.FixtureRequest
) -> None:
    page, trouble = visit(browser, request.getfixturevalue(which), width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    wide = page.evaluate("""[...document.querySelectorAll('main *')].filter(e =>
        !e.closest('.scroll, pre') && e.getBoundingClientRect().right > innerWidth).map(e => e.tagName)""")
    assert wide == []
    boxes = page.evaluate(
        "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
    )
    assert boxes or width > 375  # on a phone tables scroll within their box
    small = page.evaluate("""[...document.querySelectorAll('figure svg text')].map(e => {
        const m = e.getScreenCTM();
        return Math.hypot(m.a, m.b) * parseFloat(getComputedStyle(e).fontSize);
    }).filter(size => size < 7.9)""")
    assert small == []  # pixels: the letters of a figure can be read without zooming
    assert trouble == []
    page.close()


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_light_and_dark_by_preference_and_by_button(
    browser: Browser, full: Path, scheme: str, other: str
) -> None:
    page, trouble = visit(browser, full, scheme=scheme)

    def brightness(what: str, where: str = "body") -> float:
        colour = page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 765

    button = page.get_by_role("button", name="Switch between light and dark")
    for now, then in ((scheme, other), (other, scheme)):
        assert (brightness("backgroundColor") > 0.5) == (now == "light")
        assert abs(brightness("color") - brightness("backgroundColor")) > 0.6
        ink = brightness("fill", "svg text")  # the figures' letters follow
        assert (ink < 0.5) == (now == "light")
        assert button.text_content() == then.capitalize()
        button.click()
    assert trouble == []
    page.close()


def test_in_print_everything_is_light_and_open_without_buttons(browser: Browser, full: Path) -> None:
    page, _ = visit(browser, full, width=700, scheme="dark")
    page.get_by_role("button").click()  # also for people who read in dark mode
    page.get_by_role("button").click()
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.get_by_role("button").count() == 0
    hidden = page.evaluate(
        "[...document.querySelectorAll('details > *')].filter(e => !e.checkVisibility()).length"
    )
    assert hidden == 0
    printed = page.pdf(prefer_css_page_size=True)
    assert len(printed) > 50_000
    sizes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([\d. ]+)\]", printed)}
    assert sizes
    assert all(abs(w - 595.3) < 1 and abs(h - 841.9) < 1 for _, _, w, h in sizes)  # A4, in points
    cut = page.evaluate("""[...document.querySelectorAll('.findings li, figure, .signing')].filter(e =>
        getComputedStyle(e).breakInside !== 'avoid').length""")
    assert cut == 0
    page.close()


def test_the_page_refuses_foreign_scripts(browser: Browser, full: Path, tmp_path: Path) -> None:
    """The second line of defence, if a name ever gets past the escaping."""
    text = full.read_text(encoding="utf-8")
    text = text.replace("</main>", "<script>document.title = 'hacked'</script><img src='x.png'></main>")
    (tmp_path / "a.html").write_text(text, encoding="utf-8")
    page, trouble = visit(browser, tmp_path / "a.html")
    assert page.title() != "hacked"
    assert any("Content Security Policy" in line for line in trouble)
    page.close()
