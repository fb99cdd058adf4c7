"""Which clients of a group subscribe to which lite topics, and when each has named its lite topics (docs/design/0021).

A transaction that changes subscriptions has locked the progress of the group, so there is one at a time. The primary
key has the clients of a lite topic beside each other; another index has the lite topics of a client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    ScalarSelect,
    Subquery,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.notifications import LITE, Invalidation
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import lite_client, lite_subscription
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction, in_steps
from popserver.engine.wakeups import PollKey


class Subscriber(NamedTuple):
    """A client and one lite topic that it subscribes to."""

    client_id: str
    lite_topic: str


class SilentClient(NamedTuple):
    """A client that has not named its lite topics for too long."""

    group_id: int
    topic_id: int
    client_id: str
    synced_at_ms: int


def lite_topics_of(conn: Connection, key: PollKey) -> set[str]:
    """The lite topics that the client subscribes to."""
    return set(conn.execute(_CURRENT, _names(key)).scalars())


def those_of(conn: Connection, key: PollKey, lite_topics: Collection[str]) -> set[str]:
    """Which of these lite topics the client subscribes to."""
    return {name for names in _steps(key, lite_topics) for name in conn.execute(_WHICH, names).scalars()}


def count_of(conn: Connection, key: PollKey) -> int:
    """How many lite topics the client subscribes to."""
    return conn.execute(_COUNT, _names(key)).scalar_one()


def others_of(conn: Connection, key: PollKey, lite_topics: Collection[str]) -> list[Subscriber]:
    """The other clients of the group that subscribe to these lite topics."""
    return [row for names in _steps(key, lite_topics) for row in _OTHERS.rows(conn, names)]


def is_shared(conn: Connection, key: PollKey) -> bool:
    """Whether another client of the group subscribes to one of the client's lite topics."""
    return conn.execute(_SHARED, _names(key)).first() is not None


def clients_of(conn: Connection, group_id: int, topic_id: int, lite_topic: str) -> list[str]:
    """The group's clients that subscribe to the lite topic, by id."""
    names = {"for_group": group_id, "for_topic": topic_id, "named": lite_topic}
    return list(conn.execute(_CLIENTS, names).scalars())


def counts(conn: Connection, group_id: int) -> tuple[int, int]:
    """How many clients of the group subscribe to lite topics, and to how many, added up."""
    clients, subscriptions = conn.execute(_COUNTS, {"for_group": group_id}).one()
    return clients, subscriptions


def first_subscriber(
    group_id: ColumnElement[int], topic_id: ColumnElement[int], lite_topic: ColumnElement[Any]
) -> ScalarSelect[str]:
    """The client that gets the lite topic: of several always the same one; NULL for none."""
    of_lite_topic = lite_subscription.c.lite_topic == lite_topic
    first = select(func.min(lite_subscription.c.client_id)).where(*_of(group_id, topic_id), of_lite_topic)
    return first.scalar_subquery()


def subscriptions(group_id: ColumnElement[int], topic_id: ColumnElement[int]) -> Subquery:
    """The clients of a group and the lite topics of a topic that each subscribes to, with the lite topic's queue."""
    columns = (lite_subscription.c[name] for name in ("group_id", "queue_id", "lite_topic", "client_id"))
    return select(*columns).where(*_of(group_id, topic_id)).subquery("subscriptions")


def add(conn: Connection, key: PollKey, queue_ids: Mapping[str, int]) -> None:
    """Add subscriptions of the client, new ones for it; each lite topic has the id of its queue."""
    new = [{**key._asdict(), "lite_topic": name, "queue_id": queue_ids[name]} for name in sorted(queue_ids)]
    for step in in_steps(new):
        conn.execute(insert(lite_subscription), step)


def remove(conn: Connection, key: PollKey, lite_topics: Collection[str]) -> None:
    """Remove these subscriptions of the client."""
    for names in _steps(key, lite_topics):
        conn.execute(_REMOVE, names)


def synced_at_ms(conn: Connection, key: PollKey) -> int | None:
    """When the client has last named its lite topics; None for an unknown client."""
    found: int | None = conn.execute(_SYNCED_AT, _names(key)).scalar()
    return found


def sync_again(conn: Connection, key: PollKey, now_ms: int) -> bool:
    """Note that the client has named its lite topics now. False for an unknown client."""
    return bool(conn.execute(_SYNCED_AGAIN, {**_names(key), "now_ms": now_ms}).rowcount)


def keep_client(conn: Connection, key: PollKey, now_ms: int) -> bool:
    """Note the same of a client that may be new. False for one without lite topics: it is not stored, because its id
    may be made up."""
    if conn.execute(_CURRENT.limit(1), _names(key)).first() is None:
        end_client(conn, key)
        return False
    conn.execute(_SYNCED.of(conn), {**_names(key), "now_ms": now_ms})
    return True


def end_client(conn: Connection, key: PollKey) -> None:
    """Remove the client and its subscriptions."""
    conn.execute(_END_CLIENT, _names(key))


def silent_clients(conn: Connection, before_ms: int) -> list[SilentClient]:
    """Up to 100 clients that have not named their lite topics since that time, the longest silent first."""
    return _SILENT.rows(conn, {"before_ms": before_ms})


def longest_silent_ms(conn: Connection) -> int | None:
    """When the client that is silent for longest has named its lite topics; None without clients."""
    found: int | None = conn.execute(_LONGEST_SILENT).scalar()
    return found


def changed(kind: str, key: PollKey) -> Invalidation:
    """The notice to all servers that the client's lite topics have changed."""
    return Invalidation(kind, f"{key.group_id}/{key.topic_id}", key.client_id)


def forget_group(tx: Transaction, group_id: int) -> int:
    """Remove a step of the clients and subscriptions of a deleted group; returns how many rows."""
    return _forget(tx, lite_client.c.group_id == group_id)


def forget_topic(tx: Transaction, topic_id: int) -> int:
    """The same of a deleted topic."""
    return _forget(tx, lite_client.c.topic_id == topic_id)


def _forget(tx: Transaction, condition: ColumnElement[bool]) -> int:
    """Remove clients, each with its subscriptions, until the step is full."""
    removed = 0
    for row in tx.conn.execute(_KEYS.where(condition)).all():
        key = PollKey(*row)
        removed += tx.conn.execute(_REMOVE_ALL, _names(key)).rowcount
        removed += tx.conn.execute(_END_CLIENT, _names(key)).rowcount
        tx.invalidate(changed(LITE, key))
        if removed >= STEP_ROWS_MAX:
            break
    return removed


def _names(key: PollKey) -> dict[str, Any]:
    return {"for_group": key.group_id, "for_topic": key.topic_id, "for_client": key.client_id}


def _steps(key: PollKey, lite_topics: Collection[str]) -> Iterator[dict[str, Any]]:
    """The parameters of each step of a statement for these lite topics."""
    return ({**_names(key), "names": encode_column(step)} for step in in_steps(sorted(lite_topics)))


def _of(group_id: ColumnElement[int], topic_id: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
    return lite_subscription.c.group_id == group_id, lite_subscription.c.topic_id == topic_id


_OF_TOPIC = _of(bindparam("for_group"), bindparam("for_topic"))
_OF_CLIENT = (*_OF_TOPIC, lite_subscription.c.client_id == bindparam("for_client"))
_NAMES = rows_parameter("names", text=("lite_topic",))
_IS_NAMED = lite_subscription.c.lite_topic.in_(select(_NAMES.c.lite_topic))
_COUNT = select(func.count()).select_from(lite_subscription).where(*_OF_CLIENT)
_WHICH = select(lite_subscription.c.lite_topic).where(*_OF_CLIENT, _IS_NAMED)
_CURRENT = select(lite_subscription.c.lite_topic).where(*_OF_CLIENT)
_OTHERS = RowStatement(
    Subscriber,
    select(lite_subscription.c.client_id, lite_subscription.c.lite_topic)
    .where(*_OF_TOPIC, lite_subscription.c.client_id != bindparam("for_client"), _IS_NAMED)
    .order_by(lite_subscription.c.lite_topic),
)
_CLIENTS = (
    select(lite_subscription.c.client_id)
    .where(*_OF_TOPIC, lite_subscription.c.lite_topic == bindparam("named"))
    .order_by(lite_subscription.c.client_id)
)
_COUNTS = select(func.count(lite_subscription.c.client_id.distinct()), func.count(lite_subscription.c.client_id)).where(
    lite_subscription.c.group_id == bindparam("for_group")
)
_REMOVE_ALL = delete(lite_subscription).where(*_OF_CLIENT)
_REMOVE = _REMOVE_ALL.where(_IS_NAMED)
_other = lite_subscription.alias("other")
# Both sides by an index: the client's lite topics by its id, the other clients of each by the primary key. It ends at
# the first one found.
_SHARED = (
    select(_other.c.lite_topic)
    .select_from(lite_subscription)
    .join(
        _other,
        (_other.c.group_id == lite_subscription.c.group_id)
        & (_other.c.topic_id == lite_subscription.c.topic_id)
        & (_other.c.lite_topic == lite_subscription.c.lite_topic),
    )
    .where(*_OF_CLIENT, _other.c.client_id != lite_subscription.c.client_id)
    .limit(1)
)
_IS_CLIENT = (
    lite_client.c.client_id == bindparam("for_client"),
    lite_client.c.group_id == bindparam("for_group"),
    lite_client.c.topic_id == bindparam("for_topic"),
)
_KEYS = select(lite_client.c.group_id, lite_client.c.topic_id, lite_client.c.client_id).limit(STEP_ROWS_MAX)
_SYNCED_AT = select(lite_client.c.synced_at_ms).where(*_IS_CLIENT)
_SYNCED_AGAIN = update(lite_client).where(*_IS_CLIENT).values(synced_at_ms=bindparam("now_ms"))
_END_CLIENT = delete(lite_client).where(*_IS_CLIENT)
_LONGEST_SILENT = select(func.min(lite_client.c.synced_at_ms))
_SILENT = RowStatement(
    SilentClient,
    select(*(lite_client.c[name] for name in SilentClient._fields))
    .where(lite_client.c.synced_at_ms < bindparam("before_ms"))
    .order_by(lite_client.c.synced_at_ms)
    .limit(100),
)


def _synced(dialect: Dialect) -> Any:
    new = dialect.upsert(lite_client).values(
        group_id=bindparam("for_group", type_=BigInteger),
        topic_id=bindparam("for_topic", type_=BigInteger),
        client_id=bindparam("for_client", type_=Text),
        synced_at_ms=bindparam("now_ms", type_=BigInteger),
    )
    return new.on_conflict_do_update(
        index_elements=[lite_client.c.client_id, lite_client.c.group_id, lite_client.c.topic_id],
        set_={"synced_at_ms": new.excluded.synced_at_ms},
    )


_SYNCED = PerDialect(_synced)
