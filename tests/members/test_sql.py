"""The rows of members: written when they come and go, and not in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from popserver.catalog import groups
from popserver.cluster import sql as cluster_sql
from popserver.cluster.sql import Heartbeat
from popserver.database.notifications import MEMBERS, Invalidation
from popserver.filters import sql as filters_sql
from popserver.filters import tags
from popserver.filters.subscription import topic_filters
from popserver.members import sql as members_sql
from popserver.members.rules import Member
from popserver.members.sql import ClearMembers, JoinGroup, LeaveGroup
from popserver.model.errors import ConsumerGroupNotFound, TooManyRequests
from popserver.model.group import Group, Mode, Model
from popserver.model.names import Resource
from tests.support.builders import GROUP, TOPIC
from tests.support.open_store import SECOND, START_MS, OpenStore

LONG = "a IS NULL AND " * 100 + "b = 'x\"y'"
WANTS = topic_filters([(TOPIC, tags.parse("a || b")), (Resource("north", "refunds"), filters_sql.parse(LONG))])
TOLD = {Invalidation(MEMBERS, *GROUP)}


@pytest.fixture
def group(store: OpenStore) -> Group:
    return store.group()


def join(store: OpenStore, group: Group, client_id: str = "c1", server_id: str = "a", **more: Any) -> None:
    wish = {"model": Model.CLUSTERING, "filters": WANTS} | more
    store.one(members_sql.attend, JoinGroup(group, client_id, server_id, **wish))


def part(store: OpenStore, group: Group, client_id: str = "c1", server_id: str = "a") -> None:
    store.one(members_sql.attend, LeaveGroup(group, client_id, server_id))


def listed(store: OpenStore) -> list[str]:
    return [each.client_id for each in members_sql.members_of(store.conn, GROUP)]


def test_a_member_is_listed_as_it_came(store: OpenStore, group: Group) -> None:
    join(store, group, model=Model.BROADCASTING)
    assert members_sql.members_of(store.conn, GROUP) == [Member("c1", Model.BROADCASTING, WANTS, START_MS)]
    assert store.outdated == TOLD


@pytest.mark.row("J2")
def test_members_are_listed_by_client_id_on_either_database(store: OpenStore, group: Group) -> None:
    names = ["b", "B", "a-1", "a1", "a_1", "é", "10.0.0.1@7"]
    for name in names:
        join(store, group, name)
    assert listed(store) == sorted(names)


def test_what_all_members_say_has_a_limit(store: OpenStore, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    join(store, group, "c1")
    size = store.one_value("SELECT LENGTH(client_id) + LENGTH(subscription) FROM member")
    monkeypatch.setattr(members_sql, "MEMBERS_BYTES_MAX", 3 * size)
    join(store, group, "c2")
    others = [JoinGroup(group, name, "a", Model.CLUSTERING, WANTS) for name in ("c3", "c4")]
    taken, refused = store.do(members_sql.attend, *others)
    assert taken is None
    assert isinstance(refused, TooManyRequests)
    assert all(
        each in refused.sentence for each in ("'c4'", f"{4 * size} characters", f"at most {3 * size} are allowed")
    )
    assert listed(store) == ["c1", "c2", "c3"]
    join(store, group, "c2", model=Model.BROADCASTING)
    part(store, group, "c1")
    join(store, group, "c4")


def test_what_nobody_would_see_is_neither_written_nor_told(store: OpenStore, group: Group) -> None:
    join(store, group)
    before = store.digest()
    store.now_ms += SECOND
    join(store, group)
    assert store.outdated == set()
    assert store.digest() == before


def test_a_member_that_changes_servers_stays_the_same_to_the_others(store: OpenStore, group: Group) -> None:
    join(store, group)
    store.now_ms += SECOND
    join(store, group, server_id="b")
    assert store.outdated == set()
    part(store, group, server_id="a")
    assert store.outdated == set()
    (only,) = members_sql.members_of(store.conn, GROUP)
    assert only.joined_at_ms == START_MS
    part(store, group, server_id="b")
    assert (listed(store), store.outdated) == ([], TOLD)


@pytest.mark.row("G6")
def test_another_subscription_or_model_is_told(store: OpenStore, group: Group) -> None:
    join(store, group)
    join(store, group, filters=WANTS[:1])
    assert store.outdated == TOLD
    join(store, group, filters=WANTS[:1], model=Model.BROADCASTING)
    assert store.outdated == TOLD


def test_several_in_one_transaction_are_taken_in_turn(store: OpenStore, group: Group) -> None:
    came = JoinGroup(group, "c1", "a", Model.CLUSTERING, WANTS)
    gone = LeaveGroup(group, "c1", "a")
    turns: list[JoinGroup | LeaveGroup] = [
        came,
        gone,
        came,
        replace(came, client_id="c2"),
        LeaveGroup(group, "c3", "a"),
    ]
    store.do(members_sql.attend, *turns)
    assert listed(store) == ["c1", "c2"]
    turns = [gone, came]
    store.do(members_sql.attend, *turns)
    assert (listed(store), store.outdated) == (["c1", "c2"], set())


def test_a_group_that_is_gone_has_no_members(store: OpenStore, group: Group) -> None:
    join(store, group)
    store.one(groups.delete_group, groups.DeleteGroup(GROUP))
    with pytest.raises(ConsumerGroupNotFound, match="'billing' does not exist"):
        join(store, group, "c2")
    with pytest.raises(ConsumerGroupNotFound):
        listed(store)
    assert members_sql.group_view_of(store.conn, GROUP) is None
    store.purge()
    assert store.one_value("SELECT COUNT(*) FROM member") == 0


def test_the_numbers_change_with_the_members_and_with_resets(store: OpenStore, group: Group) -> None:
    seen = [members_sql.group_view_of(store.conn, GROUP)]
    join(store, group)
    seen.append(members_sql.group_view_of(store.conn, GROUP))
    join(store, group, "c2")
    seen.append(members_sql.group_view_of(store.conn, GROUP))
    assert len(set(seen)) == 3
    part(store, group, "c2")
    assert members_sql.group_view_of(store.conn, GROUP) == seen[1]
    store.meet(group, store.topic(queues=2), Mode.PULL)
    store.conn.exec_driver_sql("UPDATE progress SET resets = 2")
    standing = members_sql.group_view_of(store.conn, GROUP)
    assert standing is not None
    assert seen[1] is not None
    assert (standing.members, standing.resets) == (seen[1].members, 4)


def test_who_has_the_database_for_itself_begins_without_members(store: OpenStore, group: Group) -> None:
    join(store, group)
    store.one(members_sql.clear_members, ClearMembers())
    assert listed(store) == []


def test_members_of_a_server_that_is_gone_are_forgotten(store: OpenStore, group: Group) -> None:
    for server_id in ("a", "b"):
        store.one(cluster_sql.heartbeat, Heartbeat(server_id, "", judges=True))
        join(store, group, f"at-{server_id}", server_id)
    join(store, group, "at-nowhere", "c")
    store.one(cluster_sql.heartbeat, Heartbeat("a", "", judges=False))
    assert listed(store) == ["at-a", "at-b", "at-nowhere"]
    store.one(cluster_sql.heartbeat, Heartbeat("a", "", judges=True))
    assert (listed(store), store.outdated) == (["at-a", "at-b"], TOLD)
    store.now_ms += 35 * SECOND - 1
    store.one(cluster_sql.heartbeat, Heartbeat("a", "", judges=True))
    assert (listed(store), store.outdated) == (["at-a", "at-b"], set())
    store.now_ms += 1
    store.one(cluster_sql.heartbeat, Heartbeat("a", "", judges=True))
    assert (listed(store), store.outdated) == (["at-a"], TOLD)
