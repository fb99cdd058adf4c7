"""Settings of topics and groups, as RocketMQ's brokers keep them, and as facts.

Sources: TopicConfig, SubscriptionGroupConfig and GroupRetryPolicy of RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from popclient._arguments import MILLISECOND, as_timedelta
from popclient.admin.facts import ExponentialBackoff
from popclient.remoting.answers import reading, text
from popclient.remoting.facts import Permission, RocketMQGroup, RocketMQTopic

# Of groups that say nothing else, in seconds: CustomizedRetryPolicy.
USUAL_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
_USUAL_BACKOFF: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}

# What a broker says about a topic or a group, by the broker's name.
ByBroker = Mapping[str, Mapping[str, Any]]


def topic_settings(name: str, queues: int, permission: Permission) -> dict[str, Any]:
    """queues: of one broker."""
    return {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": int(permission)}


def topic_of(cluster: str, name: str, by_broker: ByBroker) -> RocketMQTopic:
    """cluster: for errors. by_broker: one at least."""
    with reading(cluster):
        permission = Permission.READ | Permission.WRITE
        for settings in by_broker.values():
            permission &= Permission(int(settings["perm"]) & int(permission))
        attributes = next(iter(by_broker.values())).get("attributes") or {}
        return RocketMQTopic(
            name=name,
            accepts=text(attributes.get("message.type", "UNSPECIFIED")),
            queues=sum(int(settings["readQueueNums"]) for settings in by_broker.values()),
            permission=permission,
            brokers=tuple(by_broker),
        )


def group_settings(
    name: str, max_attempts: int, retries: Iterable[float | timedelta] | ExponentialBackoff, *, in_order: bool
) -> dict[str, Any]:
    """max_attempts: the first delivery included. retries: intervals, none of them for the usual ones."""
    return {
        "groupName": name,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": in_order,
        "retryQueueNums": 1,
        "retryMaxTimes": max_attempts - 1,
        "groupRetryPolicy": _policy(retries),
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }


def group_of(cluster: str, name: str, by_broker: ByBroker) -> RocketMQGroup:
    """cluster: for errors. by_broker: one at least."""
    with reading(cluster):
        settings = next(iter(by_broker.values()))
        intervals, backoff = _retries(settings.get("groupRetryPolicy") or {})
        return RocketMQGroup(
            name=name,
            max_attempts=int(settings["retryMaxTimes"]) + 1,
            retry_intervals=intervals,
            retry_backoff=backoff,
            in_order=bool(settings.get("consumeMessageOrderly")),
            enabled=all(each.get("consumeEnable", True) for each in by_broker.values()),
            brokers=tuple(by_broker),
        )


def _policy(retries: Iterable[float | timedelta] | ExponentialBackoff) -> dict[str, Any]:
    if isinstance(retries, ExponentialBackoff):
        given = {
            "initial": _ms("initial", retries.initial),
            "max": _ms("longest", retries.longest),
            "multiplier": int(retries.multiplier),  # it has whole numbers only
        }
        return {"type": "EXPONENTIAL", "exponentialRetryPolicy": given}
    next_ms = [_ms("retry interval", each) for each in retries]
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": next_ms or [each * 1_000 for each in USUAL_S]}}


def _ms(name: str, given: float | timedelta) -> int:
    return round(as_timedelta(name, given) / MILLISECOND)


def _retries(policy: Mapping[str, Any]) -> tuple[tuple[timedelta, ...], ExponentialBackoff | None]:
    if policy.get("type") == "EXPONENTIAL":
        given = policy.get("exponentialRetryPolicy") or _USUAL_BACKOFF
        initial, longest = int(given["initial"]) * MILLISECOND, int(given["max"]) * MILLISECOND
        return (), ExponentialBackoff(initial, longest, float(given["multiplier"]))
    given = (policy.get("customizedRetryPolicy") or {}).get("next")
    next_ms = [each * 1_000 for each in USUAL_S] if given is None else [int(each) for each in given]
    return tuple(each * MILLISECOND for each in next_ms), None
