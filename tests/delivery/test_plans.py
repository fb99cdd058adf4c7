"""The plans of the hot statements: each finds its rows by the index made for it, and none reads a whole table.

They are explained in a store that holds enough else for a wrong plan to be dearer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from popserver.filters.tags import parse
from popserver.messages.stored import Append, append
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.topic import Topic
from popserver.settling import release
from tests.support.builders import messages_of
from tests.support.open_store import HOUR, MINUTE, SECOND, OpenStore
from tests.support.plans import POSTGRES, SQLITE, assert_found_by_index, fill_with_others

Act = Callable[[OpenStore, Group, Topic], object]
ACTS: dict[str, tuple[Act, set[str]]] = {
    "send": (lambda store, _, topic: store.send(topic, 3), {"queue_pk"}),
    "send carefully": (
        lambda store, _, topic: store.do(append, Append(topic, messages_of(3)), careful=True),
        {"message_id"},
    ),
    "receive": (
        lambda store, group, topic: store.receive(group, topic, 32),
        {"queue_number", "progress_pk", "delivery_ready", "delivery_pk", "message_pk"},
    ),
    "receive some tags": (
        lambda store, group, topic: store.receive(group, topic, 32, wanted=parse("A||B")),
        {"queue_number", "progress_pk", "delivery_ready", "delivery_pk", "message_pk"},
    ),
    "ack": (lambda store, group, _: store.ack(group, *_held(store, group)), {"delivery_pk"}),
    "ack in vain": (
        lambda store, group, _: store.ack(group, *[each._replace(hold_id=1) for each in _held(store, group)]),
        {"delivery_pk"},
    ),
    "change": (lambda store, group, _: store.change(group, _held(store, group)[0], SECOND), {"delivery_pk"}),
    "forward": (lambda store, group, _: store.forward(group, _held(store, group)[0]), {"delivery_pk", "message_pk"}),
    "end due": (lambda store, _group, _topic: store.end_due(after_ms=MINUTE), {"delivery_due", "delivery_pk"}),
    "orphan a client": (lambda store, _group, _topic: store.orphan_client("c1"), {"delivery_client"}),
    "adopt": (
        lambda store, _group, _topic: (store.orphan_client("c1"), store.adopt("c1", store.now_ms + HOUR)),
        {"delivery_client"},
    ),
    "orphan a grant": (
        lambda store, group, _: store.one(release.abandon_holds, release.AbandonHolds(receipts=_held(store, group))),
        {"delivery_pk"},
    ),
    "withdraw a grant": (
        lambda store, group, _: store.one(release.cancel_delivery, release.CancelDelivery(_held(store, group))),
        {"delivery_pk"},
    ),
}


@pytest.mark.row("M4")
def test_every_hot_statement_finds_its_rows_by_an_index(store: OpenStore) -> None:
    topic = store.topic(queues=4)
    group = store.group(meets=[topic])
    fill_with_others(store, topic, group)
    names = SQLITE if store.database.is_sqlite else POSTGRES
    for name, (act, indexes) in ACTS.items():
        store.send(topic, 50, tag="A")
        store.receive(group, topic, 50, holder=Holder.PUSH, invisible_ms=MINUTE)
        store.receive(group, topic, 20, invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
        store.send(topic, 20, tag="A")
        assert_found_by_index(
            store, name, partial(act, store, group, topic), {index: names[index] for index in indexes}
        )


def _held(store: OpenStore, group: Group) -> list[Receipt]:
    query = (
        "SELECT message_key, hold_id, visible_at_ms FROM delivery"
        " WHERE group_id = :id AND state = 'INFLIGHT' AND visible_at_ms < :far LIMIT 9"
    )
    return [Receipt(group.group_id, *row) for row in store.rows(query, id=group.group_id, far=store.now_ms + HOUR)]
