"""What the ledger needs is imported when it is needed, and what is missing is told in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from purge.core.errors import LedgerError
from purge.ledger.ledger import Ledger


def test_purge_and_its_help_need_no_database():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('sqlalchemy', 'psycopg', 'cryptography', 'torch')))\n"
        "import purge, purge.cli.app; sys.argv = ['purge', 'request', 'add', '--help']; purge.cli.app.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--received" in done.stdout


def test_a_ledger_needs_no_torch():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('psycopg', 'cryptography', 'torch')))\n"
        "from purge import Ledger; print(Ledger.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "Ledger\n", done.stderr


def test_a_ledger_needs_the_extra_and_nothing_else_does(tmp_path):
    """In one line with the extra's name; training and other commands go on without it."""
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "import purge.cli.app; sys.argv = ['purge', *sys.argv[1:]]; purge.cli.app.main()"
    )
    for argv, status in (("request list", 2), ("request verify x.jsonl", 2), ("list methods", 0)):
        argv = [sys.executable, "-c", code, *argv.split()]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        if status:
            assert done.stderr.startswith("Error: Expected the package sqlalchemy")
            assert "pip install 'purge-unlearning[ledger]'" in done.stderr
            assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_needs_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"pip install 'purge-unlearning\[postgres\]'"):
        Ledger("postgresql://somebody@nowhere/x")


def test_signatures_need_the_extra(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(LedgerError, match=r"pip install 'purge-unlearning\[sign\]'"):
        Ledger(tmp_path / "requests.db", sign=tmp_path / "sign.pem")
    assert list(tmp_path.iterdir()) == []
