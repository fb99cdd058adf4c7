"""Old messages go, a prefix of each queue at a time; what somebody still needs stays."""

from __future__ import annotations

import pytest

from popserver.engine.transaction import Request
from popserver.maintenance import retention
from popserver.model.group import HistoryLevel
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.states import State
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore
from tests.support.plans import Plans
from tests.support.running_broker import running_broker


def retain(store: OpenStore, cutoff_ms: int) -> retention.Retained:
    return store.one(retention.retain, retention.Retain(cutoff_ms))


def test_what_is_older_goes_and_its_offsets_are_not_given_again(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    store.now_ms += HOUR
    store.send(topic, 2)
    assert retain(store, START_MS) == retention.Retained(0, START_MS)
    assert retain(store, START_MS + 1).removed == 3
    assert retain(store, START_MS + 1) == retention.Retained(0, START_MS + HOUR)
    assert store.one_value("SELECT min_offset FROM queue") == 3
    assert (store.lag(group).ready, store.lag(group).stored) == (2, 2)
    assert [each.stored.offset for each in store.receive(group, topic)] == [3, 4]
    assert [each.offset for each in store.send(topic)] == [5]


def test_how_many_groups_had_not_read_what_goes(store: OpenStore) -> None:
    topic = store.topic()
    reader, _ = store.group("reader", meets=[topic]), store.group("sleeper", meets=[topic])
    store.send(topic, 2)
    store.now_ms += HOUR
    store.send(topic)
    store.ack(reader, *store.receive(reader, topic, 2))
    (of_queue,) = retain(store, START_MS + 1).queues
    assert (of_queue.messages, of_queue.unread_by) == (2, 1)


def test_a_step_removes_of_several_queues_until_it_is_full(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [store.topic(name) for name in ("a", "b", "c", "d")]
    for each in topics:
        store.send(each, 3)
    monkeypatch.setattr(retention, "STEP_ROWS_MAX", 5)
    first = retain(store, START_MS + 1)
    assert [(each.topic.name, each.messages) for each in first.queues] == [("a", 3), ("b", 2)]
    monkeypatch.setattr(retention, "STEP_STATEMENTS_MAX", 1)
    second = retain(store, START_MS + 1)
    assert [(each.topic.name, each.messages) for each in second.queues] == [("b", 1)]
    monkeypatch.undo()
    assert retain(store, START_MS + 1).removed == 6
    assert retain(store, START_MS + 1).removed == 0


def a_round(store: OpenStore, cutoff_ms: int) -> list[retention.Retained]:
    """Steps over all queues, until one says that it was the last."""
    steps = [store.one(retention.retain, retention.Retain(cutoff_ms))]
    while steps[-1].next_queue:
        steps.append(store.one(retention.retain, retention.Retain(cutoff_ms, steps[-1].next_queue)))
    return steps


def test_a_step_of_queues_with_many_busy_groups_touches_few_and_the_next_goes_on(store: OpenStore) -> None:
    topics = [store.topic(f"t{number}") for number in range(8)]
    busy = [store.group(f"g{number}", meets=topics) for number in range(50)]
    for topic in topics:
        store.send(topic)
        for group in busy:
            store.receive(group, topic, invisible_ms=SECOND)
    store.end_due(after_ms=MINUTE)
    plans = Plans(store)
    with plans.caught():
        first = retain(store, START_MS + 1)
    assert [each.topic.name for each in first.queues] == ["t0", "t1"]
    assert plans.count < retention.STEP_STATEMENTS_MAX + 4 * 50 + 30
    steps = a_round(store, START_MS + 1)
    assert [each.topic.name for step in steps for each in step.queues] == ["t2", "t3", "t4", "t5", "t6", "t7"]
    assert max(step.removed for step in steps) == 2
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0


def test_groups_that_have_acked_cost_no_statements(store: OpenStore) -> None:
    counts = []
    for name, groups in (("few", 1), ("many", 50)):
        topic = store.topic(name)
        done = [store.group(f"{name}{number}", meets=[topic]) for number in range(groups)]
        store.send(topic, 3)
        for group in done:
            store.ack(group, *store.receive(group, topic))
        plans = Plans(store)
        with plans.caught():
            assert retain(store, START_MS + 1).removed == 3
        counts.append(plans.count)
    assert counts[0] == counts[1]


def test_queues_whose_first_message_is_held_fill_a_step_too(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = [store.topic(f"stuck{number}") for number in range(5)]
    group = store.group(meets=stuck)
    for each in [*stuck, store.topic("z")]:
        store.send(each)
    for each in stuck:
        store.receive(group, each)
    monkeypatch.setattr(retention, "STEP_STATEMENTS_MAX", 2 * (12 + 4))
    steps = a_round(store, START_MS + 1)
    assert [step.removed for step in steps] == [0, 0, 1]
    assert [each.topic.name for each in steps[-1].queues] == ["z"]


def test_history_goes_at_the_end_of_a_round_without_another_look_at_all_queues(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step has removed of messages counts for its history too."""
    stuck, free = store.topic("stuck"), store.topic("z")
    group = store.group(meets=[stuck], history=HistoryLevel.ALL)
    store.send(stuck, 6)
    store.send(free, 2)
    store.receive(group, stuck, invisible_ms=HOUR)
    monkeypatch.setattr(retention, "STEP_ROWS_MAX", 5)
    first, second, third = a_round(store, START_MS + 1)
    assert [each.messages for each in first.queues] == [2]
    assert [(each.removed, each.forgotten, each.next_queue > 0) for each in (first, second, third)] == [
        (2, 3, True),
        (0, 3, True),
        (0, 0, False),
    ]
    assert second.oldest_ms is None, "it has looked at no queue"


def test_a_step_looks_at_a_part_of_very_many_queues(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        store.send(store.topic(f"t{number}"))
    monkeypatch.setattr(retention, "STEP_ROWS_MAX", 2)
    assert [step.removed for step in a_round(store, START_MS)] == [0, 0, 0]
    assert sum(step.removed for step in a_round(store, START_MS + 1)) == 5


def test_an_empty_store(store: OpenStore) -> None:
    store.topic()
    assert retain(store, START_MS) == retention.Retained(0, None)


def test_what_is_held_or_waits_stays_with_what_stands_behind_it(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.NONE)
    store.send(topic, 4)
    first, second = (store.receive(group, topic, 1, holder=Holder.PUSH, invisible_ms=HOUR)[0] for _ in range(2))
    store.ack(group, first)
    assert retain(store, START_MS + 1).removed == 1
    assert retain(store, START_MS + 1).removed == 0
    store.change(group, second, MINUTE)
    assert retain(store, START_MS + 1).removed == 0
    store.end_due(after_ms=MINUTE)
    assert retain(store, START_MS + 1).removed == 3, "what is ready again goes with its delivery"
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
    assert store.receive(group, topic) == []
    assert store.lag(group).ready == 0


def test_one_groups_hold_keeps_it_for_all(store: OpenStore) -> None:
    topic = store.topic()
    done, busy = store.group("done", meets=[topic]), store.group("busy", meets=[topic])
    store.send(topic)
    store.ack(done, *store.receive(done, topic))
    (held,) = store.receive(busy, topic)
    assert retain(store, START_MS + 1).removed == 0
    store.ack(busy, held)
    assert retain(store, START_MS + 1).removed == 1


def test_dead_letters_stay(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.forward(group, store.receive(group, topic)[0])
    assert retain(store, START_MS + HOUR).removed == 1
    assert store.one_value("SELECT COUNT(*) FROM dead_letters") == 1


def test_history_goes_too(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    store.send(topic)
    (held,) = store.receive(group, topic)
    store.now_ms += SECOND
    store.ack(group, held)
    while retain(store, START_MS + 1).removed:
        pass
    assert [step[0] for step in store.history(group)] == ["ACK"]


def test_a_step_takes_a_thousand(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 1_001)
    assert [retain(store, START_MS + 1).removed for _ in range(3)] == [1_000, 1, 0]


def test_a_group_behind_the_first_offset_starts_there(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 3)
    while retain(store, START_MS + 1).removed:
        pass
    group = store.group(meets=[topic])
    store.send(topic)
    assert [each.stored.offset for each in store.receive(group, topic)] == [3]
    assert set(store.states(group).values()) == {State.INFLIGHT}


async def test_the_server_goes_on_behind_a_queue_whose_first_message_is_held(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STEP_STATEMENTS_MAX", 1)
    async with running_broker(database_url) as running:
        for name in ("stuck", "free"):
            await running.topic(Resource("", name))
            await running.send(topic=Resource("", name))
        await running.advance(71 * HOUR)
        (held,) = await running.receive(topic=Resource("", "stuck"), invisible_ms=6 * HOUR)
        await running.advance(2 * HOUR)
        assert await running.query("SELECT name FROM message JOIN topic USING (topic_id)") == [("stuck",)]
        await running.ack(held, topic=Resource("", "stuck"))
        await running.advance(2 * MINUTE)
        assert await running.query("SELECT 1 FROM message") == []


async def test_rounds_pause_although_messages_become_old_all_the_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load is older than the retention, and a message becomes old in each step."""
    async with running_broker(database_url) as running:
        await running.topic()
        await running.group(history=HistoryLevel.ALL)
        await running.send()
        await running.ack(*await running.receive())
        for _ in range(4):
            await running.advance(MINUTE)
            await running.send()
        await running.advance(72 * HOUR - 4 * MINUTE)
        steps = 0
        submit = running.broker.engine.writer.submit

        async def counted(request: Request[object]) -> object:
            nonlocal steps
            steps += isinstance(request, retention.Retain)
            return await submit(request)

        monkeypatch.setattr(running.broker.engine.writer, "submit", counted)
        monkeypatch.setattr(running.clock, "aged_ms", lambda: running.clock.now_ms() + steps * MINUTE)
        await running.advance(MINUTE)
        assert steps == 1
        assert await running.query("SELECT COUNT(*) FROM message") == [(4,)]
        assert await running.query("SELECT 1 FROM history") == []
