"""A SQL filter tried on what is stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from popproto.v1 import admin_pb2 as admin
from popserver.administration import filter_trial
from tests.support.admin_server import AdminServer, named


def tried(
    admin_server: AdminServer, expression: str, last: timedelta | None = None, **fields: Any
) -> admin.TryFilterResponse:
    request = admin.TryFilterRequest(topic=named("flights"), expression=expression, **fields)
    if last is not None:
        request.last.FromTimedelta(last)
    return admin_server.admin.TryFilter(request)


def counts(answer: admin.TryFilterResponse) -> tuple[int, int, int, bool]:
    return answer.examined, answer.matched, answer.incomparable, answer.complete


def ids(answer: admin.TryFilterResponse) -> list[str]:
    return [each.system_properties.message_id for each in answer.messages]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_trial, "STEP_MESSAGES", 4)


def test_what_it_would_have_wanted(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=2)
    for number in range(20):
        admin_server.send(
            "flights", f"m{number}", properties={"a": str(number)}, tag="even" if number % 2 == 0 else "odd"
        )
        admin_server.server.clock.advance("1m")
    admin_server.send("flights", "text", properties={"a": "x"})
    admin_server.send("flights", "none", properties={})
    before = admin_server.digest()
    answer = tried(admin_server, "a >= 15 AND TAGS = 'odd'")
    assert counts(answer) == (22, 3, 1, True)
    assert ids(answer) == ["m19", "m17", "m15"], "newest first"
    first = answer.messages[0]
    assert (first.topic.name, dict(first.user_properties), first.body) == ("flights", {"a": "19"}, b"")
    assert first.system_properties.tag == "odd"
    assert first.system_properties.HasField("store_timestamp")
    shown = tried(admin_server, "a IS NOT NULL", max=3)
    assert (shown.matched, ids(shown)) == (21, ["text", "m19", "m18"])
    assert counts(tried(admin_server, "a IS NOT NULL", last=timedelta(minutes=5))) == (7, 6, 0, True)
    assert admin_server.digest() == before
    assert len(admin_server.receive("counters", "flights")) == 22


def test_the_place_of_a_match(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=2)
    for number in range(6):
        admin_server.send("flights", f"m{number}")
    peeked = {
        each.system_properties.message_id: (each.system_properties.queue_id, each.system_properties.queue_offset)
        for each in admin_server.call("PeekMessages", topic=named("flights")).messages
    }
    matches = tried(admin_server, "colour = 'red'").messages
    found = {
        each.system_properties.message_id: (each.system_properties.queue_id, each.system_properties.queue_offset)
        for each in matches
    }
    assert found == peeked


def test_an_empty_topic(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"))
    assert counts(tried(admin_server, "a = 1")) == (0, 0, 0, True)


@pytest.mark.parametrize(("examined_max", "examined", "complete"), [(10, 10, False), (12, 12, False), (26, 24, True)])
def test_no_more_than_a_share_of_each_queue(
    admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch, examined_max: int, examined: int, complete: bool
) -> None:
    monkeypatch.setattr(filter_trial, "EXAMINED_MAX", examined_max)
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=2)
    for number in range(24):
        admin_server.send("flights", f"m{number}")
        admin_server.server.clock.advance(1)
    answer = tried(admin_server, "TRUE")
    assert counts(answer) == (examined, examined, 0, complete)
    assert ids(answer)[0] == "m23"
