"""The pages of the repository, and the code blocks in them as a test can run them.

A fenced block is run if its language is ``python`` or ``bash``, parsed if it is ``yaml``, ``json`` or
``toml``, and shown only if it is ``text``, ``console`` or another language. ``<!-- not run: REASON -->``
before a block leaves it out, ``<!-- setup … -->`` holds Python that readers do not see. CONTRIBUTING.md
tells this to those who write pages.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("python", "bash")
REFUSED = ("", "py", "python3", "pycon", "ipython", "sh", "shell", "zsh")  # code that a test would pass over

PART = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=fence)[ ]*$"
    r"|^[ ]*<!-- setup\n(?P<setup>.*?)^[ ]*-->$"
    r"|^[ ]*<!-- not run: (?P<reason>[^\n]+?) -->\n+(?=[ ]*```)",
    re.M | re.S,
)


class Block(NamedTuple):
    """One block of a page."""

    language: str
    code: str
    line: int  # of its first line of code
    reason: str = ""  # why it is not run


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page in their order; hidden setup is Python."""
    found, reason = [], ""
    for part in PART.finditer(text):
        line = text[: part.start()].count("\n") + 2
        if part["reason"]:
            reason = part["reason"]
            continue
        if part["setup"]:
            found.append(Block("python", part["setup"], line))
        else:
            code = re.sub(f"^{part['indent']}", "", part["code"], flags=re.M)
            found.append(Block(part["language"].split(" ")[0].strip("{."), code, line, reason))
        reason = ""
    return found


# They need a network, or change what is not the test's, so they are not run.
INSTALLERS = (["pip", "install"], ["uv", "add"], ["uv", "pip"], ["purge", "--install-completion"])


class Command(NamedTuple):
    """A line of a bash block: ``purge list methods  # exits 0``."""

    words: list[str]
    code: int  # that it is to exit with


def commands_of(code: str) -> list[Command]:
    """The commands of a bash block, without ``uv run`` and what installs something.

    Lines that end with a backslash are joined.
    """
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["uv", "run"]:
            words = words[2:]
        if words and words[:2] not in INSTALLERS:
            said = re.search(r"# exits (\d+)", line)
            found.append(Command(words, int(said[1]) if said else 0))
    return found
