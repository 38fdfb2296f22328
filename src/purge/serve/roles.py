"""Which role a route needs: each says so where it is written down."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, HTTPException, Request

from purge.core.errors import expected
from purge.serve.answers import visitor


def needs(role: str) -> Any:
    """A dependency of a route that refuses everybody with a lesser role."""

    async def check(request: Request) -> None:
        who = visitor(request)
        if who is None:
            raise HTTPException(401, expected("a token", "none", "log in"))
        if not who.token.may(role):
            got = f"one with the role {who.token.role}"
            raise HTTPException(403, expected(f"a token with the role {role}", got, "ask for another"))

    return Depends(check)
