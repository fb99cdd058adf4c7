"""What one page asks of the server and of the console has limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from popclient.admin import Policy, User
from popclient.aio import Admin
from popconsole.pages import topics, users
from popconsole.paging import PAGE
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_scheduled_messages_are_read_until_their_bodies_are_large(
    site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "BODIES_MAX", 1_000)
    due = datetime.fromtimestamp(site.broker.clock.now_ms() / 1_000, UTC) + timedelta(hours=1)
    for topic in ("first", "second", "third"):
        admin_server.call("CreateTopic", topic=named(topic), accept_message_types=[pb.DELAY])
        admin_server.send(topic, f"m-{topic}", body=b"a" * 600, delivery_timestamp=due)
    page = site.get("/scheduled")
    assert "m-first" in page and "m-second" in page and "m-third" not in page
    assert "more are not counted" in page
    assert "m-third" in site.get("/scheduled?topic=third")


def test_newest_messages_are_read_until_their_bodies_are_large(
    site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "BODIES_MAX", 1_000)
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=4, accept_message_types=[pb.NORMAL])
    ids = [f"m-{number}" for number in range(12)]
    for each in ids:
        admin_server.send("flights", each, body=b"a" * 1_100)
    page = site.get("/topics/flights")
    assert "not all queues are shown" in page
    assert 0 < sum(f"/messages/{each}?" in page for each in ids) < len(ids)


def test_the_matrix_of_users_has_pages(guarded_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_users(_: Admin) -> list[User]:
        return [User(f"user-{number:03}", False, None, NOW) for number in range(PAGE + 10)]

    async def list_policies(_: Admin, name: str | None = None) -> list[Policy]:
        return [
            Policy(number, f"user-{number:03}", "ALLOW", ("PUB",), "TOPIC", "", f"topic-{number:03}", NOW)
            for number in range(users.COLUMNS_MAX + 7)
        ]

    guarded_site.sign_in("root", "s3cret-key")
    monkeypatch.setattr(Admin, "list_users", list_users)
    monkeypatch.setattr(Admin, "list_policies", list_policies)
    page = guarded_site.get("/users")
    assert "1 to 50 of 60" in page and "7 more patterns are not shown" in page
    assert page.count("<tr>") == PAGE + 1
    assert page.count("● PUB") == users.COLUMNS_MAX
