"""Topics, groups, and who has met whom."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text

from popserver.catalog import groups, topics
from popserver.database.schema import progress
from popserver.maintenance import purge
from popserver.model.errors import AlreadyExists, BadRequest, ConsumerGroupNotFound, InvalidReceiptHandle, TopicNotFound
from popserver.model.group import ConsumeFrom, HistoryLevel, Mode
from popserver.model.names import Resource
from popserver.model.retry import Holder, RetryPolicy
from popserver.model.states import State
from popserver.model.topic import MessageType
from popserver.settling import expire
from tests.support.builders import GROUP, TOPIC, a_new_group, a_new_topic
from tests.support.open_store import HOUR, SECOND, START_MS, OpenStore


def progress_of(store: OpenStore, group_id: int) -> list[int]:
    query = select(progress.c.next_offset).where(progress.c.group_id == group_id).order_by(progress.c.queue_id)
    return list(store.conn.execute(query).scalars())


class TestTopics:
    def test_made_and_found(self, store: OpenStore) -> None:
        made = store.topic(Resource("ns", "t"), queues=3)
        assert made == topics.find_topic(store.conn, Resource("ns", "t"))
        assert ([each.number for each in made.queues], made.created_at_ms) == ([0, 1, 2], START_MS)
        assert made.accepts == (MessageType.NORMAL,)
        assert topics.find_topic(store.conn, Resource("", "t")) is None
        assert topics.topics_by_id(store.conn, [made.topic_id]) == {made.topic_id: made}

    @pytest.mark.row("G7")
    def test_namespaces_keep_names_apart(self, store: OpenStore) -> None:
        one, other = store.topic(Resource("a", "t")), store.topic(Resource("b", "t"))
        in_one, in_other = store.group(Resource("a", "g"), meets=[one]), store.group(Resource("b", "g"), meets=[other])
        store.send(one)
        assert len({one.topic_id, other.topic_id}) == len({in_one.group_id, in_other.group_id}) == 2
        assert (len(store.receive(in_one, one)), len(store.receive(in_other, other))) == (1, 0)

    def test_twice_is_refused_or_found(self, store: OpenStore) -> None:
        made = store.topic(queues=2)
        with pytest.raises(AlreadyExists, match="topic 'orders' exists already, with 2 queues"):
            store.topic(queues=3)
        assert store.one(topics.create_topic, topics.CreateTopic(a_new_topic(), or_find=True)) == made

    def test_of_two_in_one_transaction_the_second_finds_the_first(self, store: OpenStore) -> None:
        one, two = store.do(topics.create_topic, *[topics.CreateTopic(a_new_topic(), or_find=True)] * 2)
        assert one == two

    def test_queues_are_added_never_taken(self, store: OpenStore) -> None:
        topic = store.topic(queues=2)
        grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=4))
        assert grown.queues[:2] == topic.queues
        assert [each.number for each in grown.queues] == [0, 1, 2, 3]
        assert store.rings == {topic.topic_id}
        with pytest.raises(BadRequest, match="has 4 queues, and their number only grows; 3 are too few"):
            store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=3))
        assert store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=4)) == grown

    def test_a_group_that_has_met_the_topic_starts_new_queues_at_their_beginning(self, store: OpenStore) -> None:
        topic = store.topic()
        latest = store.group("latest", meets=[topic], consume_from=ConsumeFrom.LATEST)
        stranger = store.group("stranger")
        grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=3))
        (sent,) = store.send(grown, 1, queue=2)
        assert progress_of(store, latest.group_id) == [0, 0, 0]
        assert progress_of(store, stranger.group_id) == []
        assert [each.stored.message.message_id for each in store.receive(latest, grown)] == [sent.message_id]

    def test_what_it_accepts(self, store: OpenStore) -> None:
        topic = store.topic()
        accepts = (MessageType.FIFO, MessageType.NORMAL)
        assert store.one(topics.update_topic, topics.UpdateTopic(topic.name, accepts=accepts)).accepts == accepts
        assert store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=2)).accepts == accepts

    def test_what_does_not_exist(self, store: OpenStore) -> None:
        for verb, wish in (
            (topics.update_topic, topics.UpdateTopic(Resource("ns", "t"))),
            (topics.delete_topic, topics.DeleteTopic(Resource("ns", "t"))),
        ):
            with pytest.raises(TopicNotFound, match="create it with: popmq topic create t --namespace ns"):
                store.one(verb, wish)  # type: ignore[arg-type]


class TestGroups:
    def test_made_and_found(self, store: OpenStore) -> None:
        made = store.group(
            max_attempts=5, intervals_ms=[1, 2], consume_from=ConsumeFrom.LATEST, history=HistoryLevel.ALL
        )
        assert made == groups.find_group(store.conn, GROUP)
        assert (made.retry, made.consume_from, made.history) == (
            RetryPolicy(5, (1, 2)),
            ConsumeFrom.LATEST,
            HistoryLevel.ALL,
        )
        assert (made.mode, made.created_at_ms) == (None, START_MS)
        assert groups.page_of_groups(store.conn, None, None, 10) == [made]
        assert groups.groups_by_id(store.conn, {made.group_id, 99}) == {made.group_id: groups.FoundGroup(made, False)}

    def test_twice_is_refused_or_found(self, store: OpenStore) -> None:
        made = store.group()
        with pytest.raises(AlreadyExists, match="consumer group 'billing' exists already"):
            store.group()
        assert store.one(groups.create_group, groups.CreateGroup(a_new_group(), or_find=True)) == made

    @pytest.mark.row("L7")
    def test_changing_it_leaves_the_rest_alone(self, store: OpenStore) -> None:
        made = store.group(max_attempts=5, intervals_ms=[1, 2])
        changed = store.one(groups.update_group, groups.UpdateGroup(GROUP, max_attempts=3))
        assert changed == made._replace(retry=RetryPolicy(3, (1, 2)))
        changed = store.one(groups.update_group, groups.UpdateGroup(GROUP, None, (9,), HistoryLevel.NONE))
        assert changed == made._replace(retry=RetryPolicy(3, (9,)), history=HistoryLevel.NONE)
        assert store.one(groups.update_group, groups.UpdateGroup(GROUP)) == changed

    def test_a_changed_policy_counts_for_holds_that_run(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic)
        store.receive(group, topic, invisible_ms=SECOND)
        store.one(groups.update_group, groups.UpdateGroup(GROUP, max_attempts=1))
        store.end_due(after_ms=SECOND)
        assert set(store.states(group).values()) == {State.DLQ}

    def test_what_does_not_exist(self, store: OpenStore) -> None:
        for verb, wish in (
            (groups.update_group, groups.UpdateGroup(GROUP)),
            (groups.delete_group, groups.DeleteGroup(GROUP)),
        ):
            with pytest.raises(ConsumerGroupNotFound, match="create it with: popmq group create billing"):
                store.one(verb, wish)  # type: ignore[arg-type]


class TestMeeting:
    def test_gives_a_place_in_every_queue_once(self, store: OpenStore) -> None:
        topic = store.topic(queues=2)
        store.send(topic, 3, queue=1)
        group = store.group(meets=[topic])
        assert progress_of(store, group.group_id) == [0, 0]
        store.receive(group, topic)
        store.meet(group, topic)
        assert progress_of(store, group.group_id) == [0, 3], "meeting again changes nothing"

    def test_the_latest(self, store: OpenStore) -> None:
        topic = store.topic(queues=2)
        store.send(topic, 3, queue=1)
        group = store.group(meets=[topic], consume_from=ConsumeFrom.LATEST)
        assert progress_of(store, group.group_id) == [0, 3]

    def test_fixes_the_mode(self, store: OpenStore) -> None:
        one, other = store.topic("one"), store.topic("other")
        group = store.group(meets=[one])
        found = groups.find_group(store.conn, GROUP)
        assert found is not None
        assert found.mode is Mode.POP
        store.meet(group, other)
        with pytest.raises(BadRequest, match="consumes in mode POP, fixed at its first use"):
            store.meet(group, other, Mode.PULL)

    def test_a_group_that_is_gone(self, store: OpenStore) -> None:
        topic, group = store.topic(), store.group()
        store.one(groups.delete_group, groups.DeleteGroup(GROUP))
        store.purge()
        with pytest.raises(ConsumerGroupNotFound):
            store.meet(group, topic)


class TestDeleting:
    def test_a_topic_frees_its_name_at_once_and_never_its_ids(self, store: OpenStore) -> None:
        old = store.topic(queues=2)
        group = store.group(meets=[old])
        store.send(old)
        (held,) = store.receive(group, old)
        store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
        assert topics.find_topic(store.conn, TOPIC) is None
        new = store.topic(queues=2)
        assert new.topic_id > old.topic_id
        assert min(each.queue_id for each in new.queues) > max(each.queue_id for each in old.queues)
        store.purge()
        store.meet(group, new)
        store.send(new)
        (outcome,) = store.ack(group, held)
        assert isinstance(outcome, InvalidReceiptHandle), "an old handle means nothing new"
        assert list(store.states(group).values()) == [State.READY]

    def test_even_the_last_ids_are_never_reused(self, store: OpenStore) -> None:
        """As a plain rowid would be."""
        ids = []
        for _ in range(3):
            topic, group = store.topic(), store.group()
            ids.append((topic.topic_id, topic.queues[0].queue_id, group.group_id))
            store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
            store.one(groups.delete_group, groups.DeleteGroup(GROUP))
            store.purge()
        assert len({each[0] for each in ids}) == len({each[1] for each in ids}) == len({each[2] for each in ids}) == 3

    def test_leaves_nothing_behind(self, store: OpenStore) -> None:
        topic, other = store.topic("one", queues=3), store.topic("other")
        group = store.group(meets=[topic, other], history=HistoryLevel.ALL)
        for queue in range(3):
            store.send(topic, 2, queue=queue)
        store.send(other, 2)
        store.receive(group, topic, 4)
        store.receive(group, other, 1)
        store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
        store.purge()
        assert [store.one_value(f"SELECT COUNT(*) FROM {table}") for table in ("topic", "queue", "progress")] == [
            1,
            1,
            1,
        ]
        assert store.one_value("SELECT COUNT(*) FROM message") == 2
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 1
        assert store.one_value("SELECT COUNT(*) FROM history") == 1

    def test_goes_in_steps(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 1_500)
        store.receive(group, topic, 1_200)
        store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
        removed = []
        while rows := store.one(purge.purge, purge.PurgeDeleted()):
            removed.append(rows)
        assert max(removed) == 1_000
        assert sum(removed) == 1_200 + 1_500 + 2  # deliveries, messages, the queue and the topic

    def test_a_deleted_topic_is_granted_no_more(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 3)
        store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
        store.one(purge.purge, purge.PurgeDeleted())
        assert store.receive(group, topic) == []

    def test_a_group_leaves_nothing_behind(self, store: OpenStore) -> None:
        topic = store.topic()
        group, other = store.group(meets=[topic], history=HistoryLevel.ALL), store.group("other", meets=[topic])
        store.send(topic, 3)
        for each in (group, other):
            store.receive(each, topic, 2)
        store.one(groups.delete_group, groups.DeleteGroup(GROUP))
        store.purge()
        assert [store.one_value(f"SELECT COUNT(*) FROM {table}") for table in ("consumer_group", "progress")] == [1, 1]
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 2
        assert len(store.receive(other, topic)) == 1

    def test_a_new_group_of_that_name_starts_anew(self, store: OpenStore) -> None:
        topic = store.topic()
        old = store.group(meets=[topic])
        store.send(topic)
        (held,) = store.receive(old, topic)
        store.one(groups.delete_group, groups.DeleteGroup(GROUP))
        new = store.group(meets=[topic])
        assert new.group_id > old.group_id
        assert [each.attempt for each in store.receive(new, topic)] == [1]
        store.purge()
        assert store.ack(old, held) != [None]

    @pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
    def test_a_deleted_group_has_no_dead_letters(self, store: OpenStore, holder: Holder) -> None:
        topic = store.topic()
        group = store.group(meets=[topic], max_attempts=1)
        store.send(topic)
        store.receive(group, topic, invisible_ms=SECOND, holder=holder)
        store.one(groups.delete_group, groups.DeleteGroup(GROUP))
        assert store.end_due(after_ms=HOUR) == 1
        assert store.rows("SELECT name FROM topic WHERE deleted_at_ms IS NULL") == [(TOPIC.name,)]
        store.purge()

    def test_what_falls_due_meanwhile_keeps_nobody_busy(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic)
        store.receive(group, topic, invisible_ms=SECOND)
        store.one(groups.delete_group, groups.DeleteGroup(GROUP))
        assert store.end_due(after_ms=HOUR) == 1
        store.purge()
        assert store.end_due(after_ms=HOUR) == 0

    def test_a_deleted_group_is_granted_no_more(self, store: OpenStore) -> None:
        """Another server that has not heard of it would leave deliveries of no group."""
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 3)
        store.receive(group, topic, 1)
        store.one(groups.delete_group, groups.DeleteGroup(GROUP))
        store.one(purge.purge, purge.PurgeDeleted())
        assert store.receive(group, topic) == []
        store.purge()
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 0

    def test_what_is_due_in_no_group_is_forgotten(self, store: OpenStore) -> None:
        topic = store.topic()
        group, other = store.group(meets=[topic]), store.group("other", meets=[topic])
        store.send(topic, 2)
        for each in (group, other):
            store.receive(each, topic, invisible_ms=SECOND)
        for table in ("progress", "consumer_group"):
            store.conn.execute(text(f"DELETE FROM {table} WHERE group_id = :id"), {"id": group.group_id})
        store.now_ms += SECOND
        assert store.one(expire.end_due, expire.EndDue()).next_due_ms is None
        assert store.one_value("SELECT COUNT(*) FROM delivery WHERE group_id = :id", id=group.group_id) == 0
        assert set(store.states(other).values()) == {State.READY}
