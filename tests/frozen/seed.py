"""One store with enough of everything that its plans are those of a busy one."""

from __future__ import annotations

from typing import Any, NamedTuple

from popserver.access import sql as access_sql
from popserver.catalog import topics
from popserver.cluster import sql as cluster_sql
from popserver.cluster.sql import AttachClient, Heartbeat
from popserver.lite import subscriptions as lite_subscriptions
from popserver.lite.subscriptions import SyncLite
from popserver.members import locks
from popserver.members import sql as members_sql
from popserver.members.locks import Lock
from popserver.members.sql import JoinGroup
from popserver.model.acl import Action, Effect, ResourceKind
from popserver.model.group import Group, HistoryLevel, LiteModel, Model
from popserver.model.message import PROPERTY, Message
from popserver.model.retry import Holder
from popserver.model.topic import MessageType, Topic
from popserver.settling import change
from tests.support.builders import in_order, messages_of
from tests.support.lite_broker import lite_messages
from tests.support.open_store import HOUR, SECOND, OpenStore, receipt_of
from tests.support.pending_store import a_delayed, a_half, pend
from tests.support.progress import commit, pull_group
from tests.support.redrive import run, write_plan

MANY = 2_000
STEP = 500
QUEUES = 4
OTHERS = 60  # topics and groups
EVERY_KIND = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
ROUNDS = 20


class World(NamedTuple):
    """The topics and groups of the tour."""

    topic: Topic  # accepts every kind
    urgent: Topic
    lite: Topic
    group: Group  # of the topic, with all history
    urgent_group: Group
    shared: Group  # of the lite topic, as the next one
    exclusive: Group
    pulling: Group


def seeded(store: OpenStore) -> World:
    """Fill the store, and let Postgres count what is there."""
    world = _world(store)
    others = _others(store)
    _messages(store, world)
    _message_groups(store, world)
    _lite_topics(store, world)
    _pending(store, world)
    _dead_letters(store, [(world.topic, world.group), *others])
    _clients(store, world, others)
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("ANALYZE")
    return world


def wear(store: OpenStore) -> None:
    """Update what is updated most: beside an open transaction each update leaves an old version of its row."""
    for _ in range(ROUNDS):
        for table in ("queue", "progress"):
            store.conn.exec_driver_sql(f"UPDATE {table} SET next_offset = next_offset")


def _world(store: OpenStore) -> World:
    topic = store.topic(queues=QUEUES, accepts=EVERY_KIND)
    urgent = store.topic("urgent", queues=QUEUES, accepts=(MessageType.PRIORITY,))
    lite = store.topic("lite", queues=QUEUES, accepts=(MessageType.LITE,))
    store.one(topics.update_topic, topics.UpdateTopic(lite.name, lite_expires_ms=HOUR))
    all_history: dict[str, Any] = {
        "history": HistoryLevel.ALL,
        "max_attempts": 5,
        "intervals_ms": (SECOND, 10 * SECOND),
    }
    return World(
        topic,
        urgent,
        lite,
        store.group(meets=[topic], **all_history),
        store.group("urgent", meets=[urgent]),
        store.group("shared", meets=[lite], lite=LiteModel.SHARED),
        store.group("exclusive", meets=[lite], lite=LiteModel.EXCLUSIVE),
        pull_group(store, history=HistoryLevel.ALL),
    )


def _others(store: OpenStore) -> list[tuple[Topic, Group]]:
    """Topics with a group each, and users."""
    made = []
    for number in range(OTHERS):
        topic = store.topic(f"t{number}", queues=QUEUES)
        made.append((topic, store.group(f"g{number}", meets=[topic])))
        name = f"u{number}"
        store.one(access_sql.create_user, access_sql.CreateUser(name, 32 * "s", is_admin=False))
        wish = access_sql.AddPolicy(name, Effect.ALLOW, (Action.PUB,), ResourceKind.TOPIC, topic.name)
        store.one(access_sql.add_policy, wish)
    return made


def _messages(store: OpenStore, world: World) -> None:
    """Some are consumed, some held by each of several clients, some wait for a retry, some are new."""
    for number in range(0, MANY, STEP):
        listed = [_message(number + each) for each in range(STEP)]
        store.send(world.topic, listed, queue=number // STEP)
    for priority in range(MANY // STEP):
        more = {"priority": priority, "message_type": MessageType.PRIORITY}
        store.send(world.urgent, messages_of(STEP, world.urgent.name, **more))
    for client in range(10):
        wish = {"client_id": f"c{client}", "holder": Holder.PUSH, "rotation": client, "attempt_id": f"a{client}"}
        held = store.receive(world.group, world.topic, 100, invisible_ms=99 * HOUR, **wish)
        store.ack(world.group, *held[:40])
        for each in held[40:45]:
            store.change(world.group, each, 98 * HOUR)
        store.receive(world.urgent_group, world.urgent, 50, invisible_ms=99 * HOUR, **wish)


def _message(number: int) -> Message:
    properties = {PROPERTY: f"key-{number}", "a": str(number % 10)}
    (made,) = messages_of(1, tag=f"T{number % 5}", keys=(f"k{number % 100}",), properties=properties)
    return made


def _message_groups(store: OpenStore, world: World) -> None:
    """Most are held; each has more messages."""
    for number in range(0, MANY, STEP):
        names = [f"m{number + each}" for each in range(STEP)]
        store.send(world.topic, [each for name in names for each in in_order(name, 2)])
    while store.receive(world.group, world.topic, 200, invisible_ms=99 * HOUR, heads_only=True, client_id="c-order"):
        pass


def _lite_topics(store: OpenStore, world: World) -> None:
    for number in range(0, MANY, STEP):
        names = [f"l{number + each}" for each in range(STEP)]
        store.send(world.lite, [each for name in names for each in lite_messages(name, topic=world.lite.name)])
        for group in (world.shared, world.exclusive):
            client_id = f"c{number}"
            wish = SyncLite(group, world.lite, client_id, set(names), is_complete=True)
            store.one(lite_subscriptions.sync, wish)
            store.receive(group, world.lite, STEP // 2, client_id=client_id, invisible_ms=99 * HOUR)


def _pending(store: OpenStore, world: World) -> None:
    for number in range(0, MANY, STEP):
        delayed = [a_delayed(store, (50 + each) * HOUR) for each in range(STEP)]
        pend(store, world.topic, *delayed)
        pend(store, world.topic, *(a_half() for _ in range(STEP // 2)), client_id=f"p{number}")


def _dead_letters(store: OpenStore, groups: list[tuple[Topic, Group]]) -> None:
    """Of each group some that are redriven, and a plan of more."""
    for topic, group in groups:
        store.send(topic, 10)
        held = store.receive(group, topic, 10)
        store.do(change.forward, *(change.Forward(group, receipt_of(each)) for each in held))
        write_plan(store, group, f"plan-{group.group_id}")
        run(store, f"plan-{group.group_id}", 5)


def _clients(store: OpenStore, world: World, others: list[tuple[Topic, Group]]) -> None:
    """Servers, their clients, and members with locks and offsets."""
    store.do(cluster_sql.heartbeat, *(Heartbeat(f"s{number}", f"h{number}:1", judges=False) for number in range(3)))
    store.do(cluster_sql.attend, *(AttachClient(f"c{number}", f"s{number % 3}") for number in range(MANY // 2)))
    for number, (topic, _) in enumerate(others):
        group = pull_group(store, f"pull-{number}")
        members = [JoinGroup(group, f"c{each}", f"s{each % 3}", Model.CLUSTERING, ()) for each in range(20)]
        store.do(members_sql.attend, *members)
        for each in topic.queues:
            store.one(locks.lock, Lock(group, f"c{each.number}", [each]))
        commit(store, group, topic, 1)
    for queue in world.topic.queues:
        store.one(locks.lock, Lock(world.pulling, f"c{queue.number}", [queue]))
