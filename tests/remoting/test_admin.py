"""RocketMQAdmin at clusters that a real RocketMQ does not show on demand; `interop/matrix` has tests at a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from popclient.admin.facts import ExponentialBackoff
from popclient.errors import NotFound, UnexpectedAnswer, Unreachable
from popclient.remoting import Permission, RefusedByBroker, RocketMQAdmin, RocketMQBacklog
from popclient.remoting.frames import Frame
from tests.remoting.peer import Peer, answer, peer

pytestmark = pytest.mark.row("O9")

CLUSTER_INFO, ALL_TOPICS, ALL_GROUPS, SYSTEM_TOPICS, CONNECTIONS = 106, 21, 201, 305, 203
WRITE_GROUP, WRITE_TOPIC, STATS, PROGRESS, TIMERS = 200, 17, 202, 208, 61
TOPIC = {
    "topicName": "orders",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "attributes": {"message.type": "FIFO"},
}
GROUP = {"groupName": "billing", "retryMaxTimes": 4, "consumeEnable": True, "attributes": {"lite.bind.topic": "t"}}


class Scripted:
    """A name server and a broker in one: answers by the code of the request; it is its own master."""

    def __init__(self) -> None:
        self.documents: dict[int, Any] = {
            ALL_TOPICS: {"topicConfigTable": {"orders": TOPIC}},
            ALL_GROUPS: {"subscriptionGroupTable": {"billing": GROUP}},
            SYSTEM_TOPICS: {"topicList": ["TBW102"]},
        }
        self.brokers: dict[str, dict[str, str]] = {"broker-a": {"0": ""}}
        self.clusters = ["main"]

    def __call__(self, asked: Frame) -> bytes:
        if asked.code == CLUSTER_INFO and CLUSTER_INFO not in self.documents:
            table = {
                name: {
                    "cluster": self.clusters[0],
                    "brokerAddrs": {number: at or self.at.address for number, at in its.items()},
                }
                for name, its in self.brokers.items()
            }
            return answer(asked, {"brokerAddrTable": table, "clusterAddrTable": {name: [] for name in self.clusters}})
        return answer(asked, self.documents.get(asked.code))

    at: Peer

    def sent(self, code: int) -> list[Frame]:
        return [each for each in self.at.asked if each.code == code]


async def at(script: Scripted, act: Callable[[RocketMQAdmin], Awaitable[Any]], **options: Any) -> Any:
    async with peer(script) as script.at, RocketMQAdmin(script.at.address, **options) as admin:
        return await act(admin)


async def test_a_cluster_without_brokers() -> None:
    script = Scripted()
    script.brokers = {}
    with pytest.raises(Unreachable, match="knows no broker; start"):
        await at(script, RocketMQAdmin.topics)


async def test_a_broker_without_a_master() -> None:
    script = Scripted()
    script.brokers["broker-b"] = {"1": "127.0.0.1:1"}
    with pytest.raises(Unreachable, match="'broker-b' has no master now"):
        await at(script, RocketMQAdmin.topics)


async def test_a_broker_that_is_gone_is_missed() -> None:
    """A name server forgets brokers that are down; what the others say would be taken for all."""
    script = Scripted()
    async with peer(script) as script.at, RocketMQAdmin(script.at.address) as admin:
        script.brokers["broker-b"] = {"0": ""}
        assert list(await admin.masters()) == ["broker-a", "broker-b"]
        gone = script.brokers.pop("broker-b")
        with pytest.raises(Unreachable, match="does not know broker 'broker-b' any more; start"):
            await admin.topics()
        script.brokers["broker-b"] = gone
        assert len(await admin.masters()) == 2


async def test_several_clusters_want_a_name() -> None:
    script = Scripted()
    script.clusters = ["main", "other"]
    with pytest.raises(ValueError, match="several clusters; choose one of them: main, other"):
        await at(script, RocketMQAdmin.masters)
    with pytest.raises(ValueError, match="no cluster 'third'"):
        await at(script, RocketMQAdmin.masters, cluster="third")
    assert list(await at(script, RocketMQAdmin.masters, cluster="main")) == ["broker-a"]
    with pytest.raises(Unreachable, match="knows no broker"):
        await at(script, RocketMQAdmin.masters, cluster="other")


async def test_another_name_server_answers_if_one_is_away() -> None:
    script = Scripted()
    async with peer(script) as script.at, RocketMQAdmin(f"127.0.0.1:1; {script.at.address}") as admin:
        assert list(await admin.masters()) == ["broker-a"]
    async with RocketMQAdmin("127.0.0.1:1;127.0.0.1:2") as admin:
        with pytest.raises(Unreachable, match=r"no name server answers: 127\.0\.0\.1:1 .*127\.0\.0\.1:2 "):
            await admin.masters()


@pytest.mark.parametrize(
    ("code", "document"),
    [
        (CLUSTER_INFO, b"nonsense"),
        (CLUSTER_INFO, b"\xff"),
        (CLUSTER_INFO, []),
        (CLUSTER_INFO, {"brokerAddrTable": {"a": {"cluster": 7, "brokerAddrs": {}}}, "clusterAddrTable": {}}),
        (ALL_TOPICS, None),
        (ALL_TOPICS, {}),
        (ALL_TOPICS, {"topicConfigTable": {"orders": 7}}),
        (ALL_TOPICS, {"topicConfigTable": {"orders": {}}}),
        (ALL_TOPICS, {"topicConfigTable": {"orders": {**TOPIC, "perm": "rw"}}}),
        (SYSTEM_TOPICS, {"topicList": [7]}),
    ],
)
async def test_an_answer_that_lacks_what_it_should_have(code: int, document: Any) -> None:
    script = Scripted()
    script.documents[code] = document
    with pytest.raises(UnexpectedAnswer, match=r"127\.0\.0\.1:\d+ gives an answer that"):
        await at(script, RocketMQAdmin.topics)


async def test_topics_as_all_masters_have_them() -> None:
    script, other = Scripted(), Scripted()
    other.documents[ALL_TOPICS] = {
        "topicConfigTable": {"orders": {**TOPIC, "perm": 4}, "%DLQ%billing": TOPIC, "TBW102": TOPIC}
    }
    async with peer(other) as other.at:
        script.brokers["broker-b"] = {"0": other.at.address}
        orders = (await at(script, RocketMQAdmin.topics))["orders"]
        assert list(await at(script, RocketMQAdmin.topics)) == ["orders"]
        internal = await at(script, lambda admin: admin.topics(internal=True))
    assert list(internal) == ["%DLQ%billing", "TBW102", "orders"]
    assert orders == ("orders", "FIFO", 8, Permission.READ, ("broker-a", "broker-b"))
    assert internal["TBW102"].brokers == ("broker-b",)


async def test_a_change_of_a_group_keeps_all_else() -> None:
    """Also what this client does not know, and attributes, which are changes in a request."""
    script = Scripted()
    script.documents[ALL_GROUPS] = {"subscriptionGroupTable": {"billing": {**GROUP, "groupSysFlag": 3, "new": [1]}}}
    await at(script, lambda admin: admin.set_group_enabled("billing", enabled=False))
    (sent,) = script.sent(WRITE_GROUP)
    assert sent.body == (
        b'{"groupName": "billing", "retryMaxTimes": 4, "consumeEnable": false, "attributes": {}, '
        b'"groupSysFlag": 3, "new": [1]}'
    )


async def test_a_change_of_permissions_keeps_queues_and_type() -> None:
    script = Scripted()
    await at(script, lambda admin: admin.set_topic_permission("orders", Permission.READ))
    fields = dict(script.sent(WRITE_TOPIC)[0].fields)
    assert (fields["readQueueNums"], fields["writeQueueNums"], fields["perm"]) == ("4", "4", "4")
    assert "attributes" not in fields


@pytest.mark.parametrize(
    ("policy", "intervals", "backoff"),
    [
        (None, 18, None),
        ({"type": "CUSTOMIZED"}, 18, None),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 2_500]}}, 2, None),
        ({"type": "EXPONENTIAL"}, 0, ExponentialBackoff()),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1_000, "max": 60_000, "multiplier": 3}},
            0,
            ExponentialBackoff(timedelta(seconds=1), timedelta(minutes=1), 3.0),
        ),
    ],
)
async def test_retries_of_groups(policy: Any, intervals: int, backoff: ExponentialBackoff | None) -> None:
    script = Scripted()
    script.documents[ALL_GROUPS] = {"subscriptionGroupTable": {"billing": {**GROUP, "groupRetryPolicy": policy}}}
    group = (await at(script, RocketMQAdmin.groups))["billing"]
    assert (len(group.retry_intervals), group.retry_backoff, group.max_attempts) == (intervals, backoff, 5)


async def test_a_backlog_counts_what_is_stored() -> None:
    """Offsets below the first stored message are gone: nobody can receive them."""
    script = Scripted()
    script.documents |= {
        PROGRESS: b'{"offsetTable":{{"topic":"orders","queueId":0}:{"brokerOffset":10,"consumerOffset":4},'
        b'{"topic":"orders","queueId":1}:{"brokerOffset":9,"consumerOffset":0},'
        b'{"topic":"%RETRY%billing_orders","queueId":0}:{"brokerOffset":5,"consumerOffset":3},'
        b'{"topic":"%RETRY%billing","queueId":0}:{"brokerOffset":1,"consumerOffset":2}}}',
        STATS: b'{"offsetTable":{{"queueId":0}:{"minOffset":0},{"queueId":1}:{"minOffset":7}}}',
        TIMERS: {"timingCount": {"rmq_sys_REVIVE_LOG_main": {"count": 3}, "orders": {"count": 100}}},
    }
    backlog = await at(script, lambda admin: admin.backlog("billing", "orders"))
    assert backlog == RocketMQBacklog(ready=6 + 2, retrying=2, waiting=3)
    assert not backlog.is_empty
    named = script.sent(PROGRESS)[0].fields["topicList"]
    assert named == "orders;%RETRY%billing_orders;%RETRY%billing+orders;%RETRY%billing;"


async def test_a_refusal_of_connections_is_passed_on_unless_nobody_is_there() -> None:
    script = Scripted()
    codes = iter([206, 16])

    def reply(asked: Frame) -> bytes:
        return answer(asked, code=next(codes), remark="no") if asked.code == CONNECTIONS else script(asked)

    async with peer(reply) as script.at, RocketMQAdmin(script.at.address) as admin:
        assert await admin.connections("billing") == []
        with pytest.raises(RefusedByBroker, match="NO_PERMISSION"):
            await admin.connections("billing")


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (
            lambda admin: admin.set_topic_permission("order", Permission.READ),
            "topic 'order' does not exist in the cluster",
        ),
        (lambda admin: admin.set_group_enabled("bill", enabled=True), "group 'bill' does not exist"),
        (lambda admin: admin.backlog("billing", "order"), "topic 'order' does not exist"),
        (lambda admin: admin.set_start("billing", "order"), "topic 'order' does not exist"),
    ],
)
async def test_what_does_not_exist(act: Callable[[RocketMQAdmin], Awaitable[Any]], word: str) -> None:
    script = Scripted()
    with pytest.raises(NotFound, match=word):
        await at(script, act)


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda admin: admin.create_topic("orders", queues=0), "queues is 0"),
        (lambda admin: admin.create_group("billing", max_attempts=0), "max_attempts is 0"),
        (lambda admin: admin.create_group("billing", retries=[-1]), "retry interval"),
        (lambda admin: admin.set_start("billing", "orders", "MIDDLE"), "'BEGINNING' or 'END'"),
    ],
)
async def test_wrong_arguments_ask_nobody(act: Callable[[RocketMQAdmin], Awaitable[Any]], word: str) -> None:
    script = Scripted()
    with pytest.raises(ValueError, match=word):
        await at(script, act)
    assert script.at.asked == []


@pytest.mark.parametrize("given", ["", " ; ", "host", "a:1;b"])
def test_name_servers_that_are_none(given: str) -> None:
    with pytest.raises(ValueError, match=r"name_servers is|address is"):
        RocketMQAdmin(given)
