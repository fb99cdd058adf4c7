"""A mirror between two PopMQ servers: what a group has not done, once; and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from popclient import Message, PopError, Producer, SimpleConsumer
from popclient.mirror.routes import Handover, Way
from tests.mirror.pair import Pair, State, pair, side


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path) as both:
        yield both


def test_the_backlog_of_each_group_and_of_no_other(servers: Pair) -> None:
    sent = [f"order {number}" for number in range(40)]
    servers.send("orders", *sent[:30])
    assert sorted(servers.received(servers.old, "billing", "orders", 30)) == sorted(sent[:30])
    assert len(servers.received(servers.old, "audit", "orders", 10)) >= 10
    servers.send("orders", *sent[30:])
    with servers.admin(servers.old) as admin:
        left = {group: sum(each.ready for each in admin.list_lag(group)) for group in ("billing", "audit")}
    mirrors = servers.run(["orders"], ["billing", "audit"])
    assert [(each.state, each.counts.lag) for each in mirrors] == [(State.DONE, 0)] * 2
    assert {each.task.group: each.counts.handed for each in mirrors} == left
    for group, count in left.items():
        found = servers.received(servers.new, group, "orders", count + 1)
        assert len(found) == count == len(set(found))
        assert servers.received(servers.old, group, "orders", 1) == []
    assert sorted(servers.received(servers.new, "billing", "orders", 1)) == []


def test_messages_are_as_they_were_sent(servers: Pair) -> None:
    (message_id,) = servers.send("orders", "tea", tag="hot", keys=("k1", "k2"), properties={"colour": "red"})
    servers.make_groups("billing", "audit")
    servers.run(["orders"], ["billing", "audit"])
    with SimpleConsumer(servers.new.endpoint, "billing", "orders", await_duration=1) as consumer:
        (found,) = consumer.receive()
        consumer.ack(found)
    assert (found.message_id, found.tag, found.keys, found.properties) == (
        message_id,
        "hot",
        ("k1", "k2"),
        {"colour": "red", "popmq.hand-overs": "1"},
    )
    assert abs(found.born_timestamp - datetime.now(UTC)) < timedelta(minutes=5)
    assert (found.topic, found.delivery_attempt) == ("orders", 1)


def test_message_groups_keep_their_order_in_their_topic(servers: Pair) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic("flights", accept_message_types="FIFO")
    for number in range(12):
        servers.send("flights", str(number), message_group=f"g{number % 3}")
    servers.make_groups("radar")
    (mirror,) = servers.run(["flights"], ["radar"])
    assert (mirror.state, mirror.counts.handed) == (State.DONE, 12)
    found = [int(each) for each in servers.received(servers.new, "radar", "flights", 12)]
    assert all([n for n in found if n % 3 == group] == list(range(group, 12, 3)) for group in range(3))


def test_in_a_topic_of_all_kinds_message_groups_keep_their_order(servers: Pair) -> None:
    servers.make_groups("billing")
    for number in range(12):
        servers.send("orders", str(number), message_group=f"g{number % 2}" if number % 3 else None)
    (mirror,) = servers.run(["orders"], ["billing"])
    assert (mirror.state, mirror.counts.handed) == (State.DONE, 12)
    found = [int(each) for each in servers.received(servers.new, "billing", "orders", 12)]
    assert sorted(found) == list(range(12))
    for group in range(2):
        of_group = [each for each in found if each % 3 and each % 2 == group]
        assert of_group == sorted(of_group)
    others = servers.received(servers.new, "audit", "orders", 8)
    assert sorted(int(each) for each in others) == [each for each in range(12) if each % 3]


def test_a_whole_topic_comes_to_every_group(servers: Pair) -> None:
    servers.send("orders", "a", "b")
    servers.run(["orders"])
    for group in ("billing", "audit"):
        assert sorted(servers.received(servers.new, group, "orders", 2)) == ["a", "b"]
    assert sorted(servers.received(servers.old, "billing", "orders", 2)) == ["a", "b"], "it took nothing from a group"


@pytest.mark.parametrize(
    ("kind", "more"), [("DELAY", {"delay": 1}), ("PRIORITY", {"priority": 3}), ("TRANSACTION", {})]
)
def test_a_whole_topic_of_one_kind_takes_its_messages(servers: Pair, kind: str, more: dict[str, Any]) -> None:
    """A message that is due, or committed, has a type that such a topic does not take as it is."""
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders", accept_message_types=kind)
    if kind == "TRANSACTION":
        with Producer(servers.old.endpoint) as producer, producer.transaction(Message("orders", "tea")):
            pass
    else:
        servers.send("orders", "tea", **more)
    servers.old.clock.advance("2s")
    (mirror,) = servers.run(["orders"])
    assert (mirror.state, mirror.counts.handed + mirror.counts.scheduled) == (State.DONE, 1)
    with SimpleConsumer(servers.new.endpoint, "billing", "orders", await_duration=5) as consumer:
        (found,) = consumer.receive()
        consumer.ack(found)
    assert (found.text, found.priority) == ("tea", more.get("priority"))


def test_dead_letters_and_delayed_messages_come_as_such(servers: Pair) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders", accept_message_types=("NORMAL", "DELAY"))
    servers.send("orders", "bad")
    with SimpleConsumer(servers.old.endpoint, "billing", "orders", await_duration=1) as consumer:
        (bad,) = consumer.receive()
        consumer.forward_to_dead_letter_queue(bad, "no such tea")
    with Producer(servers.old.endpoint) as producer:
        later = producer.send(Message("orders", "later", delay=timedelta(hours=30)))
    (mirror,) = servers.run(["orders"], ["billing"])
    assert (mirror.counts.dead_letters, mirror.counts.scheduled, mirror.counts.unsure) == (1, 1, 0)
    with servers.admin(servers.new) as admin:
        (letter,) = admin.list_dead_letters("billing").dead_letters
        (waiting,) = admin.list_scheduled("orders")
    assert (letter.origin_message_id, letter.reason, letter.topic) == (
        bad.message_id,
        "forwarded by its consumer: no such tea",
        "orders",
    )
    assert (waiting.message.message_id, waiting.message.text) == (later.message_id, "later")
    with servers.admin(servers.old) as admin:
        assert admin.list_scheduled("orders") == []
        assert len(admin.list_dead_letters("billing").dead_letters) == 1, "the source keeps its own"
    (again,) = servers.run(["orders"], ["billing"])
    assert (again.counts.dead_letters, again.counts.scheduled) == (1, 1), "it continues where it was"


@pytest.mark.parametrize("message_group", [None, "ada"])
def test_what_goes_there_and_back_and_there_again_is_not_lost(servers: Pair, message_group: str | None) -> None:
    """A server that had a message before must not take it for a repetition."""
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders", accept_message_types="NORMAL" if message_group is None else "FIFO")
    servers.make_groups("billing")
    (message_id,) = servers.send("orders", "tea", message_group=message_group)
    for way in (servers, servers.reversed, servers, servers.reversed):
        (mirror,) = way.run(["orders"], ["billing"])
        assert mirror.counts.handed >= 1
    assert servers.received(servers.new, "billing", "orders", 1) == []
    with SimpleConsumer(servers.old.endpoint, "billing", "orders", await_duration=1) as consumer:
        (found,) = consumer.receive()
        consumer.ack(found)
    assert (found.text, found.message_id, found.properties) == ("tea", f"{message_id}-4", {"popmq.hand-overs": "4"})


def test_an_id_that_the_source_has_twice_is_stored_once(servers: Pair) -> None:
    servers.make_groups("billing")
    servers.send("orders", "tea", "milk")
    with servers.admin(servers.new) as admin:
        admin.create_topic("orders")
        admin.create_group("billing")
    with SimpleConsumer(servers.old.endpoint, "billing", "orders", await_duration=1) as consumer:
        tea, milk = consumer.receive()

    async def write() -> list[bool | PopError]:
        target = side(servers.new.endpoint)
        try:
            return await target.write_to_group(Handover("orders", "billing", Way.GROUP), [tea, milk, tea])
        finally:
            await target.close()

    assert asyncio.run(write()) == [False, False, True]
    assert sorted(servers.received(servers.new, "billing", "orders", 2)) == ["milk", "tea"]


def test_dead_letters_do_not_come_back_as_others(servers: Pair) -> None:
    servers.make_groups("billing")
    servers.send("orders", "bad")
    with SimpleConsumer(servers.old.endpoint, "billing", "orders", await_duration=1) as consumer:
        consumer.forward_to_dead_letter_queue(consumer.receive()[0], "no such tea")
    servers.run(["orders"], ["billing"])
    (mirror,) = servers.reversed.run(["orders"], ["billing"])
    assert (mirror.counts.dead_letters, mirror.counts.repeated) == (1, 1)
    with servers.admin(servers.old) as admin:
        assert len(admin.list_dead_letters("billing").dead_letters) == 1


def test_groups_and_topics_are_made_with_their_settings(servers: Pair) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders", queue_count=3, accept_message_types=("NORMAL", "DELAY"))
        admin.create_group("billing", max_attempts=4, retry_intervals=[7, 9])
    servers.run(["orders"], ["billing"])
    with servers.admin(servers.new) as admin:
        topic, group = admin.get_topic("orders"), admin.get_group("billing")
    assert (topic.queue_count, topic.accept_message_types) == (3, ("NORMAL", "DELAY"))
    assert (group.max_attempts, group.retry_intervals) == (4, (timedelta(seconds=7), timedelta(seconds=9)))
