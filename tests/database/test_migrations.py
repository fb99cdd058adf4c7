"""The migrations end at the schema the code speaks, on both databases, and keep what is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import metadata
from popserver.database.views import VIEWS
from popserver.model.errors import StoreUnavailable
from popserver.model.retry import Holder
from popserver.model.states import SHOWN, State
from tests.support.open_store import HOUR, SECOND, OpenStore
from tests.support.postgres import PostgresServer, fresh_database


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database's URL."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, durability="relaxed")
    yield opened
    opened.close()


def revisions() -> list[str]:
    """Every revision, the oldest first."""
    script = ScriptDirectory(str(migrate.script_location()))
    return [each.revision for each in script.walk_revisions()][::-1]


def migrated(database: Database) -> dict[str, Any]:
    """What the migrations make of an empty database."""
    with database.writing.connect() as conn:
        database.begin(conn)
        migrate._run("upgrade", conn, migrate.HEAD)
        conn.exec_driver_sql("COMMIT")
        return shape(conn)


def shape(conn: Connection) -> dict[str, Any]:
    """Everything about a schema that a statement could notice."""
    inspector = inspect(conn)
    tables = sorted(set(inspector.get_table_names()) - {"alembic_version"})
    return {
        "tables": {name: _table(conn, name) for name in tables},
        "views": {
            name: _words(str(inspector.get_view_definition(name))) for name in sorted(inspector.get_view_names())
        },
        "functions": _functions(conn),
    }


def _functions(conn: Connection) -> list[str]:
    """Text, owner's rights and grants of ours."""
    if conn.dialect.name == "sqlite":
        return []
    query = "SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc WHERE proname LIKE 'popmq%'"
    return sorted(conn.execute(text(query)).scalars())


def _table(conn: Connection, name: str) -> dict[str, Any]:
    inspector = inspect(conn)
    return {
        "columns": _columns(conn, name),
        "primary key": inspector.get_pk_constraint(name)["constrained_columns"],
        "unique": _sorted(inspector.get_unique_constraints(name), "name", "column_names"),
        "checks": _sorted(inspector.get_check_constraints(name), "name", "sqltext"),
        "indexes": _indexes(conn, name),
        "storage": _storage(conn, name),
    }


def _columns(conn: Connection, name: str) -> list[tuple[Any, ...]]:
    """On SQLite in their order, which is how they lie on the page."""
    found = [(each["name"], str(each["type"]), each["nullable"]) for each in inspect(conn).get_columns(name)]
    return found if conn.dialect.name == "sqlite" else sorted(found)


def _indexes(conn: Connection, name: str) -> list[str]:
    """On SQLite the statements that made them: SQLAlchemy does not read an index of an expression."""
    if conn.dialect.name == "sqlite":
        made = text("SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :name AND sql IS NOT NULL")
        return sorted(_words(sql) for sql in conn.execute(made, {"name": name}).scalars())
    found = inspect(conn).get_indexes(name)
    return _sorted(found, "name", "column_names", "expressions", "unique", "dialect_options")


def _sorted(found: Any, *keys: str) -> list[str]:
    return sorted(_words(str([_plain(each.get(key)) for key in keys])) for each in found)


def _plain(value: Any) -> Any:
    return {key: str(each) for key, each in value.items()} if isinstance(value, dict) else value


_OPTIONS = text(
    "SELECT relname, reloptions FROM pg_class WHERE relname = :name"
    " OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = CAST(:name AS regclass)) ORDER BY relname"
)


def _storage(conn: Connection, name: str) -> object:
    """WITHOUT ROWID and AUTOINCREMENT; the fill factor, and what is set for indexes."""
    if conn.dialect.name == "postgresql":
        return conn.execute(_OPTIONS, {"name": name}).all()
    made = conn.execute(text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": name}).scalar_one()
    return ["WITHOUT ROWID" in made, "AUTOINCREMENT" in made]


def _words(sql: str) -> str:
    return re.sub(r"[\s()]+", " ", sql).strip()


@pytest.mark.row("O2")
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")  # `_indexes` reads it
def test_the_migrations_end_at_the_schema(database: Database) -> None:
    by_steps = migrated(database)
    assert set(by_steps["tables"]) == set(metadata.tables)
    assert set(by_steps["views"]) == set(VIEWS)
    migrate.downgrade(database, "base")
    migrate.upgrade(database)
    with database.writing.connect() as conn:
        assert shape(conn) == by_steps
        assert len(by_steps["functions"]) == (0 if database.is_sqlite else 2)


def test_the_code_and_the_migrations_agree_on_the_head() -> None:
    assert revisions()[-1] == migrate.HEAD
    assert revisions() == sorted(revisions()), "they are compared as text"


def test_from_nothing_to_the_head_and_back(database: Database) -> None:
    assert migrate.revision(database) is None
    with pytest.raises(StoreUnavailable, match="has no schema yet; create it with: popmq db upgrade"):
        migrate.check(database)
    assert migrate.upgrade(database) is None
    migrate.check(database)
    assert migrate.upgrade(database) == migrate.HEAD, "it was there already"
    migrate.downgrade(database, "base")
    assert migrate.revision(database) is None
    with database.writing.connect() as conn:
        assert set(inspect(conn).get_table_names()) <= {"alembic_version", "sqlite_sequence"}
        assert inspect(conn).get_view_names() == []
    migrate.upgrade(database)
    migrate.check(database)


@pytest.mark.row("O2")
@pytest.mark.parametrize("start", revisions())
def test_rows_in_every_state_survive_the_way_from_each_revision(database: Database, start: str) -> None:
    migrate.upgrade(database)
    store = OpenStore(database)
    states = fill(store)
    assert set(states.values()) == set(SHOWN)
    before = store.digest()
    store.conn.close()
    migrate.downgrade(database, start)
    migrate.upgrade(database)
    after = OpenStore(database)
    group = after.rows("SELECT group_id FROM consumer_group")
    assert len(group) == 1
    assert after.digest() == before
    after.check()
    after.conn.close()


def fill(store: OpenStore) -> dict[str, State]:
    """Messages in every state, in a group of their own."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 6, tag="A", keys=("k",), properties={"p": "v"})
    acked, dead, waiting, again, _held = store.receive(group, topic, 5, holder=Holder.PUSH, invisible_ms=HOUR)
    store.ack(group, acked)
    store.forward(group, dead)
    store.change(group, waiting, HOUR)
    store.change(group, again, SECOND, give_back=True)
    return store.states(group)


def test_a_schema_newer_than_the_code_is_refused(database: Database) -> None:
    migrate.upgrade(database)
    with database.writing.connect() as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for refuse in (migrate.upgrade, migrate.check):
        with pytest.raises(StoreUnavailable, match="has schema 9999, newer than this popmq's"):
            refuse(database)
    assert migrate.revision(database) == "9999"


@pytest.mark.parametrize("older", ["0001", "0016"])
def test_a_schema_that_no_migration_leads_from_is_refused(database: Database, older: str) -> None:
    """Schemas of development versions."""
    migrate.upgrade(database)
    with database.writing.connect() as conn:
        conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{older}'")
    for refuse in (migrate.upgrade, migrate.check):
        with pytest.raises(StoreUnavailable, match=f"has schema {older} of a development version"):
            refuse(database)
    assert migrate.revision(database) == older


def test_a_schema_older_than_the_code_is_named(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate.upgrade(database)
    found = migrate.HEAD
    monkeypatch.setattr(migrate, "HEAD", "8888")
    with pytest.raises(StoreUnavailable, match=rf"has schema {found}, this popmq needs 8888.*popmq db upgrade"):
        migrate.check(database)


def test_another_programs_tables_are_left_alone(database: Database) -> None:
    with database.writing.connect() as conn:
        conn.exec_driver_sql("CREATE TABLE message (theirs INTEGER)")
    with pytest.raises(StoreUnavailable, match=r"has tables of another program \(message\)"):
        migrate.upgrade(database)
    with database.writing.connect() as conn:
        assert inspect(conn).get_table_names() == ["message"]


def test_a_failed_upgrade_leaves_nothing_behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VIEWS, "broken", "SELECT nothing FROM nowhere WHERE")
    with pytest.raises(Exception, match=r"refused a statement|does not have the schema"):
        migrate.upgrade(database)
    assert migrate.revision(database) is None
    monkeypatch.undo()
    migrate.upgrade(database)
    migrate.check(database)
