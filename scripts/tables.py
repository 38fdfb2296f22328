"""Rewrite the tables in README.md, docs/ and results/README.md from the files under results/.

uv run python scripts/tables.py            # after something was measured
uv run python scripts/tables.py --check    # fails if a page is not what its files say

A table stands between ``<!-- table: SOURCE -->`` and ``<!-- end of table -->``; its source is a benchmark
(``uv run python benchmarks/speed.py``), a table of a bench (``results/paper22 mnist``), some rows and columns
of one (``results/digits digits [purge; salun] [seconds; FA]``), some rows and metrics of a request, each row
from the bench that has it (``forgotten 3: results/requests [floor; purge], results/samples [l1-sparse]
[seconds; fa_test]``, with `` ranges`` at the end not only the means), or the ``glossary`` of reports.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "results" / "README.md")
CHOSEN = r"(\S+) (\S+)(?: \[(.+)\] \[(.+)\])?"
REQUESTS = r"forgotten (.+?): (.+) \[(.+?)\]( ranges)?"
BLOCK = re.compile(r"(<!-- table: ([^\n]+?) -->\n).*?(<!-- end of table -->)", re.S)


def main() -> None:
    """Rewrite the pages, or with --check only compare them."""
    stale = []
    for path in PAGES:
        if (new := filled(path.read_text())) != path.read_text():
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(new)
    print("\n".join(stale) or "Every table agrees with its file.")
    if stale and "--check" in sys.argv:
        sys.exit(1)


def filled(page: str) -> str:
    """A page with all its tables made again."""
    return BLOCK.sub(lambda found: f"{found[1]}{made(found[2])}\n{found[3]}", page)


def made(source: str) -> str:
    """The Markdown of one table."""
    if source == "results":
        return listing()
    if source == "glossary":
        return glossary()
    if source.startswith("results/"):
        from purge.bench.layout import as_markdown
        from purge.bench.results import sheets

        folder, name, *chosen = re.fullmatch(CHOSEN, source).groups()  # type: ignore[union-attr]
        sheet = sheets(ROOT / folder)[name]
        return as_markdown(sheet).strip() if chosen == [None, None] else _part(sheet, *chosen)
    if chosen_rows := re.fullmatch(REQUESTS, source):
        forgotten, benches, metrics, ranges = chosen_rows.groups()
        rows = {folder: rows.split("; ") for folder, rows in re.findall(r"(results/\S+) \[(.+?)\]", benches)}
        return _of_requests(forgotten.split("; "), rows, metrics.split("; "), bool(ranges))
    name, *options = source.removeprefix("uv run python benchmarks/").split()
    benchmark = _benchmark(name.removesuffix(".py"))
    out = benchmark.QUICK_OUT if options == ["--quick"] else benchmark.OUT
    if not out.is_file():
        return "Not measured yet."
    return str(benchmark.table(json.loads(out.read_text())))


def _part(sheet: Any, rows: str, columns: str) -> str:
    """Some rows, by their first cell, and columns, by their heading, in the order of a page."""
    from purge.bench.layout import laid_out

    heads, body = laid_out(sheet)
    at, by_name = [0, *(heads.index(name) for name in columns.split("; "))], {row[0]: row for row in body}
    lines = [heads, ["---"] * len(heads), *(by_name[name] for name in rows.split("; "))]
    return "\n".join([*("| " + " | ".join(row[i] for i in at) + " |" for row in lines), "", sheet.note])


def _of_requests(
    forgotten: Sequence[str], rows: dict[str, list[str]], metrics: list[str], ranges: bool
) -> str:
    """Rows of requests by their label, each from the jobs of the bench that has it."""
    from purge.bench.layout import laid_out
    from purge.bench.results import numbers_of, result_in, sheet
    from purge.bench.schema import Table

    by_key, origins = {}, {}
    for folder, labels in rows.items():
        files = sorted((ROOT / folder).glob("jobs/*.json"))
        jobs = [json.loads(file.read_text()) for file in files]
        results = [result for file in files if (result := result_in(file))]
        table = Table("rows", metrics, rows=["forget", "label"], also=["original", "retrained", "floor"])
        heads, body = laid_out(sheet(table, numbers_of(results)))
        by_key |= {(folder, *row[:2]): row for row in body}
        origins[folder] = _origin([j for j in jobs if j["forget"] in forgotten and j["label"] in labels])
    shown = [by_key[folder, of, label] for of in forgotten for folder in rows for label in rows[folder]]
    left = 0 if len(forgotten) > 1 else 1  # one request stands in the text above
    texts = [row if ranges else [_mean(cell) for cell in row] for row in shown]
    lines = ["| " + " | ".join(row[left:]) + " |" for row in (heads, ["---"] * len(heads), *texts)]
    first, *others = rows
    note = f"{'Mean (lowest – highest)' if ranges else 'Mean'} of {'; '.join(origins[first])}."
    for folder in others:
        different = [
            what for what, usual in zip(origins[folder], origins[first], strict=True) if what != usual
        ]
        note += f" {', '.join(rows[folder])}: {'; '.join(different)}." if different else ""
    return "\n".join([*lines, "", note])


def _mean(cell: str) -> str:
    """A cell without its range; its parts stay on one line where a page is narrow."""
    return re.sub(r" \(.*\)$", "", cell).replace(" ", "\u00a0")


def _origin(jobs: list[dict[str, Any]]) -> tuple[str, str, str]:
    """How many seeds there are of jobs, on what they ran, and the commit."""
    seeds = len({job["seed"] for job in jobs})
    found = [origin for job in jobs for origin in _origins(job)]
    hardware, commits = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
    return f"{seeds} seed{'s' if seeds > 1 else ''}", hardware, f"commit {commits}"


def _benchmark(name: str) -> Any:
    if (folder := str(ROOT / "benchmarks")) not in sys.path:
        sys.path.insert(0, folder)  # benchmarks import each other
    return importlib.import_module(name)


def listing() -> str:
    """Every file of results: the command, the hardware and the commit that made it."""
    lines = ["| file | made by | hardware | commit |", "|---|---|---|---|"]
    for path in sorted((ROOT / "results").glob("*.json")):
        lines.append(_row(path, _made_by(path.name), [path]))
    for bench in sorted((ROOT / "results").glob("*/bench.json")):
        folder = bench.parent
        command = f"`uv run purge bench configs/{folder.name}.yaml --out results/{folder.name}`"
        lines.append(_row(folder, MADE_BY.get(folder.name, command), sorted(folder.glob("jobs/*.json"))))
    return "\n".join(lines)


def glossary() -> str:
    """What the words of a report mean."""
    from purge.report.glossary import MEANINGS

    rows = [f"| {term} | {meaning} |" for term, meaning in MEANINGS.items()]
    return "\n".join(["| word | meaning |", "|---|---|", *rows])


def _row(path: Path, made_by: str, files: list[Path]) -> str:
    found = [origin for file in files for origin in _origins(json.loads(file.read_text()))]
    hardware, commits = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
    return f"| [{path.name}]({path.name}) | {made_by} | {hardware} | {commits} |"


MADE_BY = {  # where a file is not the default of a benchmark, or a folder not all of a bench
    "scale_cpu.json": "`uv run python benchmarks/scale.py --quick`",
    "fakes_cifar10.json": "`uv run python benchmarks/fakes.py --epochs 24`, two calls joined by hand",
    "speed_earlier.json": "`uv run python benchmarks/speed.py`, before the last changes",
    "samples": "`uv run purge bench configs/samples.yaml --only salun --only l1-sparse --only finetune "
    "--only scrub --only munba --only lotus --out results/samples`, cut off by a limit",
    "rivals": "`uv run purge bench configs/rivals.yaml`, cut off by a limit",
    "speed_224_again.json": "`uv run python benchmarks/speed.py --size 224 --runs 3`, cut off by a limit",
}


def _made_by(name: str) -> str:
    if name in MADE_BY:
        return MADE_BY[name]
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        if re.search(rf'^OUT = .*"{re.escape(name)}"$', script.read_text(), re.M):
            return f"`uv run python benchmarks/{script.name}`"
    raise SystemExit(f"results/{name}: no benchmark writes it")


def _origins(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Hardware and commit of a file, and of its rows where they have their own."""
    parts = [content.get(key, []) for key in ("rows", "sizes", "runs")]
    each = [one for part in parts for one in (part.values() if isinstance(part, dict) else part)]
    for part in (content, *each):
        if "commit" in part:
            on = part.get("hardware") or content["hardware"]
            yield on["gpu"] or f"{on['machine']}, {on['cpus']} cores", str(part["commit"])


if __name__ == "__main__":
    main()
