"""Fixtures for tests of data on disk."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of decoded images in a cache of the test's own."""
    monkeypatch.setenv("PURGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every test is offline: an attempt to download fails, unless the test publishes the files itself."""
    real = urllib.request.urlopen

    def local(url: str, **options: Any) -> Any:
        assert url.startswith(("file:", "http://127.0.0.1")), "a download was tried"
        return real(url, **options)

    monkeypatch.setattr("urllib.request.urlopen", local)
