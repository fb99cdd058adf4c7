"""Every table, index, CHECK and view; the only file that names columns for both databases.

Times are epoch milliseconds in `…_ms` columns. A message's key is its place: queue id in the high bits, offset in the
low 40 (`model.topic.message_key`). What is not stored is implied: a message at or beyond its group's progress is
READY, one behind it without a delivery row is COMMIT, one with a dead letter is DLQ.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
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
    literal_column,
    or_,
    text,
)

from popserver.database import states_of
from popserver.database.dialect import NOT_INSERTED
from popserver.database.states_of import OFFSET_MASK
from popserver.model.group import HistoryLevel, Model
from popserver.model.retry import FIFO_INTERVAL_MS, Holder
from popserver.model.states import (
    STORED,
    TIMED,
    Change,
    CopyKind,
    LetterState,
    PendingKind,
    PlanState,
    RedriveState,
    State,
)
from popserver.model.topic import OFFSET_BITS

metadata = MetaData()

_ID = BigInteger().with_variant(Integer, "sqlite")


def in_states(column: ColumnElement[str], *states: State) -> ColumnElement[bool]:
    """The guard `state IN (…)` with the names in the text: a partial index serves no bound parameter."""
    return column.in_([literal_column(f"'{state}'") for state in sorted(states)])


def _listed(*names: str) -> str:
    return ", ".join(f"'{name}'" for name in names)


topic = Table(
    "topic",
    metadata,
    Column("topic_id", _ID, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("accepts", Text, nullable=False),  # message types, comma separated
    Column("created_at_ms", BigInteger, nullable=False),
    Column("deleted_at_ms", BigInteger),  # set: invisible, its rows are being removed in steps
    # Over how many queues message groups are spread: as many as it was created with, so that none ever moves.
    Column("fifo_queues", Integer, nullable=False, server_default="1"),
    Index(
        "topic_name",
        "namespace",
        "name",
        unique=True,
        sqlite_where=text("deleted_at_ms IS NULL"),
        postgresql_where=text("deleted_at_ms IS NULL"),
    ),
    sqlite_autoincrement=True,  # ids are never reused: a receipt handle must not come to mean something else
)

queue = Table(
    "queue",
    metadata,
    Column("queue_id", _ID, primary_key=True),
    Column("topic_id", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("min_offset", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    # Nothing is stored in the queue with an earlier time: a search by time stands on that.
    Column("newest_stored_at_ms", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("topic_id", "number", name="queue_number"),
    sqlite_autoincrement=True,
)

consumer_group = Table(
    "consumer_group",
    metadata,
    Column("group_id", _ID, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    # The retry ladder, a JSON array whose last interval repeats; exponential intervals, a JSON object.
    Column("intervals_ms", Text, nullable=False),
    Column("consume_from", Text, nullable=False),
    Column("history", Text, nullable=False),
    Column("mode", Text),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("deleted_at_ms", BigInteger),
    Column("fifo_interval_ms", Integer, nullable=False, server_default=str(FIFO_INTERVAL_MS)),
    CheckConstraint(f"history IN ({_listed(*HistoryLevel)})", name="consumer_group_history"),
    Index(
        "consumer_group_name",
        "namespace",
        "name",
        unique=True,
        sqlite_where=text("deleted_at_ms IS NULL"),
        postgresql_where=text("deleted_at_ms IS NULL"),
    ),
    sqlite_autoincrement=True,
)

# Where the queue's id stands in a message key. In the text, not a parameter: Postgres shifts a bigint by an integer
# only, and its driver sends every number as a bigint.
KEY_SHIFT: ColumnElement[int] = literal_column(str(OFFSET_BITS))

# Immutable. The body stands last: a scan for tags then never touches the pages it overflows to.
message = Table(
    "message",
    metadata,
    Column("message_key", _ID, primary_key=True, autoincrement=False),
    Column("topic_id", BigInteger, nullable=False),
    # The key of the message that the server copied this one from, and why. Null: it is an original, which a producer
    # sent. A copy keeps the id of its original.
    Column("copy_of", BigInteger, info=NOT_INSERTED),
    Column("copy_kind", Text, info=NOT_INSERTED),
    Column("message_id", LargeBinary, nullable=False),
    Column("stored_at_ms", BigInteger, nullable=False),
    Column("born_at_ms", BigInteger, nullable=False),
    Column("tag_hash", Integer, nullable=False),
    Column("tag", Text),
    Column("keys", Text),  # JSON array of strings, NULL for none
    Column("properties", Text),  # JSON object of strings, NULL for none
    Column("message_group", Text),
    Column("priority", SmallInteger),
    Column("message_type", Text, nullable=False),
    Column("body_encoding", Text, nullable=False),
    Column("born_host", Text, nullable=False),
    Column("trace_context", Text),
    Column("digest", LargeBinary, nullable=False),  # MD5 of the body as it was sent
    Column("deliver_at_ms", BigInteger),  # of a delayed message: when it was due
    Column("body", LargeBinary, nullable=False),
    # Not `copy_kind IN` alone: SQLite would make its list anew for each original.
    CheckConstraint(
        "CASE WHEN copy_of IS NULL THEN copy_kind IS NULL"
        f" ELSE copy_kind IS NOT NULL AND copy_kind IN ({_listed(*CopyKind)}) END",
        name="message_copy_kind",
    ),
)
IS_ORIGINAL = message.c.copy_of.is_(None)
IS_RETRY = message.c.copy_kind == literal_column(f"'{CopyKind.RETRY}'")
# A topic has one original of an id, and any number of copies: null differs from every other null. It also finds
# messages by id, copies too. Ids that grow with time append to it; that is why they are kept as bytes.
Index("message_id_once", message.c.message_id, text("(CASE WHEN copy_of IS NULL THEN topic_id END)"), unique=True)
# One retry stands for a message in a retry topic.
Index(
    "message_retry_once",
    message.c.copy_of,
    message.c.topic_id,
    unique=True,
    sqlite_where=IS_RETRY,
    postgresql_where=IS_RETRY,
)
# A copy is in no message group: dead letters and retries are delivered one by one.
IN_A_GROUP = and_(message.c.message_group.is_not(None), IS_ORIGINAL)
Index(
    "message_of_group",
    message.c.message_group,
    message.c.message_key,
    sqlite_where=IN_A_GROUP,
    postgresql_where=IN_A_GROUP,
)

# In no queue until due (DELAY) or committed (HALF): offsets are given on entry. `due_at_ms` is when a delayed message
# enters its queue, and when the producers of a half message are asked next.
pending = Table(
    "pending",
    metadata,
    Column("pending_id", _ID, primary_key=True),
    Column("topic_id", BigInteger, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("stored_at_ms", BigInteger, nullable=False),
    Column("transaction_id", Text),
    Column("checks", Integer, nullable=False, server_default="0"),  # how often producers were asked
    Column("client_id", Text, nullable=False, server_default=""),  # its producer: may be asked though it names no topic
    # 1: by a user's own transaction (popmq_enqueue). Apart from the others in the key: the broker must not wait for it.
    Column("enqueued", SmallInteger, nullable=False, server_default="0"),
    Column("born_at_ms", BigInteger, nullable=False),
    Column("tag", Text),
    Column("keys", Text),
    Column("properties", Text),
    Column("message_group", Text),
    Column("priority", SmallInteger),
    Column("message_type", Text, nullable=False),
    Column("body_encoding", Text, nullable=False),
    Column("born_host", Text, nullable=False),
    Column("trace_context", Text),
    Column("digest", LargeBinary, nullable=False),
    Column("deliver_at_ms", BigInteger),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("message_id", "topic_id", "enqueued", name="pending_id_once"),
    CheckConstraint(f"kind IN ({_listed(*PendingKind)})", name="pending_kind"),
    Index("pending_of_topic", "topic_id", "due_at_ms"),
    sqlite_autoincrement=True,
)
# One index for each kind: half messages that nobody decides must not stand before delayed ones that are due.
IS_DELAYED = pending.c.kind == literal_column(f"'{PendingKind.DELAY}'")
IS_HALF = pending.c.kind == literal_column(f"'{PendingKind.HALF}'")
Index("pending_due", pending.c.due_at_ms, sqlite_where=IS_DELAYED, postgresql_where=IS_DELAYED)
Index("pending_check", pending.c.topic_id, pending.c.due_at_ms, sqlite_where=IS_HALF, postgresql_where=IS_HALF)
Index("pending_of_client", pending.c.client_id, sqlite_where=IS_HALF, postgresql_where=IS_HALF)
_WAITS_IN_ORDER = pending.c.message_group.is_not(None)
Index(
    "pending_of_group",
    pending.c.topic_id,
    pending.c.message_group,
    sqlite_where=_WAITS_IN_ORDER,
    postgresql_where=_WAITS_IN_ORDER,
)

# A producer's own key for a message, while its window lasts; `message_id` is that of the message it first came with.
idempotency = Table(
    "idempotency",
    metadata,
    Column("topic_id", BigInteger, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("topic_id", "idempotency_key", name="idempotency_pk"),
    Index("idempotency_expires", "expires_at_ms"),
    sqlite_with_rowid=False,
)

progress = Table(
    "progress",
    metadata,
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),  # not yet looked at; of mode PULL: not yet consumed
    # How often an operator has moved it: a member's commit that stands on an older count comes from before.
    Column("resets", Integer, nullable=False, server_default="0"),
    PrimaryKeyConstraint("group_id", "queue_id", name="progress_pk"),
    sqlite_with_rowid=False,
)

# A message group that is behind the scan of its queue (`progress`), or whose first message is ready again. Its messages
# from `next_offset` up to the scan are implicitly READY, all in one row. It is *open* when something of it can be
# granted now, nothing of it being held or waiting: since `open_since_ms`, and NULL when it is not.
message_group_progress = Table(
    "message_group_progress",
    metadata,
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("message_group", Text, nullable=False),
    Column("topic_id", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("open_since_ms", BigInteger),
    PrimaryKeyConstraint("group_id", "queue_id", "message_group", name="message_group_progress_pk"),
    sqlite_with_rowid=False,
    postgresql_with={"fillfactor": "70"},
)
_OPEN = message_group_progress.c.open_since_ms.is_not(None)
Index(
    "message_group_open",
    message_group_progress.c.group_id,
    message_group_progress.c.topic_id,
    message_group_progress.c.open_since_ms,
    sqlite_where=_OPEN,
    postgresql_where=_OPEN,
)

# A message in someone's hands, or waiting. Ack deletes the row: work follows what is in flight, not the backlog.
delivery = Table(
    "delivery",
    metadata,
    Column("group_id", BigInteger, nullable=False),
    Column("message_key", BigInteger, nullable=False),
    Column("topic_id", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("hold_id", BigInteger, nullable=False),
    Column("visible_at_ms", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("message_group", Text),
    Column("attempt_id", Text),  # the receive's own id, by which a repetition finds what it was granted
    PrimaryKeyConstraint("group_id", "message_key", name="delivery_pk"),
    CheckConstraint(f"state IN ({_listed(*STORED)})", name="delivery_state"),
    CheckConstraint(f"holder IN ({_listed(*Holder)})", name="delivery_holder"),
    sqlite_with_rowid=False,
    # Rows come and go and change state in place; free space in the page keeps an update on it.
    postgresql_with={"fillfactor": "70"},
)
WITH_TIME = in_states(delivery.c.state, *TIMED)
# Of a message group only the first may be granted, and the group's own row says when.
_READY_AGAIN = and_(in_states(delivery.c.state, State.READY), delivery.c.message_group.is_(None))
# Spelled as OR: SQLite sees that either name is inside, and does not in an IN.
_LIVES_WITH_ITS_CLIENT = or_(
    delivery.c.holder == literal_column(f"'{Holder.PUSH}'"), delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'")
)
Index("delivery_due", delivery.c.visible_at_ms, sqlite_where=WITH_TIME, postgresql_where=WITH_TIME)
Index(
    "delivery_ready",
    delivery.c.group_id,
    delivery.c.topic_id,
    delivery.c.visible_at_ms,
    sqlite_where=_READY_AGAIN,
    postgresql_where=_READY_AGAIN,
)
Index(
    "delivery_client",
    delivery.c.client_id,
    sqlite_where=_LIVES_WITH_ITS_CLIENT,
    postgresql_where=_LIVES_WITH_ITS_CLIENT,
)
_IN_ORDER = delivery.c.message_group.is_not(None)
Index(
    "delivery_of_group",
    delivery.c.group_id,
    delivery.c.topic_id,
    delivery.c.message_group,
    delivery.c.message_key,
    sqlite_where=_IN_ORDER,
    postgresql_where=_IN_ORDER,
)
_HAS_ATTEMPT_ID = delivery.c.attempt_id.is_not(None)
Index("delivery_attempt", delivery.c.attempt_id, sqlite_where=_HAS_ATTEMPT_ID, postgresql_where=_HAS_ATTEMPT_ID)

# The narrow facts of a dead letter; the message itself is the copy in topic %DLQ%<group>.
dead_letter = Table(
    "dead_letter",
    metadata,
    Column("dead_letter_id", _ID, primary_key=True),
    Column("group_id", BigInteger, nullable=False),
    Column("origin_key", BigInteger, nullable=False),
    Column("origin_topic_id", BigInteger, nullable=False),
    Column("copy_key", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("dead_at_ms", BigInteger, nullable=False),
    Column("redrive_state", Text),  # NULL: it is one; else how it ceased to be one
    Column("plan_id", Text),  # of the redrive that sent it back
    UniqueConstraint("group_id", "origin_key", name="dead_letter_once"),
    CheckConstraint(f"redrive_state IN ({_listed(*LetterState)})", name="dead_letter_redrive_state"),
    Index("dead_letter_copy", "copy_key"),
    Index("dead_letter_dead_at", "dead_at_ms"),
    Index("dead_letter_of_group", "group_id", "dead_letter_id"),
    sqlite_autoincrement=True,
)

# What is to be sent back, and why; it stays, as the record of it.
redrive_plan = Table(
    "redrive_plan",
    metadata,
    Column("plan_id", Text, primary_key=True),
    Column("group_id", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("selection", Text, nullable=False),  # JSON; of a plan that was made by its orders an empty object
    Column("target_topic_id", BigInteger),
    # Its name, which outlives the topic.
    Column("target_namespace", Text),
    Column("target_topic", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("finished_at_ms", BigInteger),
    Column("planned_up_to", BigInteger, nullable=False),  # the id of the last dead letter that was looked at
    # How many of its messages are in each state, kept by whoever changes those: to count them is dear.
    Column("planned", BigInteger, nullable=False, server_default="0"),
    Column("redriven", BigInteger, nullable=False, server_default="0"),
    Column("skipped", BigInteger, nullable=False, server_default="0"),
    CheckConstraint(f"state IN ({_listed(*PlanState)})", name="redrive_plan_state"),
    Index("redrive_plan_of_group", "group_id", "created_at_ms"),
)

# One message of a plan, and what became of it. The facts of its dead letter are repeated: it outlives that.
redrive = Table(
    "redrive",
    metadata,
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
    # Where it stands now: the dead copy itself, or the message that was made of it.
    Column("redriven_key", BigInteger),
    Column("redriven_message_id", LargeBinary),
    Column("redriven_at_ms", BigInteger),
    PrimaryKeyConstraint("plan_id", "dead_letter_id", name="redrive_pk"),
    CheckConstraint(f"state IN ({_listed(*RedriveState)})", name="redrive_state"),
    CheckConstraint(f"change IN ({_listed(*Change)})", name="redrive_change"),
    Index("redrive_of_origin", "origin_key", "group_id"),
    sqlite_with_rowid=False,
)
_IS_PLANNED = redrive.c.state == literal_column(f"'{RedriveState.PLANNED}'")
Index(
    "redrive_planned",
    redrive.c.plan_id,
    redrive.c.dead_letter_id,
    sqlite_where=_IS_PLANNED,
    postgresql_where=_IS_PLANNED,
)
_STANDS_SOMEWHERE = redrive.c.redriven_key.is_not(None)
Index(
    "redrive_of_key",
    redrive.c.redriven_key,
    redrive.c.group_id,
    sqlite_where=_STANDS_SOMEWHERE,
    postgresql_where=_STANDS_SOMEWHERE,
)

# Append-only; which events leave a row is the group's choice (model.group.HistoryLevel).
history = Table(
    "history",
    metadata,
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

# The servers that share this database, and where clients reach them.
server = Table(
    "server",
    metadata,
    Column("server_id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("last_seen_ms", BigInteger, nullable=False),
    Column("ahead_ms", BigInteger, nullable=False, server_default="0"),  # its time, of the database's clock
)

# Where the clocks stood when they were last looked at (`maintenance.clock_notes`): one row.
clock = Table(
    "clock",
    metadata,
    Column("clock_id", Integer, primary_key=True, autoincrement=False),
    Column("system_ms", BigInteger, nullable=False),
    Column("server_ms", BigInteger, nullable=False),
    Column("doubted_ms", BigInteger, nullable=False),
    Column("doubt_left_ms", BigInteger, nullable=False),
    Column("confirmed", BigInteger, nullable=False),
)

# Which client was last heard of by which server, and when: a push hold lives as long as one of them hears of it.
client = Table(
    "client",
    metadata,
    Column("client_id", Text, nullable=False),
    Column("server_id", Text, nullable=False),
    Column("last_seen_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("client_id", "server_id", name="client_pk"),
    Index("client_last_seen", "last_seen_ms"),
    sqlite_with_rowid=False,
)

# The consumers that share a group's queues. A row counts as long as its server is seen; none is written while it lives.
member = Table(
    "member",
    metadata,
    Column("group_id", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("server_id", Text, nullable=False),  # the one it came to last
    Column("model", Text, nullable=False),
    Column("subscription", Text, nullable=False),  # JSON: what it wants of each topic
    Column("joined_at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("group_id", "client_id", name="member_pk"),
    CheckConstraint(f"model IN ({_listed(*Model)})", name="member_model"),
    Index("member_of_server", "server_id"),
    sqlite_with_rowid=False,
)

# Which member alone consumes a queue, for those that work in the order of queues.
queue_lock = Table(
    "queue_lock",
    metadata,
    Column("group_id", BigInteger, nullable=False),
    Column("queue_id", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("locked_until_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("group_id", "queue_id", name="queue_lock_pk"),
    sqlite_with_rowid=False,
)

# Who may do what. The secret is the key of the callers' signatures, so it cannot be kept as a digest.
acl_user = Table(
    "acl_user",
    metadata,
    Column("access_key", Text, primary_key=True),
    Column("secret", Text, nullable=False),
    Column("is_admin", SmallInteger, nullable=False, server_default="0"),
    Column("disabled_at_ms", BigInteger),
    Column("created_at_ms", BigInteger, nullable=False),
)

acl_policy = Table(
    "acl_policy",
    metadata,
    Column("policy_id", _ID, primary_key=True),
    Column("access_key", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("actions", Text, nullable=False),  # comma separated
    Column("resource_kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("pattern", Text, nullable=False),  # a name, or a prefix followed by *
    Column("created_at_ms", BigInteger, nullable=False),
    CheckConstraint("effect IN ('ALLOW', 'DENY')", name="acl_policy_effect"),
    CheckConstraint("resource_kind IN ('TOPIC', 'GROUP')", name="acl_policy_resource_kind"),
    UniqueConstraint("access_key", "effect", "resource_kind", "namespace", "pattern", name="acl_policy_once"),
    sqlite_autoincrement=True,
)

# One message's state in each group that has met its topic; made for looking up one message, never for counting.
# What was redriven to its group is in the state in which the message is that stands for it: who reads the queue it
# stands in, as groups of mode PULL do, has it there.
MESSAGE_STATE = f"""
SELECT t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.message_key, q.number AS queue_id,
       m.message_key & {OFFSET_MASK} AS queue_offset, g.namespace AS group_namespace, g.name AS consumer_group,
       {states_of.state("m.message_key", states_of.shown("d.state"), states_of.shown("rd.state"))} AS state,
       COALESCE(d.attempt, rd.attempt, CASE WHEN l.redrive_state IS NULL THEN l.attempt END) AS attempt,
       COALESCE(d.visible_at_ms, rd.visible_at_ms) AS visible_at_ms, COALESCE(d.client_id, rd.client_id) AS client_id,
       m.stored_at_ms, m.tag, m.keys, m.message_group
FROM message m
JOIN queue q ON q.queue_id = (m.message_key >> {OFFSET_BITS})
JOIN topic t ON t.topic_id = q.topic_id
JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
{states_of.joins("m.message_key", "m.message_key")}
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""  # noqa: S608

# Offset arithmetic and what is in flight; costs nothing per stored message. What a member of a group that owns whole
# queues handed back may stand beyond what the group has committed: it waits, and is not ready too.
GROUP_LAG = f"""
SELECT g.group_id, g.namespace AS group_namespace, g.name AS consumer_group, t.topic_id,
       t.namespace AS topic_namespace, t.name AS topic,
       s.beyond - COALESCE(d.beyond, 0) + COALESCE(d.ready, 0) + COALESCE(b.behind, 0) AS ready,
       COALESCE(d.inflight, 0) AS inflight,
       COALESCE(d.waiting_retry, 0) AS waiting_retry, COALESCE(l.dead_letters, 0) AS dead_letters,
       s.stored, s.oldest_ready_ms
FROM (SELECT p.group_id, q.topic_id,
             SUM(q.next_offset - CASE WHEN p.next_offset < q.min_offset THEN q.min_offset
                                      ELSE p.next_offset END) AS beyond,
             SUM(q.next_offset - q.min_offset) AS stored,
             MIN((SELECT m.stored_at_ms FROM message m
                  WHERE m.message_key = ((p.queue_id << {OFFSET_BITS})
                        | CASE WHEN p.next_offset < q.min_offset THEN q.min_offset ELSE p.next_offset END))
                ) AS oldest_ready_ms
      FROM progress p JOIN queue q ON q.queue_id = p.queue_id GROUP BY p.group_id, q.topic_id) s
JOIN consumer_group g ON g.group_id = s.group_id
JOIN topic t ON t.topic_id = s.topic_id
LEFT JOIN (SELECT d.group_id, d.topic_id,
                  {states_of.count_of("d.state", State.READY)} AS ready,
                  {states_of.count_of("d.state", State.INFLIGHT)} AS inflight,
                  {states_of.count_of("d.state", State.WAITING_RETRY)} AS waiting_retry,
                  SUM(CASE WHEN (d.message_key & {OFFSET_MASK}) >= p.next_offset THEN 1 ELSE 0 END) AS beyond
           FROM delivery d
           LEFT JOIN progress p ON p.group_id = d.group_id AND p.queue_id = (d.message_key >> {OFFSET_BITS})
           GROUP BY d.group_id, d.topic_id) d ON d.group_id = s.group_id AND d.topic_id = s.topic_id
LEFT JOIN (SELECT b.group_id, q.topic_id, COUNT(*) AS behind
           FROM message_group_progress b
           JOIN queue q ON q.queue_id = b.queue_id
           JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
           JOIN message m ON m.message_group = b.message_group AND m.copy_of IS NULL
                AND m.message_key >= ((b.queue_id << {OFFSET_BITS}) | b.next_offset)
                AND m.message_key < ((b.queue_id << {OFFSET_BITS}) | p.next_offset)
           GROUP BY b.group_id, q.topic_id) b ON b.group_id = s.group_id AND b.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, origin_topic_id, COUNT(*) AS dead_letters
           FROM dead_letter WHERE redrive_state IS NULL GROUP BY group_id, origin_topic_id) l
       ON l.group_id = s.group_id AND l.origin_topic_id = s.topic_id
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""  # noqa: S608

# What Spark and `popmq dlq` read: the facts and the message in one row. A dead letter outlives the topic it came from.
DEAD_LETTERS = f"""
SELECT l.dead_letter_id AS id, g.namespace AS group_namespace, g.name AS consumer_group,
       t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.tag, m.keys, m.message_group, m.message_type,
       oq.number AS queue_id, l.origin_key & {OFFSET_MASK} AS queue_offset, l.origin_key, l.copy_key, m.properties,
       m.body_encoding, m.born_at_ms, m.stored_at_ms, l.dead_at_ms, l.attempt AS delivery_attempt, l.reason,
       l.redrive_state, l.plan_id, m.body
FROM dead_letter l
JOIN consumer_group g ON g.group_id = l.group_id
LEFT JOIN topic t ON t.topic_id = l.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (l.origin_key >> {OFFSET_BITS})
JOIN message m ON m.message_key = l.copy_key
"""  # noqa: S608

# The original, its dead letter, what was changed, and the state in which the redriven message is in the group now.
# A reset has put it back to its first place: then it is what the message is there. None where the note says why.
LINEAGE = f"""
SELECT r.plan_id, g.namespace AS group_namespace, g.name AS consumer_group, t.namespace AS topic_namespace,
       t.name AS topic, r.message_id, oq.number AS queue_id, r.origin_key & {OFFSET_MASK} AS queue_offset,
       r.dead_letter_id, r.dead_at_ms, r.attempt AS delivery_attempt, r.dead_reason, r.reason, r.change,
       rp.target_topic, r.state, r.note, r.redriven_message_id, r.redriven_at_ms,
       CASE WHEN r.state <> '{RedriveState.REDRIVEN}' THEN NULL
            WHEN l.group_id IS NOT NULL THEN '{State.DLQ}'
            WHEN r.note IS NOT NULL THEN NULL
            WHEN d.group_id IS NOT NULL THEN {states_of.shown("d.state")}
            WHEN own.group_id IS NOT NULL THEN
                 (SELECT s.state FROM message_state s WHERE s.message_key = r.origin_key
                         AND s.group_namespace = g.namespace AND s.consumer_group = g.name)
            WHEN r.target_topic_id IS NOT NULL AND p.group_id IS NULL THEN NULL
            WHEN {states_of.is_ready_at("r.redriven_key", "p")} THEN '{State.READY}'
            ELSE '{State.COMMIT}' END AS outcome
FROM redrive r
JOIN consumer_group g ON g.group_id = r.group_id
LEFT JOIN topic t ON t.topic_id = r.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (r.origin_key >> {OFFSET_BITS})
LEFT JOIN redrive_plan rp ON rp.plan_id = r.plan_id
LEFT JOIN dead_letter l ON l.group_id = r.group_id AND l.dead_letter_id > r.dead_letter_id
      AND l.origin_key = CASE WHEN r.target_topic_id IS NULL THEN r.origin_key ELSE r.redriven_key END
LEFT JOIN dead_letter own ON own.dead_letter_id = r.dead_letter_id AND own.redrive_state = '{LetterState.RESET}'
      AND r.target_topic_id IS NULL
LEFT JOIN delivery d ON d.group_id = r.group_id AND d.message_key = r.redriven_key
LEFT JOIN progress p ON p.group_id = r.group_id AND p.queue_id = (r.redriven_key >> {OFFSET_BITS})
"""  # noqa: S608

VIEWS = {"message_state": MESSAGE_STATE, "group_lag": GROUP_LAG, "dead_letters": DEAD_LETTERS, "lineage": LINEAGE}
