"""A store with rows in every table, and what its clients have: handles, offsets, an order."""

from __future__ import annotations

from typing import Any, NamedTuple

from popserver.catalog import pauses, topics
from popserver.catalog.closing import CloseQueues, close_queues
from popserver.database import schema
from popserver.database.database import Database
from popserver.fifo import moving_starts
from popserver.lite import subscriptions
from popserver.lite.subscriptions import SyncLite
from popserver.model.group import Group, HistoryLevel, LiteModel, Mode
from popserver.model.message import PROPERTY, Delivery
from popserver.model.retry import Holder
from popserver.model.topic import MessageType, Topic
from tests.support.builders import a_message, in_order
from tests.support.lite_broker import lite_messages
from tests.support.open_store import MINUTE, START_MS, OpenStore
from tests.support.pending_store import a_delayed, a_half, pend
from tests.support.progress import commit, pull_group
from tests.support.redrive import die, run, write_plan

ODD = 'Zoë \\ "\t\n\r\u2028 \U0001f600 \\N \\x00 \x01'  # what texts in files have trouble with
BODY = bytes(range(256))
STORED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


class NoWatcher:
    """Nobody watches how far a copy is."""

    def step(self, name: str, total: int = 0) -> None:
        pass

    def advance(self, count: int, *, before: bool = False) -> None:
        pass


class FullStore(NamedTuple):
    """What clients of the store have."""

    orders: Topic
    steps: Topic
    billing: Group
    pulling: Group
    held: list[Delivery]  # of `orders`, for a minute
    retried: str  # the message that waits for its retry
    retry_at_ms: int
    redriven: str  # a message that was dead and is READY again
    in_order: list[Delivery]  # the first two of the message group `a` of `steps`, which has three
    pulled: int  # the committed offset of `pulling`
    now_ms: int


def fill(store: OpenStore, monkeypatch: Any) -> FullStore:
    """Fill an empty store."""
    monkeypatch.setattr(moving_starts, "ADVANCE_INTERVAL_MS", 0)
    monkeypatch.setattr(moving_starts, "SLOW_AFTER_MS", 0)
    orders, steps = store.topic("orders", accepts=STORED), store.topic("steps", accepts=(MessageType.FIFO,))
    closed = store.topic("closed")
    store.one(topics.update_topic, topics.UpdateTopic(closed.name, closed_because="it has moved"))
    store.one(close_queues, CloseQueues(closed.name, is_closed=True))
    billing = store.group("billing", meets=[orders, steps], history=HistoryLevel.ALL)
    odd = a_message(orders.name, body=BODY, keys=("k", ODD), properties={"note": ODD, PROPERTY: "once"}, tag="t")
    store.send(orders, [odd, a_message(orders.name, body=b"\x00"), a_message(orders.name)])
    held = store.receive(billing, orders, 2, invisible_ms=MINUTE, attempt_id="c1\nattempt")
    (failed,) = store.receive(billing, orders, 1, holder=Holder.PUSH, client_id="push")
    changed = store.change(billing, failed, 2 * MINUTE)
    dead = die(store, billing, orders, 3)
    write_plan(store, billing)
    run(store, limit=1)
    store.send(steps, in_order("a", 2))
    first, second = store.receive(billing, steps)
    store.send(steps, [*in_order("b", 1), *in_order("a", 1)])
    store.receive(billing, steps)
    for _ in range(3):
        store.send(steps, [*in_order("other", 1), *in_order("b", 1)])
        store.ack(billing, *store.receive(billing, steps))
    with_time = pend(store, orders, a_delayed(store), a_half())
    assert len(with_time) == 2
    pulling = pull_group(store)
    store.meet(pulling, orders, Mode.PULL)
    commit(store, pulling, orders, 2)
    _lite(store)
    pauses.add(store.conn, pauses.PauseKey(billing.group_id, 0, ""), None, store.now_ms, "ops")
    _insert_others(store)
    return FullStore(
        orders,
        steps,
        billing,
        pulling,
        held,
        failed.stored.message.message_id,
        changed.ends_at_ms,
        dead[0],
        [first, second],
        2,
        store.now_ms,
    )


def _lite(store: OpenStore) -> None:
    topic = store.topic("lite", accepts=(MessageType.LITE,))
    group = store.group("lite-billing", meets=[topic], lite=LiteModel.SHARED)
    store.one(subscriptions.sync, SyncLite(group, topic, "one", ("a",)))
    store.send(topic, lite_messages("a", 2, topic.name))
    store.receive(group, topic, 1, client_id="one")


def _insert_others(store: OpenStore) -> None:
    """Rows of servers, users, charts and alerts."""
    rows: dict[str, dict[str, Any]] = {
        "server": {"server_id": "s1", "address": "127.0.0.1:8081", "last_seen_ms": START_MS},
        "client": {"client_id": "push", "server_id": "s1", "last_seen_ms": START_MS},
        "member": {
            "group_id": 1, "client_id": "m1", "server_id": "s1", "model": "CLUSTERING", "subscription": "[]",
            "joined_at_ms": START_MS,
        },
        "queue_lock": {"group_id": 1, "queue_id": 1, "client_id": "m1", "locked_until_ms": START_MS},
        "clock": {
            "clock_id": 1, "system_ms": START_MS, "server_ms": START_MS, "doubted_ms": 0, "doubt_left_ms": 0,
            "confirmed": 0,
        },
        "chart_point": {"step_s": 60, "slot": 1, "kind": "GROUP", "owner_id": 1, "at_ms": START_MS, "ready": 2**62},
        "alert": {
            "alert_key": "k", "kind": "k", "namespace": "", "subject": ODD, "sentence": "s", "next_step": "n",
            "page": "/", "began_at_ms": START_MS,
        },
        "mirror": {
            "mirror_id": "m", "source": "a:1", "target": "b:2", "namespace": "", "topic": "orders",
            "consumer_group": ODD, "owner": "o", "host": "h", "lease_until_ms": START_MS, "state": "RUNNING",
            "sentence": ODD, "position": "{}", "handed": 2**62, "repeated": 0, "dead_letters": 0, "scheduled": 0,
            "bytes": 0, "lag": -1, "started_at_ms": START_MS, "updated_at_ms": START_MS,
        },
        "acl_user": {"access_key": "ops", "secret": ODD, "is_admin": 1, "created_at_ms": START_MS},
        "acl_policy": {
            "access_key": "ops", "effect": "ALLOW", "actions": "PUB", "resource_kind": "TOPIC", "namespace": "",
            "pattern": "*", "created_at_ms": START_MS,
        },
    }  # fmt: skip
    if "message_group_start" in empty_tables(store):  # a server on SQLite writes none
        rows["message_group_start"] = {"group_id": 1, "queue_id": 2, "message_group": "a", "start_offset": 0}
    for name, row in rows.items():
        store.conn.execute(schema.metadata.tables[name].insert(), row)


def empty_tables(store: OpenStore) -> set[str]:
    counted = {name: store.one_value(f"SELECT COUNT(*) FROM {name}") for name in schema.metadata.tables}
    return {name for name, count in counted.items() if not count}


def content(store: OpenStore) -> dict[str, list[str]]:
    """All rows of all tables, as texts that are the same on both databases."""
    found = {name: store.conn.execute(table.select()).all() for name, table in schema.metadata.tables.items()}
    return {name: sorted(repr(tuple(row)) for row in rows) for name, rows in found.items()}


def opened(url: str) -> OpenStore:
    return OpenStore(Database(url, durability="relaxed", own_process=True))


def closed(store: OpenStore) -> None:
    store.conn.close()
    store.database.close()
