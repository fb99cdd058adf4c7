"""What a client is put through, the same for each language. A scenario asserts what a client can see.

Where a client lacks a call, NoSuchCall ends the scenario.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.interop.matrix.lite import LITE
from tests.interop.matrix.stage import AWAIT_S, DOCTORS, SIGNED, Scenarios, Scene, Stage
from tests.interop.official import NoSuchCall, OfficialSimpleConsumer, Received, Refused
from tests.interop.seen import until
from tests.interop.traffic import Traffic

SCENARIOS = Scenarios()
scenario = SCENARIOS.scenario
BEFORE_AND_AFTER = 10
SOON_S = 8
DYING_S = 90
HOLD_S = 10  # under load
EXTENSION_S = 40
PATIENCE_S = 240  # Go tries a server that is gone for 5 s at each second call
EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # a frame of HTTP/2
ABSENT = "absent"  # a group that nobody has made


@scenario()
def send(stage: Stage) -> None:
    """A message arrives as it was sent."""
    sent = stage.producer().send(
        stage.topic, "délayed ✈ 延误", tag="UA", keys=["1545", "EWR"], properties={"origin": "EWR"}
    )
    (message,) = stage.collect(stage.simple(), 1)
    assert (message.message_id, message.topic) == (sent.message_id, stage.topic)
    assert (message.body, message.tag, message.keys) == ("délayed ✈ 延误", "UA", ["1545", "EWR"])
    assert message.properties.items() >= {"origin": "EWR"}.items()
    assert (message.attempt, message.corrupted) == (1, False)
    stage.settles()


@scenario(Scene(accepts="FIFO"))
def fifo(stage: Stage) -> None:
    """Messages of a message group come in order."""
    producer = stage.producer()
    sent = {group: [f"{group}{number}" for number in range(8)] for group in "ghi"}
    for together in zip(*sent.values(), strict=True):
        for body in together:
            producer.send(stage.topic, body, message_group=body[0])
    heard = stage.consume(24)
    assert {group: [each.body for each in heard if each.message_group == group] for group in sent} == sent
    stage.settles()


@scenario(Scene(accepts="FIFO"))
def fifo_retry(stage: Stage) -> None:
    """Where a listener fails, the rest of its message group waits until the message has succeeded."""
    consumer, producer = stage.push(fail=1), stage.producer()
    for number in range(4):
        for group in "gh":
            producer.send(stage.topic, f"{group}{number}", message_group=group)
    heard = consumer.hear(16)
    for group in "gh":
        of_group = [(each.body, each.attempt) for each in heard if each.message_group == group]
        assert of_group == [(f"{group}{number}", attempt) for number in range(4) for attempt in (1, 2)]
    stage.settles()


@scenario(Scene(accepts="DELAY"))
def delay(stage: Stage) -> None:
    """A delayed message comes when it is due, not before."""
    due_s = int(time.time()) + SOON_S
    sent = stage.producer().send(stage.topic, "later", deliver_at_s=due_s)
    (message,) = stage.collect(stage.simple(), 1)
    assert time.time() >= due_s
    assert (message.message_id, message.body, message.attempt) == (sent.message_id, "later", 1)


@scenario(Scene(accepts="DELAY"))
def recall(stage: Stage) -> None:
    """A delayed message that was taken back never comes."""
    producer, due_s = stage.producer(), int(time.time()) + SOON_S
    taken_back, _ = (producer.send(stage.topic, body, deliver_at_s=due_s) for body in ("taken back", "kept"))
    assert producer.recall(stage.topic, taken_back.recall_handle) == taken_back.message_id
    with pytest.raises(Refused):
        producer.recall(stage.topic, "nonsense")
    consumer = stage.simple()
    assert [each.body for each in stage.collect(consumer, 1)] == ["kept"]
    assert consumer.receive(invisible_s=10) == []


@scenario(Scene(accepts="TRANSACTION"))
def transaction(stage: Stage) -> None:
    """Half messages are decided by their producer, and by its checker where it did not decide."""
    producer = stage.producer(decides="COMMIT")
    halves = [producer.send(stage.topic, body, half=True) for body in ("committed", "rolled back", "asked about")]
    producer.end(halves[0], "COMMIT")
    producer.end(halves[1], "ROLLBACK")
    check: Received = producer.heard.get(timeout=90)
    assert (check.message_id, check.body) == (halves[2].message_id, "asked about")
    consumer = stage.simple()
    assert {each.body for each in stage.collect(consumer, 2)} == {"committed", "asked about"}
    assert consumer.receive(invisible_s=10) == []


@scenario(Scene(accepts="PRIORITY"))
def priority(stage: Stage) -> None:
    """Among messages that are ready the most urgent comes first, but for some looks that keep the rest from waiting."""
    producer, consumer = stage.producer(), stage.simple()
    rounds = []
    for _ in range(4):
        for urgency in (1, 3, 2):
            producer.send(stage.topic, str(urgency), priority=urgency)
        rounds.append([each.body for each in stage.collect(consumer, 3, at_once=1)])
    assert rounds.count(["3", "2", "1"]) >= 2, rounds  # PopMQ ignores priorities in one of eight looks


@scenario()
def simple(stage: Stage) -> None:
    """What was not acked comes again when its time is over; what was acked does not."""
    consumer, hold_s = stage.simple(), stage.servers.shortest_hold_s
    stage.producer().send(stage.topic, "UA1545")
    first = stage.first(consumer, hold_s)
    again = stage.first(consumer, hold_s + 10)
    assert (again.message_id, first.attempt, again.attempt) == (first.message_id, 1, 2)
    consumer.ack(again)
    stage.stays_away(consumer)


@scenario()
def late(stage: Stage) -> None:
    """An ack after the end of the hold is refused, and the client says so."""
    consumer, hold_s = stage.simple(), stage.servers.shortest_hold_s
    stage.producer().send(stage.topic, "UA1545")
    first = stage.first(consumer, hold_s)
    again = stage.first(consumer, hold_s + 10)
    with pytest.raises(Refused):
        consumer.ack(first)
    consumer.ack(again)
    stage.settles()


@scenario()
def extend(stage: Stage) -> None:
    """A hold is extended, and the message acked by its new handle."""
    consumer, hold_s = stage.simple(), stage.servers.shortest_hold_s
    stage.producer().send(stage.topic, "UA1545")
    message = stage.first(consumer, hold_s)
    handle, since = consumer.change_invisible(message, hold_s + EXTENSION_S), time.monotonic()
    until(lambda: time.monotonic() > since + hold_s)
    assert consumer.receive(invisible_s=10) == []
    consumer.ack(message, handle)
    stage.settles()


@scenario()
def push(stage: Stage) -> None:
    """A listener hears every message once."""
    consumer, producer = stage.push(), stage.producer()
    sent = {producer.send(stage.topic, str(number)).message_id for number in range(40)}
    heard = consumer.hear(40)
    assert {each.message_id for each in heard} == sent
    assert {each.attempt for each in heard} == {1}
    stage.settles()
    assert consumer.heard.empty()


@scenario()
def retry(stage: Stage) -> None:
    """A message whose listener failed comes again."""
    consumer = stage.push(fail=1)
    sent = stage.producer().send(stage.topic, "UA1545")
    heard = consumer.hear(2)
    assert [(each.message_id, each.attempt) for each in heard] == [(sent.message_id, 1), (sent.message_id, 2)]
    stage.settles()


@scenario(Scene(max_attempts=2))
def dlq(stage: Stage) -> None:
    """A message out of attempts becomes a dead letter, and is read as a message of the dead letter topic."""
    producer, found = stage.producer(), list[Received]()
    producer.send(stage.topic, "UA1545", tag="UA", keys=["1545"])
    try:
        stage.push(fail=99)
        until(lambda: _has_died(stage, found), DYING_S)
    except NoSuchCall:
        consumer = stage.simple()
        until(lambda: _has_died(stage, found) or _ignored(consumer, stage.servers.shortest_hold_s), DYING_S)
    (letter,) = found
    assert (letter.body, letter.tag, letter.keys) == ("UA1545", "UA", ["1545"])


@scenario()
def tag(stage: Stage) -> None:
    """Only messages of the tags come."""
    producer = stage.producer()
    for each in ("UA", "DL", "B6", "ua", None):
        producer.send(stage.topic, str(each), tag=each)
    assert sorted(each.body for each in stage.consume(2, "UA||B6")) == ["B6", "UA"]
    stage.settles()


@scenario()
def sql(stage: Stage) -> None:
    """Only messages of the condition come."""
    producer = stage.producer()
    for body, properties in (("short", {"miles": "900"}), ("long", {"miles": "1400"}), ("none", {})):
        producer.send(stage.topic, body, tag="UA", properties=properties)
    condition = "miles > 1000 AND TAGS IN ('UA', 'DL')"
    assert [each.body for each in stage.consume(1, condition, sql=True)] == ["long"]
    stage.settles()


@scenario(Scene(has_tls=True))
def tls(stage: Stage) -> None:
    """The client speaks TLS to a server that speaks nothing else. Java and Go accept any certificate."""
    assert not _speaks_plaintext(stage.servers.endpoint)
    program = stage.another_program(trusting=stage.servers.certificate)
    sent = program.producer(stage.topic).send(stage.topic, "over TLS")
    (message,) = stage.collect(program.simple(stage.group, stage.topic, await_s=AWAIT_S), 1)
    assert (message.message_id, message.body) == (sent.message_id, "over TLS")


def _speaks_plaintext(endpoint: str) -> bool:
    """Does it answer the preface of HTTP/2 by its settings?"""
    host, _, port = endpoint.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS)
        return connection.recv(9)[3:4] == EMPTY_SETTINGS[3:4]
    return False


@scenario(Scene(has_to_sign=True))
def signed(stage: Stage) -> None:
    """A client with the right secret is served, and one with a wrong secret is refused."""
    wrong = stage.another_program(signing=(SIGNED[0], "wrong"))
    with pytest.raises(Refused):
        wrong.producer(stage.topic).send(stage.topic, "never")
    right = stage.another_program(signing=SIGNED)
    right.producer(stage.topic).send(stage.topic, "signed")
    consumer = right.simple(stage.group, stage.topic, await_s=AWAIT_S)
    assert [each.body for each in stage.collect(consumer, 1)] == ["signed"]


@scenario()
def refused(stage: Stage) -> None:
    """A consumer of a group that does not exist is told so, by an error or in its log."""
    opened = stage.program.open("simple", ABSENT, stage.topic)
    until(lambda: opened.done() or _says_so(stage.program.log))
    if not opened.done():
        return  # the Node client goes on trying where RocketMQ refuses it
    error = opened.exception()
    if error is None:
        asked = stage.program.ask("receive", client="simple", count=1, invisible_s=15)
        until(asked.done)
        error = asked.exception()
    assert isinstance(error, Refused), "it was served"
    said = error.words + stage.program.log
    assert ABSENT in said, said
    assert "does not exist" in said or "not found" in said, said


def _says_so(log: str) -> bool:
    return any(ABSENT in line and "group not found" in line for line in log.splitlines())


@scenario()
def restart(stage: Stage) -> None:
    """The server is restarted under load, as an operator does it: nothing is lost, nothing that was acked returns."""
    _under_load(stage, stage.servers.stop)


@scenario()
def kill(stage: Stage) -> None:
    """The same with kill -9. Of two servers the other one goes on; then this one comes back."""
    _under_load(stage, stage.servers.kill)


SCENARIOS |= LITE


class MessagesLost(AssertionError):
    """No reason explains that."""


class CameBack(AssertionError):
    """Messages that were acked were delivered again."""


def _under_load(stage: Stage, end: Callable[[], None]) -> None:
    """Whatever else happens, no message is lost that the producer was told is sent."""
    traffic = Traffic(stage.producer(), stage.simple(), stage.topic, HOLD_S)
    try:
        with traffic:
            _passes(stage, traffic, end)
    except (AssertionError, TimeoutError):
        _require_all(stage, traffic)
        raise
    _require_all(stage, traffic)
    if traffic.came_back:
        raise CameBack(f"acked messages came back: {traffic.came_back}")


def _passes(stage: Stage, traffic: Traffic, end: Callable[[], None]) -> None:
    until(lambda: traffic.passed > BEFORE_AND_AFTER)
    end()
    try:
        if stage.servers.count > 1:
            _goes_on(traffic)
    finally:
        stage.servers.start()
    _goes_on(traffic)
    traffic.send_no_more()
    until(lambda: traffic.sent <= traffic.acked | traffic.in_doubt)
    stage.settles()


def _require_all(stage: Stage, traffic: Traffic) -> None:
    if missing := traffic.sent - traffic.acked - traffic.in_doubt:
        missing -= stage.left()
    if missing:
        raise MessagesLost(f"of {len(traffic.sent)} messages {len(missing)} are lost: {sorted(missing)[:10]}")


def _goes_on(traffic: Traffic) -> None:
    before = traffic.passed
    until(lambda: traffic.passed > before + BEFORE_AND_AFTER, PATIENCE_S)


def _ignored(consumer: OfficialSimpleConsumer, invisible_s: int) -> bool:
    """Receives and does not ack; whether a single poll is answered is of no interest here."""
    with suppress(Refused):
        consumer.receive(1, invisible_s)
    return False


def _has_died(stage: Stage, found: list[Received]) -> bool:
    """Has a new consumer found dead letters? Their topic comes with the first one; till then some clients fail to start
    and others to receive."""
    with suppress(Refused):
        doctor = stage.program.simple(DOCTORS, f"%DLQ%{stage.group}", await_s=AWAIT_S)
        with suppress(Refused):
            found += stage.take(doctor)
        doctor.close()
    return bool(found)
