"""The numbers of the store, as samples."""

from __future__ import annotations

from collections.abc import Mapping

from popserver.database.invariants.stuck import STUCK
from popserver.metrics.families import Families, is_true
from popserver.metrics.server_numbers import Names
from popserver.metrics.store import Late, PairRow, StoreNumbers
from popserver.mirrors.rules import ENDED, UNKNOWN
from popserver.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, Resource, is_system_derived
from popserver.model.retry import SECOND_MS

SERIES_OF_TOPIC = 3
SERIES_OF_GROUP = 6
SERIES_OF_PAIR = 7
SERIES_OF_MIRROR = 3


class LeftOut:
    """What has no series, because there are too many: how many mirrors, topics, and pairs of topic and group."""

    def __init__(self) -> None:
        self.mirrors = 0
        self.topics = 0
        self.pairs = 0


def names_in(numbers: StoreNumbers) -> Names:
    """The topics and groups that exist."""
    facts = numbers.facts
    return Names(
        {each.topic_id: Resource(each.namespace, each.name) for each in facts.topics},
        {each.group_id: Resource(each.namespace, each.name) for each in facts.groups},
    )


def add_store(families: Families, numbers: StoreNumbers, storage: str) -> None:
    """Add what does not grow with the number of topics and groups. `storage`: the kind of the database."""
    facts = numbers.facts
    at = (storage, "disk")
    families.add("rocketmq_topic_number", len(facts.topics))
    families.add("rocketmq_consumer_group_number", len(facts.groups))
    families.add("rocketmq_storage_size", facts.size_bytes, *at)
    if facts.oldest_ms is not None:
        families.add("rocketmq_storage_message_reserve_time", max(0, numbers.at_ms - facts.oldest_ms), *at)
    families.add("rocketmq_storage_flush_behind_bytes", 0, *at)
    families.add("rocketmq_storage_dispatch_behind_bytes", 0, *at)
    _add_late(families, "rocketmq_pop_revive", facts.overdue_holds, numbers.at_ms)
    _add_late(families, "rocketmq_timer_dequeue", facts.overdue_delays, numbers.calendar_ms)
    families.add("rocketmq_timer_enqueue_lag", 0)
    families.add("rocketmq_timer_enqueue_latency", 0)
    for bound_s, count in facts.due_within.items():
        families.add("rocketmq_timer_message_snapshot", count, str(bound_s))
    families.add("popmq_store_metrics_age_seconds", numbers.age_s)
    families.add("popmq_store_metrics_query_seconds", numbers.took_s)


def add_stuck(families: Families, counts: Mapping[str, int] | None) -> None:
    """Add how many rows break each invariant; nothing if that is not known."""
    if counts is not None:
        for each in STUCK:
            families.add("popmq_stuck_rows", counts.get(each.name, 0), each.name)


def _add_late(families: Families, name: str, late: Late, at_ms: int) -> None:
    families.add(f"{name}_lag", late.rows)
    if late.since_ms is not None or not late.rows:
        families.add(f"{name}_latency", 0 if late.since_ms is None else max(0, at_ms - late.since_ms))


def add_groups(families: Families, numbers: StoreNumbers) -> None:
    """Add the groups, each with the messages of all its topics."""
    dead = {
        Resource(each.namespace, each.name.removeprefix(DEAD_LETTER_PREFIX)): each.appended
        for each in numbers.facts.topics
        if each.name.startswith(DEAD_LETTER_PREFIX)
    }
    for each in numbers.facts.groups:
        if not families.has_capacity(SERIES_OF_GROUP):
            return
        group = Resource(each.namespace, each.name)
        for state, count in each.states.items():
            families.add("popmq_group_messages", count, str(group), state)
        families.add("popmq_locked_message_groups", each.locked, str(group))
        letters = Resource(each.namespace, DEAD_LETTER_PREFIX + each.name)
        families.add("rocketmq_send_to_dlq_messages_total", dead.get(group, 0), str(letters), str(group))


def add_mirrors(families: Families, numbers: StoreNumbers, left_out: LeftOut) -> None:
    """Add the mirrors. One that has ended reports no more, so it has no age."""
    for each in numbers.facts.mirrors:
        if not families.has_capacity(SERIES_OF_MIRROR):
            left_out.mirrors += 1
            continue
        families.add("popmq_mirror_handed_total", each.handed, each.mirror_id)
        if each.lag != UNKNOWN:
            families.add("popmq_mirror_lag_messages", each.lag, each.mirror_id)
        if each.state not in ENDED:
            age_s = max(0, numbers.at_ms - each.updated_at_ms) / SECOND_MS
            families.add("popmq_mirror_last_report_age_seconds", age_s, each.mirror_id)


def add_topics(families: Families, numbers: StoreNumbers, left_out: LeftOut) -> None:
    """Add the topics."""
    facts = numbers.facts
    for each in facts.topics:
        if not families.has_capacity(SERIES_OF_TOPIC):
            left_out.topics += 1
            continue
        name = str(Resource(each.namespace, each.name))
        families.add("popmq_stored_messages", each.stored, name)
        if (delayed := facts.delayed.get(each.topic_id)) is not None:
            families.add("rocketmq_timing_messages", delayed, name)
        if (halves := facts.halves.get(each.topic_id)) is not None:
            families.add("rocketmq_half_messages", halves, name)


def add_pairs(families: Families, numbers: StoreNumbers, names: Names, left_out: LeftOut) -> None:
    """Add the groups in each of their topics."""
    shown = 0
    for each in numbers.facts.pairs:
        group, topic = names.groups.get(each.group_id), names.topics.get(each.topic_id)
        if group is None or topic is None:
            continue
        if not families.has_capacity(SERIES_OF_PAIR):
            break
        shown += 1
        _add_pair(families, each, group, topic, numbers.at_ms)
    left_out.pairs += max(0, numbers.facts.pair_count - shown)


def _add_pair(families: Families, pair: PairRow, group: Resource, topic: Resource, at_ms: int) -> None:
    is_retry, is_system = topic.name.startswith(RETRY_PREFIX), is_system_derived(topic.name)
    labels = (str(topic), str(group), is_true(is_retry), is_true(is_system))
    families.add("rocketmq_consumer_ready_messages", pair.ready, *labels)
    families.add("rocketmq_consumer_inflight_messages", pair.inflight, *labels)
    families.add("rocketmq_consumer_lag_messages", pair.ready + pair.inflight + pair.waiting_retry, *labels)
    families.add("popmq_waiting_retry_messages", pair.waiting_retry, *labels)
    families.add("popmq_dead_letters", pair.dead_letters, *labels)
    if pair.oldest_ready_ms is not None:
        age_ms = max(0, at_ms - pair.oldest_ready_ms)
    elif pair.ready == 0:
        age_ms = 0
    else:
        return  # all READY messages are READY again; since when is unknown
    families.add("rocketmq_consumer_queueing_latency", age_ms, *labels)
    families.add("rocketmq_consumer_lag_latency", age_ms, *labels)
