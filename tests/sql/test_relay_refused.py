"""A relay whose producer is refused ends, and says why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine

from popclient import ClientConfig, Producer, Unauthorized, sql
from popclient.sql import Relay
from popserver import embedded
from tests.support.scripted_server import until_in_thread


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    engine = create_engine(sqlite_url)
    sql.metadata.create_all(engine)
    with engine.begin() as conn:
        sql.enqueue(conn, "orders", "1")
    yield engine
    engine.dispose()


def test_a_relay_with_wrong_credentials_ends(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with embedded(auth=True, admin_access_key="root", admin_secret="root-has-a-secret") as broker:
        producer = Producer(ClientConfig(broker.endpoint, access_key="root", access_secret="wrong"))
        relay = Relay(engine, producer)
        with pytest.raises(Unauthorized, match="the access key or the signature was refused"):
            relay.run()
        assert (relay.healthy, relay.waiting()) == (False, 1)
        with Relay(engine, producer) as in_a_thread:
            until_in_thread(lambda: not in_a_thread.healthy)
        producer.close()
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert [each.partition(": ")[0] for each in said] == ["the relay ends, and the outbox waits"]


def test_a_topic_that_is_refused_is_told_once(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popclient.sql.relay.TOPIC_PAUSE", 0.01)
    with embedded(auto_create=False) as broker, Producer(broker.endpoint) as producer:
        relay = Relay(engine, producer, poll_interval=0.01)
        moves: list[int] = []
        until_in_thread(lambda: moves.append(relay.move().left) or len(moves) > 5)
        assert relay.healthy
    said = [each.getMessage() for each in caplog.records if "the messages of topic orders wait" in each.getMessage()]
    assert len(said) == 1
