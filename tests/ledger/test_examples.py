"""The examples for schedulers are what they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from purge.ledger.intake import take_in
from purge.ledger.ledger import Ledger
from purge.ledger.policy import Policy
from tests.cli.commands import command

HERE = Path(__file__).parents[2] / "examples" / "requests"


def test_the_policy_and_the_request_file_are_read(tmp_path: Path):
    assert Policy.read(HERE / "policy.yaml").max_requests == 200
    (tmp_path / "ticket-4711.yaml").write_text((HERE / "request.yaml").read_text())
    with Ledger(tmp_path / "requests.db") as book:
        found = take_in(book, tmp_path, settle=-1)
        assert (found.requests, found.refused) == ([1], {})
        assert (book.request(1).subjects, str(book.request(1).due)) == (2, "2026-12-01")


def test_commands_in_the_examples_exist():
    """Each command and each option that a scheduler would call is one of purge request."""
    ast.parse((HERE / "airflow_dag.py").read_text())
    assert yaml.safe_load((HERE / "workflow.yml").read_text())["jobs"]["run"]["steps"]
    known: dict[str, str] = {}
    for file in ("crontab", "airflow_dag.py", "workflow.yml"):
        text = re.sub(r'"\n\s+"', "", (HERE / file).read_text())
        calls = re.findall(r"purge request ([a-z]+)([^\n;]*)", text)
        assert len(calls) >= 3, file
        for name, rest in calls:
            known.setdefault(name, command("request", name, "--help").out)
            for option in re.findall(r" (--[a-z-]+)", rest):
                assert option in known[name], (file, name, option)
