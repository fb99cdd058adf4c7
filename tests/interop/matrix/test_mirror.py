"""`popmq mirror` between PopMQ and a real RocketMQ cluster, in both directions, as an operator types it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import popserver
from benchmarks.peers.rocketmq import Home, Tables, registered
from popclient import ClientConfig, Message, Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.remoting import RocketMQAdmin
from popserver import EmbeddedBroker
from tests.interop.matrix import rocketmq
from tests.interop.matrix.stage import SIGNED
from tests.support.built_programs import do_without
from tests.support.rocketmq_cluster import BROKER, SMALL, SOON, Cluster, accepting, cluster
from tests.support.shell import POPMQ
from tests.support.waiting import soon

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]
PATIENCE_S = 240
EXISTING = "existing"  # the one topic that the cluster has before
Secrets = Mapping[str, str]  # in the environment of the command
NONE: Secrets = {}
ROOT = ("root", "root-has-a-secret")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with cluster(tmp_path_factory.mktemp("mirror"), {EXISTING: accepting("NORMAL")}, {}) as it:
            yield it
    except rocketmq.Missing as missing:
        do_without(str(missing))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Another RocketMQ, a broker with its proxy, which both want signatures."""
    try:
        jars = rocketmq.classpath()
    except rocketmq.Missing as missing:
        do_without(str(missing))
    broker = {**BROKER, **SOON, **rocketmq.SIGNED_BROKER}
    tables = Tables({EXISTING: accepting("NORMAL")}, {})
    folder = tmp_path_factory.mktemp("guarded") / "rocketmq"
    home = Home(jars, folder, tables, broker=broker, proxy=rocketmq.SIGNED_PROXY, java=SMALL)
    with home.name_server(), home.proxy():
        asyncio.run(registered(signing(home.address), [EXISTING]))
        yield home


@pytest.fixture
def popmq() -> Iterator[EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


class Found(NamedTuple):
    """What a group has received: bodies, how often each, and by message group in order."""

    bodies: Counter[str]
    ids: set[str]
    order: dict[str | None, list[str]]


def mirrored(*arguments: str, secrets: Secrets = NONE) -> list[dict[str, Any]]:
    """The command until nothing is left: the documents of its mirrors."""
    done = ran(*arguments, "--until-empty", secrets=secrets)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["mirrors"]
    return found


def ran(*arguments: str, secrets: Secrets = NONE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **secrets},
    )


def command(*arguments: str) -> list[str]:
    return [POPMQ, "--json", "mirror", *arguments]


@contextlib.contextmanager
def mirroring(*arguments: str, secrets: Secrets = NONE) -> Iterator[subprocess.Popen[bytes]]:
    """The command until the end of the block, where it is stopped unless it has ended."""
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, env={**os.environ, **secrets}) as running:
        try:
            yield running
        finally:
            running.terminate()


def to_cluster(popmq: EmbeddedBroker, running: Cluster) -> list[str]:
    return ["--from", popmq.endpoint, "--to", running.endpoint, "--to-name-server", running.name_server]


def from_cluster(popmq: EmbeddedBroker, running: Cluster) -> list[str]:
    return ["--from", running.endpoint, "--from-name-server", running.name_server, "--to", popmq.endpoint]


def signing(endpoint: str, user: tuple[str, str] = SIGNED) -> ClientConfig:
    return ClientConfig(endpoint, request_timeout=30.0, access_key=user[0], access_secret=user[1])


def received(at: str | ClientConfig, group: str, topic: str, count: int, wait_s: float = 5) -> Found:
    """All that comes until `count` messages are there and one more receive brings nothing."""
    found = Found(Counter(), set(), {})
    config = ClientConfig(at, request_timeout=30.0) if isinstance(at, str) else at
    with SimpleConsumer(config, group, topic, invisible_duration=60, await_duration=wait_s) as consumer:
        empty = 0
        while empty < (1 if found.bodies.total() >= count else 12):
            views = consumer.receive()
            empty = 0 if views else empty + 1
            for view in views:
                found.bodies[view.text] += 1
                found.ids.add(view.message_id)
                found.order.setdefault(view.message_group, []).append(view.text)
                consumer.ack(view)
    return found


def send(at: str | ClientConfig, topic: str, bodies: list[str], **more: Any) -> set[str]:
    with Producer(ClientConfig(at, request_timeout=30.0) if isinstance(at, str) else at) as producer:
        return {producer.send(Message(topic, each, **more)).message_id for each in bodies}


class Door:
    """How the command is told of a side that asks who is calling. more: further words, with {} for from or to."""

    def __init__(self, endpoint: str, user: tuple[str, str], *more: str) -> None:
        self.user = user
        self._words = ("--{}", endpoint, "--{}-access-key", user[0], *more)

    def words(self, side: str) -> list[str]:
        return [each.format(side) for each in self._words]


def door_of(guarded: Home) -> Door:
    return Door(guarded.address, SIGNED, "--{}-name-server", guarded.name_server_address)


def make_in(running: Cluster, topic: str, group: str) -> None:
    """A topic, and a group that reads it from its beginning."""

    async def make() -> None:
        async with RocketMQAdmin(running.name_server) as admin:
            await admin.create_topic(topic)
            await admin.create_group(group)
            await admin.set_start(group, topic)

    asyncio.run(make())


def test_backlogs_of_two_groups_go_to_rocketmq(popmq: EmbeddedBroker, running: Cluster) -> None:
    topic, bodies = "orders", [f"order {number}" for number in range(60)]
    with Admin(popmq.endpoint) as admin:
        admin.create_topic(topic, queue_count=4)
        for name in ("billing", "audit"):
            admin.create_group(name, max_attempts=5, retry_intervals=[1, 2])
    assert received(popmq.endpoint, "audit", topic, 0, 1).bodies.total() == 0
    send(popmq.endpoint, topic, bodies[:40], tag="hot", keys=("k",), properties={"colour": "red"})
    assert received(popmq.endpoint, "audit", topic, 40, 1).bodies.total() == 40
    send(popmq.endpoint, topic, bodies[40:])
    done = mirrored(*to_cluster(popmq, running), "--topic", topic, "--group", "billing", "--group", "audit")
    assert {each["group"]: (each["handed"], each["unsure"]) for each in done} == {"billing": (60, 0), "audit": (20, 0)}
    assert received(running.endpoint, "billing", topic, 60).bodies == Counter(bodies)
    assert received(running.endpoint, "audit", topic, 20).bodies == Counter(bodies[40:])


def test_message_groups_go_there_in_order_and_come_back(popmq: EmbeddedBroker, running: Cluster) -> None:
    topic = "flights"
    with Admin(popmq.endpoint) as admin:
        admin.create_topic(topic, accept_message_types="FIFO")
        admin.create_group("radar")
    for number in range(30):
        send(popmq.endpoint, topic, [str(number)], message_group=f"g{number % 3}")
    mirrored(*to_cluster(popmq, running), "--topic", topic, "--group", "radar")
    with popserver.embedded() as other:
        mirrored(*from_cluster(other, running), "--topic", topic, "--group", "radar")
        found = received(other.endpoint, "radar", topic, 30)
    assert found.order == {f"g{n}": [str(each) for each in range(n, 30, 3)] for n in range(3)}


def test_rocketmq_to_popmq_brings_each_once_and_dead_letters(popmq: EmbeddedBroker, running: Cluster) -> None:
    topic = "bills"
    with popserver.embedded() as first:
        with Admin(first.endpoint) as admin:
            admin.create_topic(topic)
            admin.create_group("till")
        ids = send(first.endpoint, topic, [f"bill {number}" for number in range(20)])
        with SimpleConsumer(first.endpoint, "till", topic, max_messages=1) as consumer:
            (bad,) = consumer.receive()
            consumer.forward_to_dead_letter_queue(bad, "no such bill")
        done = mirrored(*to_cluster(first, running), "--topic", topic, "--group", "till")
        assert [(each["handed"], each["dead_letters"]) for each in done] == [(19, 1)]
    done = mirrored(*from_cluster(popmq, running), "--topic", topic, "--group", "till")
    assert [(each["handed"], each["dead_letters"]) for each in done] == [(19, 1)]
    found = received(popmq.endpoint, "till", topic, 19)
    expected = {f"{each}-2" for each in ids - {bad.message_id}}  # their second hand-over
    assert (found.ids, found.bodies.most_common(1)[0][1]) == (expected, 1)
    with Admin(popmq.endpoint) as admin:
        (letter,) = admin.list_dead_letters("till").dead_letters
    assert (letter.origin_message_id, letter.topic, letter.delivery_attempt) == (bad.message_id, topic, 1)
    assert "no such bill" in letter.reason


def test_delays_within_a_day_go_and_longer_ones_wait(popmq: EmbeddedBroker, running: Cluster) -> None:
    topic = "reminders"
    with Admin(popmq.endpoint) as admin:
        admin.create_topic(topic, accept_message_types="DELAY")
        admin.create_group("bell")
    send(popmq.endpoint, topic, ["soon"], delay=timedelta(seconds=60))
    send(popmq.endpoint, topic, ["in two days"], delay=timedelta(days=2))
    done = mirrored(*to_cluster(popmq, running), "--topic", topic, "--group", "bell")
    assert [(each["scheduled"], each["handed"]) for each in done] == [(1, 0)]
    with Admin(popmq.endpoint) as admin:
        assert [each.message.text for each in admin.list_scheduled(topic)] == ["in two days"]
    assert received(running.endpoint, "bell", topic, 1, 15).bodies == Counter(["soon"])


def test_a_whole_topic_goes_to_popmq_while_its_group_goes_on(popmq: EmbeddedBroker, running: Cluster) -> None:
    topic, bodies = "news", [f"news {number}" for number in range(60)]
    make_in(running, topic, "readers")
    send(running.endpoint, topic, bodies[:40])
    begun = received(running.endpoint, "readers", topic, 10).bodies
    with mirroring(*from_cluster(popmq, running), "--topic", topic), Admin(popmq.endpoint) as admin:
        send(running.endpoint, topic, bodies[40:])
        assert begun + received(running.endpoint, "readers", topic, 60 - begun.total()).bodies == Counter(bodies)
        soon(lambda: [each.message_count for each in admin.list_topics()] == [60], within_s=PATIENCE_S)
    assert received(popmq.endpoint, "readers", topic, 60, 1).bodies == Counter(bodies)


def test_between_clusters_a_killed_mirror_goes_on(running: Cluster, guarded: Home, tmp_path: Path) -> None:
    topic, count = "parcels", 2_000
    make_in(running, topic, "vans")
    bodies = [f"parcel {number}" for number in range(count)]
    with Producer(ClientConfig(running.endpoint, request_timeout=30.0)) as producer:
        producer.send_many([Message(topic, each) for each in bodies]).raise_for_failures()
    here = ["--from", running.endpoint, "--from-name-server", running.name_server, "--state", str(tmp_path / "state")]
    words = [*here, *door_of(guarded).words("to"), "--topic", topic, "--group", "vans"]
    secrets = {"POPMQ_TO_ACCESS_SECRET": SIGNED[1]}
    with mirroring(*words, secrets=secrets) as first:
        soon(lambda: stored(guarded, f"%RETRY%vans_{topic}") > count // 10, within_s=PATIENCE_S)
        first.send_signal(signal.SIGKILL)
    assert stored(guarded, f"%RETRY%vans_{topic}") < count
    (done,) = mirrored(*words, secrets=secrets)
    found = received(signing(guarded.address), "vans", topic, count).bodies
    assert set(found) == set(bodies)
    assert found.total() - count <= done["unsure"]


def stored(guarded: Home, topic: str) -> int:
    """How many messages a topic of it ever stored."""

    async def asked() -> int:
        async with RocketMQAdmin(
            guarded.name_server_address, access_key=SIGNED[0], access_secret=SIGNED[1], timeout=30.0
        ) as admin:
            return await admin.stored(topic)

    return asyncio.run(asked())


def test_each_side_has_its_access_key(guarded: Home) -> None:
    with popserver.embedded(auth=True, admin_access_key=ROOT[0], admin_secret=ROOT[1]) as popmq:
        with Admin(signing(popmq.endpoint, ROOT)) as admin:
            admin.create_topic("seats", accept_message_types="NORMAL")
            admin.create_group("gate")
        send(signing(popmq.endpoint, ROOT), "seats", ["1A", "1B"])
        here = Door(popmq.endpoint, ROOT)
        there = door_of(guarded)
        for source, target in ((here, there), (there, here)):
            words = [*source.words("from"), *target.words("to"), "--topic", "seats", "--group", "gate"]
            secrets = {"POPMQ_FROM_ACCESS_SECRET": source.user[1], "POPMQ_TO_ACCESS_SECRET": target.user[1]}
            for wrong in secrets:
                refused = ran(*words, "--dry-run", secrets={**secrets, wrong: "not-this-one"})
                assert (refused.returncode, wrong in refused.stderr) == (1, True), refused
            (done,) = mirrored(*words, secrets=secrets)
            assert done["handed"] == 2
        found = received(signing(popmq.endpoint, ROOT), "gate", "seats", 2, 1)
    assert found.bodies == Counter(["1A", "1B"])


def test_a_topic_of_several_types_is_refused_with_the_way_out(popmq: EmbeddedBroker, guarded: Home) -> None:
    with Admin(popmq.endpoint) as admin:
        admin.create_topic("gates", accept_message_types=("NORMAL", "FIFO"))
    words = ["--from", popmq.endpoint, *door_of(guarded).words("to"), "--topic", "gates"]
    done = ran(*words, secrets={"POPMQ_TO_ACCESS_SECRET": SIGNED[1]})
    assert (done.returncode, "enableMixedMessageType" in done.stderr) == (1, True), done.stderr
