"""What mkdocs.yml cannot say: folders in the nav, links to files outside docs/, numbers in tables.

Links such as ``../examples/own_method.py`` work in the repository. The site has no repository beside it, so
files that pages link to are copied into the site under ``repository/``, and the links lead there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")  # the target of a link that leaves the folder of its page
KEPT = "repository"


def on_config(config: Any) -> Any:
    """Replace folders in the nav by their pages."""
    config.nav = _unfolded(config.nav, Path(config.docs_dir))
    return config


def _unfolded(entry: Any, docs: Path) -> Any:
    """An entry of the nav; ``methods/`` is methods.md and methods/*.md, the index first."""
    if isinstance(entry, list):
        return [one for each in entry for one in _in_list(_unfolded(each, docs))]
    if isinstance(entry, dict):
        return {title: _unfolded(each, docs) for title, each in entry.items()}
    if not entry.endswith("/"):
        return entry
    pages = [docs / f"{entry[:-1]}.md", docs / entry / "index.md", *sorted((docs / entry).rglob("*.md"))]
    return [page.relative_to(docs).as_posix() for page in dict.fromkeys(pages) if page.is_file()]


def _in_list(entry: Any) -> list[Any]:
    return entry if isinstance(entry, list) else [entry]


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages link to."""
    for page in list(files.documentation_pages()):
        for target in _outside(page.content_string, page.src_uri):
            if (name := _shown(target)) not in files.src_uris:
                files.append(File.generated(config, name, content=(ROOT / target).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to files outside docs/ to their copies in the site."""
    here = Path(page.file.src_uri).parent

    def mended(found: re.Match[str]) -> str:
        target = _target(found[2], page.file.src_uri)
        if target is None:
            return found[0]
        return found[1] + os.path.relpath(_shown(target), here)

    return re.sub(r"^\|.*\|$", _unbroken, LINK.sub(mended, markdown), flags=re.M)


def _unbroken(row: re.Match[str]) -> str:
    """A row of a table whose numbers keep their unit, and ranges their ends, on one line."""
    return re.sub(r"(?<=\d)–(?=\d)", "\u2060–\u2060", re.sub(r"(?<=\d) %", "\u00a0%", row[0]))


def _outside(markdown: str, page: str) -> list[Path]:
    found = (_target(link[2], page) for link in LINK.finditer(markdown))
    return [target for target in found if target is not None]


def _target(link: str, page: str) -> Path | None:
    """The file that a link of a page names, from the root of the repository; None if it is one of docs/."""
    path = Path(os.path.normpath(Path("docs") / Path(page).parent / link))
    if path.parts[0] == "docs" or path.parts[0] == "..":
        return None
    if (ROOT / path).is_dir():
        path = path / "README.md" if (ROOT / path / "README.md").is_file() else path
    return path if (ROOT / path).is_file() else None


def _shown(target: Path) -> str:
    """Where the copy is. Code and Markdown become text, which a browser shows instead of saving it."""
    name = f"{KEPT}/{target.as_posix()}"
    return name if target.suffix in (".json", ".png", ".svg", ".txt", ".csv") else f"{name}.txt"
