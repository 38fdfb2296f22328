"""37 of 675 rows of a user's own data must go, in the shell; it ends in a record that is true.

An untouched model beside it is not said to have forgotten anything.
"""

from __future__ import annotations

import hashlib
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import purge
from purge.report import page as html
from purge.report.record import rows_in_words
from purge.verdict.judge import verdict_of
from tests.cli.commands import ANY_TARGET, ran, read

pytestmark = pytest.mark.slow

N, TEST = 675, 300
ROWS = sorted(np.random.default_rng(7).choice(N, 37, replace=False).tolist())
NUMBERS = hashlib.sha256(b"".join(i.to_bytes(8, "little") for i in ROWS)).hexdigest()
NEVER = ("nothing to forget", "nothing was to be forgotten")


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and these stories are about words."""
    monkeypatch.setattr(html, "PLOTS", {})


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Digits from 0 to 1 with noise: a model knows those that it was trained on better than others."""
    found = load_digits()
    images, noise = found.images[: N + TEST] / 16, np.random.default_rng(0)
    return np.clip(images + noise.normal(0, 0.25, images.shape), 0, 1), found.target[: N + TEST]


def content(samples: np.ndarray, labels: np.ndarray) -> str:
    """The digest that the docs describe, computed with NumPy."""
    each = [
        hashlib.sha256(x.tobytes() + np.int64(y).tobytes()).digest()
        for x, y in zip(samples, labels, strict=True)
    ]
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def shown(file: Path) -> dict[str, str]:
    """The rows of the summary and the record of a page."""
    text = file.read_text(encoding="utf-8")
    assert not [words for words in NEVER if words in text]
    rows = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    return {unescape(k): unescape(re.sub("<.*?>", "", v)) for k, v in rows}


def claims(report: dict[str, Any]) -> list[str]:
    """The findings that say that something was forgotten."""
    return [
        f.rule.name for f in verdict_of(report).findings if f.topic == "forgetting" and f.level == "shown"
    ]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in an .npz file, a model of them, and one that was trained without the 37."""
    folder = tmp_path_factory.mktemp("shop")
    images, target = digits()
    pixels = (images * 255).astype(np.uint8)
    np.savez(
        folder / "shop.npz", train_images=pixels[:N], train_labels=target[:N], test_images=pixels[N:],
        test_labels=target[N:],
    )  # fmt: skip
    (folder / "rows.txt").write_text("\n".join(map(str, ROWS)))
    quick = ("--set", "epochs=5", "--quiet")
    ran("train", "--data", folder / "shop.npz", "--model", "small-resnet", *quick,
                 "--out", folder / "runs" / "base")  # fmt: skip
    ran("train", "--like", folder / "runs" / "base", "--without-ids", folder / "rows.txt", *quick,
                 "--out", folder / "runs" / "reference")  # fmt: skip
    return folder


def test_37_of_675_rows_in_the_shell(shell: Path) -> None:
    base, run = shell / "runs" / "base", shell / "runs" / "purged"
    ran("unlearn", base, "--forget-ids", shell / "rows.txt", "--request-id", "DSR-17",
                 "--received", "2026-11-01", "--set", "steps=20", *ANY_TARGET, "--quiet",
                 "--out", run)  # fmt: skip
    ran("audit", run, "--retrained", base.with_name("reference"), "--metrics", "quick", "--quiet")
    ran("report", run)
    pixels, labels = purge.load(shell / "shop.npz")[0].pixels.numpy(), digits()[1][:N]
    facts, found = read(run / "run.json"), shown(run / "report.html")
    kept = np.setdiff1d(np.arange(N), ROWS)
    expected = {
        "To be forgotten": "37 of 675 training samples. The other 638 stay.",
        "Request": "37 samples by number",
        "Rows to forget": rows_in_words(ROWS, "positions in the training data, counted from 0"),
        "Request id": "DSR-17", "Received": "2026-11-01", "By": "not recorded",
        "Digest of forgotten numbers": NUMBERS,
        "Digest of forgotten samples": content(pixels[ROWS], labels[ROWS]),
        "Digest of retained samples": content(pixels[kept], labels[kept]),
        "Samples": "37 to forget, 638 retained, 300 for testing",
        "Data": f"../../shop.npz (fingerprint {facts['source']})",
        "Source weights": "../base",
        "Digest of source weights": read(base / "run.json")["digest"],
        "Audited weights": "the weights of this run",
        "Audited samples": "the forgotten samples of this run",
        "Column “original”": "../base, the deployed model, as it was",
        "Column “retrained”": "../reference, trained on exactly the retained samples",
        "Column “this model”": "purged, unlearned by “purge”",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert str(shell) not in (run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def untouched(shell: Path) -> Path:
    """The original, audited as if it had forgotten."""
    base = shell / "runs" / "base"
    ran("audit", base, "--forget-ids", shell / "rows.txt", "--original", base, "--quiet",
                 "--retrained", base.with_name("reference"), "--metrics", "quick")  # fmt: skip
    return base


def test_the_record_of_an_untouched_model_makes_up_no_request(untouched: Path) -> None:
    ran("report", untouched)
    report, found = read(untouched / "audit.json"), shown(untouched / "report.html")
    assert found["To be forgotten"] == "37 of 675 training samples. The other 638 stay."
    assert found["Request"] == "not recorded"  # nobody asked this run for anything
    assert found["Column “this model”"] == "base, trained, not unlearned"
    assert report["info"]["digests"]["audited"] == report["info"]["digests"]["original"]


def test_the_untouched_model_is_not_said_to_have_forgotten_in_the_shell(untouched: Path) -> None:
    found = read(untouched / "audit.json")
    assert claims(found) == []
    assert "failed" in {f.level for f in verdict_of(found).findings if f.topic == "forgetting"}
