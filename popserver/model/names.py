"""Legal names of topics and consumer groups, and the names PopMQ derives from them (protocol 4.1)."""

from __future__ import annotations

import re
from typing import NamedTuple

from popserver.model.errors import IllegalConsumerGroup, IllegalTopic

TOPIC_LENGTH_MAX = 127
GROUP_LENGTH_MAX = 120
NAMESPACE_LENGTH_MAX = 127
DEAD_LETTER_PREFIX = "%DLQ%"
RETRY_PREFIX = "%RETRY%"
SYSTEM_DERIVED = (DEAD_LETTER_PREFIX, RETRY_PREFIX)  # names of topics that only the server fills

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_LEGAL_NAMESPACE = re.compile(rf"[%|a-zA-Z0-9_.-]{{0,{NAMESPACE_LENGTH_MAX}}}")
_SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
_SYSTEM_TOPIC_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


class Resource(NamedTuple):
    """The name of a topic or group: a name inside a namespace ("" is the default namespace)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def check_topic(topic: Resource) -> None:
    """Raise `IllegalTopic` unless clients may consume or administer a topic with this name.

    Raise `IllegalConsumerGroup` for a group's own topic if no group may have that name.
    """
    name = topic.name
    limit = 255 if is_system_derived(name) else TOPIC_LENGTH_MAX
    if not name.strip():
        raise IllegalTopic("the topic's name is blank; give 1 to 127 characters out of % | A-Z a-z 0-9 _ -")
    if len(name) > limit:
        raise IllegalTopic(f"topic name '{name[:32]}…' has {len(name)} characters, at most {limit} are allowed")
    if not _LEGAL.fullmatch(name):
        raise IllegalTopic(f"topic name '{name}' has a character that is not allowed; use only % | A-Z a-z 0-9 _ -")
    if name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_TOPIC_PREFIXES):
        raise IllegalTopic(f"topic name '{name}' is reserved for the system; choose another")
    if not _LEGAL_NAMESPACE.fullmatch(topic.namespace):
        raise IllegalTopic(f"topic '{name}': {_namespace_rule(topic)}")
    if (owner := owner_of(topic)) is not None:
        check_group(owner)


def check_topic_to_send(topic: Resource) -> None:
    """Raise `IllegalTopic` unless producers may send to the topic. Only the server sends to `%DLQ%…` and `%RETRY%…`."""
    check_topic(topic)
    if is_system_derived(topic.name):
        raise IllegalTopic(f"only the server sends to topic '{topic.name}'; send to the topic its messages came from")


def check_group(group: Resource) -> None:
    """Raise `IllegalConsumerGroup` unless a consumer group may have this name."""
    name = group.name
    if not name.strip():
        raise IllegalConsumerGroup(
            "the consumer group's name is blank; give 1 to 120 characters out of % | A-Z a-z 0-9 _ -"
        )
    if len(name) > GROUP_LENGTH_MAX:
        raise IllegalConsumerGroup(
            f"consumer group name '{name[:32]}…' has {len(name)} characters, at most {GROUP_LENGTH_MAX} are allowed"
        )
    if not _LEGAL.fullmatch(name):
        raise IllegalConsumerGroup(
            f"consumer group name '{name}' has a character that is not allowed; use only % | A-Z a-z 0-9 _ -"
        )
    if name.startswith(_SYSTEM_GROUP_PREFIX):
        raise IllegalConsumerGroup(f"consumer group name '{name}' is reserved for the system; choose another")
    if not _LEGAL_NAMESPACE.fullmatch(group.namespace):
        raise IllegalConsumerGroup(f"consumer group '{name}': {_namespace_rule(group)}")


def is_system_derived(name: str) -> bool:
    return name.startswith(SYSTEM_DERIVED)


def dead_letter_topic(group: Resource) -> Resource:
    """The topic of the group's dead letters: `%DLQ%` + group, in the group's namespace."""
    return Resource(group.namespace, DEAD_LETTER_PREFIX + group.name)


def retry_topic(group: Resource) -> Resource:
    """The topic of the messages that members of the group sent back for a retry: `%RETRY%` + group."""
    return Resource(group.namespace, RETRY_PREFIX + group.name)


def owner_of(topic: Resource) -> Resource | None:
    """The group of a topic with dead letters or retries; None for an ordinary topic."""
    for prefix in (DEAD_LETTER_PREFIX, RETRY_PREFIX):
        if topic.name.startswith(prefix):
            return Resource(topic.namespace, topic.name.removeprefix(prefix))
    return None


def _namespace_rule(named: Resource) -> str:
    return (
        f"namespace {named.namespace[:32]!r} is not allowed; use at most {NAMESPACE_LENGTH_MAX} characters"
        " out of % | A-Z a-z 0-9 _ . -"
    )


def topic_key(topic: Resource, group: Resource) -> str:
    """A topic as the key of a map about a group, different for each topic: its name, and before it the namespace if
    that is not the group's (`eu/orders`; `/orders` for the default one)."""
    return topic.name if topic.namespace == group.namespace else f"{topic.namespace}/{topic.name}"
