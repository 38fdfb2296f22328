"""The two keys of a ledger, which are never in its database: one hashes ids, the other signs entries.

Ids are stored as HMAC-SHA256 under a key of 32 random bytes. Without that key, nobody can find out by trying
whether an id is in the database; with it, the ledger knows an id again when it comes back.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from purge.core.errors import FileError, LedgerError
from purge.core.files import file_errors

BYTES = 32


def make_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; if another process was first, its file stays."""
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        opened = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)  # unlike a rename, this never replaces a key
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                if not path.exists():
                    os.rename(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        got = "nothing there" if isinstance(error, FileNotFoundError) else error.strerror or "an error"
        fix = "name the file where it is kept, restore it from its backup, or check its permissions"
        raise FileError(f"{what} at {path}", got, fix) from None


# -- the key that hashes ids ------------------------------------------------------------------


class IdKey:
    """Hashes ids with a key from a file."""

    def __init__(self, path: Path) -> None:
        text = _read(path, "the key of the ledger")
        try:
            self._key = bytes.fromhex(text.decode("ascii").strip())
        except ValueError:
            self._key = b""
        if len(self._key) != BYTES:
            fix = "restore the file, or name the right one"
            raise FileError(f"a key of {2 * BYTES} hexadecimal digits in {path}", "something else", fix)

    @classmethod
    def made(cls, path: Path) -> IdKey:
        """The key in a file, which is made if it is missing."""
        if not path.exists():
            make_private(path, secrets.token_hex(BYTES).encode() + b"\n")
        return cls(path)

    def __repr__(self) -> str:
        return "IdKey(…)"  # never the key

    def check(self) -> str:
        """A value by which the ledger knows its key again, and which says nothing about it."""
        return hmac.digest(self._key, b"check:purge ledger", "sha256").hex()

    def hashes(self, ids: Iterable[str]) -> list[str]:
        """One keyed hash per id, each different id hashed once."""
        texts = list(ids)
        known = {one: hmac.digest(self._key, b"id:" + one.encode(), "sha256").hex() for one in set(texts)}
        return [known[one] for one in texts]


# -- the key that signs entries ---------------------------------------------------------------


def _cryptography() -> tuple[Any, Any]:
    """Its modules for Ed25519 keys and for their files."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        fix = "pip install 'purge-unlearning[sign]'"
        raise LedgerError("the package cryptography, for signatures", "none", fix) from None
    return ed25519, serialization


def _loaded(path: Path, content: bytes, *, private: bool) -> Any:
    """The Ed25519 key in a PEM file, without a password."""
    ed25519, form = _cryptography()
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    try:
        key = form.load_pem_private_key(content, None) if private else form.load_pem_public_key(content)
    except Exception:  # of many kinds; the message may quote the file
        key = None
    if not isinstance(key, kind):
        what = f"an Ed25519 {'private key without a password' if private else 'public key'} in {path}"
        fix = "name the right file; openssl genpkey -algorithm ed25519 makes a private key"
        raise FileError(what, "something else", fix)
    return key


class Signer:
    """Signs entries with the Ed25519 key in a PEM file."""

    def __init__(self, path: Path) -> None:
        self._key = _loaded(path, _read(path, "the key that signs"), private=True)
        self.public: str = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def made(cls, path: Path) -> Signer:
        """The key in a file, made if it is missing; its public half is then beside it, in FILE.pub."""
        if path.exists():
            return cls(path)
        ed25519, form = _cryptography()
        pem, kind = form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        key = ed25519.Ed25519PrivateKey.generate()
        make_private(path, key.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()))
        signer, public = cls(path), path.with_name(path.name + ".pub")  # of the process that was first
        with file_errors(public):
            public.write_bytes(signer._key.public_key().public_bytes(pem, kind))
        return signer

    @staticmethod
    def possible(path: Path) -> None:
        """Refuse a file that holds no such key; one that is missing may be made later."""
        _cryptography()
        if path.exists():
            Signer(path)

    def __repr__(self) -> str:
        return f"Signer(public={self.public!r})"

    def sign(self, digest: str) -> str:
        """The signature of the hash of an entry."""
        return str(self._key.sign(digest.encode()).hex())


def public_key(path: Path) -> str:
    """The public key in a PEM file (that of a private key will do), in hexadecimal digits."""
    content = _read(path, "the public key of the ledger")
    if b"PRIVATE KEY" in content:
        return Signer(path).public
    return str(_loaded(path, content, private=False).public_bytes_raw().hex())


def checker(public: str) -> Callable[[str, str], bool]:
    """A function that says whether a signature of a hash was made with the private half of a key."""
    ed25519, _ = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    except ValueError:
        return lambda digest, signature: False

    def right(digest: str, signature: str) -> bool:
        try:
            key.verify(bytes.fromhex(signature), digest.encode())
        except (ValueError, InvalidSignature):
            return False
        # One signature, one way to write it: capital letters would be a change that nobody sees.
        return signature == signature.lower()

    return right
