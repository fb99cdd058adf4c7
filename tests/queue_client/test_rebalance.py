"""Members of a group share queues: who takes up what, when, and what becomes of the progress."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from popclient import ConsumeConcurrentlyStatus, MessageQueue, UnsupportedByServer
from popclient._queue_push.pull_loop import PullLoop
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.queue_client.queue_consumers import DictOffsetStore, Q, QueueConsumers
from tests.support.scripted_server import OK, status, until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
Core = Any


def queues(core: Core, topic: str = "t") -> list[int]:
    return sorted(mq.queue_id for mq, _ in core.parts.owned() if mq.topic == topic)


async def settle(consumers: QueueConsumers, *cores: Core, within: float = 25, step: float = 0.25) -> None:
    """Until every queue of the topic has one owner, and everybody a queue."""
    wanted = list(range(consumers.server.widths["t"]))

    def settled() -> bool:
        return sorted(queue for core in cores for queue in queues(core)) == wanted and all(map(queues, cores))

    await consumers.comes(settled, within, step=step)


@pytest.mark.row("J6")
async def test_without_a_notice_a_new_member_has_its_share_within_20_s(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 6
    first = await consumers.start()
    await consumers.owns(first, *range(6))
    second = await consumers.start(pull_loop=PullLoop(consumers.clock))
    await until(lambda: queues(second) != [])
    began = consumers.clock.now()
    await settle(consumers, first, second)
    assert 15 < consumers.clock.now() - began < 22
    assert sorted([queues(first), queues(second)]) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.row("J6")
@pytest.mark.row("G6")
async def test_with_a_notice_shares_settle_in_a_second_and_a_half(consumers: QueueConsumers) -> None:
    consumers.server.notices = True
    consumers.server.widths["t"] = 6
    first = await consumers.start()
    await consumers.owns(first, *range(6))
    second = await consumers.start(pull_loop=PullLoop(consumers.clock))
    began = consumers.clock.now()
    await settle(consumers, first, second, step=0.05)
    assert consumers.clock.now() - began <= 1.5
    await second.close()
    began = consumers.clock.now()
    await settle(consumers, first, step=0.05)
    assert consumers.clock.now() - began <= 1.5


@pytest.mark.row("J6")
@pytest.mark.row("J11")
async def test_a_notice_is_heeded_at_once_so_two_own_a_queue_only_for_a_moment(consumers: QueueConsumers) -> None:
    consumers.server.notices = True
    consumers.server.widths["t"] = 6
    first = await consumers.start()
    await consumers.owns(first, *range(6))
    # The clock stands: the last round was no second ago.
    second = await consumers.start(pull_loop=PullLoop(consumers.clock))
    await until(lambda: len(queues(first)) == len(queues(second)) == 3)
    await second.close()
    await consumers.owns(first, *range(6))


@pytest.mark.row("J11")
async def test_all_queues_that_go_stop_at_once_however_long_the_first_commit_takes(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 4
    share = [0, 1, 2, 3]

    def strategy(group: str, client_id: str, mqs: Any, members: Any) -> Any:
        return [mq for mq in mqs if mq.queue_id in share]

    core = await consumers.start(allocate_strategy=strategy)
    for queue in share:
        await consumers.server.fill(MessageQueue("t", queue), "a")
    await until(lambda: len(consumers.seen) == 4)
    commit = consumers.server.gates["CommitOffsets"] = asyncio.Event()
    share.clear()
    core._rebalancing.wake_at_once()
    await consumers.server.arrived["CommitOffsets"].wait()
    assert queues(core) == []
    commit.set()
    await until(lambda: not core.parts.table.keys() & {MessageQueue("t", queue) for queue in range(4)})
    assert [consumers.server.progress[MessageQueue("t", queue)] for queue in range(4)] == [1, 1, 1, 1]


@pytest.mark.row("J6")
async def test_rounds_are_a_second_apart_and_follow_in_a_second_when_not_balanced(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await consumers.owns(core, 0)
    rounds = len(consumers.server.requests("ListMembers"))
    for _ in range(5):
        core._rebalancing.wake()
        await consumers.breathe()
    assert len(consumers.server.requests("ListMembers")) <= rounds + 1
    rounds = len(consumers.server.requests("ListMembers"))
    consumers.server.answers["ListMembers"] = lambda _: legacy.ListMembersResponse(
        status=status(pb.INTERNAL_SERVER_ERROR)
    )
    core._rebalancing.wake_at_once()
    await until(lambda: len(consumers.server.requests("ListMembers")) > rounds)
    rounds = len(consumers.server.requests("ListMembers"))
    for _ in range(3):
        await consumers.clock.advance(1)
        await consumers.breathe()
    assert rounds + 2 <= len(consumers.server.requests("ListMembers")) <= rounds + 4


@pytest.mark.row("J7")
async def test_what_stays_is_the_same_object_and_only_the_rest_changes(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 5
    share = [1, 2, 3]

    def strategy(group: str, client_id: str, mqs: Any, members: Any) -> Any:
        return [mq for mq in mqs if mq.queue_id in share or mq.topic != "t"]

    core = await consumers.start(allocate_strategy=strategy)
    await consumers.owns(core, 1, 2, 3)
    before = dict(core.parts.owned())
    share[:] = [3, 4]
    await consumers.comes(lambda: queues(core) == [3, 4], 21)
    after = dict(core.parts.owned())
    assert before[MessageQueue("t", 1)].dropped and before[MessageQueue("t", 2)].dropped
    assert before[MessageQueue("t", 3)] is after[MessageQueue("t", 3)]


@pytest.mark.row("H9")
@pytest.mark.row("H10")
async def test_a_queue_that_goes_and_comes_back_is_committed_forgotten_and_read_anew(consumers: QueueConsumers) -> None:
    share = [0]

    def strategy(group: str, client_id: str, mqs: Any, members: Any) -> Any:
        return [mq for mq in mqs if mq.queue_id in share]

    await consumers.server.fill(Q, map(str, range(10)))
    core = await consumers.start(allocate_strategy=strategy)
    await until(lambda: consumers.offset(core) == 10)
    share.clear()
    await consumers.comes(lambda: queues(core) == [], 21)
    await until(lambda: consumers.server.progress.get(Q) == 10)
    assert consumers.offset(core) is None
    commits = len(consumers.server.requests("CommitOffsets"))
    await consumers.server.fill(Q, "abc")
    consumers.server.progress[Q] = 12  # by another owner
    await consumers.clock.advance(12)
    assert len(consumers.server.requests("CommitOffsets")) == commits
    share.append(0)
    await consumers.comes(lambda: consumers.texts[-1:] == ["c"], 21)
    assert len(consumers.seen) == 11


@pytest.mark.row("H7")
@pytest.mark.row("H11")
async def test_progress_is_committed_after_10_s_and_then_every_5_s(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await consumers.owns(core, 0)
    at = []
    for number in range(3):
        await consumers.server.fill(Q, [str(number)])
        await until(lambda number=number: consumers.offset(core) == number + 1)
        commits = len(consumers.server.requests("CommitOffsets"))
        began = consumers.clock.now()
        await consumers.comes(lambda commits=commits: len(consumers.server.requests("CommitOffsets")) > commits, 11)
        at.append(round(consumers.clock.now() - began))
        assert consumers.server.progress[Q] == number + 1
    assert at == [10, 5, 5]


@pytest.mark.row("J8")
@pytest.mark.row("G2")
@pytest.mark.row("E11")
async def test_broadcasting_gives_everything_to_everybody_and_drops_what_fails(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    caplog.set_level(logging.WARNING, "popclient")
    seen: Counter[str] = Counter()
    consumers.server.widths["t"] = 3

    async def listener(messages: Any, context: Any) -> Any:
        seen.update(message.text for message in messages)
        return SUCCESS if messages[0].text != "0-7" else ConsumeConcurrentlyStatus.RECONSUME_LATER

    for queue in range(3):
        await consumers.server.fill(MessageQueue("t", queue), [f"{queue}-{number}" for number in range(34)])
    cores = [await consumers.start(listener, model="BROADCASTING", client_name=name) for name in "abc"]
    await until(lambda: sum(seen.values()) == 306)
    assert set(seen.values()) == {3}
    for core in cores:
        await until(lambda core=core: consumers.offset(core) == 34)
    assert (consumers.server.sent_back, consumers.server.requests("CommitOffsets")) == ([], [])
    assert caplog.text.count("failed and are dropped") == 3
    assert {topic for mq, _ in cores[0].parts.owned() for topic in [mq.topic]} == {"t"}
    assert consumers.server.settings[0].client_properties["popmq.model"] == "BROADCASTING"


@pytest.mark.row("J9")
@pytest.mark.row("I6")
async def test_without_a_view_the_state_stays_as_it_is(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    consumers.server.widths["t"] = 4
    core = await consumers.start()
    await consumers.owns(core, 0, 1, 2, 3)

    def owned() -> dict[MessageQueue, Any]:
        return {mq: pq for mq, pq in core.parts.owned() if mq.topic == "t"}

    before = owned()
    refused = legacy.ListMembersResponse(status=status(pb.INTERNAL_SERVER_ERROR, "no members"))
    consumers.server.answers["ListMembers"] = lambda _: refused
    core._rebalancing.wake_at_once()
    await until(lambda: "the queues of t in group g stay as they are" in caplog.text)
    assert owned() == before
    assert "%RETRY%g in group g stay" not in caplog.text
    # Nor does it give up anything when the server has forgotten it.
    consumers.server.answers["ListMembers"] = lambda _: legacy.ListMembersResponse(status=OK)
    rounds = len(consumers.server.requests("ListMembers"))
    await consumers.comes(lambda: len(consumers.server.requests("ListMembers")) > rounds + 1, 5)
    assert owned() == before


@pytest.mark.row("I6")
@pytest.mark.row("H4")
async def test_a_queue_of_which_nobody_knows_the_progress_is_not_taken_up_yet(consumers: QueueConsumers) -> None:
    failing = legacy.FetchOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "the store is away"))
    consumers.server.answers["FetchOffsets"] = lambda _: failing
    await consumers.server.fill(Q, "abc")
    consumers.server.progress[Q] = 2
    core = await consumers.start()
    await until(lambda: consumers.server.requests("FetchOffsets"))
    await consumers.advance(3, step=0.5)
    assert consumers.server.pulls_of(Q) == [] and queues(core) == []
    del consumers.server.answers["FetchOffsets"]
    await consumers.comes(lambda: consumers.texts == ["c"], 2)
    assert consumers.server.pulls_of(Q)[0] == 2


@pytest.mark.row("J12")
async def test_a_changed_part_is_told_and_makes_a_later_version(consumers: QueueConsumers) -> None:
    consumers.server.notices = True
    consumers.server.widths["t"] = 4
    told: list[tuple[str, int, list[int]]] = []

    def watch(topic: str, mqs: Any, mine: Any) -> None:
        told.append((topic, len(mqs), [mq.queue_id for mq in mine]))
        raise KeyError("whoever looks on must not do harm")

    core = await consumers.start(message_queue_listener=watch)
    await until(lambda: ("t", 4, [0, 1, 2, 3]) in told)
    version = core.sub_version
    other = await consumers.start(pull_loop=PullLoop(consumers.clock))
    await settle(consumers, core, other)
    assert ("t", 4, queues(core)) in told
    await until(lambda: core.sub_version > version)
    await until(
        lambda: any(
            each.client_properties["popmq.subscription_version"] == str(core.sub_version)
            for each in consumers.server.settings
        )
    )


@pytest.mark.row("J14")
async def test_a_suspended_consumer_takes_up_nothing(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await consumers.owns(core, 0)
    core.suspend()
    consumers.server.widths["t"] = 3
    core.session.routes.queues.clear()
    await consumers.advance(41, step=1)
    assert queues(core) == [0]
    core.resume()
    await consumers.comes(lambda: queues(core) == [0, 1, 2], 2)


@pytest.mark.row("J18")
async def test_a_faulty_strategy_stops_neither_another_group_nor_another_topic(consumers: QueueConsumers) -> None:
    def faulty(group: str, client_id: str, mqs: Any, members: Any) -> Any:
        if mqs[0].topic == "t":
            raise KeyError("a defect")
        return mqs

    consumers.server.widths["u"] = 2
    one = await consumers.start(topics=["t", "u"], allocate_strategy=faulty)
    two = await consumers.start(group="h", topics=["t", "u"])
    await consumers.owns(two, 0)
    await consumers.owns(two, 0, 1, topic="u")
    await consumers.owns(one, 0, 1, topic="u")
    assert queues(one) == []
    assert len(consumers.pull_loop._consumers) == 2
    services = one._rebalancing, two._rebalancing, consumers.pull_loop.pulls
    for service in services:
        service.start()
        assert len(service._tasks._running) == 1


@pytest.mark.row("J18")
async def test_the_services_end_with_the_last_consumer_and_begin_with_the_next(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "a")
    core = await consumers.start()
    await until(lambda: consumers.offset(core) == 1)
    await core.close()
    assert not consumers.pull_loop._consumers
    assert core._rebalancing._tasks._running == consumers.pull_loop.pulls._tasks._running == set()
    await consumers.server.fill(Q, "b")
    await consumers.start()
    await until(lambda: consumers.texts == ["a", "b"])


@pytest.mark.row("G4")
async def test_each_topic_is_shared_by_itself_among_those_who_subscribe_to_it(consumers: QueueConsumers) -> None:
    consumers.server.notices = True
    consumers.server.widths.update({"t": 4, "u": 4})
    both = await consumers.start(topics=["t", "u"])
    other = await consumers.start(topics=["t", "u"], pull_loop=PullLoop(consumers.clock))
    await consumers.comes(lambda: all(len(queues(core, topic)) == 2 for core in (both, other) for topic in "tu"), 25)
    await other.unsubscribe("u")
    await consumers.comes(lambda: (len(queues(both)), len(queues(both, "u")), len(queues(other))) == (2, 4, 2), 25)


@pytest.mark.row("H13")
async def test_a_reset_is_heeded_while_members_are_online(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 2
    other = MessageQueue("t", 1)
    await consumers.server.fill(Q, map(str, range(10)))
    await consumers.server.fill(other, "xy")
    core = await consumers.start()
    await until(lambda: consumers.offset(core) == 10 and consumers.offset(core, other) == 2)
    untouched = dict(core.parts.owned())[other]
    consumers.seen.clear()
    consumers.server.reset(Q, 7)
    consumers.server.tell("popmq.resets", 1)
    await until(lambda: sorted(consumers.texts) == ["7", "8", "9"])
    await until(lambda: consumers.offset(core) == 10)
    assert dict(core.parts.owned())[other] is untouched
    await consumers.clock.advance(10)
    await until(lambda: consumers.server.progress[Q] == 10)


@pytest.mark.row("H13")
async def test_a_reset_whose_notice_was_lost_is_met_at_the_next_commit(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, map(str, range(10)))
    core = await consumers.start()
    await until(lambda: consumers.offset(core) == 10)
    await consumers.clock.advance(10)
    await until(lambda: consumers.server.progress.get(Q) == 10)
    consumers.seen.clear()
    consumers.server.reset(Q, 4)
    await consumers.server.fill(Q, ["10"])
    await until(lambda: consumers.texts == ["10"])
    await consumers.comes(lambda: sorted(set(consumers.texts), key=int) == [str(number) for number in range(4, 11)], 7)
    await until(lambda: consumers.offset(core) == 11)
    await consumers.comes(lambda: consumers.server.progress[Q] == 11, 11)


async def test_a_server_that_shares_queues_itself_is_asked_for_the_share(consumers: QueueConsumers) -> None:
    consumers.server.capabilities = ""
    consumers.server.widths["t"] = 4

    def assign(request: rpc.QueryAssignmentRequest) -> rpc.QueryAssignmentResponse:
        answer = rpc.QueryAssignmentResponse(status=OK)
        for queue in (1, 2) if request.topic.name == "t" else ():
            answer.assignments.add(message_queue=pb.MessageQueue(topic=request.topic, id=queue))
        return answer

    consumers.server.answers["QueryAssignment"] = assign
    core = await consumers.start()
    await consumers.owns(core, 1, 2)
    assert consumers.server.requests("ListMembers") == []


async def test_in_order_needs_a_server_with_locks(consumers: QueueConsumers) -> None:
    from popclient import OrderlyListener

    consumers.server.capabilities = ""
    core = consumers.make(OrderlyListener(consumers.succeed))
    with pytest.raises(UnsupportedByServer, match="LockQueues, which orderly consumption needs, is not offered"):
        await core.start()


@pytest.mark.row("J10")
async def test_of_more_members_than_queues_some_have_none(consumers: QueueConsumers) -> None:
    consumers.server.notices = True
    consumers.server.widths["t"] = 2
    cores = [await consumers.start(pull_loop=PullLoop(consumers.clock)) for _ in range(3)]
    await consumers.comes(lambda: sorted(map(queues, cores)) == [[], [0], [1]], 25)


@pytest.mark.row("G5")
async def test_who_broadcasts_in_a_group_that_shares_takes_nothing_from_it(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    consumers.server.notices = True
    consumers.server.widths["t"] = 4
    stray = await consumers.start(pull_loop=PullLoop(consumers.clock), model="BROADCASTING")
    await consumers.owns(stray, 0, 1, 2, 3)
    core = await consumers.start()
    await consumers.owns(core, 0, 1, 2, 3)


@pytest.mark.row("H1")
async def test_a_users_own_store_keeps_the_progress(consumers: QueueConsumers) -> None:
    stored: dict[MessageQueue, int] = {}
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(offset_store=DictOffsetStore(stored))
    await until(lambda: consumers.offset(core) == 2)
    await core.close()
    assert stored[Q] == 2
    await consumers.server.fill(Q, "c")
    await consumers.start(offset_store=DictOffsetStore(stored))
    await until(lambda: consumers.texts[2:] == ["c"])
    assert consumers.server.requests("CommitOffsets") == []
    assert all(extras.commit_offset == 0 for extras in consumers.server.extras)
