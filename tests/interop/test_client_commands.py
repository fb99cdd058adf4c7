"""What an operator asks of official clients. The Python client knows none of the commands (protocol 3.4)."""

from __future__ import annotations

import pytest

from popclient import Producer
from popclient.admin import Admin, Trial
from popserver.in_process import EmbeddedBroker
from tests.interop.official import Program
from tests.interop.seen import until


@pytest.mark.row("O8")
@pytest.mark.parametrize("language", ["node"], indirect=True)
def test_the_node_client_answers(broker: EmbeddedBroker, program: Program) -> None:
    """It has no threads to print, tries no messages out, and opens its session anew."""
    producer, consumer = program.producer("flights"), program.push("counters", "flights")
    message_id = producer.send("flights", "first").message_id
    assert consumer.hear()[0].message_id == message_id
    with Admin(broker.endpoint) as admin:
        (found,) = admin.list_clients("counters")
        assert (found.client_type, found.connected) == ("PUSH_CONSUMER", True)
        assert admin.print_threads(found.client_id) == "mock stack"
        assert admin.verify_message(found.client_id, message_id) == Trial("NOT_IMPLEMENTED", "")
        before = broker.app.broker.sessions.commands._streams[found.client_id]
        admin.reconnect_client(found.client_id)
        until(lambda: broker.app.broker.sessions.commands._streams.get(found.client_id, before) is not before)
    producer.send("flights", "second")
    assert consumer.hear()[0].body == "second"


@pytest.mark.row("O8")
@pytest.mark.timeout(900)  # the first of a language builds its program
@pytest.mark.parametrize(
    ("language", "in_its_threads", "outcome"),
    [
        ("java", "java.lang.Thread.run", "OK"),
        ("go", "goroutine 1 [", "NOT_IMPLEMENTED"),
    ],
    indirect=["language"],
)
def test_java_and_go_answer(broker: EmbeddedBroker, program: Program, in_its_threads: str, outcome: str) -> None:
    """Java's listener consumes the message, and Go's client says that it tries none out."""
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        admin.create_topic("elsewhere")
        message_id = producer.send("elsewhere", "body").message_id
        producer.send("flights", "body")
        program.push("counters", "flights")
        until(lambda: [each.connected for each in admin.list_clients("counters")] == [True])
        (found,) = admin.list_clients("counters")
        assert in_its_threads in admin.print_threads(found.client_id)
        assert admin.verify_message(found.client_id, message_id).outcome == outcome
        (elsewhere,) = [each for each in admin.list_topics() if each.name == "elsewhere"]
        assert elsewhere.message_count == 1
        assert "elsewhere" not in {each.topic for each in admin.get_group("counters").lag}, "the group has not met it"
