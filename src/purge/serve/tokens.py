"""Who may do what: tokens with a role. A file keeps their hashes only.

A token is 256 random bits, so that a plain SHA-256 of it can be stored: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from purge.core.errors import DataError, FileError, brief, did_you_mean
from purge.core.files import atomically, file_errors, read_yaml
from purge.core.schema import build

ROLES = ("read", "ask", "run")  # each may do what those before it may
PREFIX = "purge_"  # by which scanners of leaked secrets know one


@dataclass(frozen=True)
class Token:
    """One holder of a token, without the token."""

    name: str
    role: Literal["read", "ask", "run"]
    sha256: str
    made: Any = None  # the day, for people

    def may(self, role: str) -> bool:
        """May its holder do what this role may?"""
        return ROLES.index(self.role) >= ROLES.index(role)


def new_secret() -> str:
    """A token that nobody has."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(secret: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Tokens:
    """The tokens of a file, read again when it changes, or those that are given."""

    def __init__(self, file: Path | None = None, tokens: tuple[Token, ...] = ()) -> None:
        self.file, self._known = file, tokens
        self._seen: tuple[int, int, int] | None = None
        self.known()  # a bad file is refused at the start

    def known(self) -> tuple[Token, ...]:
        """All tokens. While the file cannot be read nobody is let in."""
        if self.file is not None:
            try:
                status = self.file.stat()
            except OSError as error:
                what, got = f"a file of tokens at {self.file}", error.strerror or "an error"
                raise FileError(what, got, "see purge serve --new-token") from None
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                self._known, self._seen = read_tokens(self.file), seen
        return self._known

    def of(self, sha256: str) -> Token | None:
        """The token with a hash. All are compared, each in the same time."""
        right = [one for one in self.known() if hmac.compare_digest(one.sha256, sha256)]
        return right[-1] if right else None


def read_tokens(file: Path) -> tuple[Token, ...]:
    """The tokens in a YAML or JSON file."""
    content = read_yaml(file)
    if os.name == "posix" and file.stat().st_mode & 0o022:
        got = "one that others may write"
        raise FileError(f"a file of tokens at {file} that is its owner's alone", got, f"chmod 600 {file}")
    rows = content.get("tokens")
    if content.keys() != {"tokens"} or not isinstance(rows, list):
        raise FileError(f"a list called tokens in {file}", "something else", "see purge serve --new-token")
    known = tuple(build(Token, row, str(file)) for row in rows)
    for one in known:
        if not re.fullmatch("[0-9a-f]{64}", one.sha256):
            fix = "see purge serve --new-token"
            raise FileError(f"a sha256 of {_name(one.name)} in {file}", "something else", fix)
    return known


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.@ -]{1,60}", value):
        fix = "use letters, digits, spaces, and . @ - _"
        raise DataError("a name of a token, of at most 60 characters", brief(value), fix)
    return value


def add_token(file: Path, name: str, role: str) -> str:
    """Make a token for somebody and keep its hash in a file; the token itself is returned, this once."""
    if role not in ROLES:
        raise DataError("a role", brief(role), did_you_mean(role, ROLES))
    known = read_tokens(file) if file.exists() else ()
    if _name(name) in {one.name for one in known}:
        fix = f"choose another, or remove it from {file} first"
        raise DataError("the name of a new token", f"{name!r}, which has one", fix)
    secret = new_secret()
    rows = read_yaml(file)["tokens"] if known else []
    rows.append({"name": name, "role": role, "sha256": hashed(secret), "made": str(datetime.now(UTC).date())})
    text = "# Only hashes. To take a token back, remove its lines; no restart is needed.\n"
    text += yaml.safe_dump({"tokens": rows}, sort_keys=False, allow_unicode=True)
    with file_errors(file):
        atomically(file, lambda path: path.write_text(text, encoding="utf-8"), private=True)
    return secret
