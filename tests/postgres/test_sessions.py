"""Each kind of connection to Postgres has the settings that PopMQ's SQL relies on, whatever database and role have."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from popserver.database import migrate
from popserver.database.check import check_unused
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from popserver.postgres.sessions import BY_INDEX, PINNED, REQUIRED, Pinned
from tests.support.builders import in_order
from tests.support.hostile_settings import HOSTILE, SEARCH_PATH, UNHARMED, WAYS, alter, hostile_database
from tests.support.open_store import OpenStore, ids
from tests.support.postgres import PostgresServer, fresh_database
from tests.support.waiting import soon

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"
KINDS = ("writer", "reader", "reader by index", "listener", "autocommit")
_ASKED = "SELECT " + ", ".join(f"current_setting('{each.name}', true)" for each in PINNED)
_PATH = "SELECT current_setting('search_path')"


def test_each_setting_has_a_hostile_value() -> None:
    _, _, rest = PAGE.read_text().partition("## What may have any value\n")
    may_be_any = re.findall(r"^\| `(\w+)` \|", rest.partition("\n## ")[0], re.MULTILINE)
    assert HOSTILE.keys() == {each.name for each in PINNED} | set(may_be_any)
    assert not {each.name for each in PINNED if HOSTILE[each.name] == each.value} - {"row_security"}


@pytest.fixture(scope="module", params=WAYS)
def world(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[str]:
    """A database with all hostile values at once, and with PopMQ's tables."""
    with hostile_database(postgres, request.param, HOSTILE) as url:
        with closing(Database(url)) as database:
            migrate.upgrade(database)
        alter(url, request.param, {"search_path": SEARCH_PATH})
        yield url


@pytest.fixture(scope="module")
def found(world: str) -> dict[str, dict[str, str | None]]:
    """The settings of each kind of connection."""
    database = Database(world)
    rows: dict[str, tuple[str | None, ...]] = {}
    with closing(database):
        with database.connect_writer() as conn:
            rows["writer"] = tuple(conn.exec_driver_sql(_ASKED).one())
        with database.read() as conn:
            rows["reader"] = tuple(conn.exec_driver_sql(_ASKED).one())
        with database.read(by_index=True) as conn:
            rows["reader by index"] = tuple(conn.exec_driver_sql(_ASKED).one())
        with database.reading.connect() as conn:
            rows["autocommit"] = tuple(conn.exec_driver_sql(_ASKED).one())

        async def listener() -> tuple[str | None, ...]:
            async with await database.connections.connect_async() as conn:
                return tuple(await (await conn.execute(_ASKED.encode())).fetchone() or ())

        rows["listener"] = asyncio.run(listener())
    return {kind: {each.name: value for each, value in zip(PINNED, row, strict=True)} for kind, row in rows.items()}


@pytest.mark.parametrize("setting", PINNED, ids=[each.name for each in PINNED])
def test_a_pinned_setting(found: dict[str, dict[str, str | None]], setting: Pinned) -> None:
    by_index = BY_INDEX.get(setting.name, setting.value)
    expected = {kind: by_index if kind in {"writer", "reader by index"} else setting.value for kind in KINDS}
    told = {kind: found[kind][setting.name] for kind in KINDS}
    assert told == expected or set(told.values()) == {None}, "None: this Postgres does not have it"


def test_a_writing_transaction_is_read_committed(world: str) -> None:
    with closing(Database(world)) as database, database.connect_writer() as conn:
        database.begin(conn)
        assert conn.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
        conn.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        conn.exec_driver_sql("ROLLBACK")
        database.begin(conn)
        assert conn.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
        conn.exec_driver_sql("ROLLBACK")


def test_tables_are_found_and_made_behind_hostile_ones(world: str) -> None:
    with closing(Database(world)) as database, database.read() as conn:
        made = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name = 'message_group_progress'"
        (schema,) = conn.exec_driver_sql(made).scalars()
        assert conn.exec_driver_sql(_PATH).scalar() == f"{schema}, pg_temp"
        kinds = conn.exec_driver_sql("SELECT DISTINCT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam"
                                     " WHERE c.relname IN ('message', 'delivery', 'progress', 'queue')"
                                     f" AND c.relnamespace = '{schema}'::regnamespace")  # fmt: skip
        assert set(kinds.scalars()) == {"heap"}


def test_no_trigger_and_no_foreign_key_can_be_switched_off(postgres_url: str) -> None:
    """So `session_replication_role` may have any value."""
    with closing(Database(postgres_url)) as database:
        migrate.upgrade(database)
        with database.read() as conn:
            assert conn.exec_driver_sql("SELECT count(*) FROM pg_trigger").scalar() == 0


def test_a_table_of_the_session_hides_none_of_ours(postgres_url: str) -> None:
    """A pooler may leave temporary tables in a session."""
    with closing(Database(postgres_url)) as database:
        migrate.upgrade(database)
        with database.connect_writer() as conn:
            conn.exec_driver_sql("CREATE TEMP TABLE topic (n integer)")
            assert conn.execute(text("SELECT count(topic_id) FROM topic")).scalar() == 0


def test_a_schema_that_comes_first_later_changes_nothing(postgres: PostgresServer) -> None:
    with fresh_database(postgres) as url:
        with closing(Database(url)) as database:
            migrate.upgrade(database)
            OpenStore(database).topic("orders")
        name = make_url(url).database
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE SCHEMA app")
            conn.execute("CREATE TABLE app.topic (name text)")
            conn.execute(f"ALTER DATABASE {name} SET search_path = app, public".encode())
        with closing(Database(url)) as database:
            migrate.check(database)
            with database.read() as conn:
                assert conn.execute(text("SELECT name FROM topic")).scalar() == "orders"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_ack_sees_what_another_server_did_while_it_waited(
    postgres: PostgresServer, isolation: str, way: str
) -> None:
    """Server B waits for the lock of a message group while A acks its first message. With a snapshot from before the
    wait B would take its own ack for one behind an un-acked message, and the group would stand still."""
    with ExitStack() as stack:
        url = stack.enter_context(hostile_database(postgres, way, {"default_transaction_isolation": isolation}))
        one, other = (stack.enter_context(closing(Database(url))) for _ in range(2))
        migrate.upgrade(one)
        a, b = OpenStore(one), OpenStore(other)
        for opened in (a, b):
            stack.callback(opened.conn.close)
        topic = a.topic()
        group = a.group(meets=[topic])
        a.send(topic, in_order("g", 3, topic.name))
        first, second, third = a.receive(group, topic)
        waiting = threading.Thread(target=lambda: b.ack(group, second))

        def wait_for_b() -> None:
            waiting.start()
            soon(lambda: _waits_for_a_lock(url))

        a.before_commit = wait_for_b
        a.ack(group, first)
        waiting.join()
        a.check()
        assert [a.state(group, each) for each in ids([first, second, third])] == ["COMMIT", "COMMIT", "INFLIGHT"]


def _waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url, options=UNHARMED) as conn:
        return conn.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                            " AND datname = current_database()").fetchone() is not None  # fmt: skip


def test_a_server_with_a_name_of_its_own_is_seen(postgres_url: str) -> None:
    """Else its database would be restored under it."""
    with closing(Database(f"{postgres_url}?application_name=orders")) as used, used.connect_writer() as conn:
        assert conn.exec_driver_sql("SHOW application_name").scalar() == "popmq orders"
        with (
            closing(Database(postgres_url)) as other,
            other.connect_writer() as looking,
            pytest.raises(StoreUnavailable, match="is in use: popmq has 1 connections"),
        ):
            check_unused(other, looking)


@pytest.mark.parametrize("target", ["read-write", "primary"])
@pytest.mark.parametrize("way", WAYS)
def test_read_only_sessions_are_refused_by_name(postgres: PostgresServer, way: str, target: str) -> None:
    says = r"has transaction_read_only = on, not off: .*ALTER ROLE … RESET"
    with (
        hostile_database(postgres, way, {"default_transaction_read_only": "on"}) as url,
        closing(Database(f"{url}?target_session_attrs={target}")) as database,
        pytest.raises(StoreUnavailable, match=says),
    ):
        migrate.upgrade(database)


def test_another_encoding_is_refused_by_name(postgres: PostgresServer) -> None:
    name = f"{make_url(postgres.url).database}_latin1"
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0".encode())
        try:
            url = make_url(postgres.url).set(database=name).render_as_string(hide_password=False)
            says = r"has server_encoding = LATIN1, not UTF8: .*ENCODING 'UTF8'"
            with closing(Database(url)) as database, pytest.raises(StoreUnavailable, match=says):
                migrate.upgrade(database)
        finally:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_each_required_setting_has_its_test() -> None:
    assert {each.name for each in REQUIRED} == {"transaction_read_only", "server_encoding"}
