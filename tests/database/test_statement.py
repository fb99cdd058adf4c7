"""Statements that the driver executes, and those that SQLAlchemy must execute."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, LargeBinary, bindparam, column, event, func, insert, literal, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from popserver.database.database import Database
from popserver.database.schema import topic
from popserver.database.statement import Statement, execute_text
from tests.support.open_store import OpenStore

_NAMED = Statement(select(topic.c.topic_id).where(topic.c.name == bindparam("name")))
_RENAME = update(topic).where(topic.c.name == bindparam("before")).values(name=bindparam("after"))


def _added(store: OpenStore, name: str) -> int:
    """The id of a new topic. The parameters of this INSERT decide which columns it writes."""
    statement = Statement(insert(topic).returning(topic.c.topic_id))
    row = {"namespace": "", "name": name, "accepts": "NORMAL", "created_at_ms": 0}
    return int(statement.execute(store.conn, row).fetchone()[0])


def test_parameters_have_names_and_the_statement_has_its_own(store: OpenStore) -> None:
    known = _added(store, "flights")
    assert _NAMED.execute(store.conn, {"name": "flights", "unused": 1}).fetchall() == [(known,)]
    assert _NAMED.execute(store.conn, {"name": "others"}).fetchone() is None
    constant = Statement(select(literal(7) + bindparam("more", type_=topic.c.topic_id.type)))
    assert constant.execute(store.conn, {"more": 1}).fetchone() == (8,)
    assert constant.execute(store.conn, {"more": 2}).fetchone() == (9,)


def test_a_send_takes_its_offsets_by_the_driver_alone(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, executed, execute = store.topic(queues=1), list[str](), Connection.execute

    def watched(conn: Connection, statement: Any, *given: Any, **named: Any) -> Any:
        executed.append(str(statement))
        return execute(conn, statement, *given, **named)

    monkeypatch.setattr(Connection, "execute", watched)
    store.send(topic)
    assert not [each for each in executed if each.startswith("UPDATE queue")]


def test_it_counts_changed_rows(store: OpenStore) -> None:
    _added(store, "flights")
    assert Statement(_RENAME).execute(store.conn, {"before": "flights", "after": "trains"}).rowcount == 1
    assert Statement(_RENAME).execute(store.conn, {"before": "flights", "after": "trains"}).rowcount == 0


def test_values_that_need_a_conversion_are_converted(store: OpenStore) -> None:
    known = _added(store, "flights")
    several = Statement(select(topic.c.topic_id).where(topic.c.name.in_(bindparam("names", expanding=True))))
    assert several.execute(store.conn, {"names": ["flights", "trains"]}).fetchall() == [(known,)]
    assert several.execute(store.conn, {"names": ["trains"]}).fetchall() == []
    truth = Statement(select((topic.c.name == bindparam("name")).label("is_it")).where(topic.c.topic_id == known))
    assert truth.execute(store.conn, {"name": "flights"}).fetchone()[0] is True
    length = Statement(select(func.length(bindparam("data", type_=LargeBinary)), bindparam("same", type_=LargeBinary)))
    assert length.execute(store.conn, {"data": b"\x00\xff", "same": b"\x00"}).fetchone() == (2, b"\x00")


def test_errors_are_those_of_sqlalchemy(store: OpenStore) -> None:
    _added(store, "flights")
    _added(store, "trains")
    with pytest.raises(IntegrityError):
        Statement(_RENAME).execute(store.conn, {"before": "flights", "after": "trains"})
    with pytest.raises(DBAPIError):
        Statement(select(column("nowhere"))).execute(store.conn, {})
    with pytest.raises(DBAPIError):
        execute_text(store.conn, "SELECT nowhere")


def test_listeners_of_a_connection_are_called(store: OpenStore) -> None:
    seen: list[str] = []
    event.listen(store.conn, "before_cursor_execute", lambda *given: seen.append(given[2]))
    known = _added(store, "flights")
    assert _NAMED.execute(store.conn, {"name": "flights"}).fetchone() == (known,)
    assert [each.split()[0] for each in seen] == ["INSERT", "SELECT"]


def test_a_lost_connection_is_known_as_lost(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.connect_writer() as conn, pytest.raises(DBAPIError) as lost:
        execute_text(conn, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert lost.value.connection_invalidated
    database.close()
