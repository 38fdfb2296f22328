"""The description on a package index: the README without links and pictures that only a clone has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ELSEWHERE = r"(?!https?://|mailto:|#)"  # of a target: it is not a path in the clone
RELATIVE = (
    (re.compile(rf"!\[[^\]]*\]\({ELSEWHERE}[^)]*\)"), ""),
    (re.compile(rf"<img\b[^>]*\bsrc=\"{ELSEWHERE}[^\"]*\"[^>]*>"), ""),
    (re.compile(rf"\[([^\]]*)\]\({ELSEWHERE}[^)]*\)"), r"\1"),
    (re.compile(rf"<a\b[^>]*\bhref=\"{ELSEWHERE}[^\"]*\"[^>]*>(.*?)</a>", re.S), r"\1"),
)


def standalone(text: str) -> str:
    """Markdown that needs no other file: relative pictures go, relative links become their text."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)  # code stays as it is
    for i in range(0, len(parts), 2):
        for pattern, instead in RELATIVE:
            parts[i] = pattern.sub(instead, parts[i])
    return "".join(parts)


class Readme(MetadataHookInterface):
    """Sets the field ``readme`` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for every wheel and source archive."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text)}
