"""Each call of the administration on a server with many topics, all of which several groups consume.

All 16 calls of `apache.rocketmq.v2.Admin` in their usual forms, and calls of `popmq.v1.Admin`. Meanwhile 200 consumers
are connected, some of them with 1,024 topics, and 10,000 messages are held.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from benchmarks.admin_catalog import (
    GROUPS,
    HOLDER,
    LARGE_TOPIC,
    MEMBERS,
    fill_catalog,
    group_named,
    id_at,
    key_of_topic,
    place,
    topic_named,
)
from benchmarks.admin_consumers import Consumer, Consumers
from benchmarks.bench import Bench
from benchmarks.case import Figures, Rounds
from popproto.v1 import admin_pb2 as ours
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2.admin_pb2_grpc import AdminStub as RocketmqAdminStub

REPEATS = 7
CONSUMERS, LONG = 200, 1_024
# It looks into each queue of the server, and its work has a limit of its own, about 2 s.
SEARCH_OF_ALL = "FindMessages by key in all topics"

_GROUP = group_named(HOLDER)
_LITE_TOPIC, _LITE_GROUP = pb.Resource(name="rooms"), pb.Resource(name="group-lite")
_LITE_NAMES = [f"room-{number}" for number in range(100)]
_FILTERS = (
    pb.FilterExpression(type=pb.TAG, expression="*"),
    pb.FilterExpression(type=pb.TAG, expression="bench || other"),
    pb.FilterExpression(type=pb.SQL, expression="a > 3"),
)

Call = Callable[[], Any]


def admin_calls(bench: Bench) -> Rounds:
    """In ms: the median of each call, and that of the slowest one; and how long each stops the event loop."""
    found: Rounds = {}
    topics = bench.plan.admin_topics
    for name in bench.stores:
        url = bench.filled(name, "catalog", lambda url: fill_catalog(url, topics))
        with bench.serving(name, url) as server, grpc.insecure_channel(server.endpoint) as channel:
            bench.say(f"{CONSUMERS} consumers connect to {name}")
            _make_lite_topic(channel)
            with Consumers(server.endpoint, _consumers(topics)) as consumers:
                calls = _calls(channel, topics)
                found[name] = [_measured(calls, consumers) for _ in range(bench.plan.rounds)]
    return found


def admin_table(results: Mapping[str, Any]) -> str:
    """The medians of each call, the slowest first, and the slowest call of each store by name."""
    if "admin_calls" not in results:
        return ""
    variants = results["admin_calls"]["variants"]
    took = {name: _medians(each["rounds"], "calls") for name, each in variants.items()}
    stops = {name: _medians(each["rounds"], "stops") for name, each in variants.items()}
    order = sorted(next(iter(took.values())), key=lambda call: -max(each[call] for each in took.values()))
    head = "".join(f"{name:>12} {'(stop)':>8}" for name in took)
    lines = [f"{'administration, ms (longest wait of a small call meanwhile)':62}{head}"]
    lines += [
        f"{call:62}" + "".join(f"{took[name][call]:12.1f} {stops[name][call]:8.1f}" for name in took) for call in order
    ]
    for name in took:
        limited = {call: ms for call, ms in took[name].items() if call != SEARCH_OF_ALL}
        slowest, longest = max(limited, key=limited.__getitem__), max(stops[name], key=stops[name].__getitem__)
        lines.append(f"slowest on {name}: {slowest}, {limited[slowest]:.1f} ms; longest stop: {longest}")
    return "\n".join(lines)


def _medians(rounds: Sequence[Figures], key: str) -> dict[str, float]:
    return {call: statistics.median(each[key][call] for each in rounds) for call in rounds[0][key]}


def _measured(calls: Mapping[str, Call], consumers: Consumers) -> Figures:
    took = {name: _ms(call) for name, call in calls.items()}
    stops = {name: _stop_ms(call, consumers) for name, call in calls.items()}
    slowest = max((name for name in took if name != SEARCH_OF_ALL), key=took.__getitem__)
    return {"slowest_ms": took[slowest], "slowest": slowest, "calls": took, "stops": stops}


def _ms(call: Call) -> float:
    _done(call)
    return statistics.median(_done(call) for _ in range(REPEATS))


def _stop_ms(call: Call, consumers: Consumers) -> float:
    """The longest that a small call of another client waits while this call is made; the median of some calls."""
    longest = []
    for _ in range(REPEATS):
        with consumers.probing() as waits:
            _done(call)
            while not waits:
                time.sleep(0.001)
            time.sleep(0.01)  # a small call that has begun is part of it
        longest.append(max(waits))
    return statistics.median(longest)


def _done(call: Call) -> float:
    begun = time.perf_counter()
    answer = call()
    took = (time.perf_counter() - begun) * 1_000
    # ChangeLogLevel answers with a remark only.
    assert not hasattr(answer, "status") or answer.status.code == pb.OK, answer.status
    return took


def _apart(topics: int) -> int:
    """How many of the last topics no connected consumer subscribes to: those whose subscriptions are deleted."""
    return min(topics // 3, 100)


def _consumers(topics: int) -> list[Consumer]:
    """Half of them are in one group. Of these every second one has 1,024 topics, each from another topic on; of the
    other groups the first one has."""
    usable = topics - _apart(topics)
    found = [_consumer(HOLDER, number, 0 if number % 2 else LONG, usable) for number in range(CONSUMERS // 2)]
    others = [number for number in range(1, GROUPS + 1) if number not in (HOLDER, MEMBERS)]
    found += [_consumer(MEMBERS, number, LONG, usable, pb.PULL_CONSUMER) for number in range(8)]
    for lite in ("lite-1", "lite-2"):
        found.append(Consumer(lite, _LITE_GROUP, pb.LITE_PUSH_CONSUMER, [_LITE_TOPIC], _FILTERS[0], _LITE_NAMES))
    places = ((number, group) for number in itertools.count() for group in others)
    for number, group in itertools.islice(places, CONSUMERS - len(found)):
        found.append(_consumer(group, number, 0 if number else LONG, usable))
    return found


def _consumer(
    group: int, number: int, count: int, usable: int, kind: pb.ClientType.ValueType = pb.PUSH_CONSUMER
) -> Consumer:
    count = min(count or 8, usable)
    # Members divide their topics, so they have the same ones.
    first = 0 if kind == pb.PULL_CONSUMER else 137 * number % (usable - count + 1)
    wanted = _FILTERS[0] if kind == pb.PULL_CONSUMER else _FILTERS[number % len(_FILTERS)]
    topics = [topic_named(each) for each in range(first + 1, first + count + 1)]
    return Consumer(_client_id(group, number), group_named(group), kind, topics, wanted)


def _client_id(group: int, number: int) -> str:
    return f"consumer-{group}-{number}"


def _make_lite_topic(channel: grpc.Channel) -> None:
    admin, messages = AdminStub(channel), RocketmqAdminStub(channel)
    made: Any = admin.CreateTopic(
        ours.CreateTopicRequest(topic=_LITE_TOPIC, queue_count=8, accept_message_types=[pb.LITE])
    )
    assert made.status.code == pb.OK, made.status
    made = admin.CreateGroup(ours.CreateGroupRequest(group=_LITE_GROUP, lite="SHARED"))
    assert made.status.code == pb.OK, made.status
    for name in _LITE_NAMES:
        system = pb.SystemProperties(lite_topic=name)
        sent: Any = messages.AdminSendMessage(
            rocketmq.AdminSendMessageRequest(topic=_LITE_TOPIC, body=b"x", system_properties=system)
        )
        assert sent.status.code == pb.OK, sent.status


def _calls(channel: grpc.Channel, topics: int) -> dict[str, Call]:
    """The calls by name; in RocketMQ's service, then in ours."""
    return _rocketmq_calls(channel, topics) | _own_calls(channel, topics)


def _asker(stub: Any, module: Any) -> Callable[..., Call]:
    def ask(method: str, request: str = "", **fields: Any) -> Call:
        made = getattr(module, request or f"{method}Request")(**fields)
        return lambda: getattr(stub, method)(made)

    return ask


def _rocketmq_calls(channel: grpc.Channel, topics: int) -> dict[str, Call]:
    stub = RocketmqAdminStub(channel)
    call = _asker(stub, rocketmq)
    number = topics // 2
    topic, large = topic_named(number), pb.Resource(name=LARGE_TOPIC)
    many = [topic_named(each) for each in range(1, min(topics, 1_024) + 1)]
    stored, query = id_at(place(number, 0, 0)), "ListMessageRequest"
    members, busy, member = group_named(MEMBERS), _client_id(HOLDER, 0), _client_id(MEMBERS, 0)
    lite = {"topic": _LITE_TOPIC, "lite_topic": _LITE_NAMES[0]}
    deleted = itertools.cycle(range(topics - _apart(topics) + 1, topics + 1))
    return {
        "ChangeLogLevel": call("ChangeLogLevel", level=rocketmq.ChangeLogLevelRequest.WARN),
        "DescribeTopicStatus": call("DescribeTopicStatus", topic=topic),
        "ListSubscription of a group": call("ListSubscription", group=_GROUP),
        "ListSubscription of a topic": call("ListSubscription", topic=topic_named(1)),
        "ListSubscription of both": call("ListSubscription", group=_GROUP, topic=topic_named(1)),
        "DescribeSubscription of a group": call("DescribeSubscription", group=_GROUP),
        "DescribeSubscription of a topic": call("DescribeSubscription", topic=topic_named(1)),
        "DeleteSubscription": lambda: stub.DeleteSubscription(
            rocketmq.DeleteSubscriptionRequest(group=_GROUP, topic=topic_named(next(deleted)))
        ),
        "DescribeGroupAccumulation": call("DescribeGroupAccumulation", group=_GROUP),
        "DescribeGroupAccumulation of a topic": call("DescribeGroupAccumulation", group=_GROUP, topics=[topic]),
        "DescribeGroupAccumulation of 1,024 topics": call("DescribeGroupAccumulation", group=_GROUP, topics=many),
        "DescribeGroupAccumulation of a lite topic": call(
            "DescribeGroupAccumulation", group=_LITE_GROUP, topics=[_LITE_TOPIC], lite_topic=_LITE_NAMES[0]
        ),
        "ListConsumerConnection": call("ListConsumerConnection", group=_GROUP),
        "ListConsumerConnection of a topic": call("ListConsumerConnection", group=_GROUP, topic=topic_named(1)),
        "ListConsumerConnection of a lite topic": call(
            "ListConsumerConnection", group=_LITE_GROUP, topic=_LITE_TOPIC, liteTopic=_LITE_NAMES[0]
        ),
        "ResetGroupOffset": call("ResetGroupOffset", group=_GROUP, topic=topic, reset_timestamp={"seconds": 1}),
        "QueryMessage by id": call("QueryMessage", query, topic=topic, message_id=stored),
        "QueryMessage by key": call("QueryMessage", query, topic=topic, message_key=key_of_topic(number)),
        "QueryMessage by a key of 20,000 messages": call("QueryMessage", query, topic=large, message_key="key"),
        "QueryMessage of all": call("QueryMessage", query, topic=large),
        "QueryMessage by a tag": call("QueryMessage", query, topic=large, subscription="bench"),
        "QueryMessage by a tag that no message has": call("QueryMessage", query, topic=large, subscription="none"),
        "QueryMessage of a lite topic": call("QueryMessage", query, **lite),
        "PrintThreadStackTrace": call("PrintThreadStackTrace", group=_GROUP, client_id=busy),
        "VerifyMessage": call("VerifyMessage", group=_GROUP, client_id=busy, topic=topic, message_id=stored),
        "AdminSendMessage": call("AdminSendMessage", topic=topic_named(1), body=b"x"),
        "GetConsumerRunningInfo": call("GetConsumerRunningInfo", group=_GROUP, client_id=busy),
        "GetConsumerRunningInfo of a member": call("GetConsumerRunningInfo", group=members, client_id=member),
        "GetTopicRoute": call("GetTopicRoute", topic=topic),
        "QueryTimeSpan": call("QueryTimeSpan", group=_GROUP),
        "QueryTimeSpan of 1,024 topics": call("QueryTimeSpan", group=_GROUP, topics=many),
        "GetProxyRuntimeStats": call("GetProxyRuntimeStats"),
    }


def _own_calls(channel: grpc.Channel, topics: int) -> dict[str, Call]:
    call = _asker(AdminStub(channel), ours)
    number = topics // 2
    topic, stored = topic_named(number), id_at(place(number, 0, 0))
    return {
        "ListTopics": call("ListTopics"),
        "ListTopics, a later page": call("ListTopics", after=topic),
        "ListGroups": call("ListGroups"),
        "GetGroup": call("GetGroup", group=_GROUP),
        "ListLag": call("ListLag", group=_GROUP),
        "ListLag of a topic": call("ListLag", group=_GROUP, topic=topic),
        "GetStatus": call("GetStatus"),
        "GetTopic": call("GetTopic", topic=topic),
        "GetMessage in all topics": call("GetMessage", message_id=stored),
        "Why": call("Why", group=_GROUP, message_id=stored),
        "PeekMessages": call("PeekMessages", topic=topic),
        "FindMessages of a topic": call("FindMessages", topic=topic),
        "FindMessages by key": call("FindMessages", topic=topic, key=key_of_topic(number)),
        SEARCH_OF_ALL: call("FindMessages", key=key_of_topic(number)),
        "ListHolds": call("ListHolds", group=_GROUP),
        "ListDeadLetters": call("ListDeadLetters", selection={"group": _GROUP}),
    }
