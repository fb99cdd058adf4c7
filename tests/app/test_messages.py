"""The broker's verbs: what they answer, and what they leave alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from popserver.model.errors import (
    BadRequest,
    ConsumerGroupNotFound,
    IllegalConsumerGroup,
    IllegalTopic,
    InvalidReceiptHandle,
    MessageBodyEmpty,
    PopError,
    TopicNotFound,
)
from popserver.model.group import ConsumeFrom
from popserver.model.handles import decode_receipt, encode_receipt
from popserver.model.message import ONE_FRAME_BATCH_SIZE_MAX, SendResult
from popserver.model.names import Resource
from popserver.model.retry import RETRY_LADDER_MS, RetryPolicy
from popserver.model.states import State
from tests.support.builders import GROUP, TOPIC, a_message, messages_of
from tests.support.running_broker import RunningBroker, ids

SECOND = 1_000
OTHER = Resource("", "other")


async def everything(broker: RunningBroker) -> list[Any]:
    """Names and counts of all that is stored."""
    tables = ("topic", "consumer_group", "progress", "message", "delivery", "dead_letter", "history")
    return [await broker.query(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]


class TestSending:
    @pytest.mark.row("N6")
    async def test_what_is_answered_is_seen_by_the_next_receive(self, either_broker: RunningBroker) -> None:
        for _ in range(20):
            (sent,) = await either_broker.send()
            assert ids(await either_broker.receive()) == [sent.message_id]

    @pytest.mark.row("H12")
    async def test_results_stand_in_the_order_of_the_messages(self, broker: RunningBroker) -> None:
        batch = messages_of(5)
        assert [each.message_id for each in await broker.send(batch)] == [each.message_id for each in batch]

    async def test_an_illegal_message_leaves_the_others_alone(self, broker: RunningBroker) -> None:
        good, bad = a_message(), a_message(body=b"")
        outcomes = await broker.broker.send([bad, good, bad])
        assert [type(each) for each in outcomes] == [MessageBodyEmpty, SendResult, MessageBodyEmpty]
        assert ids(await broker.receive()) == [good.message_id]

    async def test_a_repeated_id_gets_the_first_result(self, either_broker: RunningBroker) -> None:
        sent = a_message(body=b"first")
        first = await either_broker.send([sent])
        assert await either_broker.send([sent._replace(body=b"second")]) == first
        twice = a_message()
        one, other = await either_broker.send([twice, twice])
        assert one == other
        assert {each.stored.message.body for each in await either_broker.receive()} == {b"first", b"body"}

    async def test_one_id_sent_by_many_at_once_is_stored_once(self, either_broker: RunningBroker) -> None:
        sent = a_message()
        results = await asyncio.gather(*[either_broker.send([sent, a_message()]) for _ in range(20)])
        assert len({each[0] for each in results}) == 1
        assert len({each[1] for each in results}) == 20
        assert await either_broker.query("SELECT COUNT(*) FROM message") == [(21,)]

    async def test_queues_take_turns_even_when_sends_and_receives_do(self, broker: RunningBroker) -> None:
        await broker.topic(queues=4)
        queues = []
        for _ in range(8):
            queues += [each.queue_number for each in await broker.send()]
            await broker.receive()
        assert Counter(queues) == dict.fromkeys(range(4), 2)

    @pytest.mark.parametrize("name", ["%DLQ%billing", "%RETRY%billing"])
    async def test_the_servers_own_topics_take_nothing(self, broker: RunningBroker, name: str) -> None:
        with pytest.raises(IllegalTopic, match="only the server sends"):
            await broker.send([a_message(Resource("", name))])
        assert await broker.receive(topic=Resource("", "%DLQ%billing")) == []
        with pytest.raises(IllegalTopic, match="only the server sends"):
            await broker.send([a_message(Resource("", name))])


class TestAutoCreate:
    @pytest.mark.row("N3")
    async def test_on_the_way_where_the_server_may(self, broker: RunningBroker) -> None:
        await broker.send()
        assert len(await broker.receive()) == 1
        topic, group = await broker.broker.catalog.topic(TOPIC), await broker.broker.catalog.group(GROUP)
        assert len(topic.queues) == 8
        assert (group.retry, group.consume_from) == (RetryPolicy(17, RETRY_LADDER_MS), ConsumeFrom.EARLIEST)

    @pytest.mark.row("N3")
    async def test_refused_with_the_command_that_helps_where_it_may_not(self, strict_broker: RunningBroker) -> None:
        before = await everything(strict_broker)
        with pytest.raises(TopicNotFound, match=r"popmq topic create orders, or see popmq topic list$"):
            await strict_broker.send()
        with pytest.raises(ConsumerGroupNotFound, match=r"popmq group create billing, or see popmq group list$"):
            await strict_broker.receive()
        await strict_broker.group()
        with pytest.raises(TopicNotFound):
            await strict_broker.receive()
        assert (await everything(strict_broker))[0] == before[0]

    async def test_what_was_made_elsewhere_is_found_without_a_restart(self, strict_broker: RunningBroker) -> None:
        with pytest.raises(TopicNotFound):
            await strict_broker.send()
        await strict_broker.topic()
        assert len(await strict_broker.send()) == 1

    async def test_many_at_once_make_one(self, broker: RunningBroker) -> None:
        await asyncio.gather(*[broker.send() for _ in range(10)], *[broker.receive() for _ in range(10)])
        assert await broker.query("SELECT COUNT(*) FROM topic") == [(1,)]
        assert await broker.query("SELECT COUNT(*) FROM consumer_group") == [(1,)]

    @pytest.mark.row("L12")
    async def test_a_groups_dead_letter_topic_may_be_watched_before_the_first_death(
        self, strict_broker: RunningBroker
    ) -> None:
        dead_letters = Resource("", "%DLQ%billing")
        await strict_broker.group(OTHER)
        with pytest.raises(ConsumerGroupNotFound):
            await strict_broker.receive(group=OTHER, topic=dead_letters)
        await strict_broker.group(GROUP)
        assert await strict_broker.receive(group=OTHER, topic=dead_letters) == []

    @pytest.mark.parametrize(
        ("name", "refusal"), [("a b", IllegalTopic), ("", IllegalTopic), ("x" * 128, IllegalTopic)]
    )
    async def test_an_illegal_topic_is_never_made(
        self, broker: RunningBroker, name: str, refusal: type[PopError]
    ) -> None:
        with pytest.raises(refusal):
            await broker.send([a_message(Resource("", name))])
        with pytest.raises(refusal):
            await broker.receive(topic=Resource("", name))

    async def test_an_illegal_group_is_never_made(self, broker: RunningBroker) -> None:
        with pytest.raises(IllegalConsumerGroup):
            await broker.receive(group=Resource("", "a b"))
        assert await broker.query("SELECT COUNT(*) FROM consumer_group") == [(0,)]


class TestHandles:
    @pytest.mark.row("O3")
    async def test_of_another_group_or_topic_are_refused_and_make_nothing(self, broker: RunningBroker) -> None:
        await broker.send()
        await broker.send([a_message(OTHER)])
        (mine,) = await broker.receive()
        (theirs,) = await broker.receive(group=OTHER, topic=OTHER)
        before = await everything(broker)
        assert "was not given to group 'other'" in str((await broker.ack(mine, group=OTHER))[0])
        assert "belongs to another topic than 'other'" in str((await broker.ack(mine, topic=OTHER))[0])
        assert "was not given to group 'billing'" in str((await broker.ack(theirs))[0])
        for group, topic in ((Resource("", "nobody"), TOPIC), (GROUP, Resource("", "nowhere"))):
            with pytest.raises((ConsumerGroupNotFound, TopicNotFound)):
                await broker.ack(mine, group=group, topic=topic)
        assert await everything(broker) == before
        assert await broker.ack(mine) == [None]

    async def test_outcomes_stand_in_the_order_of_the_handles(self, broker: RunningBroker) -> None:
        await broker.topic()
        await broker.send(3)
        one, two, three = await broker.receive()
        current = decode_receipt(two.receipt_handle)
        stale = encode_receipt(current._replace(hold_id=current.hold_id ^ 1))
        handles = [three.receipt_handle, "garbage", one.receipt_handle, stale, ""]
        outcomes = await broker.broker.ack(GROUP, TOPIC, handles)
        assert [isinstance(each, InvalidReceiptHandle) for each in outcomes] == [False, True, False, True, True]
        assert list((await broker.states()).values()) == [State.COMMIT, State.INFLIGHT, State.COMMIT]

    @pytest.mark.row("L10")
    async def test_a_chain(self, either_broker: RunningBroker) -> None:
        await either_broker.send()
        (held,) = await either_broker.receive(invisible_ms=30 * SECOND)
        h1 = held.receipt_handle
        h2 = await either_broker.change(h1, 60 * SECOND)
        assert await either_broker.change(h1, 60 * SECOND) == h2, "the answer was lost; it is given again"
        (refused,) = await either_broker.broker.ack(GROUP, TOPIC, [h1])
        assert isinstance(refused, InvalidReceiptHandle)
        assert await either_broker.broker.ack(GROUP, TOPIC, [h2]) == [None]

    async def test_a_refused_change_is_raised_and_changes_nothing(self, broker: RunningBroker) -> None:
        await broker.send()
        (held,) = await broker.receive(invisible_ms=SECOND)
        await broker.advance(SECOND)
        before = await everything(broker)
        with pytest.raises(InvalidReceiptHandle, match="its time ended; the message is READY"):
            await broker.change(held, SECOND)
        with pytest.raises(InvalidReceiptHandle, match="malformed"):
            await broker.change("x", SECOND)
        assert await everything(broker) == before

    async def test_forwarding_is_repeatable(self, broker: RunningBroker) -> None:
        await broker.send()
        (held,) = await broker.receive()
        for _ in range(2):
            await broker.broker.forward_to_dead_letter_queue(GROUP, TOPIC, held.receipt_handle)
        assert await broker.query("SELECT COUNT(*) FROM dead_letters") == [(1,)]

    async def test_of_a_deleted_topic_are_dead_for_the_new_one(self, broker: RunningBroker) -> None:
        await broker.send()
        (held,) = await broker.receive()
        await broker.broker.catalog.delete_topic(TOPIC)
        await broker.send()
        (again,) = await broker.receive()
        assert again.attempt == 1
        assert "belongs to another topic than 'orders'" in str((await broker.ack(held))[0])
        await broker.broker.settle()
        assert await broker.query("SELECT COUNT(*) FROM topic") == [(1,)]
        assert list((await broker.states()).values()) == [State.INFLIGHT]


class TestTimelines:
    @pytest.mark.row("L8")
    @pytest.mark.row("L9")
    @pytest.mark.row("L18")
    async def test_simple_and_push_side_by_side(self, either_broker: RunningBroker) -> None:
        """Both fail 4 s after the receive: simple is back at the window's end, push 10 s after its failure."""
        simple, push = Resource("", "simple"), Resource("", "push")
        await either_broker.send()
        await either_broker.receive(group=simple, invisible_ms=30 * SECOND)
        (held,) = await either_broker.receive(group=push, push=True)
        await either_broker.advance(4 * SECOND)
        await either_broker.broker.change_invisible(push, TOPIC, held.receipt_handle, 10 * SECOND)
        assert await either_broker.states(push) != await either_broker.states(simple)
        seen: dict[str, int] = {}
        for second in range(5, 31):
            await either_broker.advance(SECOND)
            for group in (simple, push):
                if await either_broker.receive(group=group, invisible_ms=3_600 * SECOND):
                    seen[group.name] = second
        assert seen == {"push": 14, "simple": 30}

    @pytest.mark.row("L7")
    @pytest.mark.row("L12")
    async def test_three_retries_are_four_deliveries_then_a_dead_letter(self, broker: RunningBroker) -> None:
        await broker.group(retry=RetryPolicy(max_attempts=4))
        await broker.send()
        attempts = []
        for _ in range(6):
            attempts += [each.attempt for each in await broker.receive(invisible_ms=10 * SECOND)]
            await broker.advance(10 * SECOND)
        assert attempts == [1, 2, 3, 4]
        assert set((await broker.states()).values()) == {State.DLQ}

    async def test_a_push_hold_lives_without_a_renewing_write(self, broker: RunningBroker) -> None:
        await broker.send()
        await broker.receive(push=True, invisible_ms=0)
        for _ in range(10):
            broker.broker.sessions.clients.seen("c1")
            await broker.advance(20 * SECOND)
        assert set((await broker.states()).values()) == {State.INFLIGHT}

    @pytest.mark.row("L15")
    async def test_a_push_hold_ends_after_three_hours_whatever_its_client_does(self, broker: RunningBroker) -> None:
        await broker.send()
        await broker.receive(push=True)
        for _ in range(3 * 60 * 60 // 20):
            broker.broker.sessions.clients.seen("c1")
            await broker.advance(20 * SECOND)
        assert set((await broker.states()).values()) == {State.WAITING_RETRY}

    async def test_many_due_at_once_all_come_back(self, broker: RunningBroker) -> None:
        await broker.send(2_500)
        while await broker.receive(invisible_ms=10 * SECOND):
            pass
        await broker.advance(10 * SECOND)
        assert set((await broker.states()).values()) == {State.READY}


class TestGroups:
    @pytest.mark.row("G1")
    async def test_three_members_share_out_a_topic(self, broker: RunningBroker) -> None:
        sent = [each.message_id for each in await broker.send(999)]
        got: list[str] = []
        while batch := [each for n in range(3) for each in await broker.receive(client_id=f"c{n}")]:
            got += ids(batch)
        assert sorted(got) == sorted(sent)

    @pytest.mark.row("G3")
    async def test_groups_are_independent(self, broker: RunningBroker) -> None:
        await broker.send(3)
        await broker.ack(*await broker.receive())
        assert len(await broker.receive(group=OTHER)) == 3

    async def test_a_batch_has_a_limit(self, broker: RunningBroker) -> None:
        await broker.send(ONE_FRAME_BATCH_SIZE_MAX + 8)
        assert len(await broker.receive(1_000)) == ONE_FRAME_BATCH_SIZE_MAX

    async def test_deleting_one_frees_its_name_and_ends_its_holds(self, broker: RunningBroker) -> None:
        await broker.send(2)
        (held, _) = await broker.receive()
        await broker.broker.catalog.delete_group(GROUP)
        assert [each.attempt for each in await broker.receive()] == [1, 1]
        assert isinstance((await broker.ack(held))[0], InvalidReceiptHandle)
        await broker.broker.settle()
        assert await broker.query("SELECT COUNT(*) FROM consumer_group") == [(1,)]

    @pytest.mark.row("G7")
    async def test_namespaces_do_not_cross(self, broker: RunningBroker) -> None:
        there = Resource("tenant", TOPIC.name)
        await broker.send()
        await broker.send([a_message(there, body=b"theirs")])
        granted = await broker.receive(topic=there, group=Resource("tenant", GROUP.name))
        assert [each.stored.message.body for each in granted] == [b"theirs"]

    async def test_a_topic_never_has_fewer_queues(self, broker: RunningBroker) -> None:
        await broker.topic(queues=2)
        with pytest.raises(BadRequest, match="only grows"):
            await broker.broker.catalog.update_topic(TOPIC, queue_count=1)


@pytest.mark.row("K2")
@pytest.mark.row("K3")
@pytest.mark.row("K4")
@pytest.mark.row("O1")
async def test_ten_thousand_messages_raced_for_are_granted_once(either_broker: RunningBroker) -> None:
    sent: list[str] = []
    for _ in range(10):
        sent += [each.message_id for each in await either_broker.send(1_000)]
    got: dict[str, list[str]] = {}

    async def member(client_id: str) -> None:
        mine = got[client_id] = []
        while batch := await either_broker.receive(client_id=client_id, invisible_ms=3_600_000):
            mine += ids(batch)

    await asyncio.gather(*[member(f"c{n}") for n in range(16)])
    everyone = [message_id for mine in got.values() for message_id in mine]
    assert len(everyone) == 10_000
    assert sorted(everyone) == sorted(sent)
    assert all(got.values()), "every member got some"
