"""Lists that are longer than one answer, and counts that are computed for a part of all groups."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from popclient.admin import Admin
from popproto.v2 import definition_pb2 as pb
from popserver.administration import facts
from popserver.catalog import facts as catalog_facts
from popserver.model.names import Resource
from tests.support.admin_server import AdminServer, named
from tests.support.builders import an_id

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def admin_server(either_admin_server: AdminServer) -> AdminServer:
    return either_admin_server


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flow", "rpc"):
        monkeypatch.setattr(f"popserver.administration.{module}.PAGE_MAX", 2)


def shown(answer: Any, kind: str) -> list[str]:
    assert answer.status.code == pb.OK, answer.status
    found = answer.topics if kind == "topic" else answer.groups
    return [f"{name.resource_namespace}/{name.name}" for name in (getattr(each, kind) for each in found)]


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("kind", ["topic", "group"])
def test_pages_of_topics_and_groups(admin_server: AdminServer, kind: str) -> None:
    for name in [*reversed(NAMES), "eu/a", "eu/b", "eu/c"]:
        made = (
            admin_server.call("CreateTopic", topic=named(name))
            if kind == "topic"
            else admin_server.call("CreateGroup", group=named(name))
        )
        assert made.status.code == pb.OK
    method = f"List{kind.title()}s"
    first = admin_server.call(method)
    assert (shown(first, kind), first.status.message) == (["/a", "/b"], f"the first 2 of 8 {kind}s")
    assert first.next_after.name == "b"
    second = admin_server.call(method, after=first.next_after)
    assert (shown(second, kind), second.status.message) == (["/c", "/d"], "OK")
    after_the_last_of_one = admin_server.call(method, after=named("d"))
    assert shown(after_the_last_of_one, kind) == ["/e", "eu/a"]
    last = admin_server.call(method, after=named("eu/c"))
    assert (shown(last, kind), last.HasField("next_after")) == ([], False)
    of_one = admin_server.call(method, namespace="eu")
    assert (shown(of_one, kind), of_one.status.message) == (["eu/a", "eu/b"], f"the first 2 of 3 {kind}s")
    assert shown(admin_server.call(method, namespace="eu", after=of_one.next_after), kind) == ["eu/c"]


@pytest.mark.usefixtures("short_pages")
def test_the_client_gets_all_of_them(admin_server: AdminServer) -> None:
    for name in NAMES:
        admin_server.call("CreateTopic", topic=named(name))
        admin_server.make_group(name)
    with Admin(admin_server.server.endpoint) as admin:
        assert [each.name for each in admin.list_topics()] == NAMES
        assert [each.name for each in admin.list_groups()] == NAMES
        assert [each.name for each in admin.list_topics(max_topics=3)] == NAMES[:3]
        assert [each.name for each in admin.list_groups(max_groups=4)] == NAMES[:4]


def test_the_lag_of_the_first_groups_is_that_of_the_view(admin_server: AdminServer) -> None:
    """Only the groups and topics that are shown are counted."""
    for group, topics in (("a", ["x"]), ("b", ["x", "y", "z"]), ("c", ["x"]), ("unused", []), ("eu/a", ["y"])):
        admin_server.make_group(group)
        for topic in topics:
            admin_server.send(topic, an_id(), an_id())
            admin_server.receive(group, topic, 1)

    def view(conn: Any) -> list[Any]:
        order = "ORDER BY group_namespace, consumer_group, topic_namespace, topic"
        return list(conn.execute(text(f"SELECT consumer_group, topic, ready, inflight FROM group_lag {order}")))

    read = admin_server.server.app.broker.engine.reader.read
    whole = [
        (row.consumer_group, row.topic, int(row.ready), int(row.inflight))
        for row in admin_server.server.run(read(view))
    ]
    assert len(whole) == 6
    for limit in (1, 2, 3, 4, 5, 6, 7):
        found = admin_server.server.run(read(partial(facts.group_lag, group_id=None, limit=limit)))
        assert [(each.group.name, each.topic.name, each.ready, each.inflight) for each in found] == whole[:limit]

    def of_b(conn: Any) -> list[facts.Lag]:
        found = catalog_facts.group(conn, Resource("", "b"))
        return facts.group_lag(conn, found.group_id, 2)

    assert [(each.group.name, each.topic.name) for each in admin_server.server.run(read(of_b))] == [
        ("b", "x"),
        ("b", "y"),
    ]


def test_the_lag_of_queues_is_cut(admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popserver.progress.flow.LAG_MAX", 3)
    admin_server.make_group("a")
    for topic in ("x", "y"):
        admin_server.call("CreateTopic", topic=named(topic), queue_count=2)
        admin_server.send(topic, an_id())
        admin_server.receive("a", topic, 1)
    answer = admin_server.call("ListLag", group=named("a"))
    assert [(each.topic.name, each.queue_id) for each in answer.queues] == [("x", 0), ("x", 1), ("y", 0)]
    assert "first 3 of 4" in answer.status.message
    of_topic = admin_server.call("ListLag", group=named("a"), topic=named("y"))
    assert ([each.queue_id for each in of_topic.queues], of_topic.status.message) == ([0, 1], "OK")
