"""Sessions of browsers, kept in memory, and the key that opens one once."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

IDLE, LONGEST = 3600.0, 12 * 3600.0  # seconds without a click, and in all
MOST = 1000  # sessions at once

Clock = Callable[[], float]


@dataclass
class Session:
    """A browser that has shown a token."""

    token: str  # the hash of the token it showed: when that is taken back, the session ends
    csrf: str
    began: float
    seen: float


class Sessions:
    """Sessions by the value of their cookie."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._known: OrderedDict[str, Session] = OrderedDict()

    def begin(self, token: str) -> str:
        """A new session for the holder of a token, by its hash; the value of its cookie is returned."""
        cookie, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            self._known[_key(cookie)] = Session(token, secrets.token_urlsafe(32), now, now)
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        return cookie

    def of(self, cookie: str) -> Session | None:
        """The session of a cookie, if it has not ended."""
        now = self._clock()
        with self._lock:
            session = self._known.get(_key(cookie))
            if session is None:
                return None
            if now - session.seen > IDLE or now - session.began > LONGEST:
                del self._known[_key(cookie)]
                return None
            session.seen = now
            return session

    def end(self, cookie: str) -> None:
        """Log out."""
        with self._lock:
            self._known.pop(_key(cookie), None)


def _key(cookie: str) -> str:
    """Looking a hash up tells nothing, by the time it takes, about the cookie itself."""
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).hexdigest()


class Once:
    """A key that opens a session one time: the address that is printed when the page starts."""

    def __init__(self, token: str) -> None:
        self.key, self.token = secrets.token_urlsafe(32), token
        self._used = False
        self._lock = threading.Lock()

    def fits(self, key: str) -> bool:
        """Would it open a session? Asking uses nothing up."""
        right = hmac.compare_digest(self.key.encode(), key.encode("utf-8", "surrogatepass"))
        return right and not self._used

    def use(self, key: str) -> bool:
        """Is it the key, for the first time?"""
        with self._lock:
            first = self.fits(key)
            self._used = self._used or first
        return first
