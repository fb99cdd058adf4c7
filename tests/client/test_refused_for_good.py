"""What cannot succeed by repetition is not repeated: every kind of client, each refusal, at its start and later.

The user is told the server's own sentence within 2 s, and the server gets no more calls.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from popclient import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ConsumeResult,
    FilterExpression,
    MessageQueue,
    OrderlyListener,
    PopError,
    Repeat,
    UnsupportedByServer,
    aio,
)
from popclient._session.repeating import is_final
from popclient._session.transport import Transport
from popclient.errors import EXCEPTION_OF
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from popserver import EmbeddedBroker, embedded
from tests.support.group_server import GroupServer
from tests.support.scripted_server import ScriptedServer, status, until

SOON_S = 2.0
ROOT, SECRET = ("root", "root-has-a-secret"), "correct-horse"
Topics = str | dict[str, FilterExpression]
Opened = Callable[[Any], Any]


async def taken(*_: Any) -> Any:
    return ConsumeResult.SUCCESS


async def consumed(*_: Any) -> Any:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def consumed_in_order(*_: Any) -> Any:
    return ConsumeOrderlyStatus.SUCCESS


def name_of(topics: Topics) -> str:
    return topics if isinstance(topics, str) else next(iter(topics))


# Each opens a client, and works with it until that fails.


async def receive(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    async with open_(aio.SimpleConsumer(config, group, topics)) as consumer:
        while True:
            await consumer.receive(await_duration=15)


async def iterate(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    async with open_(aio.SimpleConsumer(config, group, topics)) as consumer:
        async for message in consumer:
            await consumer.ack(message)


async def lite(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    async with open_(aio.LiteSimpleConsumer(config, group, name_of(topics), ["a"])) as consumer:
        while True:
            await consumer.receive(await_duration=15)


async def push(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    await open_(aio.PushConsumer(config, group, topics, taken)).run()


async def lite_push(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    await open_(aio.LitePushConsumer(config, group, name_of(topics), taken, ["a"])).run()


async def queue_push(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    await open_(aio.QueuePushConsumer(config, group, topics, consumed)).run()


async def orderly(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    await open_(aio.QueuePushConsumer(config, group, topics, OrderlyListener(consumed_in_order))).run()


def pull_consumer(config: ClientConfig, group: str, topics: Topics) -> aio.PullConsumer:
    return aio.PullConsumer(config, group, filters=None if isinstance(topics, str) else topics)


async def pull(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    async with open_(pull_consumer(config, group, topics)) as consumer:
        await consumer.assign(name_of(topics))
        while True:
            await consumer.poll(15)


async def share(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    async with open_(pull_consumer(config, group, topics)) as consumer:
        await consumer.subscribe(name_of(topics))
        while True:
            await consumer.poll(15)


async def consume(config: ClientConfig, group: str, topics: Topics, open_: Opened) -> None:
    async with open_(pull_consumer(config, group, topics)) as consumer:
        await consumer.consume(name_of(topics), consumed)


POP = {"receive": receive, "iterate": iterate, "push": push}
LITE = {"lite": lite, "lite push": lite_push}
OF_QUEUES = {"queue push": queue_push, "orderly": orderly, "pull": pull, "share": share, "consume": consume}
KINDS = POP | LITE | OF_QUEUES


class Place(NamedTuple):
    """A server where nothing makes itself, its administrator, and what one test uses there."""

    broker: EmbeddedBroker
    admin: aio.Admin
    group: str
    topic: str
    secret: str  # a topic that the user may not use
    user: str

    def config(self, secret: str = SECRET) -> ClientConfig:
        return ClientConfig(self.broker.endpoint, access_key=self.user, access_secret=secret)

    @property
    def root(self) -> ClientConfig:
        return ClientConfig(self.broker.endpoint, access_key=ROOT[0], access_secret=ROOT[1], wait_for_topic=False)


NAMES = itertools.count(1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedBroker]:
    options: dict[str, Any] = {"auth": True, "auto_create": False, "admin_access_key": ROOT[0], "admin_secret": ROOT[1]}
    with embedded(**options) as broker:
        yield broker


@pytest.fixture
async def place(guarded: EmbeddedBroker, kind: str) -> AsyncIterator[Place]:
    number = next(NAMES)
    names = Place(guarded, aio.Admin(), f"group-{number}", f"topic-{number}", f"secret-{number}", f"alice-{number}")
    await names.admin.close()
    async with aio.Admin(names.root) as admin:
        for topic in (names.topic, names.secret):
            await admin.create_topic(topic, accept_message_types=["LITE"] if kind in LITE else ())
        await admin.create_group(names.group)
        await admin.create_user(names.user, SECRET)
        await admin.add_policy(names.user, "ALLOW", ["PUB", "SUB"], "TOPIC", names.topic)
        await admin.add_policy(names.user, "ALLOW", ["SUB"], "GROUP", names.group)
        yield names._replace(admin=admin)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Grows by one with each call of a client of this process."""
    made: list[float] = []
    real = Transport.call

    def counted(transport: Transport, attempt: Any, timeout: float) -> Any:
        made.append(timeout)
        return real(transport, attempt, timeout)

    monkeypatch.setattr(Transport, "call", counted)
    return made


async def refused(working: Awaitable[Any], calls: Sequence[Any]) -> PopError:
    """How it fails, within 2 s; the server gets no more calls after that."""
    with pytest.raises(PopError) as raised:
        await asyncio.wait_for(working, SOON_S)
    assert raised.value.repeat is Repeat.NEVER
    made = len(calls)
    await asyncio.sleep(0.15)
    assert len(calls) == made
    return raised.value


# ---- At the start ----


async def in_another_mode(place: Place, kind: str) -> None:
    if kind in OF_QUEUES:
        async with aio.SimpleConsumer(place.root, place.group, place.topic) as simple:
            await simple.receive(await_duration=0)
    else:
        async with aio.PullConsumer(place.root, place.group) as pulling:
            await pulling.assign(place.topic)
            await pulling.poll(0.05)
            await pulling.commit()


Opening = tuple[ClientConfig, str, Topics]
AT_START: dict[str, tuple[Callable[[Place], Opening], str]] = {
    "credentials": (lambda at: (at.config("wrong"), at.group, at.topic), "the access key or the signature was refused"),
    "forbidden topic": (lambda at: (at.config(), at.group, at.secret), "may not (PUB|SUB) topic"),
    "forbidden group": (lambda at: (at.config(), "others", at.topic), "may not SUB .*others"),
    "missing topic": (lambda at: (at.root, at.group, "nosuch"), "topic 'nosuch' does not exist; create it with"),
    "missing group": (lambda at: (at.root, "nosuch", at.topic), "consumer group 'nosuch' does not exist; create it"),
    "illegal topic": (lambda at: (at.root, at.group, "a b/c"), "'a b/c' has a character that is not allowed"),
    "illegal group": (lambda at: (at.root, "a b/c", at.topic), "a b/c' has a character that is not allowed"),
    "reserved group": (lambda at: (at.root, "CID_RMQ_SYS_x", at.topic), "'CID_RMQ_SYS_x' is reserved for the system"),
    "bad filter": (
        lambda at: (at.root, at.group, {at.topic: FilterExpression.sql("a >")}),
        "the SQL expression is illegal at line 1, column 4",
    ),
    "another mode": (lambda at: (at.root, at.group, at.topic), "consumes in mode (POP|PULL), fixed at its first use"),
}
WITHOUT_FILTER_AND_MODE = [case for case in AT_START if case not in ("bad filter", "another mode")]


@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind in KINDS for case in (WITHOUT_FILTER_AND_MODE if kind in LITE else AT_START)],
)
async def test_at_the_start(place: Place, calls: list[float], kind: str, case: str) -> None:
    if case == "another mode":
        await in_another_mode(place, kind)
    opened: list[Any] = []
    opening, words = AT_START[case]
    refusal = await refused(KINDS[kind](*opening(place), lambda client: opened.append(client) or client), calls)
    assert re.search(words, str(refusal))
    assert not opened[0].healthy


# ---- Later ----

LATER: dict[str, Callable[[Place], Awaitable[Any]]] = {
    "user disabled": lambda at: at.admin.disable_user(at.user),
    "topic denied": lambda at: at.admin.add_policy(at.user, "DENY", ["SUB"], "TOPIC", at.topic),
    "group denied": lambda at: at.admin.add_policy(at.user, "DENY", ["SUB"], "GROUP", at.group),
}


@pytest.mark.parametrize(
    ("kind", "case"),
    # Who assigns queues tells the server of no topic: it gets to know when its pull ends.
    [(kind, case) for kind in KINDS for case in LATER if (kind, case) != ("pull", "topic denied")],
)
async def test_later(place: Place, calls: list[float], caplog: pytest.LogCaptureFixture, kind: str, case: str) -> None:
    opened: list[Any] = []
    work = KINDS[kind](place.config(), place.group, place.topic, lambda client: opened.append(client) or client)
    working = asyncio.ensure_future(work)
    parked = 4 if kind in OF_QUEUES else 1  # each queue of the topic has a pull of its own
    await until(lambda: place.broker.app.broker.parked >= parked or working.done())
    await LATER[case](place)
    refusal = await refused(working, calls)
    assert re.search("signature was refused|denies it", str(refusal))
    assert not opened[0].healthy
    said = [each.getMessage() for each in caplog.records if each.name == "popclient" and each.levelname == "ERROR"]
    has_listener = kind in ("push", "lite push", "queue push", "orderly")
    assert said == ([f"the consumer of group {place.group} ends: {refusal}"] if has_listener else [])


# ---- By a call, whatever the settings are ----

# One of each class, and a missing group and topic.
OF_CLASS = {kind: code for code, kind in EXCEPTION_OF.items() if code and is_final(kind(code=code))}
FINAL = sorted({*OF_CLASS.values(), pb.CONSUMER_GROUP_NOT_FOUND, pb.TOPIC_NOT_FOUND})
WORDS = "in the server's own words"


@pytest.mark.parametrize("code", FINAL, ids=pb.Code.Name)
@pytest.mark.parametrize("kind", POP)
async def test_a_receive_that_is_refused(server: ScriptedServer, kind: str, code: int) -> None:
    now = asyncio.Event()

    async def refuse(_: object) -> list[rpc.ReceiveMessageResponse]:
        await now.wait()
        return [rpc.ReceiveMessageResponse(status=status(code, WORDS))]

    server.answers["ReceiveMessage"] = refuse
    working = asyncio.ensure_future(KINDS[kind](ClientConfig(server.endpoints), "g", "t", lambda client: client))
    await until(lambda: server.requests("ReceiveMessage"))
    now.set()
    refusal = await refused(working, server.calls)
    assert (refusal.code, refusal.sentence) == (code, WORDS)
    assert len(server.requests("ReceiveMessage")) == 1


@pytest.mark.parametrize(
    ("kind", "code"),
    # `consume` waits for a topic that was deleted: it may be recreated.
    [(kind, code) for kind in OF_QUEUES for code in FINAL if (kind, code) != ("consume", pb.TOPIC_NOT_FOUND)],
)
async def test_a_pull_that_is_refused(kind: str, code: int) -> None:
    now = asyncio.Event()

    async def refuse(_: object) -> list[rpc.PullMessageResponse]:
        await now.wait()
        return [rpc.PullMessageResponse(status=status(code, WORDS))]

    async with GroupServer() as server:
        server.answers["PullMessage"] = refuse
        config = ClientConfig(server.endpoints, wait_for_topic=False)
        working = asyncio.ensure_future(KINDS[kind](config, "g", "t", lambda client: client))
        await until(lambda: server.requests("PullMessage"))
        now.set()
        refusal = await refused(working, server.calls)
    if EXCEPTION_OF[code] is UnsupportedByServer:
        assert refusal.sentence.startswith("PullMessage is not offered by the server at")
    else:
        assert (refusal.code, refusal.sentence) == (code, WORDS)


FORBIDDEN = status(pb.FORBIDDEN, WORDS)
OTHER_LOOPS: dict[str, Any] = {
    "ListMembers": legacy.ListMembersResponse(status=FORBIDDEN),
    "FetchOffsets": legacy.FetchOffsetsResponse(status=FORBIDDEN),
    "CommitOffsets": legacy.CommitOffsetsResponse(status=FORBIDDEN),
    "SendBack": legacy.SendBackResponse(status=FORBIDDEN),
    "LockQueues": legacy.LockQueuesResponse(status=FORBIDDEN),
    "QueryRoute": rpc.QueryRouteResponse(status=FORBIDDEN),
}


@pytest.mark.parametrize("method", OTHER_LOOPS)
async def test_any_other_call_that_a_queue_push_consumer_repeats(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its rounds, locks, commits and hand-backs."""

    async def fail(*_: Any) -> Any:
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    listener: Any = OrderlyListener(consumed_in_order) if method == "LockQueues" else fail
    async with GroupServer(notices=True) as server:
        consumer = aio.QueuePushConsumer(server.endpoints, "g", "t", listener)
        working = asyncio.ensure_future(consumer.run())
        await until(lambda: len(server.requests("PullMessage")) == 5)  # of the retry topic too
        server.answers[method] = lambda _: OTHER_LOOPS[method]
        if method == "SendBack":
            await server.fill(MessageQueue("t", 0), ["fails"])
        elif method == "CommitOffsets":
            consumer._core.parts.offset_store.update_offset(MessageQueue("t", 0), 7, True)
            await consumer._core._persist()
        elif method in ("FetchOffsets", "QueryRoute"):
            server.widths["t"] += 1
            await consumer._core.session.routes.refresh_all()
            consumer._core.session.routes.queues.pop("t", None)
        server.tell_members()
        refusal = await refused(working, [])
        assert refusal.sentence == WORDS
        assert not consumer.healthy
    assert [each.levelname for each in caplog.records if WORDS in each.getMessage()].count("ERROR") == 1


async def test_a_commit_of_auto_commit_that_is_refused() -> None:
    async with (
        GroupServer() as server,
        aio.PullConsumer(server.endpoints, "g", auto_commit=True, commit_interval=0.05) as consumer,
    ):
        await consumer.assign("t")
        await server.fill(MessageQueue("t", 0), ["one"])
        await consumer.poll(5)
        server.answers["CommitOffsets"] = lambda _: OTHER_LOOPS["CommitOffsets"]
        assert (await refused(consumer.poll(15), [])).sentence == WORDS


async def test_an_assignment_that_is_refused(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._push.assignments.SCAN_INTERVAL", 0.02)
    working = asyncio.ensure_future(aio.PushConsumer(server.endpoints, "g", "t", taken).run())
    await until(lambda: server.requests("ReceiveMessage"))
    server.answers["QueryAssignment"] = lambda _: rpc.QueryAssignmentResponse(status=FORBIDDEN)
    assert (await refused(working, server.calls)).sentence == WORDS


@pytest.mark.parametrize("code", [pb.ILLEGAL_OFFSET, pb.PRECONDITION_FAILED])
def test_what_another_call_puts_right_ends_no_loop(code: int) -> None:
    assert not is_final(EXCEPTION_OF[code](code=code))
