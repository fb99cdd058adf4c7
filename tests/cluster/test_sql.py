"""Servers that share a database, and the push consumers they have heard of."""

from __future__ import annotations

import pytest

from popserver.cluster import sql as cluster_sql
from popserver.cluster.sql import AdoptClients, AttachClient, DetachClient, Heartbeat, Leave, Server
from popserver.database.notifications import EVERYTHING, SERVERS
from popserver.delivery import holds
from popserver.model.retry import Holder
from tests.support.open_store import SECOND, OpenStore


@pytest.fixture
def servers(store: OpenStore) -> OpenStore:
    """With two of them, a and b, there since now."""
    beat(store, "a", "10.0.0.1:8081")
    beat(store, "b", "10.0.0.2:8081")
    return store


def beat(store: OpenStore, server_id: str, address: str = "", *, judges: bool = True) -> cluster_sql.HeartbeatResult:
    return store.one(cluster_sql.heartbeat, Heartbeat(server_id, address, judges))


def attend(store: OpenStore, *requests: AttachClient | DetachClient) -> list[bool]:
    return [bool(each) for each in store.do(cluster_sql.attend, *requests)]


def clients(store: OpenStore) -> list[tuple[str, str]]:
    return [tuple(row) for row in store.rows("SELECT client_id, server_id FROM client ORDER BY 1, 2")]


def test_the_first_beat_is_told_and_the_next_is_not(store: OpenStore) -> None:
    assert beat(store, "a").others == ()
    assert store.words == {SERVERS}
    beat(store, "a")
    assert store.words == set()


def test_a_new_address_is_told(store: OpenStore) -> None:
    beat(store, "a")
    beat(store, "a", "10.0.0.1:8081")
    assert store.words == {SERVERS}
    assert beat(store, "b").others == (Server("a", "10.0.0.1:8081"),)
    beat(store, "a", "10.0.0.1:8081")
    assert store.words == set()


def test_servers_see_each_other_until_they_are_silent(servers: OpenStore) -> None:
    assert beat(servers, "a", "10.0.0.1:8081").others == (Server("b", "10.0.0.2:8081"),)
    servers.now_ms += cluster_sql.SERVER_LAPSE_MS - 1
    assert beat(servers, "a").others == (Server("b", "10.0.0.2:8081"),)
    servers.now_ms += 1
    assert beat(servers, "a").others == ()


def test_those_that_are_known_are_the_newest_of_each_address(servers: OpenStore) -> None:
    def known() -> list[tuple[str, str, bool]]:
        found = cluster_sql.known(servers.conn, servers.now_ms)
        return [(each.server_id, each.address, each.is_running) for each in found]

    beat(servers, "c")
    a, b, c = ("a", "10.0.0.1:8081", True), ("b", "10.0.0.2:8081", True), ("c", "", True)
    assert known() == [c, a, b]
    servers.one(cluster_sql.leave, Leave("c"))
    servers.now_ms += cluster_sql.SERVER_LAPSE_MS
    beat(servers, "a", "10.0.0.1:8081")
    assert known() == [a, ("b", "10.0.0.2:8081", False)], "b was killed, c has left"
    beat(servers, "again", "10.0.0.2:8081")
    assert known() == [a, ("again", "10.0.0.2:8081", True)]


def test_one_that_leaves_is_told_and_keeps_its_address(servers: OpenStore) -> None:
    leaving = Heartbeat("b", "10.0.0.2:8081", judges=True, leaves=True)
    servers.one(cluster_sql.heartbeat, leaving)
    assert servers.words == {SERVERS}
    assert beat(servers, "a", "10.0.0.1:8081").others == (Server("b", "10.0.0.2:8081", leaves=True),)
    servers.one(cluster_sql.heartbeat, leaving)
    assert servers.words == set()
    assert [each.leaves for each in cluster_sql.known(servers.conn, servers.now_ms)] == [False, True]


def test_one_that_has_left_is_at_no_address(servers: OpenStore) -> None:
    servers.one(cluster_sql.leave, Leave("b"))
    assert servers.words == {SERVERS}
    assert beat(servers, "a").others == (Server("b", "", leaves=True),)
    assert [each.server_id for each in cluster_sql.known(servers.conn, servers.now_ms)] == ["a"]


def test_of_two_at_one_address_the_newer_comes_first(servers: OpenStore) -> None:
    servers.now_ms += SECOND
    beat(servers, "c", "10.0.0.2:8081")
    assert [each.server_id for each in beat(servers, "a").others] == ["c", "b"]


def test_a_welcome_is_for_everybody_and_everything(store: OpenStore) -> None:
    store.one(cluster_sql.adopt_clients, AdoptClients())
    assert store.words == {EVERYTHING}


def test_a_client_is_gone_when_its_last_server_has_lost_it(servers: OpenStore) -> None:
    attend(servers, AttachClient("c1", "a"))
    attend(servers, AttachClient("c1", "b"), AttachClient("c1", "b"))
    assert clients(servers) == [("c1", "a"), ("c1", "b")]
    assert attend(servers, DetachClient("c1", "a")) == [False]
    assert attend(servers, DetachClient("c1", "b")) == [True]
    assert clients(servers) == []


def test_a_goodbye_counts_everywhere(servers: OpenStore) -> None:
    attend(servers, AttachClient("c1", "a"), AttachClient("c1", "b"), AttachClient("c2", "b"))
    assert attend(servers, DetachClient("c1", "a", everywhere=True)) == [True]
    assert clients(servers) == [("c2", "b")]


def test_an_unknown_client_is_gone(servers: OpenStore) -> None:
    assert attend(servers, DetachClient("nobody", "a")) == [True]


def test_several_in_one_transaction_are_taken_in_turn(servers: OpenStore) -> None:
    asked = (AttachClient("c1", "a"), DetachClient("c1", "a"), AttachClient("c1", "a"), DetachClient("c2", "a"))
    assert attend(servers, *asked) == [False, True, False, True]
    assert clients(servers) == [("c1", "a")]


def test_a_silent_servers_clients_are_left_behind_after_their_time(servers: OpenStore) -> None:
    attend(servers, AttachClient("c1", "b"), AttachClient("c2", "b"), AttachClient("c2", "a"))
    servers.now_ms += 35 * SECOND - 1
    assert beat(servers, "a").left_behind == ()
    servers.now_ms += 1
    assert sorted(beat(servers, "a").left_behind) == ["c1", "c2"]
    assert attend(servers, DetachClient("c1", "a", inherits=True), AttachClient("c2", "a", inherits=True)) == [
        True,
        False,
    ]
    assert clients(servers) == [("c2", "a")]
    assert beat(servers, "a").left_behind == ()
    assert servers.words == {SERVERS}, "it is forgotten now"
    assert servers.one_value("SELECT COUNT(*) FROM server") == 1


def test_who_was_away_itself_does_not_judge(servers: OpenStore) -> None:
    attend(servers, AttachClient("c1", "b"))
    servers.now_ms += 3_600 * SECOND
    assert beat(servers, "a", judges=False).left_behind == ()
    assert attend(servers, DetachClient("c1", "a")) == [False]


def test_the_newest_beat(servers: OpenStore) -> None:
    began_ms = servers.now_ms
    servers.now_ms += 5
    beat(servers, "b")
    assert cluster_sql.newest_heartbeat_ms(servers.conn) == began_ms + 5


def test_holders_that_no_server_answers_for(servers: OpenStore) -> None:
    topic = servers.topic()
    group = servers.group(meets=[topic])
    servers.send(topic, 2)
    for client_id in ("c1", "c2"):
        servers.receive(group, topic, 1, holder=Holder.PUSH, client_id=client_id)
    attend(servers, AttachClient("c1", "a"))
    assert holds.unattended_push_clients(servers.conn) == ["c2"]
