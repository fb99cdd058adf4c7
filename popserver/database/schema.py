"""All tables, indexes and CHECKs, for both databases. The views are in `database.views`.

Times are epoch milliseconds in columns ending in `_ms`. A message's key has its queue id in the high bits, and its
offset in the low 40 bits (`model.topic.message_key`). Some states have no row: a message at or after its group's
progress is READY, a message before it without a delivery row is COMMIT, and a message with a dead letter is DLQ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    and_,
    event,
    literal_column,
    or_,
    text,
)
from sqlalchemy.schema import SchemaItem

from popserver.database.dialect import NOT_INSERTED
from popserver.model.group import HistoryLevel, LiteModel, Model
from popserver.model.retry import FIFO_INTERVAL_MS, Holder
from popserver.model.states import (
    STORED,
    TIMED,
    Change,
    CopyKind,
    LetterState,
    MirrorState,
    PendingKind,
    PlanState,
    RedriveState,
    State,
)
from popserver.model.topic import OFFSET_BITS

metadata = MetaData()

_ID = BigInteger().with_variant(Integer, "sqlite")


def in_states(column: ColumnElement[str], *states: State) -> ColumnElement[bool]:
    """The condition `state IN (…)` with literals, because a partial index cannot be used with bound parameters."""
    return column.in_([literal_column(f"'{state}'") for state in sorted(states)])


def still_in(column: ColumnElement[str], *states: State) -> ColumnElement[bool]:
    """The same for a row that is found by its key: no partial index fits it. If a partial index was empty at the last
    VACUUM, Postgres believes that it is cheap, and would read all old versions in it."""
    return in_states(column.concat(literal_column("''")), *states)


def _listed(*names: str) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _table(name: str, *items: SchemaItem, key: Sequence[str] = (), **options: Any) -> Table:
    """`key`: a primary key of several columns, in which SQLite stores the rows."""
    if key:
        items, options["sqlite_with_rowid"] = (*items, PrimaryKeyConstraint(*key, name=f"{name}_pk")), False
    return Table(name, metadata, *items, **options)


def _have_key_on_postgres(table: Table, columns: str) -> None:
    """Give the table another primary key on Postgres than on SQLite."""
    key = f"{table.name}_pk"
    changed = f"ALTER TABLE {table.name} DROP CONSTRAINT {key}, ADD CONSTRAINT {key} PRIMARY KEY ({columns})"
    event.listen(table, "after_create", DDL(changed).execute_if(dialect="postgresql"))  # type: ignore[no-untyped-call]


def _partial_index(name: str, *columns: Any, where: ColumnElement[bool], unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _index_of_group(table: Table, name: str, *columns: str, where: ColumnElement[bool]) -> None:
    """An index that begins with the consumer group; on Postgres with an expression of it (`newest.group_of`)."""
    of_group = {"sqlite": table.c.group_id, "postgresql": table.c.group_id + literal_column("0")}
    for dialect, group_id in of_group.items():
        all_columns = [group_id, *(table.c[each] for each in columns)]
        _partial_index(name, *all_columns, where=where).ddl_if(dialect=dialect)


topic = _table(
    "topic",
    Column("topic_id", _ID, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("accepts", Text, nullable=False),  # message types, comma separated
    Column("created_at_ms", BigInteger, nullable=False),
    Column("deleted_at_ms", BigInteger),  # if set, it is deleted, and its rows are removed in steps
    # The number of queues for message groups: those it was created with, so that no message group moves.
    Column("fifo_queues", Integer, nullable=False, server_default="1"),
    Column("lite_topics", Integer, nullable=False, server_default="0"),  # how many rows of `lite_topic` it has
    Column("lite_expires_ms", BigInteger),  # how long a lite topic of it lives after its last message; NULL: for ever
    Column("closed_because", Text),  # why it takes no messages of producers; NULL: it takes them
    sqlite_autoincrement=True,  # ids are never reused, because receipt handles contain them
)
_partial_index("topic_name", topic.c.namespace, topic.c.name, unique=True, where=topic.c.deleted_at_ms.is_(None))

# For tables with few rows that change often. If a page begins nearly empty, it has room for many versions of its rows,
# and such versions need no index entries (docs/design/0024).
_CHANGES_OFTEN = {"fillfactor": "10"}

queue = _table(
    "queue",
    Column("queue_id", _ID, primary_key=True),
    Column("topic_id", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("min_offset", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    # No message is stored in the queue with an earlier time. Seeks by time depend on that.
    Column("newest_stored_at_ms", BigInteger, nullable=False, server_default="0"),
    # All messages of expired lite topics are before it. It moves whenever a lite topic of the queue expires.
    Column("lite_expired_offset", BigInteger, nullable=False, server_default="0"),
    # Since when it takes no messages of producers; NULL: it takes them. Here too, so that a send sees it under the lock
    # of this row, also if its server does not know yet that the topic is closed.
    Column("closed_at_ms", BigInteger),
    UniqueConstraint("topic_id", "number", name="queue_number"),
    sqlite_autoincrement=True,
    postgresql_with=_CHANGES_OFTEN,
)

consumer_group = _table(
    "consumer_group",
    Column("group_id", _ID, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    # A JSON array for a retry ladder, whose last interval repeats; a JSON object for exponential intervals.
    Column("intervals_ms", Text, nullable=False),
    Column("consume_from", Text, nullable=False),
    Column("history", Text, nullable=False),
    Column("mode", Text),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("deleted_at_ms", BigInteger),
    Column("fifo_interval_ms", Integer, nullable=False, server_default=str(FIFO_INTERVAL_MS)),
    # Which lite topics its clients get; NULL: all of them, like the messages of an ordinary topic.
    Column("lite", Text, CheckConstraint(f"lite IN ({_listed(*LiteModel)})", name="consumer_group_lite")),
    CheckConstraint(f"history IN ({_listed(*HistoryLevel)})", name="consumer_group_history"),
    sqlite_autoincrement=True,
)
_partial_index(
    "consumer_group_name",
    consumer_group.c.namespace,
    consumer_group.c.name,
    unique=True,
    where=consumer_group.c.deleted_at_ms.is_(None),
)

# How far the queue id is shifted in a message key. A literal, because Postgres shifts a bigint only by an integer, and
# its driver sends every parameter as a bigint.
KEY_SHIFT: ColumnElement[int] = literal_column(str(OFFSET_BITS))


def _content() -> list[Column[Any]]:
    """The last columns of `message` and of `pending`. The body comes last, so that a scan for tags does not read its
    overflow pages."""
    return [
        Column("tag", Text),
        Column("keys", Text),  # JSON array of strings, NULL for none
        Column("properties", Text),  # JSON object of strings, NULL for none
        Column("message_group", Text),
        Column("priority", SmallInteger),
        Column("message_type", Text, nullable=False),
        Column("body_encoding", Text, nullable=False),
        Column("born_host", Text, nullable=False),
        Column("trace_context", Text),
        Column("deliver_at_ms", BigInteger),  # of a delayed message: its delivery time
        Column("body", LargeBinary, nullable=False),
    ]


message = _table(
    "message",
    Column("message_key", _ID, primary_key=True, autoincrement=False),
    Column("topic_id", BigInteger, nullable=False),
    # The key of the message that the server copied, and why. Null for an original, which a producer sent. A copy has
    # the message id of its original.
    Column("copy_of", BigInteger, info=NOT_INSERTED),
    Column("copy_kind", Text, info=NOT_INSERTED),
    Column("message_id", LargeBinary, nullable=False),
    Column("stored_at_ms", BigInteger, nullable=False),
    Column("born_at_ms", BigInteger, nullable=False),
    Column("tag_hash", Integer, nullable=False),
    *_content(),
    # Null is tested first, because SQLite builds the list of an IN again for each row.
    CheckConstraint(
        "CASE WHEN copy_of IS NULL THEN copy_kind IS NULL"
        f" ELSE copy_kind IS NOT NULL AND copy_kind IN ({_listed(*CopyKind)}) END",
        name="message_copy_kind",
    ),
)
IS_ORIGINAL = message.c.copy_of.is_(None)
IS_RETRY = message.c.copy_kind == literal_column(f"'{CopyKind.RETRY}'")
# A topic has one original with a message id, and any number of copies, because nulls are distinct. The index also finds
# messages and copies by id. Ids are stored as bytes, so that ids that grow with time are appended to the index.
Index("message_id_once", message.c.message_id, text("(CASE WHEN copy_of IS NULL THEN topic_id END)"), unique=True)
# A message has at most one retry in a retry topic.
_partial_index("message_retry_once", message.c.copy_of, message.c.topic_id, unique=True, where=IS_RETRY)
# Copies are not in message groups: dead letters and retries are delivered one by one.
IN_A_GROUP = and_(message.c.message_group.is_not(None), IS_ORIGINAL)
_partial_index("message_of_group", message.c.message_group, message.c.message_key, where=IN_A_GROUP)

# The index of originals by their keys (`messages.keyed`).
keyed_message = _table(
    "keyed_message",
    Column("block", BigInteger, nullable=False),  # the message key without its low 12 bits
    Column("key_hash", Integer, nullable=False),
    Column("slot", SmallInteger, nullable=False),  # these 12 bits
    key=("block", "key_hash", "slot"),
)

# Messages that are not in a queue until they are due (DELAY) or committed (HALF). They get their offset then.
# `due_at_ms` is the delivery time of a delayed message, and the time of the next check of a half message.
pending = _table(
    "pending",
    Column("pending_id", _ID, primary_key=True),
    Column("topic_id", BigInteger, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("stored_at_ms", BigInteger, nullable=False),
    Column("transaction_id", Text),
    Column("checks", Integer, nullable=False, server_default="0"),  # how many checks were sent
    Column("client_id", Text, nullable=False, server_default=""),  # its producer, which gets checks too
    # 1: by a user's own transaction (popmq_enqueue). Part of the unique key, so that an insert of the broker does not
    # wait for that transaction.
    Column("enqueued", SmallInteger, nullable=False, server_default="0"),
    Column("born_at_ms", BigInteger, nullable=False),
    *_content(),
    UniqueConstraint("message_id", "topic_id", "enqueued", name="pending_id_once"),
    CheckConstraint(f"kind IN ({_listed(*PendingKind)})", name="pending_kind"),
    Index("pending_of_topic", "topic_id", "due_at_ms"),
    sqlite_autoincrement=True,
)
# One index for each kind, so that undecided half messages do not delay messages that are due.
IS_DELAYED = pending.c.kind == literal_column(f"'{PendingKind.DELAY}'")


def is_half(row: FromClause) -> ColumnElement[bool]:
    """Whether a row of `pending` is a half message."""
    return row.c.kind == literal_column(f"'{PendingKind.HALF}'")


IS_HALF = is_half(pending)
_partial_index("pending_due", pending.c.due_at_ms, where=IS_DELAYED)
_partial_index("pending_check", pending.c.topic_id, pending.c.due_at_ms, where=IS_HALF)
# Not IS_HALF alone: for due checks Postgres might take this index instead of `pending_check`, because it has fewer
# levels, and read all of it (docs/design/0024).
IS_HALF_OF_CLIENT = and_(IS_HALF, pending.c.client_id > literal_column("''"))
_partial_index("pending_of_client", pending.c.client_id, where=IS_HALF_OF_CLIENT)
_WAITS_IN_ORDER = pending.c.message_group.is_not(None)
_partial_index("pending_of_group", pending.c.topic_id, pending.c.message_group, where=_WAITS_IN_ORDER)

# A producer's key for a message, during its window; `message_id` is the id of the first message with the key.
idempotency = _table(
    "idempotency",
    Column("topic_id", BigInteger, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Index("idempotency_expires", "expires_at_ms"),
    key=("topic_id", "idempotency_key"),
)

progress = _table(
    "progress",
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),  # the first offset not yet read; in mode PULL, not yet consumed
    # How often an operator has moved it. A member's commit with an older count is refused.
    Column("resets", Integer, nullable=False, server_default="0"),
    # No message before it has a delivery, or gets one without a reset, in a message group without a start of its own
    # (`fifo.start_offsets`). It may be too low, because a receive advances it only from time to time.
    Column("start_offset", BigInteger, nullable=False, server_default="0"),
    key=("group_id", "queue_id"),
    postgresql_with=_CHANGES_OFTEN,
)

# A message group that is behind the scan of its queue (`progress`), or whose first message is READY again. Its messages
# from `next_offset` up to the scan are READY without rows of their own. The group is *open* if a message of it can be
# delivered now, because none is held or waits: since `open_since_ms`, which is NULL otherwise.
message_group_progress = _table(
    "message_group_progress",
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("message_group", Text, nullable=False),
    Column("topic_id", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("open_since_ms", BigInteger),
    # Of a lite topic: a client that subscribes to it, NULL for none. Empty: it is for every client of the group.
    Column("subscriber", Text, server_default=""),
    # 1: of the messages up to the scan only the one at `next_offset` is READY, so no receive searches for others.
    Column("is_single", SmallInteger, nullable=False, server_default="0"),
    key=("group_id", "queue_id", "message_group"),
    postgresql_with={"fillfactor": "70"},
)
# On Postgres the offset is part of the key (docs/design/0024), because a new version is compared with all that have its
# key, and a user's open transaction keeps them. The lock on the progress keeps positions unique (`database.check`).
_have_key_on_postgres(message_group_progress, "group_id, queue_id, message_group, next_offset")
# For the first position in a queue (`fifo.moving_starts`). No other statement uses its expressions; `newest.group_of`
# is another expression of the group. So Postgres cannot take this index where it would read old versions.
Index(
    "message_group_first",
    *(message_group_progress.c[each] * literal_column("1") for each in ("group_id", "queue_id", "next_offset")),
).ddl_if(dialect="postgresql")
_OPEN = message_group_progress.c.open_since_ms.is_not(None)
_index_of_group(message_group_progress, "message_group_open", "topic_id", "subscriber", "open_since_ms", where=_OPEN)

# A message group that is unfinished for long has a start offset of its own, so that the start of its queue can advance.
message_group_start = _table(
    "message_group_start",
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("message_group", Text, nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    key=("group_id", "queue_id", "message_group"),
)

# The lite topics of a bind topic (docs/design/0021). Messages of that name before `first_key` are of an expired one.
lite_topic = _table(
    "lite_topic",
    Column("topic_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("first_key", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    key=("topic_id", "name"),
)

# Which lite topics a client gets, and in which queue they are.
lite_subscription = _table(
    "lite_subscription",
    Column("group_id", BigInteger, nullable=False),
    Column("topic_id", BigInteger, nullable=False),
    Column("lite_topic", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Index("lite_subscription_of_client", "client_id", "group_id", "topic_id"),
    key=("group_id", "topic_id", "lite_topic", "client_id"),
)

# The lite consumers, and when each has named its lite topics last.
lite_client = _table(
    "lite_client",
    Column("group_id", BigInteger, nullable=False),
    Column("topic_id", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("synced_at_ms", BigInteger, nullable=False),
    Index("lite_client_synced", "synced_at_ms"),
    key=("client_id", "group_id", "topic_id"),
)

# A message that is held or waits. An ack deletes the row, so work depends on messages in flight, not on the backlog. A
# new column comes last, because ALTER TABLE adds it there.
delivery = _table(
    "delivery",
    Column("group_id", BigInteger, nullable=False),
    Column("message_key", BigInteger, nullable=False),
    Column("topic_id", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("hold_id", BigInteger, nullable=False),
    Column("visible_at_ms", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),  # SIMPLE, PUSH or ORPHAN
    Column("client_id", Text, nullable=False),
    Column("message_group", Text),
    Column("attempt_id", Text),  # the id of the receive, by which a repeated receive finds its messages
    # How many attempts did not count, because it was given back or its lite topic was suspended.
    Column("uncounted", Integer, nullable=False, server_default="0", info=NOT_INSERTED),
    CheckConstraint(f"state IN ({_listed(*STORED)})", name="delivery_state"),
    CheckConstraint(f"holder IN ({_listed(*Holder)})", name="delivery_holder"),
    key=("group_id", "message_key"),
    # Rows are often updated; free space keeps the new version in the same page.
    postgresql_with={"fillfactor": "70"},
)

# On Postgres `uncounted`, which grows without a limit, is part of the key (docs/design/0024): a new version is compared
# with all versions of its key. So the key does not prevent a second delivery of a message. The lock of the group's
# progress does; for a redrive the lock of the dead letter, for a send-back the lock of the message (`database.check`).
_have_key_on_postgres(delivery, "group_id, message_key, uncounted")

# When a page of an index is full, Postgres merges the entries of one key into a list, and reads a list from the oldest
# entry on. In these indexes a search has to meet the newest version of a row first (`database.newest`).
for _changed, *_indexes in ((queue, "queue_pkey", "queue_number"), (pending, "pending_pkey"), (progress, "progress_pk"),
                          (delivery, "delivery_pk"),
                          (message_group_progress, "message_group_progress_pk")):  # fmt: skip
    for _index in _indexes:
        event.listen(
            _changed,
            "after_create",
            DDL(f"ALTER INDEX {_index} SET (deduplicate_items = off)").execute_if(dialect="postgresql"),  # type: ignore[no-untyped-call]
        )

WITH_TIME = in_states(delivery.c.state, *TIMED)
# Without message groups: only the first message of a message group may be delivered, when its position is open.
_READY_AGAIN = and_(in_states(delivery.c.state, State.READY), delivery.c.message_group.is_(None))
# Written with OR, because SQLite does not use the partial index for an IN.
_ENDS_WITH_CLIENT = or_(
    delivery.c.holder == literal_column(f"'{Holder.PUSH}'"), delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'")
)
_partial_index("delivery_due", delivery.c.visible_at_ms, where=WITH_TIME)
_index_of_group(delivery, "delivery_ready", "topic_id", "visible_at_ms", where=_READY_AGAIN)
_partial_index("delivery_client", delivery.c.client_id, where=_ENDS_WITH_CLIENT)
_IN_ORDER = delivery.c.message_group.is_not(None)
_index_of_group(delivery, "delivery_of_group", "topic_id", "message_group", "message_key", where=_IN_ORDER)
_HAS_ATTEMPT_ID = delivery.c.attempt_id.is_not(None)
_partial_index("delivery_attempt", delivery.c.attempt_id, where=_HAS_ATTEMPT_ID)

# Facts about a dead letter. The message itself is the copy in topic %DLQ%<group>.
dead_letter = _table(
    "dead_letter",
    Column("dead_letter_id", _ID, primary_key=True),
    Column("group_id", BigInteger, nullable=False),
    Column("origin_key", BigInteger, nullable=False),
    Column("origin_topic_id", BigInteger, nullable=False),
    Column("copy_key", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("dead_at_ms", BigInteger, nullable=False),
    Column("redrive_state", Text),  # NULL while it is a dead letter; otherwise why it no longer is
    Column("plan_id", Text),  # the plan that sent it back
    UniqueConstraint("group_id", "origin_key", name="dead_letter_once"),
    CheckConstraint(f"redrive_state IN ({_listed(*LetterState)})", name="dead_letter_redrive_state"),
    Index("dead_letter_copy", "copy_key"),
    Index("dead_letter_dead_at", "dead_at_ms"),
    Index("dead_letter_of_group", "group_id", "dead_letter_id"),
    sqlite_autoincrement=True,
)

# Which dead letters are sent back, and why. The row stays as a record.
redrive_plan = _table(
    "redrive_plan",
    Column("plan_id", Text, primary_key=True),
    Column("group_id", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("selection", Text, nullable=False),  # JSON; an empty object if the plan was made from a list of messages
    Column("target_topic_id", BigInteger),
    # The name, which stays when the topic is deleted.
    Column("target_namespace", Text),
    Column("target_topic", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("finished_at_ms", BigInteger),
    Column("planned_up_to", BigInteger, nullable=False),  # the id of the last dead letter that was read
    # The number of its messages in each state. Each change of a message updates it, because counting is expensive.
    Column("planned", BigInteger, nullable=False, server_default="0"),
    Column("redriven", BigInteger, nullable=False, server_default="0"),
    Column("skipped", BigInteger, nullable=False, server_default="0"),
    CheckConstraint(f"state IN ({_listed(*PlanState)})", name="redrive_plan_state"),
    Index("redrive_plan_of_group", "group_id", "created_at_ms"),
)

# One message of a plan and its result. It repeats the facts of the dead letter, which may be removed before it.
redrive = _table(
    "redrive",
    Column("plan_id", Text, nullable=False),
    Column("dead_letter_id", BigInteger, nullable=False),
    Column("group_id", BigInteger, nullable=False),
    Column("origin_key", BigInteger, nullable=False),
    Column("origin_topic_id", BigInteger, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("dead_reason", Text, nullable=False),
    Column("dead_at_ms", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("target_topic_id", BigInteger),
    Column("note", Text),
    # Its key after the redrive: of the copy in the dead letter topic, or of a new message.
    Column("redriven_key", BigInteger),
    Column("redriven_message_id", LargeBinary),
    Column("redriven_at_ms", BigInteger),
    CheckConstraint(f"state IN ({_listed(*RedriveState)})", name="redrive_state"),
    CheckConstraint(f"change IN ({_listed(*Change)})", name="redrive_change"),
    Index("redrive_of_origin", "origin_key", "group_id"),
    key=("plan_id", "dead_letter_id"),
)
_IS_PLANNED = redrive.c.state == literal_column(f"'{RedriveState.PLANNED}'")
_partial_index("redrive_planned", redrive.c.plan_id, redrive.c.dead_letter_id, where=_IS_PLANNED)
_HAS_REDRIVEN_KEY = redrive.c.redriven_key.is_not(None)
_partial_index("redrive_of_key", redrive.c.redriven_key, redrive.c.group_id, where=_HAS_REDRIVEN_KEY)

# An operator has paused a group: in all topics, in one topic, or for one message group of a topic. As long as a message
# group is paused, its row in `message_group_progress` exists and is never open.
pause = _table(
    "pause",
    Column("group_id", BigInteger, nullable=False),
    Column("topic_id", BigInteger, nullable=False),  # 0: all topics
    Column("message_group", Text, nullable=False),  # empty: all message groups
    Column("queue_id", BigInteger),  # the queue of the message group
    Column("paused_at_ms", BigInteger, nullable=False),
    Column("paused_by", Text, nullable=False),  # the access key of the operator; empty without users
    key=("group_id", "topic_id", "message_group"),
)

# Append-only. The group chooses which events are written (model.group.HistoryLevel).
history = _table(
    "history",
    Column("history_id", _ID, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("group_id", BigInteger, nullable=False),
    Column("message_key", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("from_state", Text, nullable=False),
    Column("to_state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Index("history_message", "message_key", "group_id"),
    sqlite_autoincrement=True,
)

# The servers of this database, and their addresses for clients.
server = _table(
    "server",
    Column("server_id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("last_seen_ms", BigInteger, nullable=False),
    Column("ahead_ms", BigInteger, nullable=False, server_default="0"),  # of the database's clock
    Column("leaves", SmallInteger, nullable=False, server_default="0"),  # 1: it stops soon; 2: it has stopped
)

# The readings of the clocks at the last check (`maintenance.clock_notes`): one row.
clock = _table(
    "clock",
    Column("clock_id", Integer, primary_key=True, autoincrement=False),
    Column("system_ms", BigInteger, nullable=False),
    Column("server_ms", BigInteger, nullable=False),
    Column("doubted_ms", BigInteger, nullable=False),
    Column("doubt_left_ms", BigInteger, nullable=False),
    Column("confirmed", BigInteger, nullable=False),
)

# Which server has which push consumer. The holds of a push consumer last while a server has it.
client = _table(
    "client",
    Column("client_id", Text, nullable=False),
    Column("server_id", Text, nullable=False),
    Column("last_seen_ms", BigInteger, nullable=False),
    Index("client_last_seen", "last_seen_ms"),
    key=("client_id", "server_id"),
)

# The members of groups that own whole queues. A row is valid while its server has heartbeats.
member = _table(
    "member",
    Column("group_id", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("server_id", Text, nullable=False),  # the server that it joined last
    Column("model", Text, nullable=False),
    Column("subscription", Text, nullable=False),  # JSON: its filter for each topic
    Column("joined_at_ms", BigInteger, nullable=False),
    CheckConstraint(f"model IN ({_listed(*Model)})", name="member_model"),
    Index("member_of_server", "server_id"),
    key=("group_id", "client_id"),
)

# The queue locks of members that consume in order.
queue_lock = _table(
    "queue_lock",
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("locked_until_ms", BigInteger, nullable=False),
    key=("group_id", "queue_id"),
)

# The points of the charts of groups and topics (`charts.rules`). A slot is used again and again, so the number of rows
# has a limit. The key begins with the slot: what is written together is stored together.
chart_point = _table(
    "chart_point",
    Column("step_s", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("owner_id", BigInteger, nullable=False),  # of a group or of a topic, by `kind`
    Column("at_ms", BigInteger, nullable=False),  # when it was written last; it decides of which step of time it is
    # Counts at that time. NULL until the server that counts has written them.
    Column("appended", BigInteger),
    Column("done", BigInteger),
    # The highest values in the step.
    Column("ready", BigInteger),
    Column("inflight", BigInteger),
    Column("waiting_retry", BigInteger),
    Column("oldest_age_ms", BigInteger),
    # First deliveries in the step, by all servers; the sum of their delays, and 99 % of them took at most `slow_ms`.
    Column("delivered", BigInteger, nullable=False, server_default="0"),
    Column("delay_ms", BigInteger, nullable=False, server_default="0"),
    Column("slow_ms", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("kind IN ('GROUP', 'TOPIC')", name="chart_point_kind"),
    key=("step_s", "slot", "kind", "owner_id"),
    postgresql_with={"fillfactor": "70"},
)

# What needs a person, until the webhook has been told of its beginning and of its end (`alerts.told`).
alert = _table(
    "alert",
    Column("alert_id", _ID, primary_key=True),
    Column("alert_key", Text, nullable=False),  # what is the same alert
    Column("kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("next_step", Text, nullable=False),
    Column("page", Text, nullable=False),  # the path of its page in the console
    Column("began_at_ms", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger),
    Column("told", SmallInteger, nullable=False, server_default="0"),  # 1: the webhook knows that it began
    Column("failure", Text, nullable=False, server_default=""),  # why the webhook does not know yet
    sqlite_autoincrement=True,
)
_partial_index("alert_open", alert.c.alert_key, unique=True, where=alert.c.ended_at_ms.is_(None))

# The processes that hand messages over between this server and others, and their leases (`mirrors.rules`).
mirror = _table(
    "mirror",
    Column("mirror_id", Text, primary_key=True),
    Column("source", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("consumer_group", Text, nullable=False),  # empty: the whole topic
    Column("owner", Text, nullable=False),  # the process that has the lease, or had it last
    Column("host", Text, nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("position", Text, nullable=False),  # only the mirror understands it
    Column("handed", BigInteger, nullable=False),
    Column("repeated", BigInteger, nullable=False),
    Column("dead_letters", BigInteger, nullable=False),
    Column("scheduled", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("lag", BigInteger, nullable=False),  # -1: not known
    Column("started_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    CheckConstraint(f"state IN ({_listed(*MirrorState)})", name="mirror_state"),
)

# Users. The secret is the key of the callers' signatures, so it cannot be stored as a digest.
acl_user = _table(
    "acl_user",
    Column("access_key", Text, primary_key=True),
    Column("secret", Text, nullable=False),
    Column("is_admin", SmallInteger, nullable=False, server_default="0"),
    Column("disabled_at_ms", BigInteger),
    Column("created_at_ms", BigInteger, nullable=False),
)

acl_policy = _table(
    "acl_policy",
    Column("policy_id", _ID, primary_key=True),
    Column("access_key", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("actions", Text, nullable=False),  # separated by commas
    Column("resource_kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("pattern", Text, nullable=False),  # a name, or a prefix followed by *
    Column("created_at_ms", BigInteger, nullable=False),
    CheckConstraint("effect IN ('ALLOW', 'DENY')", name="acl_policy_effect"),
    CheckConstraint("resource_kind IN ('TOPIC', 'GROUP')", name="acl_policy_resource_kind"),
    UniqueConstraint("access_key", "effect", "resource_kind", "namespace", "pattern", name="acl_policy_once"),
    sqlite_autoincrement=True,
)
