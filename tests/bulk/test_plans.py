"""The plans of what bulk pulls and attempts execute: by keys alone, however much is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from popserver.bulk import attempts, pages
from popserver.bulk.attempts import AckAttempt, Attempt, ReceiveAttempt, Renew
from popserver.bulk.rules import QueueSlice, columns_named, sources_of
from popserver.filters import Filter, tags
from popserver.filters import sql as filters_sql
from popserver.model.group import Group
from popserver.model.topic import Topic
from tests.support.open_store import OpenStore, a_receive
from tests.support.plans import POSTGRES, SQLITE, assert_found_by_index, fill_with_others

Act = Callable[[OpenStore, Group, Topic], object]
SOURCES = sources_of(columns_named([]), "orders")


def page(wanted: Filter) -> Act:
    def act(store: OpenStore, _: Group, topic: Topic) -> object:
        return pages.page(store.conn, QueueSlice(topic, topic.queues[0], 3, 40, wanted, SOURCES))

    return act


def _attempt(group: Group, topic: Topic) -> Attempt:
    return Attempt(group, topic, "a")


def _held(store: OpenStore, group: Group, topic: Topic) -> object:
    keys = [each.message_key for each in attempts.held_by(store.conn, _attempt(group, topic), store.now_ms)]
    return pages.first_of(store.conn, topic, keys, SOURCES)


ACTS: dict[str, tuple[Act, set[str]]] = {
    "page": (page(tags.parse("*")), {"queue_pk", "message_pk"}),
    "page of some tags": (page(tags.parse("A||B")), {"message_pk"}),
    "page by sql": (page(filters_sql.parse("TAGS = 'A'")), {"message_pk"}),
    "receive": (
        lambda store, group, topic: store.one(
            attempts.receive, ReceiveAttempt(a_receive(group, topic, 20, attempt_id="a"))
        ),
        {"delivery_attempt", "message_pk"},
    ),
    "held": (_held, {"delivery_attempt", "message_pk"}),
    "renew": (
        lambda store, group, topic: store.one(attempts.renew, Renew(_attempt(group, topic), 30_000)),
        {"delivery_attempt", "delivery_pk"},
    ),
    "ack": (
        lambda store, group, topic: store.one(attempts.ack, AckAttempt(_attempt(group, topic))),
        {"delivery_attempt"},
    ),
}


@pytest.mark.row("M4")
def test_every_statement_finds_its_rows_by_a_key(store: OpenStore) -> None:
    topic, popping = store.topic(queues=4), store.group("popping")
    fill_with_others(store, topic, popping)
    group = store.group(meets=[topic])
    for number in range(4):
        store.send(topic, 50, tag="A", queue=number)
    names = SQLITE if store.database.is_sqlite else POSTGRES
    for name, (act, indexes) in ACTS.items():
        assert_found_by_index(
            store, name, partial(act, store, group, topic), {index: names.get(index, index) for index in indexes}
        )
