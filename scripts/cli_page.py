"""Rewrite the reference of the commands in docs/cli.md from the commands themselves.

uv run python scripts/cli_page.py            # after a command or an option has changed
uv run python scripts/cli_page.py --check    # fails if the page is not what the commands say
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
BLOCK = re.compile(r"(<!-- commands -->\n).*(<!-- end of commands -->)", re.S)
SHOWN_BY_ALL = {"help", "debug"}  # the page says once that every command has them
KINDS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def main() -> None:
    """Rewrite the page, or with --check only compare it."""
    old = PAGE.read_text()
    if (new := filled(old)) == old:
        print("The page is what the commands say.")
    elif "--check" in sys.argv:
        sys.exit("docs/cli.md is out of date. Fix: uv run python scripts/cli_page.py")
    else:
        PAGE.write_text(new)
        print("docs/cli.md")


def filled(page: str) -> str:
    """The page with the reference made again."""
    from purge.cli.app import app

    parts = [section(name, command) for name, command in _commands(typer.main.get_command(app), "purge")]
    return BLOCK.sub(lambda found: found[1] + "\n\n".join(["", *parts, ""]) + found[2], page)


def section(name: str, command: Any) -> str:
    """One command: what it does, and its arguments and options."""
    hints = typing.get_type_hints(command.callback)
    taken = [p for p in command.params if p.name not in SHOWN_BY_ALL and not getattr(p, "hidden", False)]
    arguments = [p for p in taken if p.param_type_name == "argument"]
    usage = " ".join(
        [name, *(p.name.upper() + ("…" if p.nargs == -1 else "") for p in arguments), "[OPTIONS]"]
    )
    rows = [f"| {_name(p, hints)} | {_escaped(p.help or '')} | {_default(p)} |" for p in taken]
    table = "\n".join(["| | meaning | default |", "|---|---|---|", *rows])
    return "\n\n".join([f"## {name}", f"```text\n{usage}\n```", *_paragraphs(command.help or ""), table])


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands that do something, with their full names."""
    for word, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, f"{name} {word}")
        elif not inner.hidden:
            yield f"{name} {word}", inner


def _paragraphs(text: str) -> Iterator[str]:
    """The help of a command; an example at the end of a paragraph becomes a block."""
    for paragraph in filter(None, (" ".join(p.split()) for p in text.replace("\b", "").split("\n\n"))):
        words, colon, example = paragraph.rpartition(": purge ")
        if colon and not example.endswith("."):
            yield f"{_escaped(words)}:"
            yield f"```text\npurge {example}\n```"
        else:
            yield _escaped(paragraph)


def _name(param: Any, hints: dict[str, Any]) -> str:
    """How an argument or option is written."""
    if param.param_type_name == "argument":
        return f"`{param.name.upper()}`"
    written = ", ".join([*param.opts, *param.secondary_opts])
    if getattr(param, "is_flag", False):
        return f"`{written}`"
    value = (param.metavar or _kind(hints[param.name])).strip("<>")
    return f"`{written} {value if param.metavar is None else value.upper()}`".replace("|", "/")


def _kind(hint: Any) -> str:
    """What stands for a value of a type: ``int`` → N, ``list[str]`` → TEXT, a ``Literal`` its values."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin in (list, types.UnionType, typing.Union):
        return next(_kind(each) for each in inner if each is not types.NoneType)
    return KINDS.get(hint, "TEXT")


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default is None or param.default is False:
        return ""
    return "on" if param.default is True else f"`{param.default}`"


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    main()
