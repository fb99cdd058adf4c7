"""The official clients over TLS, as they are switched to it; and beside clients that speak plaintext."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import popclient
from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.interop.official import Refused, Start
from tests.support.certificates import Authority

BOTH = pytest.mark.builtin("TLS and plaintext on one port")


@pytest.fixture(params=[pytest.param("permissive", marks=BOTH), "tls"])
def secured(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A broker with a certificate of its own making, `tls/cert.pem`."""
    with embedded(manual_clock=True, tls=request.param, tls_dir=tmp_path / "tls") as broker:
        yield broker


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return tmp_path / "tls" / "cert.pem"


def test_messages_pass(secured: EmbeddedBroker, start_at: Start, language: str, certificate: Path) -> None:
    program = start_at(language, secured.endpoint, trusting=certificate)
    sent = program.producer("flights").send("flights", "over TLS")
    consumer = program.simple("counters", "flights")
    (message,) = consumer.receive()
    assert (message.message_id, message.body, message.corrupted) == (sent.message_id, "over TLS", False)
    consumer.ack(message)


def test_a_push_consumer_is_served(secured: EmbeddedBroker, start_at: Start, language: str, certificate: Path) -> None:
    program = start_at(language, secured.endpoint, trusting=certificate)
    consumer = program.push("counters", "flights")
    program.producer("flights").send("flights", "over TLS")
    assert [message.body for message in consumer.hear()] == ["over TLS"]


@BOTH
def test_both_kinds_share_one_port(tmp_path: Path, start_at: Start, language: str, certificate: Path) -> None:
    with embedded(manual_clock=True, tls="permissive", tls_dir=tmp_path / "tls") as broker:
        over_tls = start_at(language, broker.endpoint, trusting=certificate)
        plain = start_at(language, broker.endpoint)
        for sender, receiver, body in ((over_tls, plain, "to plaintext"), (plain, over_tls, "to TLS")):
            sender.producer("flights").send("flights", body)
            consumer = receiver.simple("counters", "flights")
            (message,) = consumer.receive()
            assert message.body == body
            consumer.ack(message)


@BOTH
def test_a_certificate_it_does_not_know_is_refused(
    tmp_path: Path, start_at: Start, language: str, certificate: Path
) -> None:
    with embedded(manual_clock=True, tls="permissive", tls_dir=tmp_path / "tls") as broker:
        program = start_at(language, broker.endpoint, trusting=Authority(tmp_path, "another").ca)
        with pytest.raises(Refused):
            program.producer("flights").send("flights", "never")
        with popclient.SimpleConsumer(broker.endpoint, "counters", "flights") as consumer:
            assert consumer.receive(await_duration=0) == []


def test_plaintext_is_not_let_in_where_tls_alone_is_spoken(tmp_path: Path, start_at: Start, language: str) -> None:
    with embedded(manual_clock=True, tls="tls", tls_dir=tmp_path / "tls") as broker:
        with pytest.raises(Refused):
            start_at(language, broker.endpoint).producer("flights").send("flights", "never")
        trusting = popclient.ClientConfig(
            endpoints=broker.endpoint, tls=popclient.Tls(ca=tmp_path / "tls" / "cert.pem")
        )
        with popclient.SimpleConsumer(trusting, "counters", "flights") as consumer:
            assert consumer.receive(await_duration=0) == []
