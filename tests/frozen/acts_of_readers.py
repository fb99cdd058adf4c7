"""What is asked of the store: by calls that change nothing, by operators, and by a server for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from sqlalchemy import Connection

from popserver.administration import facts, find, holds, message_facts
from popserver.administration.filter_trial import run_trial
from popserver.administration.find import MessageSearch
from popserver.alerts import told
from popserver.alerts.facts import store_for_alerts
from popserver.bulk import attempts, pages
from popserver.bulk.attempts import Attempt
from popserver.bulk.rules import QueueSlice, columns_named, sources_of
from popserver.catalog import facts as catalog_facts
from popserver.catalog import groups, pauses, progress, queue_offsets, queues, topics
from popserver.charts import points
from popserver.charts.rules import LEVELS, ChartKind, Owner
from popserver.cluster import sql as cluster_sql
from popserver.dead_letters import letters, plan_facts, selecting
from popserver.dead_letters.rules import LetterSelection, Selection
from popserver.delivery import due
from popserver.delivery.holds import unattended_push_clients
from popserver.engine.reader import Reader
from popserver.engine.wakeups import PollKey
from popserver.engine.writer import Writer
from popserver.filters import Filter, tags
from popserver.filters import sql as filters_sql
from popserver.lite import facts as lite_facts
from popserver.maintenance import clock_notes
from popserver.members import lite_subscriptions
from popserver.members import sql as members_sql
from popserver.messages import lite_topics, pending_messages, read, seek
from popserver.metrics.store import store_facts
from popserver.model.group import Group
from popserver.model.topic import Topic, message_key
from popserver.producing import pending_facts
from popserver.producing.pending_facts import After
from popserver.progress import accumulation, clone, lag, reset, time_span
from popserver.progress.rules import Edge, Goal, Since
from popserver.pulling import commit
from popserver.pulling.read import QueueRead, ends_of, read_queues
from popserver.rocketmq_admin import search, subscriptions
from popserver.rocketmq_admin.search import Query
from tests.frozen.acts import TouredStore, act
from tests.frozen.seed import World
from tests.support.builders import in_order
from tests.support.open_store import HOUR
from tests.support.progress import reset_of
from tests.support.redrive import letter_ids

Question = Callable[[Connection], object]
WANTED: tuple[Filter, ...] = (tags.parse("*"), tags.parse("T1||T2"), filters_sql.parse("a = '1'"))
SOURCES = sources_of(columns_named([]), "orders")
PAGE = 100


def ask(store: TouredStore, *questions: Question) -> None:
    """As a call does that reads."""
    for each in questions:
        with store.database.read() as conn:
            each(conn)


def look_up(store: TouredStore, *questions: Question) -> None:
    """As a call does that reads a few rows by an index."""
    for each in questions:
        with store.database.read(by_index=True) as conn:
            each(conn)


@act
def pull(store: TouredStore, world: World) -> None:
    first, second, *_ = world.topic.queues
    reads = [QueueRead(world.topic, each, 3, 32, wanted) for each in (first, second) for wanted in WANTED]
    unsure = QueueRead(world.topic, first, 10**6, 32, WANTED[0], unsure_of=world.pulling.group_id)
    few_bytes = QueueRead(world.topic, first, 3, 32, WANTED[0], max_bytes=100)
    look_up(
        store,
        *(lambda conn, each=each: read_queues(conn, [each]) for each in (*reads, unsure, few_bytes)),
        lambda conn: read_queues(conn, reads),
        lambda conn: ends_of(conn, world.topic, first),
        lambda conn: queue_offsets.ends_of_topic(conn, world.topic.topic_id),
        lambda conn: commit.fetch(conn, world.pulling, world.topic.queues),
    )
    ask(store, lambda conn: seek.offset_at(conn, world.topic, first, store.now_ms))


@act
def read_pages(store: TouredStore, world: World) -> None:
    attempt = Attempt(world.group, world.topic, "pages")
    queue = world.topic.queues[0]
    slices = [QueueSlice(world.topic, queue, 3, 40, wanted, SOURCES) for wanted in WANTED]
    keys = [message_key(queue.queue_id, offset) for offset in (1, 2)]
    ask(
        store,
        *(lambda conn, each=each: pages.page(conn, each) for each in slices),
        lambda conn: pages.first_of(conn, world.topic, keys, SOURCES),
        lambda conn: attempts.held_by(conn, attempt, store.now_ms),
        lambda conn: attempts.receipts_of(conn, attempt, store.now_ms),
    )


@act
def look_topics_and_groups_up(store: TouredStore, world: World) -> None:
    topic, group = world.topic.name, world.group.name
    ask(
        store,
        lambda conn: topics.find_topic(conn, topic),
        lambda conn: groups.find_group(conn, group),
        lambda conn: topics.topics_by_id(conn, [world.topic.topic_id, world.lite.topic_id]),
        lambda conn: groups.groups_by_id(conn, [world.group.group_id]),
        lambda conn: catalog_facts.topic_ids(conn, [topic]),
        lambda conn: catalog_facts.list_topics(conn, None, topic, PAGE),
        lambda conn: catalog_facts.list_topics(conn, "", None, PAGE),
        lambda conn: catalog_facts.list_groups(conn, None, group, PAGE),
        lambda conn: catalog_facts.list_groups(conn, "", None, PAGE),
        queues.all_queue_rows,
        lambda conn: pauses.pauses_of(conn, [world.group.group_id], PAGE),
        lambda conn: pauses.pause_of_topic(conn, world.group.group_id, world.topic.topic_id, "m1"),
        pauses.paused_topics,
    )
    look_up(store, lambda conn: (groups.find_group(conn, group), topics.find_topic(conn, topic)))


@act
def see_what_is_due(store: TouredStore, _world: World) -> None:
    look_up(store, due.next_due_ms, pending_messages.first_due_ms)
    ask(store, unattended_push_clients, clock_notes.last, seek.newest_stored_at_ms)


@act
def list_members(store: TouredStore, world: World) -> None:
    ask(
        store,
        lambda conn: members_sql.members_of(conn, world.pulling.name),
        lambda conn: members_sql.listed(conn, world.pulling.name),
        lambda conn: members_sql.group_view_of(conn, world.pulling.name),
        lambda conn: cluster_sql.known(conn, store.now_ms),
    )


@act
def count_messages(store: TouredStore, world: World) -> None:
    """How far groups are behind."""
    groups_asked: tuple[Group, ...] = (world.group, world.pulling, world.shared)
    ask(
        store,
        *(lambda conn, each=each: lag.queue_lag(conn, each, None, store.now_ms, PAGE) for each in groups_asked),
        lambda conn: lag.queue_lag(conn, world.group, world.topic.topic_id, store.now_ms, PAGE),
        lambda conn: facts.group_lag(conn, world.group.group_id, PAGE),
        lambda conn: facts.group_lag(conn, None, PAGE),
        lambda conn: facts.dead_elsewhere(conn, world.group.group_id, PAGE),
        lambda conn: facts.dead_elsewhere(conn, None, PAGE),
        lambda conn: facts.counts(conn, store.now_ms),
        lambda conn: accumulation.accumulation(conn, world.group.name, []),
        lambda conn: accumulation.accumulation(conn, world.group.name, [world.topic.name]),
        lambda conn: accumulation.of_lite_topic(conn, world.shared.name, [], "l1"),
        lambda conn: accumulation.of_lite_topic(conn, world.shared.name, [world.lite.name], "l1"),
        lambda conn: time_span.time_spans(conn, world.group.name, []),
        lambda conn: time_span.time_spans(conn, world.group.name, [world.topic.name]),
        lambda conn: store_facts(conn, store.now_ms, store.now_ms, PAGE),
    )


@act
def ask_before_a_move(store: TouredStore, world: World) -> None:
    to = reset_of(world.group, world.topic, Edge.BEGINNING)
    by_time = reset_of(world.group, world.topic, Since(store.now_ms))
    ask(
        store,
        lambda conn: clone.topic_ids(conn, world.group),
        lambda conn: progress.queues_in_topic(conn, world.group.group_id, world.topic.topic_id),
        lambda conn: reset.plan(conn, to),
        lambda conn: reset.plan(conn, by_time),
        lambda conn: reset.check(conn, [Goal(world.topic, world.topic.queues[0], 5)]),
    )


@act
def ask_for_messages(store: TouredStore, world: World) -> None:
    """One by its id and its states, those at a place, and why one does not come."""
    in_group = store.send(world.topic, in_order("asked", 2))[1]
    plain = store.send(world.topic, 1)[0]
    number, offset = plain.queue_number, plain.offset
    ask(
        store,
        lambda conn: read.peek(conn, world.topic.name, None, None, PAGE),
        lambda conn: read.peek(conn, world.topic.name, number, offset, PAGE),
        *(
            lambda conn, group=group, each=each: message_facts.message_facts(
                conn, group.name, world.topic.name, each.message_id, store.times
            )
            for group, each in ((world.group, in_group), (world.group, plain), (world.pulling, plain))
        ),
        *(
            lambda conn, each=each: facts.find_message(conn, each, plain.message_id)
            for each in (None, world.topic.name)
        ),
        lambda conn: holds.holds(conn, world.group.name, None, PAGE),
        lambda conn: holds.holds(conn, world.group.name, world.topic.name, PAGE),
        lambda conn: holds.locked_groups(conn, world.group.name, PAGE),
    )


@act
def find_messages(store: TouredStore, world: World) -> None:
    """By a key, by a filter, of a lite topic; the same by RocketMQ's administration."""
    reader = Reader(store.database, cast("Writer", None))  # it asks the writer of a database in memory only
    lately = store.now_ms - HOUR
    wishes: list[tuple[Topic | None, MessageSearch]] = [
        (None, MessageSearch("k1", None, None, 0, None, PAGE)),
        (world.topic, MessageSearch("k1", "T1", None, lately, None, PAGE)),
        (world.topic, MessageSearch(None, None, "a = '1'", 0, None, 5)),
        (world.lite, MessageSearch(None, None, None, 0, None, PAGE, lite_topic="l1")),
    ]
    queries = [
        (world.topic, Query("k1", tags.parse("*"), 0, store.now_ms, None, 0, PAGE, "")),
        (world.topic, Query(None, tags.parse("T1"), 0, store.now_ms, 0, 0, 10, "")),
        (world.lite, Query(None, tags.parse("*"), 0, store.now_ms, None, 0, 10, "", "l1")),
    ]

    async def search_all() -> None:
        for topic, wish in wishes:
            await find.find(reader, topic, wish)
        for named, query in queries:
            await search.search(reader, named, query, lambda _: 100)
        await run_trial(reader, world.topic, filters_sql.parse("a = '1'"), lately, 10)
        await reader.close()

    asyncio.run(search_all())


@act
def list_pending_messages(store: TouredStore, world: World) -> None:
    ask(
        store,
        lambda conn: pending_facts.scheduled(conn, world.topic.name, After(0, 0), PAGE),
        lambda conn: pending_facts.pending_with_key(conn, world.topic.name, "k1"),
        lambda conn: pending_messages.topics_of_sender(conn, "p0"),
    )


@act
def list_lite_topics(store: TouredStore, world: World) -> None:
    topic, key = world.lite.name, PollKey(world.shared.group_id, world.lite.topic_id, "c0")
    ask(
        store,
        lambda conn: lite_facts.list_lite_topics(conn, topic, "l", "l1", PAGE),
        lambda conn: lite_facts.lite_topic_facts(conn, topic, "l1"),
        lambda conn: lite_facts.lite_group_facts(conn, world.shared),
        lambda conn: lite_facts.counts_of_lite_topic(conn, world.shared.name, topic, "l1"),
        lambda conn: lite_facts.clients_of_lite_topic(conn, world.shared.name, topic, "l1"),
        lambda conn: lite_subscriptions.lite_topics_of(conn, key),
        lambda conn: lite_subscriptions.is_shared(conn, key),
        lambda conn: lite_subscriptions.silent_clients(conn, store.now_ms),
        lite_subscriptions.longest_silent_ms,
        lambda conn: lite_topics.expiring(conn, store.now_ms),
        lite_topics.has_lite_topics,
    )


@act
def list_dead_letters(store: TouredStore, world: World) -> None:
    name, plan_id = world.group.name, f"plan-{world.group.group_id}"
    only = Selection(None, 0, store.now_ms, "a = '1'", redriven_too=True)
    chosen = LetterSelection(name, world.topic.name, only)
    (first, *_) = letter_ids(store, world.group)
    ask(
        store,
        *(
            lambda conn, each=each: letters.list_dead_letters(conn, each, 0, PAGE, bodies=True)
            for each in (LetterSelection(name), chosen, LetterSelection(name, only=Selection(ids=(first,))))
        ),
        lambda conn: selecting.page_of(conn, chosen, 0, PAGE),
        lambda conn: selecting.plan_start(conn, chosen, world.topic.name),
        lambda conn: plan_facts.plan(conn, plan_id),
        lambda conn: plan_facts.plans(conn, name, None, PAGE),
        lambda conn: plan_facts.plans(conn, None, plan_id, PAGE),
        lambda conn: plan_facts.redrives(conn, plan_id, 0, PAGE),
        lambda conn: plan_facts.redrives_of(conn, plan_id, [first]),
    )


@act
def read_charts_and_alerts(store: TouredStore, world: World) -> None:
    owner = Owner(ChartKind.GROUP, world.group.group_id)
    ask(
        store,
        lambda conn: points.points(conn, owner, LEVELS[0], store.now_ms),
        lambda conn: store_for_alerts(conn, store.now_ms, None, [world.group.group_id]),
        told.untold,
    )


@act
def list_subscriptions(store: TouredStore, world: World) -> None:
    ask(
        store,
        lambda conn: subscriptions.of(conn, world.group.name, None, {}),
        lambda conn: subscriptions.of(conn, None, world.topic.name, {}),
        lambda conn: subscriptions.check_known(conn, world.group.name, world.topic.name),
    )
