"""What a server tells of a group by the settings of its members' sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from popclient import ClientConfig
from popclient._session.session import Session
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import OK, ScriptedServer, until


@pytest.fixture
async def session() -> AsyncIterator[tuple[Session, list[str], ScriptedServer]]:
    """A session of a member, the notices it was told, and its server."""
    heard: list[str] = []
    async with ScriptedServer() as server:
        session = Session(ClientConfig(endpoints=server.endpoints), pb.PULL_CONSUMER, "g", pb.Subscription)
        session.client_properties["popmq.model"] = "CLUSTERING"
        session.on_notice = heard.append
        await session.start()
        yield session, heard, server
        await session.close(0)


def settings(**properties: str) -> rpc.TelemetryCommand:
    named = {f"popmq.{name}": value for name, value in properties.items()}
    return rpc.TelemetryCommand(status=OK, settings=pb.Settings(client_properties=named))


async def test_a_member_tells_its_client_properties(session: tuple[Session, list[str], ScriptedServer]) -> None:
    _, heard, server = session
    assert server.settings[0].client_properties["popmq.model"] == "CLUSTERING"
    assert server.settings[0].client_properties["popmq.client"]
    assert heard == []


async def test_only_what_has_changed_is_a_notice(session: tuple[Session, list[str], ScriptedServer]) -> None:
    _, heard, server = session
    server.say(settings(members="7"))
    await until(lambda: heard == ["popmq.members"])
    server.say(settings(members="7"))
    server.say(settings(members="7", resets="1"))
    await until(lambda: heard == ["popmq.members", "popmq.resets"])
    server.say(settings(members="8", resets="1"))
    await until(lambda: heard == ["popmq.members", "popmq.resets", "popmq.members"])


async def test_what_has_changed_while_the_session_was_away_is_a_notice(
    session: tuple[Session, list[str], ScriptedServer],
) -> None:
    _, heard, server = session

    def changed(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
        reply.settings.client_properties["popmq.members"] = "9"
        return reply

    server.answers["Telemetry"] = changed
    server.drop_streams()
    await until(lambda: heard == ["popmq.members"])
