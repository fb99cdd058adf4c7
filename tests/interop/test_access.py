"""Official clients that sign, at a server that wants it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popclient.admin import Admin
from popclient.config import ClientConfig
from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.interop.official import Refused, Start
from tests.interop.seen import Lag, Seen, until

SECRET = "correct-horse"
ALICE = ("alice", SECRET)
ROOT = ("root", "root-has-a-secret")
UNAUTHORIZED, FORBIDDEN = 40100, 40300
POLICIES = ("ALLOW PUB,SUB TOPIC flights", "ALLOW SUB GROUP count*")


@pytest.fixture
def guarded() -> Iterator[EmbeddedBroker]:
    """Alice may use the topic `flights` and the group `counters`."""
    with embedded(manual_clock=True, auth=True, admin_access_key=ROOT[0], admin_secret=ROOT[1]) as broker:
        with Admin(ClientConfig(broker.endpoint, access_key=ROOT[0], access_secret=ROOT[1])) as admin:
            admin.create_user(*ALICE)
            for policy in POLICIES:
                effect, actions, kind, pattern = policy.split()
                admin.add_policy("alice", effect, actions.split(","), kind, pattern)
        yield broker


def test_right_keys_send_and_receive(guarded: EmbeddedBroker, start_at: Start, language: str) -> None:
    program = start_at(language, guarded.endpoint, signing=ALICE)
    sent = program.producer("flights").send("flights", "signed")
    consumer = program.simple("counters", "flights")
    (message,) = consumer.receive()
    assert (message.message_id, message.body) == (sent.message_id, "signed")
    handle = consumer.change_invisible(message, 60)
    consumer.ack(message, handle)
    assert Seen(guarded).lag("counters", "flights") == Lag(stored=1)


def test_right_keys_are_pushed_to(guarded: EmbeddedBroker, start_at: Start, language: str) -> None:
    program = start_at(language, guarded.endpoint, signing=ALICE)
    consumer = program.push("counters", "flights")
    program.producer("flights").send("flights", "signed")
    assert [message.body for message in consumer.hear()] == ["signed"]
    until(lambda: Seen(guarded).lag("counters", "flights").is_done)


@pytest.mark.parametrize(
    "signing", [("alice", "wrong-secret"), ("nobody", SECRET), None], ids=["wrong secret", "unknown", "unsigned"]
)
def test_wrong_keys_fail_cleanly(
    guarded: EmbeddedBroker, start_at: Start, language: str, signing: tuple[str, str] | None
) -> None:
    """It says so, the server lives, and nothing was stored."""
    program = start_at(language, guarded.endpoint, signing=signing)
    for open_client in (
        lambda: program.producer("flights").send("flights", "unsigned"),
        lambda: program.simple("counters", "flights").receive(),
    ):
        with pytest.raises(Refused) as refused:
            open_client()
        assert SECRET not in str(refused.value)
    right = start_at(language, guarded.endpoint, signing=ALICE)
    right.producer("flights").send("flights", "signed")
    assert [message.body for message in right.simple("counters", "flights").receive()] == ["signed"]
    assert Seen(guarded).lag("counters", "flights").stored == 1


def test_what_no_policy_allows_is_refused(guarded: EmbeddedBroker, start_at: Start, language: str) -> None:
    program = start_at(language, guarded.endpoint, signing=ALICE)
    producer = program.producer("flights")
    producer.send("flights", "allowed")
    with pytest.raises(Refused):
        producer.send("trains", "not allowed")
    with pytest.raises(Refused):
        program.simple("others", "flights").receive()
    assert [message.body for message in program.simple("counters", "flights").receive()] == ["allowed"]
