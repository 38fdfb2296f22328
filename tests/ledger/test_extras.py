"""What the ledger needs is imported when it is needed, and what is missing is told in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from purge.core.errors import LedgerError
from purge.ledger.ledger import Ledger

COMMAND = "import purge, purge.cli.app; sys.argv = ['purge', *sys.argv[1:]]; purge.cli.app.main()"


def without(packages, code, *argv, cwd=None):
    """Run Python code where some packages cannot be imported."""
    code = f"import sys; sys.modules.update(dict.fromkeys({packages.split()!r})); {code}"
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, cwd=cwd)


def test_purge_and_its_help_need_no_database_and_a_ledger_no_torch():
    done = without("sqlalchemy psycopg cryptography torch", COMMAND, "request", "add", "--help")
    assert done.returncode == 0, done.stderr
    assert "--received" in done.stdout
    done = without("psycopg cryptography torch", "from purge import Ledger; print(Ledger.__name__)")
    assert done.stdout == "Ledger\n", done.stderr


def test_a_ledger_needs_the_extra_and_nothing_else_does(tmp_path):
    """In one line with the extra's name; training and other commands go on without it."""
    for argv, status in (("request list", 2), ("request verify x.jsonl", 2), ("list methods", 0)):
        done = without("sqlalchemy", COMMAND, *argv.split(), cwd=tmp_path)
        assert done.returncode == status, done.stderr
        if status:
            assert done.stderr.startswith("Error: Expected the package sqlalchemy")
            assert "pip install 'purge-unlearning[ledger]'" in done.stderr
            assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_and_signatures_need_their_extras(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("cryptography", "psycopg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LedgerError, match=r"pip install 'purge-unlearning\[postgres\]'"):
        Ledger("postgresql://somebody@nowhere/x")
    with pytest.raises(LedgerError, match=r"pip install 'purge-unlearning\[sign\]'"):
        Ledger(tmp_path / "requests.db", sign=tmp_path / "sign.pem")
    assert list(tmp_path.iterdir()) == []
