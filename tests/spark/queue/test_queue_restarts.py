"""A server that goes away while mode `queue` reads from it, and one that wants to know who reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.types import BinaryType, StructType

from popclient import ClientConfig, Message, Producer
from popclient.admin import Admin
from popclient.errors import Forbidden, Unauthorized, Unreachable, UnsupportedByServer
from popclient.message import MessageQueue
from popclient.spark.queue.offsets import Range
from popclient.spark.queue.options import QueueReadOptions, parse
from popclient.spark.queue.reading import RangeReader, Ranges
from popclient.spark.queue.source import QueueReader, QueueStream
from popclient.spark.streams import ReadAllAvailable, ReadMaxRows
from popserver import EmbeddedBroker, embedded
from popserver.bulk import pages
from tests.spark.queue.seen import COUNT, Seen
from tests.spark.queue.serving import QUEUES, Server, serving
from tests.support.queue_server import QueueServer
from tests.support.scripted_server import ServerThread

BODIES = StructType().add("body", BinaryType())
PER_QUEUE = 3_000


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


def test_a_server_that_fails_on_a_page_is_asked_again(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where its answer came to."""
    seen.send()
    page, calls = pages.page, count()

    def page_or_failure(*arguments: Any) -> Any:
        if next(calls) in (0, 3):
            raise ZeroDivisionError
        return page(*arguments)

    monkeypatch.setattr(pages, "page", page_or_failure)
    source = seen.batch()
    rows = [row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()]
    assert len(rows) == len({row["message_id"] for row in rows}) == COUNT
    assert next(calls) > QUEUES


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
    batches = reader(server, requestTimeout="2s").read(whole)
    next(batches)
    server.kill()
    with pytest.raises(Unreachable, match=f"no answer from {server.endpoint}"):
        list(batches)
    server.start()


# ---- Servers with less ----


def test_a_server_with_queues_and_nothing_else() -> None:
    """No bulk, no pulls in one piece, no administration, no popmq.v1.Legacy: a message at a time, and as exact."""
    thread = ServerThread()
    queues = thread.server = QueueServer("")
    queue = MessageQueue("flights", 0)
    with thread:
        thread.run(queues.fill(queue, [f"flight {number}" for number in range(1_000)]))
        options = parse({"endpoints": thread.endpoints, "topic": "flights", "consumerGroup": "reports"})
        stream = QueueStream(options, BODIES)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(700))
        bodies = [
            each for part in stream.partitions(start, end) for batch in stream.read(part) for each in batch.column(0)
        ]
        assert [each.as_py() for each in bodies] == [b"flight %d" % number for number in range(700)]
        stream.latestOffset(end, ReadMaxRows(700))
        assert queues.progress[queue] == 700
        assert not {name for name, _ in queues.calls} & {"PullBatch", "CommitOffsets"}


def test_a_server_without_queues_is_told_apart() -> None:
    with ServerThread(capabilities="") as thread:
        options = parse({"endpoints": thread.endpoints, "topic": "flights", "consumerGroup": "reports"})
        with pytest.raises(UnsupportedByServer, match=r"mode=queue needs; use mode=journal"):
            QueueReader(options, BODIES).partitions()


# ---- Rights ----

SECRET = "correct-horse"


@pytest.fixture
def guarded() -> Iterator[EmbeddedBroker]:
    """Alice may read topic flights as group reports, and nothing else."""
    root = "root-has-a-secret"
    with embedded(auth=True, admin_access_key="root", admin_secret=root) as broker:
        config = ClientConfig(broker.endpoint, access_key="root", access_secret=root)
        with Admin(config) as admin, Producer(config) as producer:
            admin.create_topic("flights", queue_count=QUEUES)
            admin.create_user("alice", SECRET)
            admin.add_policy("alice", "ALLOW", ["SUB"], "TOPIC", "flights")
            admin.add_policy("alice", "ALLOW", ["SUB"], "GROUP", "reports")
            producer.send_many(Message("flights", f"flight {number}") for number in range(100)).raise_for_failures()
        yield broker


def asked_by_alice(broker: EmbeddedBroker, **more: str) -> QueueReadOptions:
    named = {"endpoints": broker.endpoint, "topic": "flights", "consumerGroup": "reports"}
    return parse({**named, "accessKey": "alice", "accessSecret": SECRET, **more})


@pytest.mark.usefixtures("way")
def test_whoever_may_read_need_not_administrate(guarded: EmbeddedBroker) -> None:
    source = QueueReader(asked_by_alice(guarded), BODIES)
    bodies = [
        body for part in source.partitions() for batch in source.read(part) for body in batch.column(0).to_pylist()
    ]
    assert sorted(bodies) == sorted(b"flight %d" % number for number in range(100))
    stream = QueueStream(asked_by_alice(guarded), BODIES)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert stream.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topic": "trains"}, "trains"),
        ({"consumerGroup": "billing"}, "billing"),
        ({"accessSecret": "wrong-secret"}, "(?i)signature|secret"),
    ],
)
def test_whoever_may_not_is_told_at_once(guarded: EmbeddedBroker, more: dict[str, str], said: str) -> None:
    source = QueueReader(asked_by_alice(guarded, requestTimeout="10m", **more), BODIES)
    began = time.monotonic()
    with pytest.raises((Forbidden, Unauthorized), match=said) as refusal:
        list(source.read(source.partitions()[0]))
    assert "wrong-secret" not in str(refusal.value)
    assert time.monotonic() - began < 60, "it is not asked again until the time of `requestTimeout` is over"


def test_a_pattern_is_for_administrators(guarded: EmbeddedBroker) -> None:
    given = {"endpoints": guarded.endpoint, "topicsPattern": "f.*", "consumerGroup": "reports"}
    options = parse({**given, "accessKey": "alice", "accessSecret": SECRET})
    with pytest.raises(
        ValueError, match=r"option topicsPattern='f\.\*' needs .* give the topics with the option topic"
    ):
        QueueReader(options, BODIES).partitions()
