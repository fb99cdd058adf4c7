"""The requests of RocketMQ's remoting protocol that this package sends. Sources: RequestCode and the classes
`…RequestHeader` of RocketMQ 5.5.0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class RequestCode(IntEnum):
    """The numbers of the requests."""

    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_TIMER_METRICS = 61
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305


@dataclass(frozen=True, slots=True)
class RemotingRequest:
    """what: in words that follow "refuses to", for errors. fields: of the header. body: JSON, or nothing."""

    code: RequestCode
    what: str
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def cluster_info() -> RemotingRequest:
    """To a name server: which brokers there are."""
    return RemotingRequest(RequestCode.GET_BROKER_CLUSTER_INFO, "tell its brokers")


def all_topics() -> RemotingRequest:
    """To a broker, as all that follow."""
    return RemotingRequest(RequestCode.GET_ALL_TOPIC_CONFIG, "list topics")


def system_topics() -> RemotingRequest:
    return RemotingRequest(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "list its own topics")


def all_groups() -> RemotingRequest:
    return RemotingRequest(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "list consumer groups")


def write_topic(what: str, settings: Mapping[str, Any], accepts: str | None = None) -> RemotingRequest:
    """settings: as `topic_settings` or a broker gives them. accepts: the type of messages; None: it stays."""
    fields = {
        "topic": str(settings["topicName"]),
        "defaultTopic": "TBW102",  # must be there, and is not used
        "readQueueNums": str(settings["readQueueNums"]),
        "writeQueueNums": str(settings["writeQueueNums"]),
        "perm": str(settings["perm"]),
        "topicFilterType": str(settings.get("topicFilterType", "SINGLE_TAG")),
        "topicSysFlag": str(settings.get("topicSysFlag", 0)),
        "order": json.dumps(bool(settings.get("order"))),
    }
    if accepts is not None:
        fields["attributes"] = f"+message.type={accepts}"
    return RemotingRequest(RequestCode.UPDATE_AND_CREATE_TOPIC, what, fields)


def write_group(what: str, settings: Mapping[str, Any]) -> RemotingRequest:
    """settings: all of the group, as `group_settings` or a broker gives them; the broker adds nothing of its own."""
    # Attributes are changes here; without them they stay.
    body = json.dumps({**settings, "attributes": {}}).encode()
    return RemotingRequest(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, what, body=body)


def consume_stats(group: str, topics: Iterable[str]) -> RemotingRequest:
    """How far the group is in these topics, those without a connected consumer too."""
    named = "".join(f"{topic};" for topic in topics)
    return RemotingRequest(
        RequestCode.GET_CONSUME_STATS,
        f"tell the progress of group {group!r}",
        {"consumerGroup": group, "topicList": named},
    )


def topic_stats(topic: str) -> RemotingRequest:
    what = f"tell the offsets of topic {topic!r}"
    return RemotingRequest(RequestCode.GET_TOPIC_STATS_INFO, what, {"topic": topic})


def timer_metrics() -> RemotingRequest:
    return RemotingRequest(RequestCode.GET_TIMER_METRICS, "tell what its timers hold")


def consumer_connections(group: str) -> RemotingRequest:
    what = f"tell the consumers of group {group!r}"
    return RemotingRequest(RequestCode.GET_CONSUMER_CONNECTION_LIST, what, {"consumerGroup": group})


def edge_offset(topic: str, queue_id: int, *, at_end: bool) -> RemotingRequest:
    """The first offset of a queue, or the one after its last."""
    code = RequestCode.GET_MAX_OFFSET if at_end else RequestCode.GET_MIN_OFFSET
    return RemotingRequest(code, f"tell the offsets of topic {topic!r}", {"topic": topic, "queueId": str(queue_id)})


def write_offset(group: str, topic: str, queue_id: int, offset: int) -> RemotingRequest:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    what = f"set where group {group!r} reads topic {topic!r}"
    return RemotingRequest(RequestCode.UPDATE_CONSUMER_OFFSET, what, fields)


def delete_topic(topic: str) -> RemotingRequest:
    return RemotingRequest(RequestCode.DELETE_TOPIC_IN_BROKER, f"delete topic {topic!r}", {"topic": topic})


def forget_topic(topic: str) -> RemotingRequest:
    """To a name server."""
    return RemotingRequest(RequestCode.DELETE_TOPIC_IN_NAMESRV, f"forget topic {topic!r}", {"topic": topic})


def delete_group(group: str) -> RemotingRequest:
    """With its progress."""
    fields = {"groupName": group, "cleanOffset": "true"}
    return RemotingRequest(RequestCode.DELETE_SUBSCRIPTIONGROUP, f"delete group {group!r}", fields)
