"""RocketMQAdmin at RocketMQ itself: brokers that ask who is calling, and a cluster of two masters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.peers.rocketmq import Home, Tables
from popclient import ClientConfig, Forbidden, Message, MessageView, ServerError
from popclient.admin.facts import ExponentialBackoff
from popclient.aio import Producer, SimpleConsumer
from popclient.errors import Unreachable
from popclient.remoting import Permission, RefusedByBroker, RocketMQAdmin, RocketMQBacklog
from tests.interop.matrix import rocketmq
from tests.interop.matrix.stage import SIGNED
from tests.support.built_programs import do_without
from tests.support.rocketmq_cluster import BROKER, BROKERS, NAME_SERVER, SMALL, SOON, Cluster, accepting
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]
KEY, SECRET = SIGNED
TIMEOUT_S = 60.0  # of one request, on a busy machine
PATIENCE_S = 120.0  # for what RocketMQ does in its own time
TABLES = Tables(
    {"orders": accepting("NORMAL"), "rounds": accepting("FIFO")},
    {"kitchen": {"retryMaxTimes": 4}, "bar": {}, "waiters": {"consumeMessageOrderly": True}},
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A broker with its proxy, which both want signatures."""
    try:
        jars = rocketmq.classpath()
    except rocketmq.Missing as missing:
        do_without(str(missing))
    folder: Path = tmp_path_factory.mktemp("signed")
    broker = {**BROKER, **rocketmq.SIGNED_BROKER}
    made = Home(jars, folder / "rocketmq", TABLES, broker=broker, proxy=rocketmq.SIGNED_PROXY, java=SMALL)
    with made.name_server(), made.proxy():
        yield made


@pytest.fixture
async def admin(home: Home) -> AsyncIterator[RocketMQAdmin]:
    async with RocketMQAdmin(
        home.name_server_address, access_key=KEY, access_secret=SECRET, timeout=TIMEOUT_S
    ) as opened:
        await _known(opened, 1)
        yield opened


@pytest.fixture
def at(home: Home) -> ClientConfig:
    return ClientConfig(home.address, access_key=KEY, access_secret=SECRET, request_timeout=TIMEOUT_S)


async def _known(admin: RocketMQAdmin, count: int) -> None:
    """Until the name server knows the brokers; it does not at their start."""

    async def is_known() -> bool:
        try:
            return len(await admin.masters()) == count
        except Unreachable:
            return False

    await eventually(is_known, "a name server that knows the brokers", within_s=PATIENCE_S)


async def received(consumer: SimpleConsumer, count: int | None = None) -> list[MessageView]:
    """The first messages that come, `count` at most."""
    found: list[MessageView] = []

    async def has_come() -> bool:
        found.extend(await consumer.receive(count))
        return bool(found)

    await eventually(has_come, "a message", within_s=PATIENCE_S)
    return found


async def backlog_is(admin: RocketMQAdmin, fact: Callable[[RocketMQBacklog], bool]) -> None:
    """Until it is so for the group of bills."""

    async def is_so() -> bool:
        return fact(await admin.backlog("cashier", "bills"))

    await eventually(is_so, "that backlog", within_s=PATIENCE_S)


async def test_topics_and_groups_of_a_file(admin: RocketMQAdmin) -> None:
    topics, groups = await admin.topics(), await admin.groups()
    assert topics["orders"] == ("orders", "NORMAL", 8, Permission.READ | Permission.WRITE, ("bench",))
    assert topics["rounds"].accepts == "FIFO"
    assert list(topics) == ["orders", "rounds"]
    assert "SELF_TEST_TOPIC" in await admin.topics(internal=True)
    assert (groups["kitchen"].max_attempts, groups["kitchen"].enabled, groups["kitchen"].in_order) == (5, True, False)
    assert groups["waiters"].in_order


async def test_topics_come_change_and_go(admin: RocketMQAdmin, at: ClientConfig) -> None:
    await admin.create_topic("desserts", accepts="FIFO", queues=3)
    made = (await admin.topics())["desserts"]
    assert made[1:4] == ("FIFO", 3, Permission.READ | Permission.WRITE)
    message = Message("desserts", "tiramisu", message_group="table 4")
    async with Producer(at) as producer:
        await producer.send(message)
        await admin.set_topic_permission("desserts", Permission.READ)
        with pytest.raises(Forbidden, match="no writable queue"):
            await producer.send(message)
    assert (await admin.topics())["desserts"][1:4] == ("FIFO", 3, Permission.READ)
    await admin.delete_topic("desserts")
    assert "desserts" not in await admin.topics(internal=True)
    await admin.delete_topic("desserts")


async def test_groups_come_change_and_go(admin: RocketMQAdmin) -> None:
    await admin.create_group("dishes", max_attempts=3, retries=[1, timedelta(minutes=2)], in_order=True)
    made = (await admin.groups())["dishes"]
    assert made.retry_intervals == (timedelta(seconds=1), timedelta(minutes=2))
    assert (made.max_attempts, made.in_order, made.enabled) == (3, True, True)
    await admin.set_group_enabled("dishes", enabled=False)
    assert (await admin.groups())["dishes"] == made._replace(enabled=False)
    backoff = ExponentialBackoff(timedelta(seconds=2), timedelta(hours=1), 3.0)
    await admin.create_group("dishes", retries=backoff)
    assert (await admin.groups())["dishes"].retry_backoff == backoff
    await admin.delete_group("dishes")
    assert "dishes" not in await admin.groups()
    await admin.delete_group("dishes")


async def test_a_broker_that_refuses_says_why(admin: RocketMQAdmin) -> None:
    for name, word in (("a name", "illegal characters"), ("TBW102", "conflict with system topic")):
        with pytest.raises(RefusedByBroker, match=word) as refused:
            await admin.create_topic(name)
        assert refused.value.name == "INVALID_PARAMETER"
    with pytest.raises(RefusedByBroker, match="value is not in set"):
        await admin.create_topic("orders", accepts="ODD")
    with pytest.raises(RefusedByBroker, match="Group nobody not exist"):
        await admin.set_start("nobody", "orders")


@pytest.mark.parametrize(("key", "secret"), [("", ""), (KEY, "wrong"), ("mallory", SECRET)])
async def test_who_does_not_sign_well_is_refused(home: Home, admin: RocketMQAdmin, key: str, secret: str) -> None:
    async with RocketMQAdmin(
        home.name_server_address, access_key=key, access_secret=secret, timeout=TIMEOUT_S
    ) as stranger:
        with pytest.raises(RefusedByBroker, match="access key"):
            await stranger.topics()


async def test_messages_of_the_retry_topic_go_to_one_group_with_their_attempt(
    admin: RocketMQAdmin, at: ClientConfig
) -> None:
    retry = await admin.create_retry_topic("kitchen", "orders")
    assert await admin.create_retry_topic("kitchen", "orders") == retry == "%RETRY%kitchen_orders"
    async with Producer(at) as producer:
        sent = await producer.send(Message(retry, "espresso", tag="hot", keys="k1", properties={"table": "4"}))
    assert (await admin.backlog("kitchen", "orders"))[:2] == (0, 1)
    async with SimpleConsumer(at, "bar", "orders", await_duration=1) as other:
        assert await other.receive() == []
    async with SimpleConsumer(at, "kitchen", "orders") as consumer:
        [message] = await received(consumer)
        assert (message.topic, message.message_id, message.body) == ("orders", sent.message_id, b"espresso")
        assert (message.tag, message.keys, message.properties["table"]) == ("hot", ("k1",), "4")
        assert message.delivery_attempt == 1
        assert [each.client_id for each in await admin.connections("kitchen")] != []
        await consumer.ack(message)
    assert (await admin.backlog("kitchen", "orders")).retrying == 0


async def test_a_held_message_is_in_the_backlog_until_it_is_acked(admin: RocketMQAdmin, at: ClientConfig) -> None:
    await admin.create_topic("bills", queues=1)
    await admin.create_group("cashier", retries=[1])
    async with Producer(at) as producer:
        for _ in range(2):
            await producer.send(Message("bills", "one euro"))
    assert (await admin.backlog("cashier", "bills"))[:2] == (2, 0)
    async with SimpleConsumer(at, "cashier", "bills", invisible_duration=20) as consumer:
        held = await received(consumer, 1)
        assert (await admin.backlog("cashier", "bills"))[:2] == (1, 0)
        await backlog_is(admin, lambda it: it.waiting > 0)
        await consumer.change_invisible_duration(held[0], 1)
        await backlog_is(admin, lambda it: it.retrying == 1)
        assert not (await admin.backlog("cashier", "bills")).is_empty
        again = await received(consumer)
        again += [] if len(again) == 2 else await received(consumer)
        await consumer.ack(again)
    await backlog_is(admin, lambda it: it.is_empty)


async def test_a_group_that_reads_in_order_keeps_its_backlog_until_the_ack(
    admin: RocketMQAdmin, at: ClientConfig
) -> None:
    async with Producer(at) as producer:
        for number in range(3):
            await producer.send(Message("rounds", str(number), message_group="table 4"))
    async with SimpleConsumer(at, "waiters", "rounds", invisible_duration=60) as consumer:
        held = await received(consumer, 1)
        assert (await admin.backlog("waiters", "rounds")).ready == 3
        await consumer.ack(held)
        assert (await admin.backlog("waiters", "rounds")).ready == 2


async def test_a_group_that_is_switched_off_receives_nothing_until_it_is_on_again(
    admin: RocketMQAdmin, at: ClientConfig
) -> None:
    await admin.create_topic("menus", queues=2)
    await admin.create_group("guests")
    await admin.set_group_enabled("guests", enabled=False)
    async with Producer(at) as producer:
        await producer.send(Message("menus", "starters"))
    await admin.set_start("guests", "menus", "END")
    assert (await admin.backlog("guests", "menus")).ready == 0
    await admin.set_start("guests", "menus")
    assert (await admin.backlog("guests", "menus")).ready == 1
    async with SimpleConsumer(at, "guests", "menus", await_duration=1) as consumer:
        with pytest.raises(ServerError, match="no permission"):
            await consumer.receive()
        await admin.set_group_enabled("guests", enabled=True)
        [message] = await received(consumer)
        await consumer.ack(message)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two masters without a proxy."""
    try:
        jars = rocketmq.classpath()
    except rocketmq.Missing as missing:
        do_without(str(missing))
    home = Home(jars, tmp_path / "rocketmq", TABLES, brokers=BROKERS, broker={**BROKER, **SOON}, java=SMALL)
    running = Cluster(home)
    with ExitStack() as ended:
        ended.callback(running.stop_all)
        for name in (NAME_SERVER, *BROKERS):
            running.start(name)
        yield running


async def test_each_master_is_asked(cluster: Cluster) -> None:
    async with RocketMQAdmin(cluster.name_server, timeout=TIMEOUT_S) as admin:
        await _known(admin, 2)
        assert list(await admin.masters()) == list(BROKERS)
        await admin.create_topic("desserts", queues=3)
        await admin.create_group("dishes")
        await admin.create_retry_topic("dishes", "desserts")
        topics, groups = await admin.topics(internal=True), await admin.groups()
        assert (topics["desserts"].queues, topics["desserts"].brokers) == (6, BROKERS)
        assert topics["%RETRY%dishes_desserts"].brokers == groups["dishes"].brokers == BROKERS
        await admin.set_start("dishes", "desserts")
        assert await admin.backlog("dishes", "desserts") == (0, 0, 0)
        await admin.set_group_enabled("dishes", enabled=False)
        assert not (await admin.groups())["dishes"].enabled
        address = (await admin.masters())[BROKERS[1]]
        cluster.kill(BROKERS[1])
        # The name server forgets it at once, or a moment later.
        with pytest.raises(Unreachable, match=f"{BROKERS[1]}|{address}"):
            await admin.topics()
        cluster.start(BROKERS[1])
        await _known(admin, 2)
        assert (await admin.topics())["desserts"].brokers == BROKERS
        cluster.kill(NAME_SERVER)
        with pytest.raises(Unreachable, match=cluster.name_server):
            await admin.masters()
