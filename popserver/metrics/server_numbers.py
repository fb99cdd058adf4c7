"""The numbers that one server counts, as samples.

Several threads may make samples of the same meters, so another thread may remove a key meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from popserver.administration.disk import DiskSpace
from popserver.engine.meters import Counted, Created, Delivered, Histogram, Key, Meters, Tallies
from popserver.metrics.families import Families, is_true, merged
from popserver.model.budget import Budget
from popserver.model.names import RETRY_PREFIX, Resource, is_system_derived

PROTOCOL = "grpc_v2"
_LONG_POLLING = frozenset({"ReceiveMessage", "ReceiveBatch", "PullMessage", "PullBatch", "ReceiveBulk"})
OK = 20_000
_CREATE = {
    Created.TOPIC: "rocketmq_topic_create_execution_time",
    Created.GROUP: "rocketmq_consumer_group_create_execution_time",
}
_SPACE = ("popmq_database_file_bytes", "popmq_wal_bytes", "popmq_disk_free_bytes", "popmq_disk_bytes")
_STORED = "PUT_OK"  # what RocketMQ calls the status of a row that is stored


class ConnectedClient(NamedTuple):
    """A client of this server. `group` is None for one that does not consume."""

    language: str
    version: str
    group: Resource | None
    mode: str  # how it consumes: push, simple or pull


OTHER_PRODUCERS = ConnectedClient("other", "other", None, "")
OTHER_CONSUMERS = ConnectedClient("other", "other", Resource("", "other"), "other")


class ServerNumbers(NamedTuple):
    """What one server counts, besides its meters."""

    meters: Meters
    budgets: Iterable[Budget]
    codes: Mapping[int, str]  # the names of status codes
    clients: Iterable[ConnectedClient]
    waiting: Mapping[str, int]  # requests, by the processor that they wait for
    parked: int
    tasks: int  # of the event loop
    discarded: int  # half messages
    rejected: int  # calls, for their signature
    is_ready: bool
    space: DiskSpace | None
    version: str
    database: str
    durability: str


def add_server(families: Families, numbers: ServerNumbers) -> None:
    """Add what does not grow with the number of topics and groups."""
    families.add("popmq_build_info", 1, numbers.version, numbers.database, numbers.durability)
    families.add("popmq_ready", int(numbers.is_ready))
    for name, size in zip(_SPACE, numbers.space or (), strict=False):
        if size is not None:
            families.add(name, size)
    families.add("rocketmq_broker_permission", 6)
    families.add("rocketmq_proxy_up", 1, "local")
    for processor, waiting in numbers.waiting.items():
        families.add("rocketmq_processor_watermark", waiting, processor)
    for kind, by_status in numbers.meters.created.items():
        for is_ok, histogram in by_status.items():
            families.add_histogram(_CREATE[kind], histogram, "success" if is_ok else "failure")
    families.add("popmq_parked_polls", numbers.parked)
    families.add("popmq_event_loop_tasks", numbers.tasks)
    families.add("popmq_discarded_transactions_total", numbers.discarded)
    families.add("popmq_rejected_callers_total", numbers.rejected)
    families.add_histogram("popmq_transaction_seconds", numbers.meters.transactions)
    families.add_histogram("popmq_transaction_requests", numbers.meters.requests)
    families.add_histogram("popmq_commit_seconds", numbers.meters.commits)
    for budget in numbers.budgets:
        families.add("popmq_budget_used", budget.used, budget.name, budget.unit)
        families.add("popmq_budget_limit", budget.limit, budget.name, budget.unit)
        families.add("popmq_budget_refused_total", budget.refused, budget.name)
    for method, by_code in numbers.meters.calls.items():
        for code, histogram in list(by_code.items()):
            name, result = numbers.codes.get(code, str(code)), "success" if code == OK else "failed"
            is_long = is_true(method in _LONG_POLLING)
            families.add_histogram("rocketmq_rpc_latency", histogram, PROTOCOL, method, name, is_long, result)


def add_clients(families: Families, clients: Iterable[ConnectedClient]) -> None:
    """Add how many clients are connected, in at most a tenth of all series. The rest has labels that say `other`."""
    for client, count in _counted(clients, min(families.capacity, families.series_max // 10)).items():
        library = (client.language, client.version, PROTOCOL)
        if client.group is None:
            families.add("rocketmq_producer_connections", count, *library)
        else:
            families.add("rocketmq_consumer_connections", count, *library, str(client.group), client.mode, "false")


def _counted(clients: Iterable[ConnectedClient], series_max: int) -> Mapping[ConnectedClient, int]:
    counts = Counter(clients)
    if len(counts) <= series_max:
        return counts
    shown = Counter(dict(counts.most_common(max(0, series_max - 2))))
    for client, count in (counts - shown).items():
        shown[OTHER_PRODUCERS if client.group is None else OTHER_CONSUMERS] += count
    return shown


NO_GROUP = Resource("", "")  # of reads for which there is no group; its id is 0


class Names(NamedTuple):
    """The names of the topics and groups that existed when the store was read, by id.

    Ids grow, so one that is missing is deleted, or newer than all of these.
    """

    topics: Mapping[int, Resource]
    groups: Mapping[int, Resource]

    def has_lost(self, topic_id: int, group_id: int = 0) -> bool:
        """Whether the topic or the group is deleted."""
        is_old = topic_id <= max(self.topics, default=0) and topic_id not in self.topics
        return is_old or (group_id not in self.groups and 0 < group_id <= max(self.groups, default=0))


# The most samples that one topic and type, or one topic, or one pair of topic and group has.
SERIES_OF_SENT = 11
SERIES_OF_ENDED = 10
SERIES_OF_TIMED = 11
SERIES_OF_DELIVERED = 8
SERIES_OF_DELAYS = 17


def add_sent(families: Families, meters: Meters, names: Names) -> int:
    """Add what producers sent. Returns how many topics are left out."""
    left_out = 0
    for (_, message_type), topic, sent in _of_topics(meters.sent, itemgetter(0), names):
        if not families.has_capacity(SERIES_OF_SENT):
            left_out += 1
        else:
            kind, is_system = message_type.lower(), is_true(is_system_derived(topic.name))
            families.add("rocketmq_messages_in_total", sent.sizes.count, str(topic), kind, is_system)
            families.add("rocketmq_throughput_in_total", sent.sizes.total, str(topic), kind, is_system)
            families.add_histogram("rocketmq_message_size", sent.sizes, str(topic), kind)
    for _, topic, ended in _of_topics(meters.ended, int, names):
        if families.has_capacity(SERIES_OF_ENDED):
            families.add("rocketmq_commit_messages_total", ended.ages.count, str(topic))
            families.add("rocketmq_rollback_messages_total", ended.rollbacks, str(topic))
            families.add_histogram("rocketmq_finish_message_latency", ended.ages, str(topic))
    for _, topic, timed in _of_topics(meters.timed, int, names):
        if families.has_capacity(SERIES_OF_TIMED):
            families.add("rocketmq_timer_enqueue_total", timed.delays.count, str(topic))
            families.add("rocketmq_timer_dequeue_total", timed.entered, str(topic))
            families.add_histogram("rocketmq_delay_message_latency", timed.delays, str(topic))
    return left_out


def _of_topics(
    counts: Tallies[Key, Counted], topic_id_of: Callable[[Key], int], names: Names
) -> Iterator[tuple[Key, Resource, Counted]]:
    """The counts of topics that exist, with the topic. Those of deleted topics are removed."""
    for key, counted in list(counts.items()):
        topic_id = topic_id_of(key)
        if (topic := names.topics.get(topic_id)) is not None:
            yield key, topic, counted
        elif names.has_lost(topic_id):
            counts.pop(key, None)


def add_delivered(families: Families, meters: Meters, names: Names) -> int:
    """Add what consumers received and acked. Returns how many pairs of topic and group are left out."""
    left_out, delays = 0, defaultdict[Resource, list[Histogram]](list)
    for (group_id, topic_id), delivered in list(meters.delivered.items()):
        group, topic = names.groups.get(group_id, None if group_id else NO_GROUP), names.topics.get(topic_id)
        if group is None or topic is None:
            if names.has_lost(topic_id, group_id):
                meters.delivered.pop((group_id, topic_id), None)
            continue
        if delivered.delays.count:
            delays[group].append(delivered.delays)
        if families.has_capacity(SERIES_OF_DELIVERED):
            _add_pair(families, group, topic, delivered)
        else:
            left_out += 1
    for group, histograms in delays.items():
        if families.has_capacity(SERIES_OF_DELAYS):
            families.add_histogram("popmq_delivery_latency", merged(histograms), str(group))
    return left_out


def _add_pair(families: Families, group: Resource, topic: Resource, delivered: Delivered) -> None:
    labels, is_system = (str(topic), str(group)), is_true(is_system_derived(topic.name))
    first = delivered.delays.count + delivered.held
    if topic.name.startswith(RETRY_PREFIX):
        retries, first = delivered.retries + first, 0
        retry_bytes, first_bytes = delivered.retry_bytes + delivered.bytes, 0
    else:
        retries, retry_bytes, first_bytes = delivered.retries, delivered.retry_bytes, delivered.bytes
    for is_retry, messages, size in (("false", first, first_bytes), ("true", retries, retry_bytes)):
        if messages:
            families.add("rocketmq_messages_out_total", messages, *labels, is_retry, is_system)
            families.add("rocketmq_throughput_out_total", size, *labels, is_retry, is_system)
    if group == NO_GROUP:
        return
    families.add("popmq_acked_messages_total", delivered.acks, *labels)
    families.add("rocketmq_pop_revive_in_message_total", delivered.holds, *labels, "CK", _STORED)
    families.add("rocketmq_pop_revive_in_message_total", delivered.acks, *labels, "ACK", _STORED)
    families.add("rocketmq_pop_revive_retry_messages_total", delivered.requeued, *labels, _STORED)
