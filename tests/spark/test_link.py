"""A Spark process's session with a server: there while it is used."""

from __future__ import annotations

import asyncio

import grpc
import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient import ClientConfig, FilterExpression, PopError, Producer, UnsupportedByServer
from popclient._session.session import Session
from popclient.admin import Admin
from popclient.message import MessageQueue
from popclient.spark import bulk
from popclient.spark import link as links
from popclient.spark.link import link_to
from popserver.in_process import EmbeddedBroker
from tests.spark.queue.seen import Seen
from tests.support.scripted_server import ServerThread, StreamEnd, until_in_thread

ALL = FilterExpression()


def test_a_session_that_is_not_used_ends_and_the_next_question_opens_another(
    pop_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE_S", 0.05)
    link = link_to(ClientConfig(pop_server.endpoint), "reports")
    for _ in range(2):
        assert link.ask(_is_open)
        until_in_thread(lambda: link._session is None)


@pytest.mark.usefixtures("short_handshake")
def test_a_server_without_such_a_session_offers_nothing_and_is_not_asked_again() -> None:
    """As RocketMQ's proxy answers this type of client."""
    with ServerThread(capabilities="") as server:
        server.server.answers["Telemetry"] = lambda _: StreamEnd(
            grpc.StatusCode.INTERNAL, "Client type is not consumer"
        )
        link = link_to(ClientConfig(server.endpoints), "reports")
        assert not link.offers("bulk")
        with pytest.raises(UnsupportedByServer, match="QueryOffset is not offered"):
            link.ask(_is_open)


@pytest.mark.row("O9")
def test_a_server_that_opens_a_session_and_has_no_pulls_is_refused_each_time() -> None:
    """As a proxy that heeds no client type: the session is up, so it alone says nothing."""
    with ServerThread(capabilities="") as server:
        link = link_to(ClientConfig(server.endpoints), "reports")
        for _ in range(2):
            with pytest.raises(UnsupportedByServer, match="QueryOffset is not offered"):
                link.ask(_is_open)
        link.close()


def test_a_session_stays_while_somebody_asks(pop_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "IDLE_S", 0)
    link = link_to(ClientConfig(pop_server.endpoint), "reports")

    async def long(session: Session) -> bool:
        await asyncio.to_thread(link.offers, "bulk")
        return link._alarm is None and await _is_open(session)

    assert link.ask(long)
    until_in_thread(lambda: link._session is None)


def test_a_question_that_comes_with_the_alarm_has_a_session(pop_server: EmbeddedBroker) -> None:
    """In one turn of the loop: the alarm is due already, and cannot be cancelled."""
    link = link_to(ClientConfig(pop_server.endpoint), "reports")
    assert link.ask(_is_open)

    async def at_once() -> bool:
        with link._in_use():
            link._close_if_idle()
            await link._tasks.ended()
            return await _is_open(await link._present())

    assert link._thread.run(at_once)


def test_a_pull_outlives_a_pause_of_its_reader(pop_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may take long over a chunk; then it goes on, in another session."""
    seen = Seen(pop_server.endpoint)
    with Admin(pop_server.endpoint) as admin:
        admin.create_topic("flights", queue_count=1)
    seen.send(100)
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_MESSAGES_MAX", 40)
    monkeypatch.setattr(links, "IDLE_S", 0.2)
    link = link_to(ClientConfig(pop_server.endpoint), "reports")
    chunks = []
    for chunk in bulk.pull(link, MessageQueue("flights", 0), 0, 100, expression=ALL, columns=["queue_offset"]):
        if chunk.next_offset is not None:
            chunks.append(chunk.next_offset)
            until_in_thread(lambda: link._session is None)
    assert chunks == [40, 80, 100]


def test_a_server_that_fails_for_ever_is_given_up(pop_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each of its answers begins well."""
    with Producer(pop_server.endpoint) as producer:
        producer.send("flights", b"x")
    monkeypatch.setattr("popserver.bulk.rpc._made", None)
    link = link_to(ClientConfig(pop_server.endpoint, request_timeout=0.3), "reports")
    with pytest.raises(PopError, match="the server failed on PullBulk"):
        list(bulk.pull(link, MessageQueue("flights", 0), 0, 100, expression=ALL, columns=["queue_offset"]))


async def _is_open(session: Session) -> bool:
    await session.start()
    return session.healthy and not session.closing
