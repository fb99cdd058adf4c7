"""Answers of RocketMQ's brokers and name servers, as facts. An answer that is none raises UnexpectedAnswer.

Sources: ClusterInfo, ConsumeStats, TopicStatsTable, ConsumerConnection and TimerMetrics of RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from popclient.errors import UnexpectedAnswer
from popclient.remoting.facts import RocketMQConsumer
from popclient.remoting.fastjson import MapEntry, NotJson, parse

MASTER: Final = "0"  # its number among the brokers of one name
# What holds a note per receive of POP consumers, and a note per ack, until the hold ends.
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"


class GroupOffsets(NamedTuple):
    """Of a group, in a queue of one broker: the offset after the last message, and that of the next one to receive."""

    topic: str
    queue_id: int
    end: int
    next: int


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Whatever goes wrong in it is the fault of the answer: it lacks something, or has it in another form."""
    try:
        yield
    except NotJson as failure:
        raise UnexpectedAnswer(f"{address} gives an answer that is no JSON: {failure}") from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as failure:
        raise UnexpectedAnswer(f"{address} gives an answer that lacks what it should have: {failure!r}") from None


def masters(address: str, body: bytes, cluster: str) -> dict[str, str | None]:
    """The address of the master by the broker's name, None if it has no master now. cluster: empty, if there is one.

    Raises ValueError if there are several clusters, or not this one.
    """
    with reading(address):
        found = parse(body.decode())
        clusters = sorted(text(name) for name in found["clusterAddrTable"])
        brokers = {text(name): data for name, data in sorted(found["brokerAddrTable"].items())}
        of_cluster = {name: text(data["cluster"]) for name, data in brokers.items()}
        addresses = {name: data["brokerAddrs"].get(MASTER) for name, data in brokers.items()}
        known = {name: None if at is None else text(at) for name, at in addresses.items()}
    if (not cluster and len(clusters) > 1) or (cluster and cluster not in clusters):
        named = f"has no cluster {cluster!r}" if cluster else "has several clusters"
        raise ValueError(f"name server {address} {named}; choose one of them: {', '.join(clusters) or 'it has none'}")
    return {name: at for name, at in known.items() if not cluster or of_cluster[name] == cluster}


def tables(address: str, body: bytes, name: str) -> dict[str, dict[str, Any]]:
    """The settings of all topics (`topicConfigTable`) or groups (`subscriptionGroupTable`), by name."""
    with reading(address):
        return {text(key): dict(value) for key, value in parse(body.decode())[name].items()}


def names(address: str, body: bytes) -> set[str]:
    """Of a list of topics."""
    with reading(address):
        return {text(name) for name in parse(body.decode())["topicList"]}


def progress(address: str, body: bytes) -> list[GroupOffsets]:
    """Of the queues that a broker has; an offset that the group has not is 0."""
    with reading(address):
        return [
            GroupOffsets(text(at["topic"]), int(at["queueId"]), int(its["brokerOffset"]), int(its["consumerOffset"]))
            for at, its in _rows(parse(body.decode())["offsetTable"])
        ]


def first_offsets(address: str, body: bytes) -> dict[int, int]:
    """Of a topic: the first offset that is stored, by queue."""
    return _offsets(address, body, "minOffset")


def end_offsets(address: str, body: bytes) -> dict[int, int]:
    """The same: the offset of the next message."""
    return _offsets(address, body, "maxOffset")


def _offsets(address: str, body: bytes, which: str) -> dict[int, int]:
    with reading(address):
        return {int(at["queueId"]): int(its[which]) for at, its in _rows(parse(body.decode())["offsetTable"])}


def offset(address: str, fields: Mapping[str, str]) -> int:
    with reading(address):
        return int(fields["offset"])


def waiting(address: str, body: bytes) -> int:
    """The notes about received messages that a broker's timers hold."""
    with reading(address):
        counts = parse(body.decode())["timingCount"].items()
        return sum(max(int(its["count"]), 0) for topic, its in counts if topic.startswith(REVIVE_PREFIX))


def delayed(address: str, body: bytes, topic: str) -> int:
    """The messages of a topic that a broker's timers hold."""
    with reading(address):
        found = parse(body.decode())["timingCount"].get(topic)
        return 0 if found is None else max(int(found["count"]), 0)


def consumers(address: str, body: bytes) -> list[RocketMQConsumer]:
    with reading(address):
        return [
            RocketMQConsumer(text(each["clientId"]), text(each["clientAddr"]), text(each["language"]))
            for each in parse(body.decode())["connectionSet"]
        ]


def text(value: Any) -> str:
    """It itself. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _rows(table: Any) -> list[MapEntry]:
    """Of a map whose keys are objects; one without entries is read as an ordinary map."""
    return [MapEntry(*each) for each in (table if isinstance(table, list) else table.items())]
