"""Odd content for files and arguments: values of the wrong kind, names that escape, damaged text."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

BAIT = "helpers:build"  # a module in the current folder, which must never be imported
WORDS = [
    "", " ", ".", "..", "../../../escaped", "a/../../b", "/proc/self/mem", "/dev/null/x", "x\0y", "\ud800",
    "a" * 5000, BAIT, "os:abort", "os:fork", "pdb:set_trace", "subprocess:Popen", "hf:nowhere", "hf:helpers",
    "timm:hf-hub:a/b", "\x1b]0;owned\x07", "\x1b[2J", "<script>alert(1)</script>", "=1+1", "@SUM(A1)",
    "| a | b |", "{{ 7 * 7 }}", "%s%n", "nan", "inf", "-1", "1e400", "9" * 5000, "None", "true", "[]", "{}",
    "!!python/name:os.abort", "\r\n", "a\nb", "--help", "-", "CON", "ä", "🦆",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2, 3, 2**31, 2**40, 2**63, 10**30, -(2**70), 0.5, -0.0, 1e-320, 1e308]
BAD_NUMBERS = [float("nan"), float("inf"), -float("inf")]

writable = [word for word in WORDS if "\ud800" not in word]  # what a file in UTF-8 can hold
words = st.one_of(st.sampled_from(WORDS), st.text(max_size=20))
scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS + BAD_NUMBERS), st.integers(-5, 12), words
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=6,
)
DEEP = [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 3000 + b"]" * 3000]
RAW = [b"", b"{}", b"[]", b"null", b"3", b'"x"', b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"{", b"\0" * 64, *DEEP]


class File(bytes):
    """The content of a file, shown in short."""

    def __repr__(self) -> str:
        return f"{bytes(self[:300])!r}… ({len(self)} bytes)"


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside of nested dicts and lists."""
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    return [path for key in keys for path in ((*at, key), *places(content[key], (*at, key)))]


@st.composite
def changed(draw: st.DrawFn, content: Any) -> Any:
    """A document with one to three places replaced by odd values, taken out, or with odd neighbours."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        paths = places(content)
        if not paths:
            return draw(values)
        *way, last = draw(st.sampled_from(paths))
        parent = content
        for key in way:
            parent = parent[key]
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if what == "replace":
            parent[last] = draw(values)
        elif what == "remove":
            del parent[last]
        elif isinstance(parent, dict):
            parent[draw(words)] = draw(values)
        else:
            parent.append(draw(values))
    return content


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> File:
    """A file cut short, with some bytes replaced, or of something else altogether."""
    what = draw(st.sampled_from(["cut", "flip", "raw"]))
    if what == "cut":
        return File(whole[: draw(st.integers(0, len(whole) - 1))])
    if what == "raw":
        return File(draw(st.sampled_from(RAW)))
    found = bytearray(whole)
    for at in draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        found[at] = draw(st.integers(0, 255))
    return File(found)


@st.composite
def json_files(draw: st.DrawFn, content: Any) -> File:
    """A JSON file that is almost what it should be: mostly with odd values, sometimes damaged."""
    if draw(st.integers(0, 3)):
        return File(json.dumps(draw(changed(content))).encode())
    return draw(damaged(json.dumps(content).encode()))
