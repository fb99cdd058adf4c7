"""Progress that members commit: it grows, and only an operator moves it back."""

from __future__ import annotations

import pytest

from popserver.catalog import groups, topics
from popserver.engine import transaction
from popserver.filters import TagFilter
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, IllegalOffset, PopError, TooLate, TopicNotFound
from popserver.model.group import Group, Mode
from popserver.model.topic import QueueName, Topic
from popserver.progress.rules import Edge
from popserver.pulling import commit as pulling_commit
from popserver.pulling.flow import PullRequest
from popserver.pulling.rules import NO_PROGRESS, Committed, QueueOffset, QueueProgress
from tests.support.builders import GROUP, TOPIC
from tests.support.open_store import OpenStore
from tests.support.plans import Plans
from tests.support.running_broker import RunningBroker

END = 200


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    made = store.topic(queues=3)
    for number in range(3):
        store.send(made, END, queue=number)
    return made


def pull_group(store: OpenStore, name: str = GROUP.name) -> Group:
    group = store.group(name)
    store.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
    return group


def commit(
    store: OpenStore, group: Group, topic: Topic, *wishes: tuple[int, int] | tuple[int, int, int | None]
) -> list[Committed]:
    """(queue, offset) or (queue, offset, resets) each."""
    listed = [QueueOffset(topic, topic.queues[queue], *more) for queue, *more in wishes]
    return store.one(pulling_commit.commit, pulling_commit.Commit(group, listed))


def fetch(store: OpenStore, group: Group, topic: Topic) -> list[QueueProgress]:
    return pulling_commit.fetch(store.conn, group, topic.queues)


@pytest.mark.row("H5")
def test_what_is_stored_is_the_next_offset(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    assert fetch(store, group, topic) == [NO_PROGRESS] * 3
    assert commit(store, group, topic, (1, 103)) == [Committed(None, QueueProgress(103, 0))]
    assert fetch(store, group, topic) == [NO_PROGRESS, QueueProgress(103, 0), NO_PROGRESS]
    assert store.lag(group).ready == END - 103


def test_it_only_grows(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    for offset, stored in ((5, 5), (3, 5), (5, 5), (7, 7), (0, 7)):
        assert commit(store, group, topic, (0, offset)) == [Committed(None, QueueProgress(stored, 0))]


def test_a_commit_of_0_is_progress(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    assert commit(store, group, topic, (0, 0)) == [Committed(None, QueueProgress(0, 0))]
    assert fetch(store, group, topic)[0] == QueueProgress(0, 0)


@pytest.mark.row("I1")
def test_of_two_members_that_begin_a_queue_the_first_one_counts(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    wishes = [pulling_commit.Commit(group, [QueueOffset(topic, topic.queues[0], each)], begins=True) for each in (5, 9)]
    in_one_batch = store.do(pulling_commit.commit, *wishes)
    assert in_one_batch == [[Committed(None, QueueProgress(5, 0))]] * 2
    assert store.one(pulling_commit.commit, wishes[1]) == [Committed(None, QueueProgress(5, 0))]
    assert commit(store, group, topic, (0, 9)) == [Committed(None, QueueProgress(9, 0))]


@pytest.mark.parametrize("offset", [-1, END + 1, 1 << 62, -(1 << 62)])
def test_beyond_its_queue_it_is_refused(store: OpenStore, topic: Topic, offset: int) -> None:
    group = pull_group(store)
    commit(store, group, topic, (0, 9))
    before = store.digest()
    (refused,) = commit(store, group, topic, (0, offset))
    assert isinstance(refused.refusal, IllegalOffset)
    assert f"offset {offset} is not in queue 0 of topic 'orders', which ends at 200" in refused.refusal.sentence
    assert refused.stored == QueueProgress(9, 0)
    assert store.digest() == before


def test_each_offset_has_its_own_outcome(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    done = commit(store, group, topic, (0, 5), (1, 999), (2, 7), (0, 6), (0, 2))
    assert [type(each.refusal) for each in done] == [type(None), IllegalOffset, *[type(None)] * 3]
    assert [each.stored.offset for each in done] == [6, -1, 7, 6, 6]
    assert [each.offset for each in fetch(store, group, topic)] == [6, -1, 7]


def test_after_a_reset_a_commit_from_before_is_refused(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    commit(store, group, topic, (0, 50), (1, 50))
    store.conn.exec_driver_sql(
        f"UPDATE progress SET next_offset = 10, resets = 2 WHERE queue_id = {topic.queues[0].queue_id}"
    )
    (late,) = commit(store, group, topic, (0, 60, 1))
    assert isinstance(late.refusal, TooLate)
    assert (
        "offset 60 of queue 0 of topic 'orders' was read after reset 1, but reset 2 came later; continue at 10"
        in str(late.refusal)
    )
    assert late.stored == QueueProgress(10, 2)
    assert commit(store, group, topic, (0, 11, 2)) == [Committed(None, QueueProgress(11, 2))]
    assert commit(store, group, topic, (0, 12, None)) == [Committed(None, QueueProgress(12, 2))], "taken by its word"


def test_several_requests_cost_as_many_statements_as_one(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store)
    counts = []
    for spread in (1, 3):
        plans = Plans(store)
        wishes = [QueueOffset(topic, each, spread * 10) for each in topic.queues[:spread]]
        with plans.caught():
            store.do(pulling_commit.commit, *(pulling_commit.Commit(group, wishes) for _ in range(spread)))
        counts.append(plans.count)
    assert counts[1] <= counts[0] + 1, "one more to grow, beside the one to begin"


def test_requests_of_one_batch_meet(store: OpenStore, topic: Topic) -> None:
    one, other = pull_group(store, "one"), pull_group(store, "other")
    wishes = [(one, 5), (other, 6), (one, 9), (one, 7)]
    done = store.do(
        pulling_commit.commit,
        *(pulling_commit.Commit(group, [QueueOffset(topic, topic.queues[0], at)]) for group, at in wishes),
    )
    stored = [each[0].stored.offset for each in done if not isinstance(each, PopError)]
    assert stored == [9, 6, 9, 9]


@pytest.mark.row("K8")
def test_a_group_that_consumes_message_by_message_is_refused_by_name(store: OpenStore, topic: Topic) -> None:
    popping, pulling = store.group("popping", meets=[topic]), pull_group(store, "pulling")
    refused, done = store.do(
        pulling_commit.commit,
        *(pulling_commit.Commit(group, [QueueOffset(topic, topic.queues[0], 5)]) for group in (popping, pulling)),
    )
    assert isinstance(refused, BadRequest)
    assert "'popping' consumes in mode POP" in refused.sentence
    assert done == [Committed(None, QueueProgress(5, 0))]
    with pytest.raises(BadRequest, match="'popping' consumes in mode POP"):
        fetch(store, popping, topic)
    with pytest.raises(BadRequest, match="'pulling' consumes in mode PULL, fixed at its first use; use another group"):
        store.meet(pulling, topic)
    with pytest.raises(BadRequest, match="'popping' consumes in mode POP"):
        store.one(groups.set_group_mode, groups.SetGroupMode(popping, Mode.PULL))
    assert len(store.receive(popping, topic)) == 32, "each its own progress"


def test_what_is_gone_is_named(store: OpenStore, topic: Topic) -> None:
    group, leaving = pull_group(store), pull_group(store, "leaving")
    store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
    (refused,) = commit(store, group, topic, (0, 1))
    assert isinstance(refused.refusal, TopicNotFound)
    store.one(groups.delete_group, groups.DeleteGroup(leaving.name))
    with pytest.raises(ConsumerGroupNotFound, match="'leaving'"):
        commit(store, leaving, topic, (0, 1))
    with pytest.raises(ConsumerGroupNotFound, match="'leaving'"):
        fetch(store, leaving, topic)


def test_more_offsets_than_one_statement_may_touch(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "STEP_ROWS_MAX", 2)
    topic = store.topic("wide", queues=5)
    store.send(topic, 5, queue=4)
    group = pull_group(store)
    wishes = [(number, 0) for number in range(4)] + [(4, 5)]
    assert [each.refusal for each in commit(store, group, topic, *wishes)] == [None] * 5
    assert [each.offset for each in fetch(store, group, topic)] == [0, 0, 0, 0, 5]


async def test_what_rode_along_and_was_refused_is_tried_again(either_broker: RunningBroker) -> None:
    """Once the queue has grown to it, it is progress like any other."""
    await either_broker.topic()
    await either_broker.send(3)

    async def pull() -> None:
        await either_broker.broker.consuming.pulls.pull(
            PullRequest(GROUP, TOPIC, 0, 0, 1, TagFilter(), 0, commit_offset=5)
        )

    await pull()
    await either_broker.send(2)
    await pull()
    (stored,) = await either_broker.broker.consuming.offsets.fetch(GROUP, [QueueName(TOPIC, 0)])
    assert (stored.offset, stored.resets) == (5, 0)


async def test_what_rides_along_and_was_read_before_a_reset_changes_nothing(broker: RunningBroker) -> None:
    await broker.topic()
    await broker.send(3)

    async def progress_after(commit_offset: int, resets: int) -> tuple[int, int]:
        await broker.broker.consuming.pulls.pull(
            PullRequest(GROUP, TOPIC, 0, 0, 1, TagFilter(), 0, commit_offset, resets)
        )
        (stored,) = await broker.broker.consuming.offsets.fetch(GROUP, [QueueName(TOPIC, 0)])
        return stored.offset, stored.resets

    assert await progress_after(2, resets=0) == (2, 0)
    await broker.broker.progress().reset(GROUP, TOPIC, None, Edge.BEGINNING, dry_run=False)
    assert await progress_after(3, resets=0) == (0, 1)
    assert await progress_after(1, resets=1) == (1, 1)
