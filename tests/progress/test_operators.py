"""An operator's requests to one server: what they name is what is done, and whose consumers are in their way."""

from __future__ import annotations

import pytest

from popserver.database.check import check_integrity
from popserver.filters import tags
from popserver.filters.subscription import ClientKind, Role, subscription
from popserver.model.errors import (
    BadRequest,
    ConsumerGroupNotFound,
    IllegalConsumerGroup,
    IllegalMessageId,
    IllegalTopic,
    MessageNotFound,
    TopicNotFound,
)
from popserver.model.group import ConsumeFrom, NewGroup
from popserver.model.names import Resource, retry_topic
from popserver.model.retry import RetryPolicy
from popserver.model.states import State
from popserver.model.topic import MessageType, NewTopic, QueueName
from popserver.progress import flow
from popserver.progress.flow import GroupProgress, SkippedMessage
from popserver.progress.rules import Edge, MovedOffset
from popserver.pulling.offsets import NamedOffset
from tests.support.builders import GROUP, TOPIC, in_order, messages_of
from tests.support.lite_broker import lite_messages
from tests.support.members import come
from tests.support.running_broker import RunningBroker, ids

OTHER, UNREAD, SOURCE = Resource("", "letters"), Resource("", "unread"), Resource("", "source")
SECOND = 1_000


def progress_of(broker: RunningBroker) -> GroupProgress:
    return broker.broker.progress()


async def consume(broker: RunningBroker, client_id: str, group: Resource = GROUP, topic: Resource = TOPIC) -> None:
    """The client says that it consumes the topic message by message."""
    clients = broker.broker.sessions.clients
    clients.connected(client_id, f"stream of {client_id}")
    wanted = tags.parse("*")
    role = Role(group, ClientKind.PUSH, subscription([(topic, wanted)]), {topic: wanted})
    clients.settled(client_id, works_in_order=False, role=role)


async def read(broker: RunningBroker, *topics: Resource) -> None:
    """Three messages in each of these topics, and the group has read one."""
    for each in topics:
        await broker.topic(each)
        await broker.send(messages_of(3, each))
        assert await broker.ack(*await broker.receive(1, topic=each), topic=each) == [None]


async def rows(broker: RunningBroker) -> list[tuple[str, int]]:
    found = await broker.query(
        "SELECT t.name, p.next_offset FROM progress p JOIN queue q ON q.queue_id = p.queue_id"
        " JOIN topic t ON t.topic_id = q.topic_id ORDER BY t.name, q.number"
    )
    return [(row[0], row[1]) for row in found]


class TestUnsubscribe:
    async def test_consumers_that_are_connected_are_in_its_way(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC, OTHER)
        for each in ("c2", "c1"):
            await consume(broker, each)
        with pytest.raises(BadRequest, match="subscribe to topic 'orders', such as c1, 2 in all"):
            await progress_of(broker).unsubscribe(GROUP, TOPIC)
        assert await rows(broker) == [("letters", 1), ("orders", 1)]
        await progress_of(broker).unsubscribe(GROUP, OTHER)
        assert await rows(broker) == [("orders", 1)]

    async def test_consumers_of_other_groups_are_not(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC)
        await consume(broker, "c1", group=SOURCE)
        await progress_of(broker).unsubscribe(GROUP, TOPIC)
        assert await rows(broker) == []

    async def test_members_are_in_its_way_and_count_once(self, broker: RunningBroker) -> None:
        await broker.topic()
        await broker.topic(OTHER)
        for topic in (TOPIC, OTHER):
            await broker.broker.consuming.offsets.commit(GROUP, [NamedOffset(QueueName(topic, 0), 0)])
        await come(broker, "c9")
        with pytest.raises(BadRequest, match="such as c9, 1 in all"):
            await progress_of(broker).unsubscribe(GROUP, TOPIC)
        await progress_of(broker).unsubscribe(GROUP, OTHER)
        assert await rows(broker) == [("orders", 0)]

    async def test_what_does_not_exist_is_named(self, strict_broker: RunningBroker) -> None:
        with pytest.raises(IllegalConsumerGroup):
            await progress_of(strict_broker).unsubscribe(Resource("", " "), TOPIC)
        with pytest.raises(ConsumerGroupNotFound):
            await progress_of(strict_broker).unsubscribe(GROUP, TOPIC)
        await strict_broker.group()
        with pytest.raises(TopicNotFound):
            await progress_of(strict_broker).unsubscribe(GROUP, TOPIC)


class TestReset:
    async def test_in_one_queue_or_in_all(self, broker: RunningBroker) -> None:
        await broker.topic(queues=2)
        await broker.send(1)
        await broker.receive()
        progress = progress_of(broker)
        both = await progress.reset(GROUP, TOPIC, None, Edge.END, dry_run=True)
        assert [(each.topic, each.number) for each in both] == [(TOPIC, 0), (TOPIC, 1)]
        before = await rows(broker)
        (one,) = await progress.reset(GROUP, TOPIC, 1, Edge.BEGINNING, dry_run=False)
        assert (one.number, one.to_offset) == (1, 0)
        assert (await rows(broker))[0] == before[0]

    @pytest.mark.parametrize("dry_run", [True, False])
    async def test_in_a_topic_that_the_group_has_not_read_only_by_force(
        self, broker: RunningBroker, dry_run: bool
    ) -> None:
        await read(broker, TOPIC)
        await broker.topic(UNREAD)
        with pytest.raises(BadRequest, match="'billing' has not read topic 'unread'"):
            await progress_of(broker).reset(GROUP, UNREAD, None, Edge.END, dry_run=dry_run)
        moved = await progress_of(broker).reset(GROUP, UNREAD, None, Edge.END, dry_run=dry_run, force=True)
        assert moved == [MovedOffset(UNREAD, 0, -1, 0)]
        assert await rows(broker) == [("orders", 1), *([] if dry_run else [("unread", 0)])]

    @pytest.mark.parametrize(
        ("consume_from", "others"), [(ConsumeFrom.EARLIEST, 0), (ConsumeFrom.LATEST, 2)], ids=["earliest", "latest"]
    )
    async def test_in_one_queue_of_an_unread_topic_lets_the_group_begin_in_all(
        self, broker: RunningBroker, consume_from: ConsumeFrom, others: int
    ) -> None:
        await broker.broker.catalog.create_group(NewGroup(GROUP, consume_from=consume_from))
        await broker.topic()
        assert await broker.receive() == []
        await broker.topic(UNREAD, queues=3)
        for _ in range(3):
            await broker.send(messages_of(2, UNREAD))
        moved = await progress_of(broker).reset(GROUP, UNREAD, 1, 1, dry_run=False, force=True)
        assert moved == [MovedOffset(UNREAD, 1, -1, 1)]
        found = [offset for topic, offset in await rows(broker) if topic == "unread"]
        assert sorted(found) == sorted([1, others, others])
        with broker.broker.engine.database.read() as conn:
            check_integrity(conn)

    async def test_a_group_that_was_unused_begins_in_all_when_it_consumes(self, broker: RunningBroker) -> None:
        await broker.broker.catalog.create_group(NewGroup(GROUP))
        await broker.topic()
        await broker.topic(UNREAD, queues=3)
        await progress_of(broker).reset(GROUP, UNREAD, 1, 0, dry_run=False, force=True)
        assert await rows(broker) == [("unread", 0)]
        assert await broker.receive() == []
        assert await rows(broker) == [("orders", 0), *[("unread", 0)] * 3]
        with broker.broker.engine.database.read() as conn:
            check_integrity(conn)


class TestImport:
    async def test_into_several_topics(self, broker: RunningBroker) -> None:
        for each in (TOPIC, OTHER):
            await broker.topic(each, queues=2)
            await broker.send(messages_of(1, each))
        wishes = [NamedOffset(QueueName(OTHER, 1), 0), NamedOffset(QueueName(TOPIC, 0), 0)]
        moved = await progress_of(broker).import_offsets(GROUP, wishes)
        assert moved == [MovedOffset(OTHER, 1, -1, 0), MovedOffset(TOPIC, 0, -1, 0)]
        assert await rows(broker) == [("letters", 0), ("orders", 0)]

    async def test_as_many_as_one_request_may_have(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flow, "OFFSETS_MAX", 2)
        await broker.topic(queues=3)
        wishes = [NamedOffset(QueueName(TOPIC, number), 0) for number in range(3)]
        for refused in ([], wishes):
            with pytest.raises(BadRequest, match=f"imports 1 to 2 offsets, not {len(refused)}"):
                await progress_of(broker).import_offsets(GROUP, refused)
        for accepted in (wishes[:1], wishes[1:]):
            assert len(await progress_of(broker).import_offsets(GROUP, accepted)) == len(accepted)

    async def test_a_group_that_consumes_message_by_message_is_refused(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC)
        with pytest.raises(BadRequest, match="'billing' consumes in mode POP"):
            await progress_of(broker).import_offsets(GROUP, [NamedOffset(QueueName(TOPIC, 0), 0)])

    async def test_a_missing_topic_is_not_created(self, broker: RunningBroker) -> None:
        with pytest.raises(TopicNotFound, match="'unread'"):
            await progress_of(broker).import_offsets(GROUP, [NamedOffset(QueueName(UNREAD, 0), 0)])
        assert await broker.query("SELECT 1 FROM topic") == []


class TestSkip:
    @pytest.mark.parametrize("topic", [None, TOPIC])
    async def test_the_answer_says_what_it_was(self, broker: RunningBroker, topic: Resource | None) -> None:
        await broker.group(retry=RetryPolicy(intervals_ms=(60 * SECOND,)))
        sent = [each.message_id for each in await broker.send(4)]
        await broker.receive(1, client_id="c7", invisible_ms=10 * SECOND)
        (waits,) = await broker.receive(1, push=True)
        await broker.change(waits, 60 * SECOND)
        progress, until_ms = progress_of(broker), broker.clock.now_ms() + 10 * SECOND
        with pytest.raises(BadRequest, match="is not skipped for group 'billing': it is INFLIGHT: client 'c7'"):
            await progress.skip(GROUP, topic, sent[0])
        skipped = [
            await progress.skip(GROUP, topic, sent[0], force=True),
            await progress.skip(GROUP, topic, sent[1]),
            await progress.skip(GROUP, topic, sent[2]),
        ]
        assert skipped == [
            SkippedMessage(State.INFLIGHT, "c7", until_ms),
            SkippedMessage(State.WAITING_RETRY, "", None),
            SkippedMessage(State.READY, "", None),
        ]
        assert ids(await broker.receive()) == sent[3:]

    async def test_the_topic_tells_messages_of_one_id_apart(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC, OTHER)
        for topic in (TOPIC, OTHER):
            await broker.send(messages_of(1, topic, message_id="same"))
            await broker.receive(2, topic=topic)
        with pytest.raises(BadRequest, match="name one of them"):
            await progress_of(broker).skip(GROUP, None, "same")
        await progress_of(broker).skip(GROUP, OTHER, "same")
        assert await rows(broker) == [("letters", 4), ("orders", 3)]

    async def test_what_cannot_be_found_is_named(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC)
        await broker.topic(UNREAD)
        (sent,) = await broker.send()
        progress = progress_of(broker)
        with pytest.raises(IllegalMessageId):
            await progress.skip(GROUP, TOPIC, " ")
        with pytest.raises(IllegalConsumerGroup):
            await progress.skip(Resource("", ""), TOPIC, sent.message_id)
        with pytest.raises(ConsumerGroupNotFound):
            await progress.skip(SOURCE, TOPIC, sent.message_id)
        with pytest.raises(MessageNotFound, match="topic 'unread'"):
            await progress.skip(GROUP, UNREAD, sent.message_id)


class TestClone:
    async def test_of_all_topics_but_the_servers_own(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC, OTHER, UNREAD)
        assert await broker.receive(topic=retry_topic(GROUP)) == []
        moved = await progress_of(broker).clone(GROUP, SOURCE, None)
        assert moved == [MovedOffset(each, 0, -1, 1) for each in (OTHER, TOPIC, UNREAD)]

    async def test_of_one_topic(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC, OTHER)
        assert await progress_of(broker).clone(GROUP, SOURCE, OTHER) == [MovedOffset(OTHER, 0, -1, 1)]
        assert len(await broker.receive(group=SOURCE, topic=OTHER)) == 2
        assert len(await broker.receive(group=SOURCE)) == 3, "elsewhere it begins by itself"

    async def test_without_progress_there_is_nothing_to_clone(self, broker: RunningBroker) -> None:
        await broker.group()
        await broker.topic(UNREAD)
        for topic, where in ((None, "any topic"), (UNREAD, "topic 'unread'")):
            with pytest.raises(BadRequest, match=f"'billing' has no progress in {where}"):
                await progress_of(broker).clone(GROUP, SOURCE, topic)
        assert [row.name for row in await broker.query("SELECT name FROM consumer_group")] == ["billing"]
        with pytest.raises(TopicNotFound):
            await progress_of(broker).clone(GROUP, SOURCE, OTHER)
        with pytest.raises(IllegalConsumerGroup):
            await progress_of(broker).clone(Resource("", " "), GROUP, None)


class TestReading:
    async def test_lag_in_one_topic_or_in_all(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC, OTHER)
        await broker.topic(UNREAD)
        progress = progress_of(broker)
        named = {
            topic: [each.topic for each in (await progress.lag(GROUP, topic))[0]] for topic in (None, TOPIC, UNREAD)
        }
        assert named == {None: [OTHER, TOPIC], TOPIC: [TOPIC], UNREAD: []}
        with pytest.raises(IllegalTopic):
            await progress.lag(GROUP, Resource("", "a b"))

    async def test_lag_has_a_limit(self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flow, "LAG_MAX", 2)
        await broker.topic(queues=3)
        await broker.receive()
        queues, count = await progress_of(broker).lag(GROUP, None)
        assert (len(queues), count) == (2, 3)

    async def test_accumulation_and_time_spans_in_named_topics(self, broker: RunningBroker) -> None:
        await read(broker, TOPIC, OTHER)
        progress = progress_of(broker)
        for topics in ([], [OTHER]):
            expected = topics or [OTHER, TOPIC]
            assert [topic for topic, _ in (await progress.accumulation(GROUP, topics)).topics] == expected
            assert [each.topic for each in await progress.time_spans(GROUP, topics)] == expected
        for query in (progress.accumulation, progress.time_spans):
            with pytest.raises(IllegalTopic):
                await query(GROUP, [TOPIC, Resource("", "a b")])
            with pytest.raises(IllegalConsumerGroup):
                await query(Resource("", " "), [TOPIC])

    async def test_accumulation_of_a_lite_topic(self, broker: RunningBroker) -> None:
        await broker.broker.catalog.create_topic(NewTopic(OTHER, 1, (MessageType.LITE,)))
        await read(broker, TOPIC)
        await broker.send([*lite_messages("a", 2, OTHER), *lite_messages("b", 1, OTHER)])
        await progress_of(broker).reset(GROUP, OTHER, None, Edge.BEGINNING, dry_run=False, force=True)
        for topics in ([], [OTHER]):
            for lite_topic, count in (("a", 2), ("b", 1)):
                found = await progress_of(broker).accumulation_of_lite_topic(GROUP, topics, lite_topic)
                assert found.ready == count
        with pytest.raises(BadRequest, match="none of its topics"):
            await progress_of(broker).accumulation_of_lite_topic(GROUP, [TOPIC], "a")


class TestPause:
    async def test_a_message_group_in_all_topics_that_have_some(self, broker: RunningBroker) -> None:
        await broker.broker.catalog.create_topic(NewTopic(TOPIC, 1, (MessageType.NORMAL, MessageType.FIFO)))
        await broker.broker.catalog.create_topic(NewTopic(OTHER, 1, (MessageType.LITE,)))
        await broker.group()
        await broker.send(in_order("g", 1))
        assert len(await broker.receive()) == 1
        await read(broker, UNREAD)
        await progress_of(broker).reset(GROUP, OTHER, None, Edge.BEGINNING, dry_run=False, force=True)
        await progress_of(broker).pause(GROUP, None, "g", paused_by="ops")
        paused = await broker.query("SELECT topic, message_group FROM group_pauses ORDER BY topic")
        assert [tuple(row) for row in paused] == [("letters", "g"), ("orders", "g")]
        await progress_of(broker).resume(GROUP, OTHER, "g")
        assert [row.topic for row in await broker.query("SELECT topic FROM group_pauses")] == ["orders"]
        await progress_of(broker).pause(GROUP, UNREAD, "g", paused_by="ops")
        await progress_of(broker).resume(GROUP, None, "g")
        assert [row.topic for row in await broker.query("SELECT topic FROM group_pauses")] == ["unread"]
