"""Verbs of the protocol that this version does not offer, each with what to do instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from popserver.domain.errors import NotBuilt


def not_built(sentence: str) -> Callable[..., Awaitable[Any]]:
    async def refuse(*_: Any) -> Any:
        raise NotBuilt(sentence)

    return refuse


sync_lite_subscription = not_built("lite topics are not offered by this version; subscribe to an ordinary topic")
