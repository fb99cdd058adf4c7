"""Verbs of the protocol that this version does not offer, each with what to do instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from popserver.domain.errors import NotBuilt


def not_built(sentence: str) -> Callable[..., Awaitable[Any]]:
    async def refuse(*_: Any) -> Any:
        raise NotBuilt(sentence)

    return refuse


pull_message = not_built("PullMessage is not offered by this version; consume with ReceiveMessage")
update_offset = not_built("UpdateOffset is not offered by this version; finish messages with AckMessage")
get_offset = not_built("GetOffset is not offered by this version; the server keeps the progress of ReceiveMessage")
query_offset = not_built("QueryOffset is not offered by this version; SendMessage and ReceiveMessage report offsets")
sync_lite_subscription = not_built("lite topics are not offered by this version; subscribe to an ordinary topic")
