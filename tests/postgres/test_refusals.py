"""A start that Postgres refuses says what was refused, by whom, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from popserver.database import migrate
from popserver.database.database import Database, plain_errors
from popserver.model.errors import Internal, PopError, StoreFull, StoreUnavailable
from popserver.postgres import connections, sessions
from tests.support.postgres import PostgresServer, fresh_database, postgres_server
from tests.support.server_process import refused

# Who may connect: the first line that fits.
_HBA = """
host all in_secret 127.0.0.1/32 scram-sha-256
hostssl all with_tls 127.0.0.1/32 trust
host all with_tls 127.0.0.1/32 reject
"""


@pytest.fixture(scope="module")
def strict() -> Iterator[PostgresServer]:
    """A Postgres with roles that may not do everything."""
    with postgres_server(own=True) as server:
        hba = server.data / "pg_hba.conf"
        hba.write_text(_HBA + hba.read_text())
        with psycopg.connect(server.url, autocommit=True) as conn:
            conn.execute("SELECT pg_reload_conf()")
            for role in ("in_secret", "with_tls", "limited", "outside", "plain"):
                conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'".encode())
            conn.execute("CREATE ROLE nologin")
            conn.execute("ALTER ROLE limited CONNECTION LIMIT 0")
            conn.execute("CREATE DATABASE closed")
            conn.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
            conn.execute("CREATE DATABASE shut")
            conn.execute("ALTER DATABASE shut ALLOW_CONNECTIONS false")
        yield server


def _at(server: PostgresServer, role: str, database: str = "postgres", options: str = "") -> str:
    return f"postgresql://{role}@127.0.0.1:{server._port}/{database}{options}"


@pytest.mark.parametrize(
    ("role", "database", "options", "says"),
    [
        ("plain", "nowhere", "", 'does not exist (FATAL:  database "nowhere" does not exist); create the database'),
        ("nobody", "postgres", "", 'has no such role (FATAL:  role "nobody" does not exist); create it (CREATE ROLE'),
        ("in_secret:wrong", "postgres", "", "does not accept the password (FATAL:  password authentication failed"),
        ("in_secret", "postgres", "", "does not accept the password (fe_sendauth: no password supplied)"),
        ("with_tls", "postgres", "", "does not let this role in from here (FATAL:  pg_hba.conf rejects connection"),
        ("plain", "postgres", "?sslmode=require", "speaks no TLS (server does not support SSL, but SSL was required)"),
        ("limited", "postgres", "", "has no connection left (FATAL:  too many connections for role"),
        ("plain", "closed", "", 'does not let this role in (FATAL:  permission denied for database "closed"); GRANT'),
        ("nologin", "postgres", "", 'does not let this role in (FATAL:  role "nologin" is not permitted to log in)'),
        (
            "plain",
            "shut",
            "",
            'accepts no connections (FATAL:  database "shut" is not currently accepting connections)',
        ),
        (
            "plain",
            "postgres",
            "?sslmode=maybe",
            'with these options (invalid sslmode value: "maybe"); mend that option',
        ),
        ("plain", "postgres", "?service=none", 'with these options (definition of service "none" not found)'),
    ],
)
def test_a_connection(strict: PostgresServer, role: str, database: str, options: str, says: str) -> None:
    url = _at(strict, role, database, options)
    with closing(Database(url)) as opened, pytest.raises(StoreUnavailable) as raised:
        migrate.upgrade(opened)
    sentence = raised.value.sentence
    assert says in sentence
    assert sentence.startswith(opened.name)
    assert "does not answer" not in sentence
    assert "wrong" not in sentence


def test_all_connections_are_taken(strict: PostgresServer) -> None:
    with ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(strict.url))
        opened = stack.enter_context(closing(Database(_at(strict, "plain"))))
        with pytest.raises(StoreUnavailable, match=r"has no connection left .*; raise max_connections"):
            migrate.upgrade(opened)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("SELECT 1", r"does not permit this to the role \(permission denied for schema public.*; let it own"),
        ("DROP SCHEMA public", r"has no schema for PopMQ's tables \(no schema has been selected.*CREATE SCHEMA"),
        ("GRANT CREATE ON SCHEMA public TO plain; CREATE VIEW public.message_state AS SELECT 1",
         r'has an object of another program with a name of ours \(relation "message_state" already exists'),
        ("GRANT CREATE ON SCHEMA public TO plain; CREATE TABLE public.message (n integer)",
         r"has tables of another program \(message\); choose an empty database"),
        ("GRANT CREATE ON SCHEMA public TO plain; SET allow_in_place_tablespaces = on;"
         " CREATE TABLESPACE away LOCATION ''; ALTER ROLE plain SET default_tablespace = away",
         r"does not permit this to the role \(permission denied for tablespace away"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_made(strict: PostgresServer, prepare: str, says: str) -> None:
    with fresh_database(strict) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            for each in prepare.split("; "):
                conn.execute(each.encode())
        try:
            with closing(Database(_as(url, "plain"))) as opened, pytest.raises(StoreUnavailable, match=says) as raised:
                migrate.upgrade(opened)
            assert "whether it took effect" not in raised.value.sentence
        finally:
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("ALTER ROLE plain RESET default_tablespace")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("REVOKE ALL ON topic FROM PUBLIC", r"does not permit this to the role \(permission denied for table topic\)"),
        ("GRANT ALL ON ALL TABLES IN SCHEMA public TO outside; ALTER TABLE topic ENABLE ROW LEVEL SECURITY",
         r"does not permit this .* \(query would be affected by row-level security policy .*row-level security hides"),
        ("GRANT ALL ON ALL TABLES IN SCHEMA public TO outside; ALTER TABLE topic RENAME COLUMN accepts TO taken",
         r'does not have the schema that this popmq uses \(column "accepts" does not exist'),
        ("GRANT ALL ON ALL TABLES IN SCHEMA public TO outside; ALTER TABLE topic RENAME TO topics",
         r'does not have the schema that this popmq uses \(relation "topic" does not exist'),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used(strict: PostgresServer, harm: str, says: str) -> None:
    with fresh_database(strict) as url:
        with closing(Database(url)) as opened:
            migrate.upgrade(opened)
        with psycopg.connect(url, autocommit=True) as conn:
            for each in harm.split("; "):
                conn.execute(each.encode())
        with (
            closing(Database(_as(url, "outside"))) as opened,
            pytest.raises(StoreUnavailable, match=says),
            opened.read() as conn,
        ):
            conn.execute(text("SELECT accepts FROM topic"))


def test_tables_in_a_schema_that_the_path_has_not(strict: PostgresServer) -> None:
    """A second, empty broker would be made, and nobody would find the messages."""
    with fresh_database(strict) as url:
        with closing(Database(url)) as opened:
            migrate.upgrade(opened)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE SCHEMA app")
            conn.execute(f"ALTER DATABASE {make_url(url).database} SET search_path = app".encode())
        says = r"has PopMQ's tables in the schema public, and its search_path is app; .*\?options=-csearch_path%3Dapp"
        with closing(Database(url)) as opened, pytest.raises(StoreUnavailable, match=says):
            migrate.upgrade(opened)
        with closing(Database(f"{url}?options=-csearch_path%3Dpublic")) as opened:
            assert migrate.revision(opened) == migrate.HEAD
        with closing(Database(f"{url}?options=-csearch_path%3Dapp")) as opened:
            assert migrate.upgrade(opened) is None, "a second one, because the URL asks for it"
            assert migrate.upgrade(opened) == migrate.HEAD


def test_a_lock_of_another_program(strict: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = sessions.BEGIN.replace(f"'{sessions.LOCK_TIMEOUT_S}s'", "'50ms'")
    monkeypatch.setattr(connections, "BEGIN", brief)
    with fresh_database(strict) as url, psycopg.connect(url) as other:
        other.execute(migrate.LOCK.encode())
        says = r"waits for another program's lock .*pg_blocking_pids"
        with closing(Database(url)) as opened, pytest.raises(StoreUnavailable, match=says):
            migrate.upgrade(opened)


# As Postgres would say it with `lc_messages = 'de_DE.UTF-8'`.
@pytest.mark.parametrize(
    ("state", "kind", "says"),
    [
        ("53100", StoreFull, "the disk of .* is full .*free some space"),
        ("53200", StoreUnavailable, "is out of memory"),
        ("42501", StoreUnavailable, "does not permit this to the role"),
        ("42P01", StoreUnavailable, "does not have the schema that this popmq uses"),
        ("55P03", StoreUnavailable, "waits for another program's lock"),
        ("57014", StoreUnavailable, "was asked to cancel this"),
        ("58030", StoreUnavailable, "cannot use its disk"),
        ("XX001", StoreUnavailable, "is damaged .*restore it from a backup"),
        ("25006", StoreUnavailable, "accepts no writes now"),
        ("22012", Internal, r"refused a statement \(Fehler\); it changed nothing, repeat"),
    ],
)
def test_no_word_of_the_server_is_read(postgres_url: str, state: str, kind: type[PopError], says: str) -> None:
    raises = f"DO $$ BEGIN RAISE EXCEPTION 'Fehler' USING ERRCODE = '{state}'; END $$"
    with (
        closing(Database(postgres_url)) as opened,
        pytest.raises(kind, match=says) as raised,
        plain_errors(opened.name),
        opened.reading.connect() as conn,
    ):
        conn.exec_driver_sql(raises)
    assert type(raised.value) is kind


def test_a_server_says_it(strict: PostgresServer) -> None:
    done = refused(_at(strict, "plain"))
    assert done.returncode == 1
    assert "does not permit this to the role (permission denied for schema public" in done.stderr
    assert "whether it took effect" not in done.stderr
    done = refused(_at(strict, "plain", options="?pool_size=5"))
    assert done.returncode == 1
    assert "has the option 'pool_size', which Postgres' libpq does not know; leave it out" in done.stderr


def _as(url: str, role: str) -> str:
    return make_url(url).set(username=role).render_as_string(hide_password=False)
