"""A server that goes away while mode `queue` reads from it, and one that has nothing but RocketMQ's own calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.types import BinaryType, StructType

from popclient._queue.message_queue import MessageQueue
from popclient.errors import Unreachable
from popclient.spark import message_columns
from popclient.spark.link import Link
from popclient.spark.queue.offsets import Range
from popclient.spark.queue.options import parse
from popclient.spark.queue.reading import RangeReader, Ranges
from tests.spark.queues import QUEUES, Server, serving

BODIES = StructType().add("body", BinaryType())
PER_QUEUE = 3_000


@pytest.fixture(params=["in bulk", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "one by one":
        monkeypatch.setattr(Link, "offers", lambda _link, _capability: False)
        monkeypatch.setattr(message_columns, "BATCH_ROWS_MAX", 500)
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        server.fill("flights", QUEUES * PER_QUEUE, per_request=500)
        yield server


def reader(server: Server, **more: Any) -> RangeReader:
    options = {"endpoints": server.endpoint, "topic": "flights", "consumerGroup": "reports", **more}
    return RangeReader(parse(options), BODIES)


def everything(server: Server) -> Ranges:
    ends = [
        server.ask(
            "SELECT next_offset FROM queue JOIN topic USING (topic_id) WHERE name = 'flights' AND number = ?", each
        )
        for each in range(QUEUES)
    ]
    return Ranges([Range(MessageQueue("flights", number), 0, end) for number, end in enumerate(ends)])


@pytest.mark.usefixtures("way")
def test_a_server_that_restarts_in_the_middle_of_a_read(server: Server) -> None:
    """What was read is not read again, and the rest is waited for."""
    batches = reader(server).read(everything(server))
    bodies = next(batches).column(0).to_pylist()
    server.kill()
    threading.Timer(0.2, server.start).start()
    for batch in batches:
        bodies += batch.column(0).to_pylist()
    assert sorted(bodies) == sorted(b"flight %d" % number for number in range(QUEUES * PER_QUEUE))


@pytest.mark.usefixtures("way")
def test_a_server_that_stays_away_is_told_in_one_sentence(server: Server) -> None:
    whole = everything(server)
    batches = reader(server, requestTimeout="600ms").read(whole)
    next(batches)
    server.kill()
    began = time.monotonic()
    with pytest.raises(Unreachable, match=f"no answer from {server.endpoint}"):
        list(batches)
    assert time.monotonic() - began < 10
    server.start()
