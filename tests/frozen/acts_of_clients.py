"""What producers and consumers do."""

from __future__ import annotations

from typing import Any

from popserver.bulk import attempts
from popserver.bulk.attempts import AckAttempt, Attempt, ReceiveAttempt, Renew
from popserver.engine.wakeups import PollKey
from popserver.filters import sql as filters_sql
from popserver.filters import tags
from popserver.lite import subscriptions
from popserver.lite.offsets import OffsetOption, OffsetPolicy
from popserver.lite.subscriptions import LeaveLite, SyncLite, TouchLite
from popserver.model.group import ConsumeFrom, Group
from popserver.model.message import PROPERTY, Delivery, Message
from popserver.model.retry import Holder
from popserver.model.topic import MessageType, Topic
from popserver.producing import enqueue, half_messages, pending
from popserver.producing.enqueue import EnqueueDue
from popserver.producing.half_messages import ReturnChecks
from popserver.pulling import send_back
from popserver.receiving import receive
from popserver.receiving.batch import Received
from popserver.settling import ack as settling_ack
from popserver.settling import change, release
from popserver.settling.ack import PlainAck
from tests.frozen.acts import TouredStore, act
from tests.frozen.seed import World
from tests.support.builders import an_id, in_order, messages_of
from tests.support.lite_broker import lite_messages
from tests.support.open_store import HOUR, MINUTE, SECOND, a_receive, receipt_of
from tests.support.pending_store import (
    POLICY,
    a_delayed,
    a_half,
    commit,
    enter_due,
    pend,
    recall,
    roll_back,
    take_checks,
)
from tests.support.progress import commit as commit_offset
from tests.support.send_back import a_failure, retries_of

NAMED = ("mine", "yours")


@act
def send(store: TouredStore, world: World) -> None:
    store.sent(world.topic, *messages_of(3))
    store.send(world.topic, 20, tag="T1", queue=0, body=bytes(100))
    store.send(world.topic, 40, tag="T1", queue=1)


@act
def send_with_keys(store: TouredStore, world: World) -> None:
    store.sent(world.topic, *messages_of(2, keys=("k1", "k2")))
    for _ in ("new", "again"):
        store.sent(world.topic, *messages_of(1, properties={PROPERTY: "mine"}))


@act
def send_again(store: TouredStore, world: World) -> None:
    batch = messages_of(2)
    for _ in ("new", "again"):
        store.sent(world.topic, *batch)


@act
def send_to_message_groups(store: TouredStore, world: World) -> None:
    store.sent(world.topic, *in_order("run", 6), *in_order("m1", 2))


@act
def send_by_priority(store: TouredStore, world: World) -> None:
    store.sent(world.urgent, *messages_of(2, world.urgent.name, priority=2, message_type=MessageType.PRIORITY))


@act
def send_to_lite_topics(store: TouredStore, world: World) -> None:
    store.sent(world.lite, *lite(world, "mine", "yours", "l1"))


@act
def receive_new_ones(store: TouredStore, world: World) -> None:
    store.receive(world.group, world.topic, 8)
    store.receive(world.group, world.topic, 200, rotation=1)


@act
def receive_large_ones(store: TouredStore, world: World) -> None:
    store.send(world.topic, 3, queue=2, body=bytes(2_000_000))
    while store.receive(world.group, world.topic, 32, rotation=2, client_id="large"):
        pass


@act
def receive_for_several(store: TouredStore, world: World) -> None:
    store.send(world.topic, 40)
    asked = [a_receive(world.group, world.topic, 4, client_id=each) for each in ("c1", "c2")]
    store.do(receive.receive, *asked)


@act
def receive_by_tags(store: TouredStore, world: World) -> None:
    store.send(world.topic, 40, tag="T1")
    store.receive(world.group, world.topic, 8, wanted=tags.parse("T1||T2"))


@act
def receive_by_a_sql_filter(store: TouredStore, world: World) -> None:
    wanted = filters_sql.parse("a = '1' AND TAGS = 'T1'")
    store.send(world.topic, 40, tag="T1", properties={"a": "1"})
    store.send(world.topic, in_order("filtered", 3, properties={"a": "1"}))
    for _ in range(2):
        store.receive(world.group, world.topic, 8, wanted=wanted)


@act
def receive_by_priority(store: TouredStore, world: World) -> None:
    for rotation in (1, 8):
        store.receive(world.urgent_group, world.urgent, 8, rotation=rotation)
    store.receive(world.urgent_group, world.urgent, 8, rotation=1, wanted=tags.parse("T1"))


@act
def receive_message_groups(store: TouredStore, world: World) -> None:
    """New ones, behind a run that is held, behind one that was acked, and again."""
    store.send(world.topic, in_order("again", 6))
    run = [each for each in everything(store, world.group, world.topic) if group_of(each) == "again"]
    store.send(world.topic, in_order("again", 3))
    store.receive(world.group, world.topic)
    store.ack(world.group, run[1])
    store.ack(world.group, *run[:1], *run[2:])
    again = store.receive(world.group, world.topic)
    for each in again:
        store.change(world.group, each, 0, give_back=True)
    store.receive(world.group, world.topic, 200)
    store.receive(world.group, world.topic, 200, wanted=tags.parse("T1"))


@act
def receive_heads_only(store: TouredStore, world: World) -> None:
    store.send(world.topic, in_order("heads", 3))
    for each in store.receive(world.group, world.topic, heads_only=True):
        store.ack(world.group, each)
    store.receive(world.group, world.topic, heads_only=True)


@act
def receive_again_what_was_given_back(store: TouredStore, world: World) -> None:
    store.send(world.topic, 20)
    for each in store.receive(world.group, world.topic, 8):
        store.change(world.group, each, 0, give_back=True)
    store.send(world.topic, 20)
    store.receive(world.group, world.topic, 16)


@act
def repeat_a_receive(store: TouredStore, world: World) -> None:
    store.send(world.topic, 20)
    for holder in (Holder.SIMPLE, Holder.PUSH):
        for _ in ("new", "again"):
            store.receive(world.group, world.topic, 4, attempt_id=f"attempt-{holder}", holder=holder)


@act
def repeat_several_receives(store: TouredStore, world: World) -> None:
    store.send(world.topic, 20)
    asked = [a_receive(world.group, world.topic, 4, attempt_id=f"several-{each}") for each in range(2)]
    for _ in ("new", "again"):
        store.do(receive.receive, *asked)


@act
def receive_while_paused(store: TouredStore, world: World) -> None:
    store.receive(world.group, world.topic, 4, attempt_id="attempt", is_paused=True)


@act
def subscribe_to_lite_topics(store: TouredStore, world: World) -> None:
    for group in (world.shared, world.exclusive):
        sync(store, group, world.lite, "me", *NAMED, is_complete=True)
        for number, policy in enumerate(OffsetPolicy):
            wish = SyncLite(group, world.lite, "me", {"mine", f"l{number}"}, offset=OffsetOption(policy, 1))
            store.one(subscriptions.sync, wish)
        store.one(subscriptions.sync, SyncLite(group, world.lite, "me", (), {"l0"}))
        sync(store, group, world.lite, "you", *NAMED)
        store.one(subscriptions.touch, TouchLite(PollKey(group.group_id, world.lite.topic_id, "you")))


@act
def receive_from_lite_topics(store: TouredStore, world: World) -> None:
    for group in (world.shared, world.exclusive):
        store.sent(world.lite, *lite(world, *NAMED, *NAMED))
        held = got(store, group, world.lite, "me", "you")
        store.sent(world.lite, *lite(world, *NAMED))
        got(store, group, world.lite, "you")
        store.ack(group, *held[:2])
        for each in held[2:]:
            store.change(group, each, 0, give_back=True)
        got(store, group, world.lite, "me", "you")
        got(store, group, world.lite, "c0")


@act
def leave_lite_topics(store: TouredStore, world: World) -> None:
    for group in (world.shared, world.exclusive):
        store.one(subscriptions.leave, LeaveLite(group, world.lite, "you"))


@act
def ack(store: TouredStore, world: World) -> None:
    held = some_held(store, world)
    store.ack(world.group, *held[:3])
    store.ack(world.group, *held[:3], *(receipt_of(each)._replace(hold_id=1) for each in held[3:]))
    store.do(settling_ack.ack, *(PlainAck(world.group, [receipt_of(each)]) for each in held[3:]))


@act
def ack_with_little_history(store: TouredStore, world: World) -> None:
    """Groups keep no row of history for an ack, if they are not told to."""
    group = store.group("terse", meets=[world.topic], consume_from=ConsumeFrom.LATEST)
    store.send(world.topic, 8)
    store.send(world.topic, [each for name in "xyz" for each in in_order(name, 3)])
    held = everything(store, group, world.topic)
    store.send(world.topic, in_order("x", 2))
    plain, a_run, *runs = ([each for each in held if group_of(each) == name] for name in ("", *"xyz"))
    store.ack(group, *plain[:3])
    store.do(settling_ack.ack, *(PlainAck(group, [receipt_of(each)]) for each in plain[2:6]))
    store.ack(group, receipt_of(plain[6])._replace(hold_id=9), plain[7])
    store.ack(group, a_run[1])
    store.ack(group, a_run[0], a_run[2])
    store.ack(group, *(each for run in runs for each in run))
    store.ack(group, *everything(store, group, world.topic))


@act
def ack_runs(store: TouredStore, world: World) -> None:
    """A part of a run, the rest, and the runs of several message groups."""
    store.send(world.topic, [each for name in "abc" for each in in_order(name, 3)])
    held = everything(store, world.group, world.topic)
    a_run, *runs = ([each for each in held if group_of(each) == name] for name in "abc")
    store.ack(world.group, a_run[1])
    store.ack(world.group, a_run[0], a_run[2])
    store.ack(world.group, *(each for run in runs for each in run))


@act
def change_invisible(store: TouredStore, world: World) -> None:
    first, second, third, *_ = some_held(store, world)
    store.change(world.group, first, MINUTE)
    store.change(world.group, second, 0, give_back=True)
    suspended = change.ChangeInvisible(world.group, receipt_of(third), SECOND, suspend=True)
    store.one(change.change_invisible, suspended)
    store.do(change.change_invisible, change.ChangeInvisible(world.group, receipt_of(first)._replace(hold_id=1), 1))


@act
def change_invisible_of_runs(store: TouredStore, world: World) -> None:
    store.send(world.topic, [each for name in "de" for each in in_order(name, 3)])
    first, _, second, *_ = (each for each in everything(store, world.group, world.topic) if group_of(each) in "de")
    store.change(world.group, first, MINUTE)
    store.change(world.group, second, SECOND)


@act
def forward_to_the_dead_letter_queue(store: TouredStore, world: World) -> None:
    store.send(world.topic, in_order("f", 2))
    store.send(world.topic, 4)
    for each in everything(store, world.group, world.topic):
        store.forward(world.group, each)


@act
def end_what_is_due(store: TouredStore, world: World) -> None:
    """Holds end, intervals end, and what has failed too often becomes a dead letter."""
    store.send(world.topic, 8)
    store.send(world.topic, in_order("due", 3))
    for _ in range(7):
        everything(store, world.group, world.topic, invisible_ms=SECOND)
        store.end_due(after_ms=11 * SECOND)
    assert store.lag(world.group).dead_letters > 0


@act
def abandon_and_extend_holds(store: TouredStore, world: World) -> None:
    store.send(world.topic, 20)
    store.send(world.topic, in_order("abandoned", 3))
    held = everything(store, world.group, world.topic, client_id="gone", holder=Holder.PUSH)
    store.adopt("gone", store.now_ms + HOUR)
    store.one(release.abandon_holds, release.AbandonHolds(receipts=[receipt_of(each) for each in held[:2]]))
    store.orphan_client("gone")


@act
def withdraw_grants(store: TouredStore, world: World) -> None:
    store.send(world.topic, in_order("withdrawn", 3))
    held = some_held(store, world)
    store.one(release.cancel_delivery, release.CancelDelivery([receipt_of(each) for each in held]))


@act
def attempts_of_pages(store: TouredStore, world: World) -> None:
    attempt = Attempt(world.group, world.topic, "bulk")
    store.send(world.topic, 20)
    for _ in ("new", "again"):
        store.one(attempts.receive, ReceiveAttempt(a_receive(world.group, world.topic, 20, attempt_id="bulk")))
    store.one(attempts.renew, Renew(attempt, MINUTE))
    store.one(attempts.ack, AckAttempt(attempt))


@act
def delay(store: TouredStore, world: World) -> None:
    first, second, *_ = batch = [a_delayed(store, SECOND), a_delayed(store, HOUR), a_delayed(store, HOUR)]
    pend(store, world.topic, *batch, a_delayed(store, SECOND, properties={PROPERTY: "late"}))
    store.do(pending.store_pending, pending.StorePending(world.topic, batch, "p1", POLICY), careful=True)
    recall(store, world.topic, second)
    store.one(pending.cancel_pending, pending.CancelPending(world.topic, [batch[2].message_id]))
    recall(store, world.topic, first._replace(message_id=an_id()))


@act
def enqueue_what_is_due(store: TouredStore, world: World) -> None:
    enter_due(store, after_ms=MINUTE)
    store.one(enqueue.enqueue_due, EnqueueDue(looks_back=True))


@act
def end_transactions(store: TouredStore, world: World) -> None:
    first, second, third = pend(store, world.topic, a_half(properties={PROPERTY: "half"}), a_half(), a_half())
    commit(store, world.topic, first)
    commit(store, world.topic, first)
    roll_back(store, world.topic, second)
    commit(store, world.topic, third, message_id=an_id())


@act
def check_transactions(store: TouredStore, world: World) -> None:
    pend(store, world.topic, a_half(), client_id="p-checked")
    claimed = take_checks(store, world.topic, after_ms=MINUTE)
    ids = [each.pending_id for each in claimed.checks[:2]]
    store.one(half_messages.return_checks, ReturnChecks(ids))
    for _ in range(20):
        take_checks(store, world.topic, after_ms=HOUR)


@act
def commit_offsets(store: TouredStore, world: World) -> None:
    for offset in (1, 2, 1):
        commit_offset(store, world.pulling, world.topic, offset)


@act
def send_back_what_was_pulled(store: TouredStore, world: World) -> None:
    for failures_max in (None, 0):
        request = a_failure(world.pulling, world.topic, 1, 1, failures_max=failures_max)
        for _ in ("new", "again"):
            store.do(send_back.send_back, request)
    store.end_due(after_ms=HOUR)
    store.do(send_back.send_back, a_failure(world.pulling, retries_of(store, world.pulling), 0, 1))
    store.end_due(after_ms=HOUR)


def everything(store: TouredStore, group: Group, topic: Topic, **more: Any) -> list[Delivery]:
    """All messages that the group can get now."""
    held: list[Delivery] = []
    while several := store.receive(group, topic, 200, **more):
        held += several
    return held


def some_held(store: TouredStore, world: World) -> list[Delivery]:
    store.send(world.topic, 8)
    return everything(store, world.group, world.topic)


def group_of(held: Delivery) -> str:
    return held.stored.message.message_group or ""


def lite(world: World, *names: str) -> list[Message]:
    return [each for name in names for each in lite_messages(name, topic=world.lite.name)]


def sync(store: TouredStore, group: Group, topic: Topic, client_id: str, *names: str, **more: Any) -> None:
    store.one(subscriptions.sync, SyncLite(group, topic, client_id, set(names), **more))


def got(store: TouredStore, group: Group, topic: Topic, *clients: str) -> list[Delivery]:
    asked = [a_receive(group, topic, 8, client_id=each) for each in clients]
    answers = store.do(receive.receive, *asked)
    return [each for answer in answers if isinstance(answer, Received) for each in answer.deliveries]
