"""What a lease does to the server's holds, against a server of a few lines: names, replay, loss, other owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient.message import FilterExpression
from popclient.spark.bulk import HeldMessages
from popclient.spark.lease.holding import Lease, LeaseKeeper, LeaseLost, LeaseTaken, attempt_id
from popclient.spark.lease.options import LeaseOptions, parse


class Server:
    """Messages are numbers; each is ready, held under an attempt id, or done. Stands in for `Holds`."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.held: dict[str, list[int]] = {}
        self.done: list[int] = []
        self.calls: list[str] = []

    def receive(self, attempt_id: str, max_messages: int) -> HeldMessages:
        self.calls.append(f"receive {attempt_id}")
        if not self.held.get(attempt_id) and max_messages:
            self.held[attempt_id], self.ready = self.ready[:max_messages], self.ready[max_messages:]
        numbers = self.held.get(attempt_id, [])
        return HeldMessages([b"%d" % number for number in numbers], len(numbers))

    def renew(self, attempt_id: str) -> int:
        self.calls.append(f"renew {attempt_id}")
        return len(self.held.get(attempt_id, ()))

    def ack(self, attempt_id: str) -> None:
        self.calls.append(f"ack {attempt_id}")
        self.done += self.held.pop(attempt_id, [])

    def lapse(self, attempt_id: str, messages: int = 1_000) -> None:
        """The holds of the first ones end: they are ready for anybody."""
        held = self.held.get(attempt_id, [])
        self.ready = held[:messages] + self.ready
        self.held[attempt_id] = held[messages:]


def chosen(**more: str) -> LeaseOptions:
    options = {"endpoints": "127.0.0.1:8081", "topic": "t", "consumerGroup": "g", "leaseOwner": "job"}
    return parse({**options, **more})


def process(server: Server, **more: str) -> LeaseKeeper:
    """What a new process of the query knows."""
    return LeaseKeeper(chosen(**more), server)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"filterType": "SQL92"}, "option filterType='SQL92' is not allowed; give it together with filterExpression"),
        (
            {"includeHeaders": "true"},
            "option includeHeaders='true' is not allowed; give it together with columns=kafka",
        ),
        ({"maxBytesPerTrigger": "268435457"}, "give a whole number from 1 to 268435456"),
    ],
)
def test_what_goes_with_nothing_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        chosen(**options)
    assert words in str(refused.value)
    assert chosen(filterType="SQL", filterExpression="a > 1").expression == FilterExpression("a > 1", "SQL")


def numbers(chunks: Sequence[bytes]) -> list[int]:
    return list(map(int, chunks))


@pytest.fixture
def server() -> Server:
    server = Server()
    server.ready = list(range(2_500))
    return server


def test_a_batch_is_several_receives(server: Server) -> None:
    holding = process(server)
    lease = holding.receive(1, 2_200, new=True)
    assert lease == Lease(1, 3, 2_200)
    assert {name: len(held) for name, held in server.held.items()} == {
        "job/1/0": 1_000,
        "job/1/1": 1_000,
        "job/1/2": 200,
    }
    assert numbers(holding.chunks(lease)) == list(range(2_200))


def test_it_is_acked_when_spark_asks_what_comes_after_it_and_once(server: Server) -> None:
    holding = process(server)
    lease = holding.receive(1, 1_500, new=True)
    assert server.done == []
    holding.settle(lease)
    assert server.done == list(range(1_500))
    server.calls.clear()
    holding.settle(lease)
    assert server.calls == []  # an idle query asks again and again


def test_a_crash_before_spark_wrote_the_batch_down_brings_the_same_again(server: Server) -> None:
    lost = process(server).receive(5, 1_500, new=True)
    holding = process(server)
    holding.settle(Lease(4, 1, 7))
    assert holding.receive(5, 2_000, new=True) == lost
    assert numbers(holding.chunks(lost)) == list(range(1_500))


def test_a_crash_in_the_batch_replays_it(server: Server) -> None:
    lease = process(server).receive(5, 1_500, new=True)
    holding = process(server)
    assert numbers(holding.chunks(lease)) == list(range(1_500))
    holding.settle(lease)
    assert server.done == list(range(1_500))
    assert holding.receive(6, 1_500, new=True) == Lease(6, 1, 1_000)


def test_nothing_new_is_taken_beyond_the_end_of_an_available_now_query(server: Server) -> None:
    holding = process(server)
    assert holding.receive(1, 10, new=False).messages == 0
    assert process(server).receive(1, 10, new=True).messages == 10
    assert process(server).receive(1, 10, new=False).messages == 10  # but what was begun is ended


def test_a_batch_ends_with_the_receive_that_passes_its_bytes(server: Server) -> None:
    lease = process(server, maxbytespertrigger="2000").receive(1, 2_500, new=True)
    assert lease.messages == 1_000  # 2,890 bytes here


# ---- What goes wrong ----


def test_a_lease_that_was_lost_is_replayed_without_what_others_got(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    lease = process(server).receive(1, 1_500, new=True)
    server.lapse("job/1/0", 40)
    holding = process(server)
    assert numbers(holding.chunks(lease)) == list(range(40, 1_500))
    assert "batch 1 of option leaseOwner='job' has lost 40 of 1500 messages of topic t" in caplog.text
    caplog.clear()
    holding.settle(lease)
    assert caplog.text == ""  # told once


def test_or_the_query_fails_for_it(server: Server) -> None:
    lease = process(server).receive(1, 1_500, new=True)
    server.lapse("job/1/1", 3)
    with pytest.raises(LeaseLost, match=r"has lost 3 of 1500 .*failOnLeaseLoss=false would go on"):
        process(server, failonleaseloss="true").chunks(lease)


def test_a_lease_lost_while_spark_worked_is_told(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    holding = process(server)
    lease = holding.receive(1, 100, new=True)
    server.lapse("job/1/0", 30)
    holding.settle(lease)
    assert "has lost 30 of 100 messages" in caplog.text
    assert "may be delivered again" in caplog.text
    assert len(server.done) == 70


def test_another_query_with_the_same_owner_is_noticed(server: Server) -> None:
    mine, other = process(server), process(server)
    mine.settle(mine.receive(1, 10, new=True))
    other.settle(other.receive(1, 10, new=True))
    other.receive(2, 10, new=True)
    with pytest.raises(LeaseTaken, match=r"batch 2 of option leaseOwner='job' .*give each query its own"):
        mine.receive(2, 10, new=True)


# ---- Laws ----


@given(
    st.tuples(st.text(min_size=1), st.integers(0), st.integers(0)),
    st.tuples(st.text(min_size=1), st.integers(0), st.integers(0)),
)
def test_attempt_ids_are_different_names(one: tuple[str, int, int], other: tuple[str, int, int]) -> None:
    assert (attempt_id(*one) == attempt_id(*other)) == (one == other)


@given(st.integers(0), st.integers(0, 100), st.integers(0))
def test_an_offset_is_its_lease(seq: int, parts: int, messages: int) -> None:
    lease = Lease(seq, parts, messages)
    assert Lease.of(lease.offset()) == lease


@pytest.mark.parametrize(
    "strange",
    [
        {"v": 1, "seq": 3},
        {"v": 2, "seq": 3, "parts": 1, "messages": 5},
        {"v": 1, "seq": 3, "parts": 1, "messages": "5"},
        {"v": 1, "seq": 3, "parts": 1, "messages": 5, "more": 1},
        {"v": 1, "q": {"t/0": 3}},
        {"v": 1, "id": 3},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(strange: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not one of leases.*checkpointLocation of its own"):
        Lease.of(strange)


class Query:
    """Spark's order of calls, with a sink that keeps a batch's number with its rows and so has it once."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.planned: list[Lease] = []
        self.committed = 0
        self.sink: dict[int, list[int]] = {}
        self.holding = process(server)

    def run(self, crash_at: str) -> None:
        """One batch, or the rest of one; dies at a point."""
        for point in self._batch():
            if point == crash_at:
                self.holding = process(self.server)
                return

    def _batch(self) -> Iterator[str]:
        if self.committed == len(self.planned):
            start = self.planned[-1] if self.planned else Lease()
            self.holding.settle(start)
            yield "acked"
            found = self.holding.receive(start.seq + 1, 3, new=True)
            yield "received"
            if not found.messages:
                return
            self.planned.append(found)
            yield "planned"
        rows = numbers(self.holding.chunks(self.planned[-1]))
        yield "read"
        self.sink.setdefault(len(self.planned), rows)
        yield "sunk"
        self.committed = len(self.planned)


_POINTS = st.sampled_from(["acked", "received", "planned", "read", "sunk", "nowhere", "nowhere"])


@given(st.integers(0, 20), st.lists(_POINTS, max_size=20))
def test_each_message_takes_effect_once_wherever_the_query_dies(messages: int, crashes: list[str]) -> None:
    server = Server()
    server.ready = list(range(messages))
    query = Query(server)
    for crash_at in crashes:
        query.run(crash_at)
    for _ in count():
        if not server.ready and not any(server.held.values()) and query.committed == len(query.planned):
            break
        query.run("nowhere")
    assert sorted(number for rows in query.sink.values() for number in rows) == list(range(messages))
    assert sorted(server.done) == list(range(messages))
