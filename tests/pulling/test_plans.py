"""The plans of what pulls and commits execute: by keys alone, however much is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from popserver.catalog import groups
from popserver.catalog.queue_offsets import ends_of_topic
from popserver.filters import sql as filters_sql
from popserver.filters import tags
from popserver.messages import seek
from popserver.model.group import Group, Mode
from popserver.model.topic import Topic
from popserver.pulling import commit
from popserver.pulling.rules import QueueOffset
from tests.support.open_store import OpenStore
from tests.support.plans import POSTGRES, SQLITE, Plans, assert_found_by_index, fill_with_others
from tests.support.pulls import look

Act = Callable[[OpenStore, Group, Topic], object]


def _commit(store: OpenStore, group: Group, topic: Topic) -> None:
    for offset in (1, 2):
        wishes = [QueueOffset(topic, each, offset) for each in topic.queues]
        store.one(commit.commit, commit.Commit(group, wishes))


ACTS: dict[str, tuple[Act, set[str]]] = {
    "pull": (lambda store, _, topic: look(store, topic, 3), {"queue_pk", "message_pk"}),
    "pull some tags": (lambda store, _, topic: look(store, topic, 3, wanted=tags.parse("A||B")), {"message_pk"}),
    "pull by sql": (
        lambda store, _, topic: look(store, topic, 3, wanted=filters_sql.parse("TAGS = 'A'")),
        {"message_pk"},
    ),
    "ends": (lambda store, _, topic: ends_of_topic(store.conn, topic.topic_id), {"queue_number"}),
    "offset by time": (
        lambda store, _, topic: seek.offset_at(store.conn, topic, topic.queues[0], store.now_ms),
        {"queue_pk", "message_pk"},
    ),
    "commit": (_commit, {"progress_pk", "queue_pk"}),
    "fetch": (lambda store, group, topic: commit.fetch(store.conn, group, topic.queues), {"progress_pk"}),
}


@pytest.mark.row("M4")
def test_every_statement_finds_its_rows_by_a_key(store: OpenStore) -> None:
    topic, popping = store.topic(queues=4), store.group("popping")
    fill_with_others(store, topic, popping)
    group = store.group("pulling")
    store.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
    for number in range(4):
        store.send(topic, 50, tag="A", queue=number)
    names = SQLITE if store.database.is_sqlite else POSTGRES
    for name, (act, indexes) in ACTS.items():
        assert_found_by_index(
            store, name, partial(act, store, group, topic), {index: names[index] for index in indexes}
        )


@pytest.mark.row("I3")
def test_an_offset_by_time_costs_two_statements_among_ten_millions(store: OpenStore) -> None:
    """The ends of the queue and the search; most of the millions are holes, which cost nothing."""
    topic, start_ms = store.topic(), store.now_ms
    place, last = topic.queues[0], 9_999_999
    store.send(topic, 100)
    store.conn.exec_driver_sql(
        f"UPDATE message SET message_key = message_key + (message_key & 127) * 100000, stored_at_ms = {start_ms}"
        " + (message_key & 127)"
    )
    store.conn.exec_driver_sql(
        f"UPDATE queue SET next_offset = {last + 1}, newest_stored_at_ms = {start_ms + 99}"
        f" WHERE queue_id = {place.queue_id}"
    )
    plans = Plans(store)
    with plans.caught():
        found = seek.offset_at(store.conn, topic, place, start_ms + 60)
    assert plans.count == 2
    assert look(store, topic, found, batch_size=1).messages[0].stored_at_ms == start_ms + 60
