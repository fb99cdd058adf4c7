"""The connections that only read."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import cast

from popserver.database.database import Database
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer


async def test_it_closes_after_the_last_query_and_blocks_nobody(sqlite_url: str) -> None:
    with closing(Database(sqlite_url)) as database:
        await _close_while_a_query_runs(Reader(database, cast("Writer", None)))


async def _close_while_a_query_runs(reader: Reader) -> None:
    runs, goes_on = threading.Event(), threading.Event()

    def look(_conn: object) -> bool:
        runs.set()
        return goes_on.wait(20)

    looking = asyncio.create_task(reader.read(look))
    await asyncio.to_thread(runs.wait, 60)
    # If `close` held up the event loop, the query would wait in vain.
    asyncio.get_running_loop().call_soon(goes_on.set)
    await reader.close()
    assert await looking
