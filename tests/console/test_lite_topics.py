"""Lite topics in the console: of a topic, one of them, and what groups do with them."""

from __future__ import annotations

import pytest

from popconsole.pages import lite_topics
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named


@pytest.fixture
def made(either_admin_server: AdminServer) -> AdminServer:
    """Five lite topics of topic `sessions`; client `worker-1` of group `agents` subscribes to two, and holds one."""
    either_admin_server.call("CreateTopic", topic=named("sessions"), queue_count=2, accept_message_types=[pb.LITE])
    either_admin_server.sync_lite("agents", "sessions", "user-1", "user-2")
    for number in range(1, 5):
        either_admin_server.send("sessions", f"m{number}", lite_topic=f"user-{number}")
    either_admin_server.send("sessions", "m5", lite_topic="bot-1")
    assert len(either_admin_server.receive("agents", "sessions", 1)) == 1
    return either_admin_server


def test_a_topic_says_how_many_it_has(stored_site: Site, made: AdminServer) -> None:
    assert "5 lite topics" in stored_site.get("/topics")
    page = stored_site.get("/topics/sessions")
    assert 'href="/topics/sessions/lite">5 lite topics<' in page
    assert 'href="/topics/sessions/lite/user-1"' in page, "each message has its lite topic"
    assert 'name="lite_topic"' in page and 'name="message_group"' not in page
    made.call("UpdateTopic", topic=named("sessions"), lite_expiry={"seconds": 86_400})
    assert "one lives 1 d after its last message" in stored_site.get("/topics/sessions/lite")


def test_they_are_listed_searched_and_paged(
    stored_site: Site, made: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = stored_site.get("/topics/sessions/lite")
    assert all(f">{name}</a>" in page for name in ("bot-1", "user-1", "user-4")) and "Next" not in page
    monkeypatch.setattr(lite_topics, "PAGE", 2)
    first = stored_site.get("/topics/sessions/lite?prefix=user-")
    assert "user-2" in first and "user-3" not in first and "bot-1" not in first
    assert 'href="/topics/sessions/lite?prefix=user-&after=user-2"' in first
    last = stored_site.get("/topics/sessions/lite?prefix=user-&after=user-2")
    assert "user-4" in last and "Next" not in last and ">First<" in last
    assert "No lite topic has a name that begins so." in stored_site.get("/topics/sessions/lite?prefix=none")


def test_one_of_them_says_who_gets_it(stored_site: Site, made: AdminServer) -> None:
    page = stored_site.get("/topics/sessions/lite/user-1")
    assert "agents" in page and "SHARED" in page and "worker-1" in page
    assert "nobody subscribes" in stored_site.get("/topics/sessions/lite/user-3")
    assert "has no lite topic 'none'" in stored_site.get("/topics/sessions/lite/none", 404)


def test_a_group_says_its_model_and_its_subscriptions(stored_site: Site, made: AdminServer) -> None:
    assert "Model SHARED: 1 client subscribes to 2 lite topics." in stored_site.get("/groups/agents")
    made.make_group("every", lite="WILDCARD")
    assert "Model WILDCARD: its clients get all lite topics." in stored_site.get("/groups/every")


def test_a_message_is_sent_to_a_lite_topic_and_found_there(stored_site: Site, made: AdminServer) -> None:
    stored_site.post("/topics/sessions/publish", form_on="/topics/sessions", body="hello", lite_topic="user-9")
    assert "user-9" in stored_site.get("/topics/sessions/lite?prefix=user-9")
    assert "lite topic <strong>user-3</strong>" in stored_site.get("/messages/m3?topic=sessions")


def test_a_dead_letter_says_its_lite_topic(stored_site: Site, made: AdminServer) -> None:
    for message in made.receive("agents", "sessions"):
        made.give_up("agents", "sessions", message)
    letter = made.call("ListDeadLetters", selection={"group": named("agents")}).dead_letters[0].id
    assert "It is of lite topic <strong>user-" in stored_site.get(f"/dead-letters/agents/{letter}")
