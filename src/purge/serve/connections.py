"""Connections of strangers: how long one may take, and how many may be open.

A connection that sends nothing, half a request, or a byte now and then costs its sender nothing. So until
the guard has let somebody in, a request has ``SECONDS`` from its first byte to the end of its answer. Where
too many strangers are connected, the one who came first is cut off: honest ones have their answer by then.
This also holds behind a proxy, and where an attacker and a user share an address.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0
OF_ONE, OF_ALL = 64, 512  # connections of strangers, by address and together; a process may open 1,024 files
BACKLOG = 128  # connections that are taken at once, before one of them can be closed


class Connection(H11Protocol):
    """One connection of HTTP/1.1; ``scope["state"]["let_in"]`` is what the guard calls."""

    stranger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A stranger comes; the oldest goes if there are too many."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "let_in": self.let_in}
        self._begin()
        host = self.client[0] if self.client else ""
        everybody = cast("set[Connection]", self.connections)
        strangers = sorted((c.stranger.when(), id(c), c) for c in everybody if c.stranger)
        open_ = [c for _, _, c in strangers]
        own = [c for c in open_ if (c.client[0] if c.client else "") == host]
        for one in {*own[:-OF_ONE], *open_[:-OF_ALL]}:
            one.drop()

    def on_response_complete(self) -> None:
        """The next request of the same connection may be a stranger's."""
        self._begin()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.let_in()
        super().connection_lost(exc)

    def let_in(self) -> None:
        """Whoever asks has shown a token: no hurry."""
        if self.stranger is not None:
            self.stranger.cancel()
            self.stranger = None

    def drop(self) -> None:
        """Close it at once, whatever is still to be sent."""
        self.let_in()
        self.transport.abort()

    def _begin(self) -> None:
        self.let_in()
        self.stranger = self.loop.call_later(SECONDS, self.drop)
