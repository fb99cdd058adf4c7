"""Queues are at every server of one database: a pull consumer turns to the next when one is gone."""

from __future__ import annotations

import contextlib

import pytest

import popserver
from popclient import Message, Producer, PullConsumer


@pytest.mark.row("B23")
def test_a_server_that_goes_takes_no_queue_with_it(postgres_url: str) -> None:
    with contextlib.ExitStack() as running:
        staying = running.enter_context(popserver.embedded(postgres_url))
        going = running.enter_context(contextlib.ExitStack())
        first = going.enter_context(popserver.embedded(postgres_url))
        endpoints = f"{first.endpoint};{staying.endpoint}"
        with (
            Producer(staying.endpoint) as producer,
            PullConsumer(endpoints, "g", consume_from="CONSUME_FROM_FIRST_OFFSET") as consumer,
        ):
            producer.send_many([Message("flights", str(number)) for number in range(50)])
            consumer.assign("flights")
            seen = [message.text for message in consumer.poll(5, 20)]
            consumer.commit()
            going.close()
            producer.send_many([Message("flights", str(number)) for number in range(50, 100)])
            while len(seen) < 100:
                polled = consumer.poll(10)
                assert polled, f"{len(seen)} of 100 came"
                seen += [message.text for message in polled]
            consumer.commit()
            assert sum(consumer.committed(mq) or 0 for mq in consumer.assignment) == 100
        assert sorted(seen, key=int) == [str(number) for number in range(100)]


@pytest.mark.row("B23")
def test_a_message_sent_to_one_server_ends_a_pull_held_by_the_other(postgres_url: str) -> None:
    with (
        popserver.embedded(postgres_url) as one,
        popserver.embedded(postgres_url) as other,
        Producer(one.endpoint) as producer,
        PullConsumer(other.endpoint, "g") as consumer,
    ):
        producer.send("flights", "old")
        consumer.assign("flights")
        assert consumer.poll(0.1) == []
        producer.send("flights", "new")
        assert [message.text for message in consumer.poll(5)] == ["new"]
