"""Names and files that somebody else wrote: nothing outside of a folder, nothing endless, nothing obeyed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purge.core.errors import DataError, FileError, brief, printable
from purge.core.files import as_json, below, out_folder, read_json, read_yaml, write_json
from tests.refusals import assert_sentence

BAD_NAMES: list[Any] = [
    "", " ", ".", "..", "../x", "../../../x", "/etc/x", "a/b", "a\\b", "C:x", "a\0b", "a\nb", "a\x1b[31m",
    "x" * 300, "é" * 101, "CON", "nul.txt", "com1", ".hidden", "a.", "a ", "\ud800", "\u202eb", 3, None, b"a",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=[brief(name)[:20] for name in BAD_NAMES])
def test_a_name_that_is_not_plain_becomes_no_path(tmp_path: Path, name: Any) -> None:
    for names in ((name,), ("good", name), (name, "good")):
        with pytest.raises(FileError) as caught:
            below(tmp_path, *names)
        assert_sentence(str(caught.value), "a plain name")


@given(st.text(max_size=250))
def test_whatever_the_name_a_path_stays_in_its_folder(name: str) -> None:
    folder = Path("/a/folder")
    try:
        found = below(folder, name, ending=".json")
    except FileError as error:
        assert_sentence(str(error), "a plain name")
    else:
        assert found.parent == folder
        assert found.resolve().parent == folder
        assert found.name == f"{name}.json"


def deep(n: int) -> str:
    return "[" * n + "]" * n


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
YAML = {
    "nested 3,000 deep": (f"a: {deep(3000)}", "too deeply"),
    "keys nested 3,000 deep": ("{a: " * 3000 + "1" + "}" * 3000, "too deeply"),
    "a billion by aliases": (LAUGHS, "by aliases"),
    "a list in itself": ("a: &a [*a]", "by aliases"),
    "5,000 digits": ("a: " + "9" * 5000, "4300 digits"),
    "an impossible date": ("a: 2026-99-99", "month"),
    "half a file": ("a: [1, 2", "YAML"),
    "code": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_is_refused(tmp_path: Path, name: str) -> None:
    path, (text, words) = tmp_path / "a.yaml", YAML[name]
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        read_yaml(path)
    assert_sentence(str(caught.value), words)


@pytest.mark.parametrize("levels", [200, 900, 100_000])
def test_json_of_many_levels_is_refused(tmp_path: Path, levels: int) -> None:
    (tmp_path / "a.json").write_text(f'{{"a": {deep(levels)}}}')
    with pytest.raises(FileError) as caught:
        read_json(tmp_path / "a.json")
    assert_sentence(str(caught.value), "a.json")
    (tmp_path / "a.json").write_text(f'{{"a": {deep(50)}}}')
    assert read_json(tmp_path / "a.json")


def test_what_json_does_not_have_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    for value in ({1}, float("nan"), b"x", 10**5000, object(), ring, {(1, 2): 3}, 1j):
        with pytest.raises(FileError) as caught:
            write_json(tmp_path / "a.json", {"a": value})
        assert_sentence(str(caught.value), "values that JSON has")
    assert list(tmp_path.iterdir()) == []
    assert as_json({"a": Path("b")}) == '{\n  "a": "b"\n}'


@pytest.mark.parametrize("path", ["a\0b", "a/\ud800", Path("a\0b"), "", 3], ids=repr)
def test_an_out_that_cannot_be_a_path_is_refused(path: Any) -> None:
    with pytest.raises(FileError) as caught:
        out_folder(path)
    assert_sentence(str(caught.value), "a folder as out")


# -- terminals ------------------------------------------------------------------------------------

OSC = "\x1b]0;title\x07\x1b[31mred\x9b2J\x7f\u202egpj.exe"


def test_a_message_holds_nothing_that_a_terminal_obeys(caplog: pytest.LogCaptureFixture) -> None:
    for text in (str(DataError("a name", OSC, "rename it")), printable(OSC), str(FileError(OSC))):
        assert text.isprintable()
        assert r"\x1b[31mred\x9b2J\x7f\u202egpj.exe" in text
    with caplog.at_level(logging.WARNING, "purge"):
        logging.getLogger("purge").warning("left out: %s", OSC)
    assert caplog.messages == [f"left out: {printable(OSC)}"]
    assert printable("größer – 犬\n\tzwei") == "größer – 犬\n\tzwei"


@given(st.text())
def test_printable_text_is_printable_and_stays_so(text: str) -> None:
    found = printable(text)
    assert "\x1b" not in found
    assert "\x9b" not in found
    assert printable(found) == found
    found.encode()
