"""`popclient.sql` in a session of the user's own, whatever it is set to."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from popclient import MessageView, SimpleConsumer, sql
from popclient.admin import Admin
from popclient.errors import HoldLost
from popserver import EmbeddedBroker, embedded
from tests.support.hostile_settings import HOSTILE

# Those that end the user's session or statements are the user's own.
_KEPT = {name: value for name, value in HOSTILE.items() if "timeout" not in name and name != "role"}
# Those that a superuser alone may set, or that a database does not have.
_LEFT_OUT = {"default_table_access_method", "default_tablespace", "temp_tablespaces", "default_transaction_isolation"}


def _session(url: str, settings: dict[str, str]) -> Engine:
    with psycopg.connect(url) as conn:
        known = {row[0].lower() for row in conn.execute("SELECT name FROM pg_settings")}
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items() if name.lower() in known}
    options = " ".join(f"-c {name}={value}" for name, value in escaped.items())
    return create_engine(make_url(url).set(drivername="postgresql+psycopg"), connect_args={"options": options})


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_hostile_session(broker: EmbeddedBroker, postgres_url: str, isolation: str) -> None:
    settings = {name: value for name, value in _KEPT.items() if name not in _LEFT_OUT}
    engine = _session(postgres_url, settings | {"default_transaction_isolation": isolation})
    with SimpleConsumer(broker.endpoint, "billing", "orders", await_duration=0) as consumer:
        consumer.receive(1)  # the topic is there
        with engine.begin() as conn:
            sent = sql.enqueue(conn, "orders", b"\\x00\xff", tag="Söder", keys=["NULL", "a\\S"], properties={"S": "\\"})
        with pytest.raises(Exception, match="tag '  ' is blank"), engine.begin() as conn:
            conn.execute(text("SELECT popmq_enqueue('orders', 'x', tag => '  ')"))
        (message,) = _received(consumer)
        assert (message.message_id, message.body, message.tag) == (sent, b"\\x00\xff", "Söder")
        assert (list(message.keys), dict(message.properties)) == (["NULL", "a\\S"], {"S": "\\"})
        with engine.begin() as conn:
            sql.ack(conn, message)
    engine.dispose()


def test_a_search_path_without_the_brokers_schema(broker: EmbeddedBroker, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA app")
    engine = _session(postgres_url, {"search_path": "app"})
    with SimpleConsumer(broker.endpoint, "billing", "orders", await_duration=0) as consumer:
        consumer.receive(1)
        with engine.begin() as conn:
            sql.enqueue(conn, "orders", b"m")
        (message,) = _received(consumer)
        with engine.begin() as conn:
            sql.ack(conn, message)
    engine.dispose()


def test_of_two_brokers_in_a_database_the_search_path_of_each_session_chooses(postgres_url: str) -> None:
    names = ("one", "two")
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        for name in names:
            conn.execute(f"CREATE SCHEMA {name}")
    engine = _session(postgres_url, {})
    with ExitStack() as running:
        brokers = [running.enter_context(embedded(f"{postgres_url}?options=-csearch_path%3D{name}")) for name in names]
        for broker in brokers:
            with Admin(broker.endpoint) as admin:
                admin.create_topic("orders", queue_count=1)
        for name in names:
            with engine.begin() as conn:
                conn.execute(text(f"SET LOCAL search_path = {name}"))
                sql.enqueue(conn, "orders", name)
        for name, broker in zip(names, brokers, strict=True):
            with SimpleConsumer(broker.endpoint, "billing", "orders", await_duration=0) as consumer:
                assert [each.body for each in _received(consumer)] == [name.encode()]
                assert consumer.receive(1) == []
    engine.dispose()


def test_a_message_that_came_after_the_snapshot(broker: EmbeddedBroker, postgres_url: str) -> None:
    engine = _session(postgres_url, {"default_transaction_isolation": "repeatable read"})
    with SimpleConsumer(broker.endpoint, "billing", "orders", await_duration=0) as consumer:
        consumer.receive(1)
        with engine.begin() as conn:
            sql.enqueue(conn, "orders", b"m")
        with engine.connect() as conn:
            conn.execute(text("SELECT count(*) FROM pg_class"))
            (message,) = _received(consumer)
            with pytest.raises(HoldLost, match=r"delivered after the transaction's first statement.*receive before"):
                sql.ack(conn, message)
    engine.dispose()


def _received(consumer: SimpleConsumer) -> list[MessageView]:
    for _ in range(100):
        if messages := consumer.receive(1, await_duration=1):
            return messages
    raise AssertionError("nothing came")
