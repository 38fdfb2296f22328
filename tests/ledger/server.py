"""A PostgreSQL server of the distribution's package, started for the tests and stopped after them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

SETTINGS = ("listen_addresses=", "max_connections=150", "fsync=off", "shared_buffers=16MB")


def programs() -> Path | None:
    """The folder of the server's programs, of the newest version that is installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    other = shutil.which("initdb")
    return installed[-1].parent if installed else Path(other).parent if other else None


def missing() -> str | None:
    """Why no server can be started here."""
    if programs() is None:
        return "PostgreSQL is not installed; apt-get install postgresql"
    try:
        subprocess.run(["true"], check=True, **_somebody())
    except (KeyError, OSError, subprocess.SubprocessError):
        return "PostgreSQL does not run as root, and no process may be started as postgres"
    return None


def _somebody() -> dict[str, int]:
    """The server refuses to run as root: then it runs as its own user."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid}


@contextmanager
def server() -> Iterator[Path]:
    """The folder of the socket of a running server; its superuser is `purge`."""
    where, who = programs(), _somebody()
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:  # short, for sockets
        home = Path(folder)
        if who:
            os.chown(home, who["user"], who["group"])
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        options = {"cwd": home, "env": environment, "stdin": subprocess.DEVNULL, **who}
        make = [
            where / "initdb",
            "-D",
            home / "data",
            "-U",
            "purge",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        made = subprocess.run(make, capture_output=True, text=True, **options)
        assert made.returncode == 0, made.stderr
        argv = [where / "postgres", "-D", home / "data", "-k", home]
        argv += [word for one in SETTINGS for word in ("-c", one)]
        with (home / "log").open("w") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, **options)
        end = time.monotonic() + 60
        try:
            while True:
                try:
                    connect(home).close()
                    break
                except psycopg.OperationalError:
                    assert process.poll() is None, (home / "log").read_text()
                    assert time.monotonic() < end, (home / "log").read_text()
                    time.sleep(0.05)
            yield home
        finally:
            process.send_signal(signal.SIGINT)  # it does not wait for those who are connected
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def connect(home: Path, database: str = "postgres") -> psycopg.Connection:
    return psycopg.connect(host=str(home), user="purge", dbname=database, autocommit=True)


def fresh_url(home: Path, name: str) -> str:
    """The URL of a new, empty database."""
    with connect(home) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"postgresql://purge@/{name}?host={home}"
