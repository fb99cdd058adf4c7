"""A Spark process's session with a server: there while it is used."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient import ClientConfig
from popclient._session import Session
from popclient.spark import link as links
from popclient.spark.link import link_to
from popserver.in_process import EmbeddedBroker
from tests.client.scripted import until_in_thread


def test_a_session_that_is_not_used_ends_and_the_next_question_opens_another(
    pop_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE_S", 0.05)
    link = link_to(ClientConfig(pop_server.endpoint), "reports")
    for _ in range(2):
        assert link.ask(_is_open)
        until_in_thread(lambda: link._session is None)


def test_a_session_stays_while_somebody_asks(pop_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "IDLE_S", 0)
    link = link_to(ClientConfig(pop_server.endpoint), "reports")

    async def long(session: Session) -> bool:
        await asyncio.to_thread(link.offers, "bulk")
        await asyncio.sleep(0.02)  # for an alarm that another's question had set
        return await _is_open(session)

    assert link.ask(long)
    until_in_thread(lambda: link._session is None)


async def _is_open(session: Session) -> bool:
    await session.start()
    return session.healthy and not session.closing
