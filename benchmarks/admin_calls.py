"""Each call of the administration on a server with many topics, all of which several groups consume."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from sqlalchemy import insert

from benchmarks.bench import Bench
from benchmarks.case import Figures, Rounds
from popproto.v1 import admin_pb2 as ours
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2.admin_pb2_grpc import AdminStub as RocketmqAdminStub
from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import consumer_group, keyed_message, message, progress, queue
from popserver.database.schema import topic as topic_table
from popserver.messages.keyed import SLOT_BITS, SLOTS, key_hash
from popserver.model.topic import message_key

GROUPS, QUEUES, MESSAGES = 10, 8, 2
REPEATS = 7
_ROWS = 20_000
# It looks into each queue of the server, and its work has a limit of its own, about 2 s.
_SEARCH_OF_ALL = "FindMessages by key in all topics"

_GROUP = pb.Resource(name="group-3")


def admin_calls(bench: Bench) -> Rounds:
    """In ms: the median of each call, and that of the slowest one."""
    found: Rounds = {}
    topics = bench.plan.admin_topics
    for name in bench.stores:
        url = bench.filled(name, "catalog", lambda url: fill_catalog(url, topics))
        with bench.serving(name, url) as server, grpc.insecure_channel(server.endpoint) as channel:
            found[name] = [_measured(channel, topics) for _ in range(bench.plan.rounds)]
    return found


def _measured(channel: grpc.Channel, topics: int) -> Figures:
    took = {name: _ms(call) for name, call in _calls(channel, topics // 2, min(topics, 1_024)).items()}
    return {"slowest_ms": max(ms for name, ms in took.items() if name != _SEARCH_OF_ALL), **took}


def _ms(call: Callable[[], Any]) -> float:
    call()
    took = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        status = call().status
        took.append((time.perf_counter() - begun) * 1_000)
        assert status.code == pb.OK, status
    return statistics.median(took)


def _calls(channel: grpc.Channel, number: int, several: int) -> dict[str, Callable[[], Any]]:
    """The calls that read, and two that write, by name; in RocketMQ's service, then in ours. `number`: of a topic."""
    theirs, own = RocketmqAdminStub(channel), AdminStub(channel)
    topic, many = _named(number), [_named(each) for each in range(1, several + 1)]
    stored = _id(_key(number, 0, 0))

    def ask(stub: Any, module: Any, method: str, request: str = "", **fields: Any) -> Callable[[], Any]:
        made = getattr(module, request or f"{method}Request")(**fields)
        return lambda: getattr(stub, method)(made)

    def rocketmq_call(method: str, request: str = "", **fields: Any) -> Callable[[], Any]:
        return ask(theirs, rocketmq, method, request, **fields)

    def own_call(method: str, **fields: Any) -> Callable[[], Any]:
        return ask(own, ours, method, **fields)

    query = "ListMessageRequest"
    return {
        "DescribeTopicStatus": rocketmq_call("DescribeTopicStatus", topic=topic),
        "GetTopicRoute": rocketmq_call("GetTopicRoute", topic=topic),
        "ListSubscription of a group": rocketmq_call("ListSubscription", group=_GROUP),
        "ListSubscription of a topic": rocketmq_call("ListSubscription", topic=topic),
        "DescribeSubscription": rocketmq_call("DescribeSubscription", group=_GROUP),
        "ListConsumerConnection": rocketmq_call("ListConsumerConnection", group=_GROUP),
        "DescribeGroupAccumulation": rocketmq_call("DescribeGroupAccumulation", group=_GROUP),
        "DescribeGroupAccumulation of many topics": rocketmq_call(
            "DescribeGroupAccumulation", group=_GROUP, topics=many
        ),
        "QueryTimeSpan": rocketmq_call("QueryTimeSpan", group=_GROUP),
        "QueryTimeSpan of many topics": rocketmq_call("QueryTimeSpan", group=_GROUP, topics=many),
        "QueryMessage by id": rocketmq_call("QueryMessage", query, topic=topic, message_id=stored),
        "QueryMessage by key": rocketmq_call("QueryMessage", query, topic=topic, message_key=_keyed(number)),
        "QueryMessage of a topic": rocketmq_call("QueryMessage", query, topic=topic),
        "ResetGroupOffset": rocketmq_call(
            "ResetGroupOffset", group=_GROUP, topic=topic, reset_timestamp={"seconds": 1}
        ),
        "AdminSendMessage": rocketmq_call("AdminSendMessage", topic=_named(1), body=b"x"),
        "GetProxyRuntimeStats": rocketmq_call("GetProxyRuntimeStats"),
        "ListTopics": own_call("ListTopics"),
        "ListTopics, a later page": own_call("ListTopics", after=topic),
        "ListGroups": own_call("ListGroups"),
        "GetGroup": own_call("GetGroup", group=_GROUP),
        "ListLag": own_call("ListLag", group=_GROUP),
        "ListLag of a topic": own_call("ListLag", group=_GROUP, topic=topic),
        "GetStatus": own_call("GetStatus"),
        "GetTopic": own_call("GetTopic", topic=topic),
        "GetMessage in all topics": own_call("GetMessage", message_id=stored),
        "Why": own_call("Why", group=_GROUP, message_id=stored),
        "PeekMessages": own_call("PeekMessages", topic=topic),
        "FindMessages of a topic": own_call("FindMessages", topic=topic),
        "FindMessages by key": own_call("FindMessages", topic=topic, key=_keyed(number)),
        _SEARCH_OF_ALL: own_call("FindMessages", key=_keyed(number)),
        "ListHolds": own_call("ListHolds", group=_GROUP),
        "ListDeadLetters": own_call("ListDeadLetters", selection={"group": _GROUP}),
    }


def fill_catalog(database_url: str, count: int) -> None:
    """So many topics with 2 messages in each of their 8 queues; 10 groups consume all of them and have read a third."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        now_ms = time.time_ns() // 1_000_000
        numbers = range(1, count + 1)
        places = [(number, each, _queue_id(number, each)) for number in numbers for each in range(QUEUES)]
        topics = [
            {"topic_id": number, "namespace": "", "name": _named(number).name, "accepts": "NORMAL,FIFO"}
            | {"created_at_ms": now_ms, "fifo_queues": QUEUES}
            for number in numbers
        ]
        queues = [
            {"queue_id": queue_id, "topic_id": number, "number": each}
            | {"min_offset": 0, "next_offset": MESSAGES, "newest_stored_at_ms": now_ms}
            for number, each, queue_id in places
        ]
        groups = [
            {"group_id": group, "namespace": "", "name": f"group-{group}", "max_attempts": 16, "mode": "POP"}
            | {"intervals_ms": "[1000]", "consume_from": "EARLIEST", "history": "none", "created_at_ms": now_ms}
            for group in range(1, GROUPS + 1)
        ]
        read = [
            {"group_id": group, "queue_id": queue_id, "next_offset": queue_id % (MESSAGES + 1)}
            for group in range(1, GROUPS + 1)
            for _, _, queue_id in places
        ]
        messages = [
            {"message_key": key, "topic_id": number, "message_id": bytes.fromhex(_id(key)), "tag_hash": 0}
            | {"stored_at_ms": now_ms, "born_at_ms": now_ms, "message_type": "NORMAL", "body_encoding": "IDENTITY"}
            | {"born_host": "bench", "body": b"x", "keys": json.dumps([_keyed(number)])}
            for number, each, _ in places
            for key in (_key(number, each, offset) for offset in range(MESSAGES))
        ]
        _insert(database, [(topic_table, topics), (queue, queues), (consumer_group, groups), (progress, read)])
        keyed = [
            {"block": key >> SLOT_BITS, "key_hash": key_hash(_keyed(number)), "slot": key & (SLOTS - 1)}
            for number, each, _ in places
            for key in (_key(number, each, offset) for offset in range(MESSAGES))
        ]
        _insert(database, [(message, messages), (keyed_message, keyed)])
    finally:
        database.close()


def _insert(database: Database, tables: Sequence[tuple[Any, list[dict[str, Any]]]]) -> None:
    with database.connect_writer() as conn:
        database.begin(conn)
        for table, rows in tables:
            for start in range(0, len(rows), _ROWS):
                conn.execute(insert(table), rows[start : start + _ROWS])
        conn.exec_driver_sql("COMMIT")
        conn.exec_driver_sql("ANALYZE")


def _named(number: int) -> pb.Resource:
    return pb.Resource(name=f"topic-{number:05}")


def _keyed(number: int) -> str:
    """The key of a topic's messages."""
    return f"order-{number}"


def _queue_id(number: int, queue_number: int) -> int:
    return (number - 1) * QUEUES + queue_number + 1


def _key(number: int, queue_number: int, offset: int) -> int:
    return message_key(_queue_id(number, queue_number), offset)


def _id(key: int) -> str:
    return f"01{key:032X}"
