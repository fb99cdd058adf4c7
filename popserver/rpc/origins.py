"""A denied topic is denied wherever its messages stand: also as dead letters and retries of a group."""

from __future__ import annotations

from collections.abc import Sequence

from popserver.broker.reader import Reader
from popserver.domain.names import is_system_derived
from popserver.rpc.calls import Caller
from popserver.store import origins


async def check(reader: Reader, topic_name: str, keys: Sequence[int], caller: Caller) -> None:
    """Raise `Forbidden` where one of these messages comes from a topic that the caller is denied.

    Asked when messages are found and before any of them is told. It costs a look at the store for readers of `%DLQ%`
    and `%RETRY%` topics that are denied something, and nothing for all others.
    """
    if keys and is_system_derived(topic_name) and caller.withholds():
        caller.require_origins(await reader.read(lambda conn: origins.topics_behind(conn, keys)))
