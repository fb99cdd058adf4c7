"""The store's verbs on delayed and half messages, with a test's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from popserver.model.errors import PopError
from popserver.model.message import Message, SendResult, id_from_bytes
from popserver.model.topic import MessageType, Topic
from popserver.producing import enqueue, half_messages, pending
from popserver.producing.rules import CheckPolicy, Resolution
from tests.support.builders import a_message
from tests.support.open_store import MINUTE, OpenStore

POLICY = CheckPolicy()


def a_delayed(store: OpenStore, after_ms: int = MINUTE, **more: Any) -> Message:
    return a_message(message_type=MessageType.DELAY, deliver_at_ms=store.now_ms + after_ms, **more)


def a_half(**more: Any) -> Message:
    return a_message(message_type=MessageType.TRANSACTION, **more)


def pend(store: OpenStore, topic: Topic, *batch: Message, client_id: str = "p1") -> list[SendResult]:
    return store.one(pending.store_pending, pending.StorePending(topic, batch, client_id, POLICY))


def recall(store: OpenStore, topic: Topic, sent: Message) -> PopError | None:
    assert sent.deliver_at_ms is not None
    return store.do(pending.recall_pending, pending.RecallPending(topic, sent.message_id, sent.deliver_at_ms))[0]


def decision(topic: Topic, half: SendResult, resolution: Resolution, **more: Any) -> half_messages.EndTransaction:
    wish = {"message_id": half.message_id, "transaction_id": half.transaction_id}
    return half_messages.EndTransaction(topic=topic, resolution=resolution, **(wish | more))


def decide(store: OpenStore, topic: Topic, half: SendResult, resolution: Resolution, **more: Any) -> PopError | bool:
    (answer,) = store.do(half_messages.end_transaction, decision(topic, half, resolution, **more))
    return answer if isinstance(answer, PopError) else answer.is_made


def commit(store: OpenStore, topic: Topic, half: SendResult, **more: Any) -> PopError | bool:
    return decide(store, topic, half, Resolution.COMMIT, **more)


def roll_back(store: OpenStore, topic: Topic, half: SendResult, **more: Any) -> PopError | bool:
    return decide(store, topic, half, Resolution.ROLLBACK, **more)


def enter_due(store: OpenStore, *, after_ms: int = 0) -> int:
    """Let time pass, then one step; the number of messages that entered."""
    store.now_ms += after_ms
    return store.one(enqueue.enqueue_due, enqueue.EnqueueDue()).entered


def take_checks(
    store: OpenStore, *topics: Topic, after_ms: int = 0, policy: CheckPolicy = POLICY
) -> half_messages.ClaimedChecks:
    store.now_ms += after_ms
    ids = frozenset(topic.topic_id for topic in topics)
    return store.one(half_messages.claim_checks, half_messages.ClaimChecks(ids, policy))


def ids_in(store: OpenStore, table: str) -> Sequence[str]:
    """The ids in table `pending` or `message`, in the order of their keys."""
    query = f"SELECT message_id FROM {table} ORDER BY {'pending_id' if table == 'pending' else 'message_key'}"
    return [id_from_bytes(bytes(row.message_id)) for row in store.rows(query)]
