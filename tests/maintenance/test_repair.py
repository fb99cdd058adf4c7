"""What keeps messages back: each store is damaged on purpose, and the damage is found, counted, named and repaired."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from popserver.administration import message_facts, why
from popserver.database.check import INVARIANTS
from popserver.database.invariants.queries import Moments, Stuck, StuckIn, first_page, statement
from popserver.database.invariants.stuck import STUCK
from popserver.lite import subscriptions
from popserver.maintenance.repair import Broken, RepairRow, broken_in_page, repair
from popserver.model.group import Group, LiteModel
from popserver.model.times import utc
from popserver.model.topic import MessageType, Topic
from tests.support.builders import in_order, messages_of
from tests.support.lite_broker import lite_messages
from tests.support.open_store import HOUR, MINUTE, OpenStore, bodies
from tests.support.send_back import pull_group

BY_NAME = {each.name: each for each in STUCK}


class Damage(NamedTuple):
    """What breaks an invariant, and the messages that do not come then until it is repaired. `held`: a receive before
    the damage holds so many messages of each topic."""

    statements: str
    topic: str
    kept_back: tuple[str, ...] = ()
    held: int = 2
    only_postgres: bool = False


A_GROUP = "(SELECT group_id FROM consumer_group WHERE name = 'worker')"
ORDERED = "(SELECT topic_id FROM topic WHERE name = 'ordered')"
PLAIN = "(SELECT q.queue_id FROM queue q JOIN topic t ON t.topic_id = q.topic_id WHERE t.name = 'plain')"
IN_ORDER = "(SELECT q.queue_id FROM queue q JOIN topic t ON t.topic_id = q.topic_id WHERE t.name = 'ordered')"
_HEAD = "(SELECT MIN(message_key) FROM delivery WHERE message_group = 'a')"
_COPY = (
    "group_id, message_key, topic_id, state, attempt, hold_id, visible_at_ms, holder, client_id, message_group,"
    " attempt_id"
)

DAMAGE = {
    "a message beyond its queue's end": Damage(
        f"UPDATE queue SET next_offset = 3 WHERE queue_id = {PLAIN}", "plain", ("p3",)
    ),
    "a message before its queue's beginning": Damage(
        f"UPDATE queue SET min_offset = 3 WHERE queue_id = {PLAIN}", "plain", ("p2",)
    ),
    "a queue that begins beyond its end": Damage(
        f"DELETE FROM message WHERE message_key >> 40 = {PLAIN};"
        f"DELETE FROM delivery WHERE message_key >> 40 = {PLAIN};"
        f"UPDATE queue SET min_offset = 9 WHERE queue_id = {PLAIN}",
        "plain",
        ("new",),
    ),
    "a delayed message that is late": Damage(
        "INSERT INTO pending (topic_id, message_id, kind, due_at_ms, stored_at_ms, born_at_ms, message_type,"
        " body_encoding, born_host, body, deliver_at_ms) SELECT topic_id, message_id, 'DELAY', 1735689600001,"
        " stored_at_ms, born_at_ms, 'DELAY', body_encoding, born_host, body, 1735689600001 FROM message"
        " WHERE message_key >> 40 = " + PLAIN + " LIMIT 1",
        "plain",
    ),
    "progress beyond its queue's end": Damage(
        f"UPDATE progress SET next_offset = 9 WHERE queue_id = {PLAIN}", "plain", ("new",)
    ),
    "a start beyond the progress": Damage(
        f"UPDATE progress SET start_offset = next_offset + 1 WHERE queue_id = {IN_ORDER}", "ordered", held=0
    ),
    "a queue that a group of its topic does not read": Damage(
        "INSERT INTO queue (topic_id, number, min_offset, next_offset) SELECT topic_id, 1, 0, 0 FROM topic"
        " WHERE name = 'plain'; UPDATE queue SET next_offset = 1 WHERE number = 1;"
        "UPDATE message SET message_key = (SELECT q.queue_id << 40 FROM queue q WHERE q.number = 1)"
        " WHERE message_key = (SELECT MAX(m.message_key) FROM message m WHERE m.message_key >> 40 = "
        + PLAIN.replace("WHERE t.name", "WHERE q.number = 0 AND t.name")
        + ")",
        "plain",
        ("p3",),
    ),
    "a delivery without its message": Damage(
        f"DELETE FROM message WHERE message_key = {_HEAD}", "ordered", ("a1", "a2"), held=1
    ),
    "a message that a group has twice": Damage(
        f"INSERT INTO delivery ({_COPY}, uncounted) SELECT {_COPY}, 1 FROM delivery WHERE message_group = 'a'",
        "ordered",
        held=1,
        only_postgres=True,
    ),
    "a delivery of a message the group has not reached": Damage(
        f"UPDATE progress SET next_offset = 0 WHERE queue_id = {PLAIN}", "plain"
    ),
    "a delivery that does not wait, of a group that owns whole queues": Damage(
        f"INSERT INTO delivery ({_COPY}) SELECT g.group_id, d.message_key, d.topic_id, 'READY', 1, 7, 1, 'SIMPLE', '',"
        " NULL, NULL FROM delivery d, consumer_group g WHERE g.name = 'puller' AND d.message_group IS NULL",
        "plain",
    ),
    "a hold or a retry that is late": Damage(
        f"UPDATE delivery SET visible_at_ms = 1735689600000 - {HOUR} WHERE message_group IS NULL", "plain"
    ),
    "a hold of a push consumer that no server has": Damage(
        f"UPDATE delivery SET holder = 'PUSH', visible_at_ms = 1735689600000 + {2 * HOUR};"
        "INSERT INTO server (server_id, address, last_seen_ms) VALUES ('s', '', 1)",
        "plain",
    ),
    "a provisional ack with nothing before it": Damage(
        f"UPDATE delivery SET state = 'ACKED_PROVISIONALLY' WHERE message_key = {_HEAD}",
        "ordered",
        ("a1", "a2"),
        held=1,
    ),
    "a delivery in a message group before its start": Damage(
        f"UPDATE progress SET start_offset = next_offset WHERE queue_id = {IN_ORDER}", "ordered"
    ),
    "a message group before its start": Damage(
        f"UPDATE progress SET next_offset = 5, start_offset = 5 WHERE queue_id = {IN_ORDER};"
        f"DELETE FROM delivery WHERE message_group = 'a';"
        f"INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset, open_since_ms)"
        f" VALUES ({A_GROUP}, {IN_ORDER}, 'a', {ORDERED}, 0, 1)",
        "ordered",
        held=0,
    ),
    "a message group with two positions": Damage(
        f"INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset)"
        f" VALUES ({A_GROUP}, {IN_ORDER}, 'x', {ORDERED}, 1), ({A_GROUP}, {IN_ORDER}, 'x', {ORDERED}, 2)",
        "ordered",
        only_postgres=True,
    ),
    "a message group of another topic": Damage(
        f"UPDATE progress SET next_offset = 4 WHERE queue_id = {IN_ORDER};"
        f"INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset, open_since_ms)"
        f" SELECT {A_GROUP}, {IN_ORDER}, 'a', topic_id, 0, 1 FROM topic WHERE name = 'plain'",
        "ordered",
        ("a0", "a1", "a2"),
        held=0,
    ),
    "a message group beyond its queue's progress": Damage(
        f"INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset, open_since_ms)"
        f" VALUES ({A_GROUP}, {IN_ORDER}, 'a', {ORDERED}, 99, 1)",
        "ordered",
        ("a0", "a1", "a2"),
        held=0,
    ),
    "a delivery of a message its message group has not reached": Damage(
        f"INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset)"
        f" VALUES ({A_GROUP}, {IN_ORDER}, 'a', {ORDERED}, 0)",
        "ordered",
    ),
    "a message group that is neither locked nor open": Damage(
        f"UPDATE progress SET next_offset = 4 WHERE queue_id = {IN_ORDER};"
        f"INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset)"
        f" VALUES ({A_GROUP}, {IN_ORDER}, 'a', {ORDERED}, 0)",
        "ordered",
        ("a0", "a1", "a2"),
        held=0,
    ),
    "a message group whose first message is ready and that is not open": Damage(
        "UPDATE delivery SET state = 'READY' WHERE message_group = 'a'", "ordered", ("a0", "a1", "a2"), held=1
    ),
    "a lite subscription without its client": Damage("DELETE FROM lite_client", "sessions", ("l2",)),
    "a message group assigned to a client that does not subscribe to it": Damage(
        "UPDATE message_group_progress SET subscriber = 'gone' WHERE subscriber <> ''", "sessions", ("l2",)
    ),
    "a message group assigned to no client, though one subscribes to it": Damage(
        "UPDATE message_group_progress SET subscriber = NULL WHERE subscriber <> ''", "sessions", ("l2",)
    ),
    "a message group assigned as in a group of another kind": Damage(
        "UPDATE message_group_progress SET subscriber = '' WHERE subscriber <> ''", "sessions", ("l2",)
    ),
    "a message group with one message that has more": Damage(
        "UPDATE message_group_progress SET is_single = 1, next_offset = 0, open_since_ms = 1 WHERE subscriber <> '';"
        "DELETE FROM delivery WHERE message_group = 'one'",
        "sessions",
        ("l1",),
    ),
}


class World(NamedTuple):
    """A sound store in use."""

    store: OpenStore
    group: Group
    topics: dict[str, Topic]
    lite: Group

    def come(self) -> set[str]:
        """All messages that are delivered from now on, whatever time it takes."""
        got: set[str] = set()
        # As a lite consumer does every 30 s.
        sync = subscriptions.SyncLite(self.lite, self.topics["sessions"], "c1", ["one"])
        self.store.one(subscriptions.sync, sync)
        for _ in range(12):
            self.store.end_due(after_ms=4 * HOUR)
            for name, topic in self.topics.items():
                group = self.lite if name == "sessions" else self.group
                for held in self.store.receive(group, topic, client_id="c1"):
                    assert self.store.ack(group, held) == [None]
                    got |= {each.decode() for each in bodies([held])}
        return got


def named(messages: list, *names: str) -> list:  # type: ignore[type-arg]
    return [each._replace(body=name.encode()) for each, name in zip(messages, names, strict=True)]


@pytest.fixture
def world(store: OpenStore) -> Iterator[World]:
    topics = {
        "plain": store.topic("plain"),
        "ordered": store.topic("ordered", accepts=(MessageType.FIFO,)),
        "sessions": store.topic("sessions", accepts=(MessageType.LITE,)),
    }
    group = store.group("worker", meets=[topics["plain"], topics["ordered"]])
    lite = store.group("listener", meets=[topics["sessions"]], lite=LiteModel.SHARED)
    pull_group(store, "puller")
    yield World(store, group, topics, lite)


def filled(world: World, damage: Damage) -> None:
    """Messages of each kind, and some of them held."""
    store, topics = world.store, world.topics
    store.one(subscriptions.sync, subscriptions.SyncLite(world.lite, topics["sessions"], "c1", ["one"]))
    store.send(topics["plain"], named(messages_of(4, topics["plain"].name), "p0", "p1", "p2", "p3"))
    several = [*in_order("a", 3, topics["ordered"].name), *in_order("b", 1, topics["ordered"].name)]
    store.send(topics["ordered"], named(several, "a0", "a1", "a2", "b0"))
    store.send(topics["sessions"], named(lite_messages("one", 3, topics["sessions"].name), "l0", "l1", "l2"))
    if damage.held:
        store.receive(world.group, topics["plain"], damage.held, invisible_ms=HOUR)
        store.receive(world.group, topics["ordered"], damage.held, invisible_ms=HOUR)
    store.receive(world.lite, topics["sessions"], 1, invisible_ms=HOUR)
    store.receive(world.lite, topics["sessions"], 8, client_id="c2", invisible_ms=HOUR)


def look(store: OpenStore) -> list[Broken]:
    """As the patrol of a server looks, in pages of two rows."""
    found: list[Broken] = []
    moments = Moments(store.now_ms, store.now_ms)
    with store.database.read(by_index=True) as conn:
        for source in StuckIn:
            page: dict[str, Any] | None = first_page(source, 2)
            while page is not None:
                rows, page = broken_in_page(conn, source, page, moments, with_late=True)
                found += rows
    return found


def said_of(world: World, body: str) -> str:
    """What `popmq why` says of the message."""
    (row,) = world.store.rows(
        "SELECT encode(message_id, 'hex') AS id FROM message WHERE body = CAST(:body AS bytea)"
        if world.store.database.is_shared
        else "SELECT hex(message_id) AS id FROM message WHERE body = CAST(:body AS BLOB)",
        body=body,
    )
    store = world.store
    group = world.lite if body.startswith("l") else world.group
    with store.database.read() as conn:
        found, _ = message_facts.message_facts(conn, group.name, None, row.id.upper(), store.times)
    return why.sentence(found, utc)


def repaired(world: World) -> None:
    for _ in range(5):
        store = world.store
        fresh = look(store)
        if not fresh:
            return
        done = [store.one(repair, RepairRow(each)) for each in fresh]
        assert any(done), f"not repaired: {fresh}"
    pytest.fail("repairs that never end")


def test_every_invariant_is_damaged_here() -> None:
    assert set(DAMAGE) == set(BY_NAME)
    assert all(each.name in INVARIANTS for each in STUCK if not each.is_late)


def test_a_sound_store_has_nothing_to_repair(world: World) -> None:
    filled(world, Damage("", "plain"))
    assert look(world.store) == []
    assert world.come() == {"p0", "p1", "p2", "p3", "a0", "a1", "a2", "b0", "l0", "l1", "l2"}
    assert look(world.store) == []


@pytest.mark.parametrize("stuck", STUCK, ids=[each.name.replace(" ", "-") for each in STUCK])
def test_it_is_found_named_and_repaired(world: World, stuck: Stuck) -> None:
    damage, store = DAMAGE[stuck.name], world.store
    if damage.only_postgres and not store.database.is_shared:
        pytest.skip("SQLite's key refuses it")
    filled(world, damage)
    assert look(store) == []
    store.now_ms += 2 * MINUTE
    for each in damage.statements.split(";"):
        store.conn.exec_driver_sql(each)
    found = look(store)
    assert stuck.name in {each.stuck.name for each in found}
    if not stuck.is_late:
        assert store.conn.execute(statement(store.conn, INVARIANTS[stuck.name])).scalar()
    for body in damage.kept_back:
        if body != "new" and stuck.name != "a message beyond its queue's end":
            assert "stuck: " in said_of(world, body), body
    repaired(world)
    assert {world.topics[damage.topic].topic_id} <= store.rung
    store.check()
    if "new" in damage.kept_back:
        store.send(world.topics["plain"], named(messages_of(1, world.topics["plain"].name), "new"))
    assert set(damage.kept_back) <= world.come()
